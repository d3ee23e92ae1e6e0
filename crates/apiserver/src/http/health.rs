//! The health checks: `/healthz`, `/livez` and `/readyz`, and one path for each of their checks.
//!
//! The names are those of a kube-apiserver without aggregated servers, in its order. What they check has no counterpart
//! here, or is done before the first request, so that every check passes.

use std::collections::BTreeSet;

use super::params::Params;

/// The checks of all three paths, up to those that only `/readyz` has.
const FIRST: [&str; 3] = ["ping", "log", "etcd"];

/// The checks that only `/readyz` has, after the first ones.
const READY: [&str; 2] = ["etcd-readiness", "informer-sync"];

/// The checks after those.
const HOOKS: [&str; 28] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// The last check of `/readyz`.
const LAST: &str = "shutdown";

/// Reports whether a path, without its leading slash, is that of health checks.
pub(super) fn is_check(first: &str) -> bool {
    matches!(first, "healthz" | "livez" | "readyz")
}

/// Returns the text of all checks of a path, or of the one that `check` names; `None` if there is no such check.
pub(super) fn answer(path: &str, check: &[&str], params: &Params) -> Option<String> {
    let names = names(path);
    if !check.is_empty() {
        return names.contains(&check.join("/").as_str()).then(|| "ok".to_owned());
    }
    if params.get("verbose").is_none() {
        return Some("ok".to_owned());
    }
    let excluded: BTreeSet<&str> = params.all("exclude").into_iter().collect();
    let mut text = String::new();
    for name in &names {
        let state = if excluded.contains(name) {
            "excluded: ok"
        } else {
            "ok"
        };
        text.push_str(&format!("[+]{name} {state}\n"));
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !names.contains(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        text.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {unknown}\n"
        ));
    }
    text.push_str(&format!("{path} check passed\n"));
    Some(text)
}

/// Returns the names of the checks of a path.
fn names(path: &str) -> Vec<&'static str> {
    let is_ready = path == "readyz";
    let ready = READY.iter().filter(|_| is_ready);
    let last = is_ready.then_some(&LAST);
    FIRST
        .iter()
        .chain(ready)
        .chain(&HOOKS)
        .chain(last)
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_and_all_of_them() {
        let answer = |path: &str, query: &str| {
            let mut steps = path.split('/');
            let first = steps.next().unwrap_or_default();
            let check: Vec<&str> = steps.collect();
            answer(first, &check, &Params::read(Some(query)))
        };
        for path in [
            "healthz",
            "livez/etcd",
            "readyz/poststarthook/rbac/bootstrap-roles",
            "readyz/shutdown",
        ] {
            assert_eq!(answer(path, "").as_deref(), Some("ok"), "{path}");
        }
        for path in [
            "healthz/nope",
            "healthz/shutdown",
            "livez/poststarthook",
            "healthz/informer-sync",
        ] {
            assert_eq!(answer(path, ""), None, "{path}");
        }
        let text = answer("readyz", "verbose&exclude=etcd&exclude=nope").unwrap_or_default();
        assert!(text.starts_with("[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n[+]etcd-readiness ok\n"));
        assert!(text.ends_with(
            "[+]shutdown ok\nwarn: some health checks cannot be excluded: no matches for \"nope\"\nreadyz check \
             passed\n"
        ));
    }
}
