//! Keys of objects of the management cluster.

use std::fmt;

use kube::ResourceExt;

/// The key of an object of the management cluster within its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectKey {
    /// Creates the key of the object `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Returns the key of an object.
    #[must_use]
    pub fn of<K: ResourceExt>(object: &K) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }

    /// Returns how status, events and errors of an object in `namespace` name this object of the same member. A member
    /// can claim any identity, so the name of an object in another namespace is not told.
    #[must_use]
    pub fn shown_to(&self, namespace: &str, kind: &str) -> String {
        if self.namespace == namespace {
            format!("{kind} {self}")
        } else {
            format!("a {kind} of another namespace")
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_a_sync_of_another_namespace_is_not_named() {
        let of = |namespace: &str| ObjectKey::new(namespace, "shop-app-m1").shown_to("team-a", "Sync");
        assert_eq!(of("team-a"), "Sync team-a/shop-app-m1");
        assert_eq!(of("team-b"), "a Sync of another namespace");
    }
}
