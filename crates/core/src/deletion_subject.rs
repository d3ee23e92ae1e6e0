//! The subject of an approval of deletions: one Sync or entry, one cause, one target, one list (ADR 43).
//!
//! The same objects may leave a cluster for another reason, or another cluster for the same one. A digest of the list
//! alone would approve all of these.

use serde::Serialize;

use crate::digest;
use crate::inventory::{Inventory, InventoryEntry};

/// Why objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum DeletionCause {
    /// The objects are no longer in git.
    #[default]
    Prune,
    /// The release of the group lacks the entry.
    EntryRemoved,
    /// The group does not select the cluster.
    ClusterUnselected,
    /// The group is deleted.
    GroupDeleted,
    /// The Sync is deleted.
    SyncDeleted,
}

/// The owner of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ApprovalScope<'a> {
    /// The namespace of the Sync.
    pub namespace: &'a str,
    /// The group of the Sync; empty for a Sync without one.
    pub group: &'a str,
    /// The entry of the group, or the name of a Sync without a group.
    pub name: &'a str,
}

/// The subject of an approval. Names and the identity of the member survive a restore of the management cluster; UIDs
/// of its objects do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ApprovalSubject<'a> {
    scope: ApprovalScope<'a>,
    cause: DeletionCause,
    target: &'a str,
    cluster: &'a str,
}

impl<'a> ApprovalSubject<'a> {
    /// Returns the subject of deletions. `target` is the release of a group, or the target of a Sync without a group:
    /// for a prune the one that replaces the objects, otherwise the one that had them. `cluster` is the identity of the
    /// member.
    ///
    /// A release, and the deletion of a group, are one decision for all clusters of the group: clusters that lose the
    /// same objects by it have one subject, so that nobody approves a fleet cluster by cluster. All other decisions are
    /// about one cluster.
    #[must_use]
    pub fn new(scope: ApprovalScope<'a>, cause: DeletionCause, target: &'a str, cluster: &'a str) -> Self {
        let is_of_fleet = match cause {
            DeletionCause::Prune | DeletionCause::EntryRemoved | DeletionCause::GroupDeleted => {
                !scope.group.is_empty()
            }
            DeletionCause::ClusterUnselected | DeletionCause::SyncDeleted => false,
        };
        Self {
            scope,
            cause,
            target,
            cluster: if is_of_fleet { "" } else { cluster },
        }
    }

    /// Returns the digest of a list of deletions, which an approval names.
    #[must_use]
    pub fn digest(&self, to_delete: &[InventoryEntry]) -> String {
        let list = to_delete.iter().cloned().collect::<Inventory>().digest();
        digest::of(&("deletions", self, list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectId;

    fn to_delete(count: usize) -> Vec<InventoryEntry> {
        let key = |number| ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: format!("o{number}"),
        };
        (0..count)
            .map(|number| InventoryEntry::new(key(number), "u"))
            .collect()
    }

    const ENTRY: ApprovalScope<'static> = ApprovalScope {
        namespace: "fleet",
        group: "shop",
        name: "app",
    };
    const ALONE: ApprovalScope<'static> = ApprovalScope { group: "", ..ENTRY };

    /// Guards against an approval of a list that passes for another cluster, another cause or another owner.
    #[test]
    fn an_approval_is_of_one_owner_cause_target_and_list() {
        use DeletionCause::{ClusterUnselected, EntryRemoved, GroupDeleted, Prune, SyncDeleted};
        let list = to_delete(3);
        let first = ApprovalSubject::new(ENTRY, ClusterUnselected, "r1", "m1").digest(&list);
        for other in [
            ApprovalSubject::new(ENTRY, ClusterUnselected, "r1", "m2"),
            ApprovalSubject::new(ENTRY, ClusterUnselected, "r2", "m1"),
            ApprovalSubject::new(ENTRY, EntryRemoved, "r1", "m1"),
            ApprovalSubject::new(ENTRY, GroupDeleted, "r1", "m1"),
            ApprovalSubject::new(ENTRY, Prune, "r1", "m1"),
            ApprovalSubject::new(ENTRY, SyncDeleted, "r1", "m1"),
            ApprovalSubject::new(ALONE, ClusterUnselected, "r1", "m1"),
            ApprovalSubject::new(
                ApprovalScope { name: "db", ..ENTRY },
                ClusterUnselected,
                "r1",
                "m1",
            ),
            ApprovalSubject::new(
                ApprovalScope {
                    group: "web",
                    ..ENTRY
                },
                ClusterUnselected,
                "r1",
                "m1",
            ),
            ApprovalSubject::new(
                ApprovalScope {
                    namespace: "other",
                    ..ENTRY
                },
                ClusterUnselected,
                "r1",
                "m1",
            ),
        ] {
            assert_ne!(other.digest(&list), first, "{other:?}");
        }
        let same = ApprovalSubject::new(ENTRY, ClusterUnselected, "r1", "m1");
        assert_eq!(same.digest(&list), first);
        assert_ne!(same.digest(&to_delete(2)), first);
    }

    /// A fleet is not approved cluster by cluster.
    #[test]
    fn what_a_release_or_the_end_of_a_group_removes_is_one_decision_for_all_clusters() {
        use DeletionCause::{ClusterUnselected, EntryRemoved, GroupDeleted, Prune, SyncDeleted};
        let differs = |scope, cause| {
            ApprovalSubject::new(scope, cause, "r1", "m1") != ApprovalSubject::new(scope, cause, "r1", "m2")
        };
        for cause in [Prune, EntryRemoved, GroupDeleted] {
            assert!(!differs(ENTRY, cause), "{cause:?}");
        }
        assert!(differs(ENTRY, ClusterUnselected) && differs(ENTRY, SyncDeleted));
        for cause in [Prune, SyncDeleted] {
            assert!(differs(ALONE, cause), "{cause:?}");
        }
    }
}
