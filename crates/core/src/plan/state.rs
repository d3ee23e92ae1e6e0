//! The state of one cluster in a rollout, independent of other clusters.

use crate::ids::{ClusterName, EntryName};
use jiff::Timestamp;

use super::types::{ClusterView, FailureReason, HoldReason, Reach};

/// The state of one cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterState<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) cluster: &'a ClusterView,
    /// The classification of the cluster.
    pub(super) class: Class,
    /// The slot that the cluster has.
    pub(super) slot: Option<Slot>,
    /// An operator skipped the cluster in this rollout.
    pub(super) skipped: bool,
    /// The cluster was done and has a problem since.
    pub(super) broken: bool,
    /// The cluster is reachable, and something that was admitted there is not healthy.
    pub(super) unhealthy: bool,
    /// The last known good release has an entry that was never admitted there.
    pub(super) lacks_known_good: bool,
    /// All entries of the release are done there.
    pub(super) lacks_nothing: bool,
    /// The entries that the release no longer has, and whose removal has not begun.
    pub(super) removable: Vec<&'a EntryName>,
    /// The earliest time at which time alone changes this state and no decision has that time.
    pub(super) changes_at: Option<Timestamp>,
}

/// The admission that a cluster is in flight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The release of the rollout, which was admitted with all entries.
    Release,
    /// An earlier admission: an older release, the last known good one, or a part of this one. It ends at its deadline
    /// at the latest, which no decision has.
    Leftover {
        /// The deadline.
        until: Timestamp,
    },
}

/// The classification of a cluster for this release.
#[derive(Clone, Debug)]
pub(super) enum Class {
    /// All entries hold their target, soaked, and the group has no other Sync on the cluster.
    Done,
    /// Held for a reason that concerns the cluster alone.
    Hold(HoldReason),
    /// Admitted and not healthy.
    InFlight {
        /// `None`: the timeout of its health check applies.
        deadline: Option<Timestamp>,
        lost: bool,
    },
    /// Healthy, but not for the soak time yet.
    Soaking { until: Timestamp },
    /// Admitted and failed.
    Failed(Failed),
    /// The cluster may start.
    Startable {
        /// Whether its admission to this release began and was interrupted.
        begun: bool,
    },
}

/// A failure, and when it is retried.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) reason: FailureReason,
    pub(super) retry_at: Option<Timestamp>,
}

impl ClusterState<'_> {
    /// Reports whether this release was admitted to the cluster, and the cluster is neither done nor failed.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.class,
            Class::InFlight { .. } | Class::Soaking { .. } | Class::Startable { begun: true }
        )
    }

    /// Reports whether the cluster is reachable and in flight, or, in an open stage and not skipped, not healthy. This
    /// rollout cannot repair an unhealthy cluster before its stage opens, and a skipped cluster never: waiting for it
    /// would never end.
    pub(super) fn is_unavailable(&self, is_open: bool) -> bool {
        let in_flight = self.slot.is_some() && self.cluster.reach == Reach::Ready;
        in_flight || (is_open && self.unhealthy && !self.skipped)
    }

    /// Reports whether the rollout does not wait for the cluster: it is done, skipped, or was unreachable before it was
    /// started there. An unreachable cluster catches up later.
    pub(super) fn is_settled(&self, skips_unreachable: bool) -> bool {
        let out_of_reach = || matches!(self.cluster.reach, Reach::Unreachable { .. });
        match self.class {
            Class::Done => true,
            Class::Hold(_) if skips_unreachable && out_of_reach() => true,
            _ => self.skipped,
        }
    }

    /// Reports whether the cluster counts as failed.
    pub(super) fn is_failed(&self) -> bool {
        !self.skipped && matches!(self.class, Class::Failed(_))
    }
}
