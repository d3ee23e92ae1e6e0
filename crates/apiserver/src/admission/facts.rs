//! What the rules of policies look at in a request.

use serde_json::{Value, json};

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// It creates the object.
    Create,
    /// It replaces or patches the object.
    Update,
    /// It deletes the object.
    Delete,
}

/// A resource in a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) plural: &'a str,
    /// The group, version and kind of the objects, which may be those of a subresource.
    pub(crate) kind: (&'a str, &'a str, &'a str),
}

/// What the rules of policies look at in a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// What the request does.
    pub(crate) operation: Operation,
    /// The resource of the path.
    pub(crate) resource: &'a Resource<'a>,
    /// The other resources and versions in which the same objects are served.
    pub(crate) equivalents: &'a [Resource<'a>],
    /// The subresource; empty for the object itself.
    pub(crate) subresource: &'a str,
    /// The name of the object; empty for an object of a collection that is deleted.
    pub(crate) name: &'a str,
    /// The namespace; a namespace is in itself.
    pub(crate) namespace: &'a str,
    /// Whether the object is a namespace.
    pub(crate) is_namespace: bool,
    /// The object as it would be stored; `None` if it is deleted.
    pub(crate) object: Option<&'a Value>,
    /// The stored object; `None` if there is none.
    pub(crate) old: Option<&'a Value>,
}

impl Operation {
    /// Returns the name, as in `request.operation`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

impl Resource<'_> {
    /// Returns the kind, as in `request.kind`.
    pub(crate) fn kind(&self) -> Value {
        let (group, version, kind) = self.kind;
        json!({"group": group, "version": version, "kind": kind})
    }

    /// Returns the resource, as in `request.resource`.
    pub(crate) fn shown(&self) -> Value {
        json!({"group": self.group, "version": self.version, "resource": self.plural})
    }
}
