//! How a cluster stands with the release, before the others are looked at.

use jiff::Timestamp;

use super::types::{ClusterView, FailureReason, HoldReason, Reach};

/// How a cluster stands.
#[derive(Clone, Debug)]
pub(super) struct Standing<'a> {
    pub(super) name: &'a str,
    pub(super) cluster: &'a ClusterView,
    /// What it is.
    pub(super) class: Class,
    /// The slot that it holds.
    pub(super) slot: Option<Slot>,
    /// A person took it out of the rollout.
    pub(super) skipped: bool,
    /// It is done, and something is wrong with it since.
    pub(super) broken: bool,
    /// It can be reached, and something that was admitted there is not healthy.
    pub(super) unhealthy: bool,
    /// The last known good release has an entry that was never admitted there.
    pub(super) lacks_known_good: bool,
    /// When time alone changes any of this, at the earliest, though no decision carries that time.
    pub(super) turns_at: Option<Timestamp>,
}

/// What a cluster is in flight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// This release, which was admitted with all entries.
    Release,
    /// What was admitted there before: an older release, the last known good one, or a part of this one. No decision
    /// carries its deadline, at which it ends at the latest.
    Leftover {
        /// That deadline.
        until: Timestamp,
    },
}

/// What a cluster is for this release.
#[derive(Clone, Debug)]
pub(super) enum Class {
    /// All entries hold their target, and soaked.
    Done,
    /// Kept from starting by something that concerns it alone.
    Held(HoldReason),
    /// Admitted and not healthy.
    InFlight {
        /// `None`: its health check has a time of its own.
        deadline: Option<Timestamp>,
        lost: bool,
    },
    /// Healthy, and not for long enough.
    Soaking { until: Timestamp },
    /// Admitted and failed.
    Failed(Failed),
    /// May start.
    Startable {
        /// Its admission to this release was begun and cut short.
        begun: bool,
    },
}

/// A failure, and when it is tried again.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) reason: FailureReason,
    pub(super) retry_at: Option<Timestamp>,
}

impl Standing<'_> {
    /// Whether this release has reached the cluster, and is neither done nor failed there.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.class,
            Class::InFlight { .. } | Class::Soaking { .. } | Class::Startable { begun: true }
        )
    }

    /// Whether it can be reached, and is in flight or, where its stage is open and nobody passed it over, not healthy. What is
    /// broken in a stage that waits cannot be mended by this rollout before its turn, and what was passed over not at all:
    /// to wait for that would never end.
    pub(super) fn is_unavailable(&self, is_open: bool) -> bool {
        let in_flight = self.slot.is_some() && self.cluster.reach == Reach::Ready;
        in_flight || (is_open && self.unhealthy && !self.skipped)
    }

    /// Whether the rollout does not wait for it: it is done, passed over, or was out of reach before anything was started
    /// there, whatever else is wrong with it; it is caught up with later.
    pub(super) fn is_settled(&self, skips_unreachable: bool) -> bool {
        let out_of_reach = || matches!(self.cluster.reach, Reach::Unreachable { .. });
        match self.class {
            Class::Done => true,
            Class::Held(_) if skips_unreachable && out_of_reach() => true,
            _ => self.skipped,
        }
    }

    /// Whether it counts as failed.
    pub(super) fn is_failed(&self) -> bool {
        !self.skipped && matches!(self.class, Class::Failed(_))
    }
}
