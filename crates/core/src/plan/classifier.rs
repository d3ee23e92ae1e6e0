//! The input of the classification of a cluster, and the questions that its parts share.

use jiff::Timestamp;

use super::entry::EntryState;
use super::leaving::LeavingSync;
use super::types::{ClusterView, HoldReason, PlanInput, Reach};

/// One cluster and the states of its entries.
pub(super) struct Classifier<'a, 'e> {
    pub(super) input: &'a PlanInput,
    pub(super) cluster: &'a ClusterView,
    pub(super) entries: &'e [EntryState<'a>],
    /// The Syncs of entries that the release no longer has.
    pub(super) removed: &'e [&'a LeavingSync],
}

impl Classifier<'_, '_> {
    /// Returns the end of `progressDeadline`, counted from a time.
    pub(super) fn deadline(&self, from: Option<Timestamp>) -> Option<Timestamp> {
        self.input.slot_due(from?)
    }

    /// Returns why the cluster takes part in no rollout: it is suspended, or one of its Syncs is.
    pub(super) fn suspended(&self) -> Option<HoldReason> {
        if self.cluster.reach == Reach::Suspended {
            return Some(HoldReason::ClusterSuspended);
        }
        self.cluster.entries.iter().find_map(|(name, view)| {
            let observed = view.observed.as_ref()?;
            observed
                .suspended
                .then(|| HoldReason::SyncSuspended { entry: name.clone() })
        })
    }

    /// Returns why nothing can start on a cluster in this state of reachability; `None`: it is ready.
    pub(super) fn not_ready(&self) -> Option<HoldReason> {
        match &self.cluster.reach {
            Reach::Ready => None,
            Reach::Unprobed => Some(HoldReason::ClusterNotProbed),
            Reach::Suspended => Some(HoldReason::ClusterSuspended),
            Reach::Unreachable {
                reason,
                message,
                since,
            } => Some(HoldReason::ClusterUnreachable {
                reason: reason.clone(),
                message: message.clone(),
                since: *since,
            }),
        }
    }
}
