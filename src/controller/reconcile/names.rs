//! Names that cross functions. Each one has a type, so that none is passed for another.

use std::fmt;

use kube::ResourceExt;

/// The UID of an object of the management cluster; empty for an object that the API server has not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::controller) struct Uid(String);

impl Uid {
    /// Returns the UID of an object.
    pub(in crate::controller) fn of<K: ResourceExt>(object: &K) -> Self {
        Self(object.uid().unwrap_or_default())
    }

    /// Returns the UID as the API writes it.
    pub(in crate::controller) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The identity of a member: the UID of its `kube-system` namespace. Empty while no probe has read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::controller) struct ClusterId(String);

impl ClusterId {
    /// Creates the identity from a probe or a status.
    pub(in crate::controller) fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Returns the identity as status contains it.
    pub(in crate::controller) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value of the owner label of a Sync's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::controller) struct OwnerLabel(String);

impl OwnerLabel {
    /// Creates the owner label of a group's entry, or of a Sync without a group.
    pub(in crate::controller) fn new(
        installation: &str,
        namespace: &str,
        owner: starling_core::target::Owner<'_>,
    ) -> Self {
        Self(starling_core::target::owner(installation, namespace, owner))
    }

    /// Returns the label as objects carry it.
    pub(in crate::controller) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the label as core and the ledger take it.
    pub(in crate::controller) fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
