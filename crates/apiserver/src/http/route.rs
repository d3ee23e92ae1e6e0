//! The paths of requests.

/// The route that a path selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// A collection, an object or a subresource.
    Resource {
        group: String,
        version: String,
        plural: String,
        namespace: String,
        name: String,
        subresource: String,
    },
    /// A discovery or OpenAPI document; holds the segments of the path.
    Discovery(Vec<String>),
    /// Health, version and the list of paths; holds the segments of the path.
    Plain(Vec<String>),
}

impl Route {
    /// Parses a path below that of the cluster; `None` for a path that no route can have.
    ///
    /// As in Kubernetes, a path may end with a slash unless it is one of OpenAPI or of health; it has no empty step,
    /// and here no escaped slash either.
    pub(super) fn read(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let (path, has_slash) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let steps: Vec<String> = match path {
            "" if has_slash => return None,
            "" => Vec::new(),
            _ => path.split('/').map(decode).collect(),
        };
        // An escaped slash would be a step to authorization, and a part of a name here.
        if steps.iter().any(|step| step.is_empty() || step.contains('/')) {
            return None;
        }
        let texts: Vec<&str> = steps.iter().map(String::as_str).collect();
        if has_slash && matches!(texts.first(), Some(&("openapi" | "healthz" | "livez" | "readyz"))) {
            return None;
        }
        match texts.as_slice() {
            ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] | ["openapi", ..] => {
                Some(Self::Discovery(steps))
            }
            ["api", version, rest @ ..] => Self::resource("", version, rest),
            ["apis", group, version, rest @ ..] => Self::resource(group, version, rest),
            ["version"] | ["healthz" | "livez" | "readyz", ..] | [] => Some(Self::Plain(steps)),
            _ => None,
        }
    }

    fn resource(group: &str, version: &str, rest: &[&str]) -> Option<Self> {
        let (namespace, plural, name, subresource) = match rest {
            // A namespace itself and its subresources.
            ["namespaces"] => ("", "namespaces", "", ""),
            ["namespaces", name] => ("", "namespaces", *name, ""),
            ["namespaces", name, sub @ ("status" | "finalize")] => ("", "namespaces", *name, *sub),
            ["namespaces", namespace, plural] => (*namespace, *plural, "", ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name, ""),
            ["namespaces", namespace, plural, name, sub] => (*namespace, *plural, *name, *sub),
            // The path behind a proxy is that of the target.
            [
                "namespaces",
                namespace,
                plural @ ("pods" | "services"),
                name,
                sub @ "proxy",
                _,
                ..,
            ] => (*namespace, *plural, *name, *sub),
            [plural @ "nodes", name, sub @ "proxy", _, ..] => ("", *plural, *name, *sub),
            [plural] => ("", *plural, "", ""),
            [plural, name] => ("", *plural, *name, ""),
            [plural, name, sub] => ("", *plural, *name, *sub),
            _ => return None,
        };
        Some(Self::Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
        })
    }
}

/// Decodes percent escapes.
pub(super) fn decode(step: &str) -> String {
    if !step.contains('%') {
        return step.to_owned();
    }
    let mut bytes = Vec::with_capacity(step.len());
    let mut rest = step.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(path: &str) -> String {
        match Route::read(path) {
            Some(Route::Resource {
                group,
                version,
                plural,
                namespace,
                name,
                subresource,
            }) => format!("{group}|{version}|{plural}|{namespace}|{name}|{subresource}"),
            Some(Route::Discovery(_)) => "discovery".to_owned(),
            Some(Route::Plain(_)) => "plain".to_owned(),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn paths_are_parsed() {
        for (path, read) in [
            ("api/v1/pods", "|v1|pods|||"),
            ("api/v1/namespaces", "|v1|namespaces|||"),
            ("api/v1/namespaces/default", "|v1|namespaces||default|"),
            (
                "api/v1/namespaces/default/status",
                "|v1|namespaces||default|status",
            ),
            ("api/v1/namespaces/default/pods", "|v1|pods|default||"),
            ("api/v1/nodes/a/status", "|v1|nodes||a|status"),
            (
                "apis/apps/v1/namespaces/a/deployments/b/scale",
                "apps|v1|deployments|a|b|scale",
            ),
            (
                "apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
                "rbac.authorization.k8s.io|v1|clusterroles||system:node|",
            ),
            (
                "api/v1/namespaces/n/services/s/proxy/a/b",
                "|v1|services|n|s|proxy",
            ),
            ("api/v1/nodes/a/proxy/metrics", "|v1|nodes||a|proxy"),
            ("api/v1/namespaces/n/configmaps/c/proxy/a", "none"),
            ("apis", "discovery"),
            ("apis/apps/v1", "discovery"),
            ("openapi/v3/apis/apps/v1", "discovery"),
            ("version", "plain"),
            ("readyz/ping", "plain"),
            ("/api/v1/pods", "|v1|pods|||"),
            ("/api/v1/pods/", "|v1|pods|||"),
            ("/", "plain"),
            ("/api/v1/namespaces/a%2Fpods", "none"),
            ("//", "none"),
            ("//api/v1", "none"),
            ("/api//v1", "none"),
            ("/api/v1/namespaces//pods", "none"),
            ("/healthz/", "none"),
            ("/openapi/v3/", "none"),
            ("/version/", "plain"),
            ("foo", "none"),
            ("api/v1/namespaces/a/b/c/d/e", "none"),
        ] {
            assert_eq!(short(path), read, "{path}");
        }
    }
}
