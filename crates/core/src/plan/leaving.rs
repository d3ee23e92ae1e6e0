//! Syncs that a group no longer wants, and what is decided about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClusterName, EntryName, SyncName};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use starling_api::DeletionPolicy;

/// A Sync that the group no longer wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeavingSync {
    /// The cluster of the Sync.
    pub cluster: ClusterName,
    /// The entry of the Sync.
    pub entry: EntryName,
    /// Why the group no longer wants it.
    pub cause: LeavingCause,
    /// The policy for the objects of the Sync.
    pub policy: DeletionPolicy,
    /// The names of the Syncs that it depends on. They are removed after it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub depends_on: BTreeSet<SyncName>,
    /// Time at which its removal began; `None`: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removing_since: Option<Timestamp>,
    /// Whether the Sync is suspended: nothing is written to its cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Whether the cluster exists and is not ready: nothing can be deleted there now, and what was decided today would
    /// be deleted whenever it returns. Unset once a person abandoned the objects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_ready: bool,
    /// When the deletion budget of the group allows to delete the objects of its cluster; `None`: now, or not without
    /// an approval, which the Sync waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_until: Option<Timestamp>,
    /// The digest that a person has to approve before the removal: an automatic rollback lacks the entry. `None`: no
    /// approval is needed, or it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
}

impl LeavingSync {
    /// Reports whether the removal takes a slot of its own: a cluster loses its objects, and is not one of the release.
    pub(super) fn takes_slot(&self) -> bool {
        self.cause != LeavingCause::EntryRemoved && self.policy == DeletionPolicy::Delete
    }

    /// Reports whether the Sync stays until a person approves its removal.
    pub(super) fn awaits_approval(&self) -> bool {
        self.approval.is_some() && self.removing_since.is_none()
    }
}

/// Why a group no longer wants a Sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LeavingCause {
    /// The selector no longer selects its cluster, or the Cluster is gone.
    ClusterUnselected {
        /// When the grace of the cluster has ended, and the set of leaving clusters has not changed for long enough.
        /// Labels that a script removes one by one come faster, and count together.
        settles_at: Timestamp,
        /// The stage of the cluster: an index into [`Strategy::stages`](super::Strategy::stages). A cluster that no
        /// longer exists is in the last one.
        #[serde(default)]
        stage: usize,
        /// The windows that apply to the cluster: indexes into [`Strategy::windows`](super::Strategy::windows). None
        /// apply to a cluster that no longer exists.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        windows: Vec<usize>,
    },
    /// The release of the rollout has no such entry.
    EntryRemoved,
    /// The group is being deleted.
    GroupDeleted {
        /// The stage of the cluster: an index into [`Strategy::stages`](super::Strategy::stages). A cluster that no
        /// longer exists is in the last one.
        #[serde(default)]
        stage: usize,
        /// The windows that apply to the cluster: indexes into [`Strategy::windows`](super::Strategy::windows). None
        /// apply to a cluster that no longer exists.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        windows: Vec<usize>,
    },
}

/// The decision for a Sync that the group no longer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RemovalDecision {
    /// Remove the Sync.
    Remove,
    /// The Sync is being removed: it is gone once its cluster has lost what it has to lose.
    Removing,
    /// Keep the Sync.
    Hold {
        /// The reason.
        reason: RemovalHold,
        /// When time ends the reason; `None`: only an event does.
        recheck_at: Option<Timestamp>,
    },
}

