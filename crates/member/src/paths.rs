//! Paths of the Kubernetes API.

use std::fmt::Write as _;

use starling_api::FIELD_MANAGER;
use starling_core::object::ObjectId;

use super::error::MemberError;
use super::resource::Resource;

/// The path of one object.
///
/// # Errors
/// [`MemberError::Address`] if the namespace does not fit the kind, or the name would name something else.
pub(super) fn object(resource: &Resource, key: &ObjectId) -> Result<String, MemberError> {
    let problem = match (resource.namespaced, key.namespace.as_str()) {
        (true, "") => Some("it needs a namespace: set metadata.namespace or targetNamespace"),
        (true, "." | "..") => Some("its namespace is not a name"),
        (false, namespace) if !namespace.is_empty() => {
            // Only if the scope was not known when the attempt began: see `scope`.
            Some(
                "its kind turned out to be cluster-scoped, so metadata.namespace has no effect; retried without it",
            )
        }
        _ if matches!(key.name.as_str(), "" | "." | "..") => Some("its name is not a name"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(MemberError::Address {
            object: key.clone(),
            problem,
        });
    }
    let mut path = version(&resource.group_version);
    if resource.namespaced {
        path.push_str("/namespaces/");
        push_segment(&mut path, &key.namespace);
    }
    for part in [&resource.plural, key.name.as_str()] {
        path.push('/');
        push_segment(&mut path, part);
    }
    Ok(path)
}

/// The path of all objects of a kind, in one namespace or in all of them.
pub(super) fn collection(resource: &Resource, namespace: Option<&str>) -> String {
    let mut path = version(&resource.group_version);
    if let Some(namespace) = namespace {
        path.push_str("/namespaces/");
        push_segment(&mut path, namespace);
    }
    path.push('/');
    push_segment(&mut path, &resource.plural);
    path
}

/// Returns the path of the collection of an object, from the path of the object.
pub(super) fn collection_of(object: &str) -> &str {
    object
        .rsplit_once('/')
        .map_or(object, |(collection, _)| collection)
}

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub(super) fn version(group_version: &str) -> String {
    let mut path = String::with_capacity(128);
    path.push_str(if group_version.contains('/') {
        "/apis"
    } else {
        "/api"
    });
    for part in group_version.split('/') {
        path.push('/');
        push_segment(&mut path, part);
    }
    path
}

/// The query of a server-side apply.
pub(super) fn apply_query(force: bool, dry_run: bool) -> String {
    let mut query = format!("?fieldManager={FIELD_MANAGER}");
    if force {
        query.push_str("&force=true");
    }
    if dry_run {
        query.push_str("&dryRun=All");
    }
    query
}

/// The value of a query parameter or a part of a path, escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    push_segment(&mut escaped, text);
    escaped
}

/// RBAC allows nearly every character in a name, so all but plain characters are escaped.
fn push_segment(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group_version: &str, plural: &'static str, namespaced: bool) -> Resource {
        Resource {
            group_version: group_version.to_owned().into(),
            plural: plural.into(),
            namespaced,
        }
    }

    fn key(namespace: &str, name: &str) -> ObjectId {
        ObjectId {
            group: String::new(),
            kind: "K".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn paths_of_objects() {
        let cases = [
            (
                "v1",
                "configmaps",
                true,
                "shop",
                "web",
                "/api/v1/namespaces/shop/configmaps/web",
            ),
            (
                "apps/v1",
                "deployments",
                true,
                "shop",
                "web",
                "/apis/apps/v1/namespaces/shop/deployments/web",
            ),
            ("v1", "namespaces", false, "", "shop", "/api/v1/namespaces/shop"),
            (
                "rbac/v1",
                "roles",
                true,
                "n",
                "system:x y/z?%",
                "/apis/rbac/v1/namespaces/n/roles/system:x%20y%2Fz%3F%25",
            ),
        ];
        for (group_version, plural, namespaced, namespace, name, expected) in cases {
            let resource = resource(group_version, plural, namespaced);
            assert_eq!(object(&resource, &key(namespace, name)).unwrap(), expected);
        }
        assert_eq!(
            collection(&resource("apps/v1", "deployments", true), None),
            "/apis/apps/v1/deployments"
        );
    }

    #[test]
    fn unaddressable_objects_are_named() {
        let cases = [
            (
                true,
                "",
                "web",
                "K web: it needs a namespace: set metadata.namespace or targetNamespace",
            ),
            (
                false,
                "shop",
                "web",
                "K shop/web: its kind turned out to be cluster-scoped, so metadata.namespace has no effect; \
                 retried without it",
            ),
            (true, "shop", "", "K shop/: its name is not a name"),
            (true, "shop", "..", "K shop/..: its name is not a name"),
            (true, "..", "web", "K ../web: its namespace is not a name"),
            (false, "", ".", "K .: its name is not a name"),
        ];
        for (namespaced, namespace, name, expected) in cases {
            let error = object(&resource("v1", "ks", namespaced), &key(namespace, name)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn the_collection_of_an_object() {
        let path = object(&resource("apps/v1", "deployments", true), &key("shop", "web")).unwrap();
        assert_eq!(collection_of(&path), "/apis/apps/v1/namespaces/shop/deployments");
    }

    #[test]
    fn queries() {
        assert_eq!(apply_query(false, false), "?fieldManager=starling");
        assert_eq!(
            apply_query(true, true),
            "?fieldManager=starling&force=true&dryRun=All"
        );
        assert_eq!(escaped("a=b&c"), "a%3Db%26c");
    }
}
