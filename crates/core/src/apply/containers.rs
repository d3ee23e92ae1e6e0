//! Containers: objects whose deletion deletes the objects in them.
//!
//! A namespace and a CustomResourceDefinition go last (see [`DeletionStep`](crate::object::DeletionStep)), and by then
//! everything in them that Starling deletes is gone. What is left in them stays on purpose, and so must they.

use crate::object::ObjectId;

/// Reports whether the deletion of `container` deletes `key`, as far as the names say it: of a definition, only the API
/// group of its kind is known here, so that an object of another kind of the group counts too.
#[must_use]
pub fn may_contain(container: &ObjectId, key: &ObjectId) -> bool {
    match instances(container) {
        Some((group, _)) => group == key.group,
        None => is_namespace(container) && container.name == key.namespace,
    }
}

/// Reports whether the deletion of an object deletes the objects in it.
#[must_use]
pub fn is_container(key: &ObjectId) -> bool {
    is_namespace(key) || instances(key).is_some()
}

/// Returns the API group and the plural of the kind that a CustomResourceDefinition defines, which its name consists
/// of; `None`: the object is no definition.
#[must_use]
pub fn instances(definition: &ObjectId) -> Option<(&str, &str)> {
    let is_definition =
        definition.group == "apiextensions.k8s.io" && definition.kind == "CustomResourceDefinition";
    let (plural, group) = definition.name.split_once('.').filter(|_| is_definition)?;
    Some((group, plural))
}

fn is_namespace(key: &ObjectId) -> bool {
    key.group.is_empty() && key.kind == "Namespace"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
        ObjectId {
            group: group.into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn a_container_contains_what_its_deletion_deletes() {
        let namespace = id("", "Namespace", "", "shop");
        let definition = id(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "",
            "queues.mq.example.org",
        );
        let map = id("", "ConfigMap", "shop", "settings");
        let queue = id("mq.example.org", "Queue", "shop", "orders");
        for (container, key, expected) in [
            (&namespace, &map, true),
            (&namespace, &queue, true),
            (&namespace, &id("", "ConfigMap", "stock", "shop"), false),
            (&namespace, &definition, false),
            (&namespace, &namespace, false),
            (&definition, &queue, true),
            (&definition, &id("example.org", "Queue", "shop", "orders"), false),
            (&definition, &map, false),
            // Kinds of the same names in other groups contain nothing.
            (&id("example.org", "Namespace", "", "shop"), &map, false),
            (&map, &id("", "Secret", "settings", "a"), false),
        ] {
            assert_eq!(may_contain(container, key), expected, "{container} {key}");
        }
        assert!(is_container(&namespace) && is_container(&definition) && !is_container(&map));
        assert_eq!(instances(&definition), Some(("mq.example.org", "queues")));
    }
}