/// Why a Sync that the group no longer wants is not removed yet. Whatever stops the start of a cluster also stops a
/// removal, except for failures and jitter; an abort stops what the release deletes, and not what clusters lose that
/// left the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RemovalHold {
    /// Too many clusters left the group at once.
    MembershipHeld,
    /// The cluster may return, or more clusters may be about to leave.
    Settling,
    /// An automatic rollback lacks the entry, and a person has not approved the removal.
    AutomaticRollback,
    /// The remaining entries are not done on the cluster. One of them may take over the objects, as a renamed entry
    /// does.
    ClusterNotDone,
    /// The remaining entries are done on the cluster, and the removal waits for what a start there waits for.
    ClusterWaits,
    /// The Sync is suspended.
    SyncSuspended,
    /// A Sync that depends on it is suspended, and its objects may need it to go: an operator runs their finalizers.
    DependentStays,
    /// The group is suspended.
    GroupSuspended,
    /// An operator paused the rollout.
    Paused,
    /// An operator aborted the rollout, and the deletion is a part of it.
    Aborted,
    /// The cluster is unreachable, suspended, or not probed yet, and its objects are deleted.
    ClusterNotReady,
    /// The stage of the cluster has not opened. In a group that is being deleted: clusters of earlier stages lose their
    /// Syncs first.
    StageNotOpen,
    /// The deletion budget of the group does not allow the deletion yet.
    DeletionBudget,
    /// No window is open for the cluster.
    WindowClosed,
    /// All slots of the group are in use.
    NoSlot,
}

impl RemovalHold {
    /// Returns the reason in CamelCase.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MembershipHeld => "MembershipHeld",
            Self::Settling => "Settling",
            Self::AutomaticRollback => "AutomaticRollback",
            Self::ClusterNotDone => "ClusterNotDone",
            Self::ClusterWaits => "ClusterWaits",
            Self::SyncSuspended => "SyncSuspended",
            Self::DependentStays => "DependentStays",
            Self::GroupSuspended => "Suspended",
            Self::Paused => "Paused",
            Self::Aborted => "Aborted",
            Self::ClusterNotReady => "ClusterNotReady",
            Self::StageNotOpen => "StageNotOpen",
            Self::DeletionBudget => "DeletionBudget",
            Self::WindowClosed => "WindowClosed",
            Self::NoSlot => "NoSlot",
        }
    }
}

/// Returns what suspended Syncs that leave depend on, directly or not: their objects may need it to go, as those of an
/// operator do.
#[must_use]
pub fn needed_by_suspended(leaving: &BTreeMap<SyncName, LeavingSync>) -> BTreeSet<&SyncName> {
    needed_by(leaving.values().filter(|sync| sync.suspended), leaving)
}

/// Returns which of the Syncs that leave others depend on, directly or not.
fn needed_by<'a>(
    syncs: impl Iterator<Item = &'a LeavingSync>,
    leaving: &'a BTreeMap<SyncName, LeavingSync>,
) -> BTreeSet<&'a SyncName> {
    let mut needed = BTreeSet::new();
    let mut next: Vec<&LeavingSync> = syncs.collect();
    while let Some(sync) = next.pop() {
        for on in &sync.depends_on {
            if let Some(of) = leaving.get(on).filter(|_| needed.insert(on)) {
                next.push(of);
            }
        }
    }
    needed
}

/// Reports whether a Sync of a deleted group has to stay although its objects do: it is suspended, and the removal of
/// what it depends on has not begun. Once it is gone, nobody would know that its objects need the others. In a cycle,
/// no Sync waits.
pub(super) fn goes_last(
    name: &SyncName,
    sync: &LeavingSync,
    leaving: &BTreeMap<SyncName, LeavingSync>,
) -> bool {
    let needed = |sync| needed_by(std::iter::once(sync), leaving);
    let waits = |on: &SyncName| {
        let on = leaving.get(on).filter(|on| on.removing_since.is_none());
        on.is_some_and(|on| !needed(on).contains(name))
    };
    sync.suspended && needed(sync).into_iter().any(waits)
}

impl RemovalDecision {
    /// Reports whether the Sync is kept for a reason.
    pub(super) fn is_held_by(&self, by: RemovalHold) -> bool {
        matches!(self, Self::Hold { reason, .. } if *reason == by)
    }

    /// Returns when time alone changes this decision.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Timestamp> {
        match self {
            Self::Remove | Self::Removing => None,
            Self::Hold { recheck_at, .. } => *recheck_at,
        }
    }
}
