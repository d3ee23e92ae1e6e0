//! The ways in which a plan can be wrong.

use jiff::Timestamp;

use crate::plan::{HoldReason, Tally};

/// A rule that a plan breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A selected cluster has no decision.
    #[error("cluster {cluster}: no decision")]
    Undecided {
        /// The cluster.
        cluster: String,
    },
    /// A decision about a cluster that is not selected.
    #[error("cluster {cluster}: decided, but not selected")]
    NotSelected {
        /// The cluster.
        cluster: String,
    },
    /// Called done though an entry does not hold its target.
    #[error("cluster {cluster}: called done, but entry {entry} does not hold its target")]
    NotDone {
        /// The cluster.
        cluster: String,
        /// An entry that is not done.
        entry: String,
    },
    /// Every entry holds its target, and the plan says something else.
    #[error("cluster {cluster}: every entry holds its target, but it is not called done")]
    DoneUnnoticed {
        /// The cluster.
        cluster: String,
    },
    /// Started without an entry.
    #[error("cluster {cluster}: started without an entry")]
    StartsNothing {
        /// The cluster.
        cluster: String,
    },
    /// An entry is started that the cluster does not have.
    #[error("cluster {cluster}: starts entry {entry}, which it does not have")]
    StartsUnknownEntry {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// An entry is named twice.
    #[error("cluster {cluster}: starts entry {entry} twice")]
    StartsEntryTwice {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// An entry is admitted again to the target that it is at.
    #[error("cluster {cluster}: starts entry {entry}, which is at its target")]
    StartsEntryAgain {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// A slot is a cluster with all its entries, and one is left out.
    #[error("cluster {cluster}: starts without entry {entry}, which is not at its target")]
    LeavesEntryOut {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// Started though one of its parameters is not valid.
    #[error("cluster {cluster}: started with invalid parameters of entry {entry}")]
    StartsInvalid {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// Started though it cannot be worked on.
    #[error("cluster {cluster}: started though it is not ready")]
    StartsUnready {
        /// The cluster.
        cluster: String,
    },
    /// Started though a person suspended one of its Syncs.
    #[error("cluster {cluster}: started though the Sync of entry {entry} is suspended")]
    StartsSuspendedSync {
        /// The cluster.
        cluster: String,
        /// The entry.
        entry: String,
    },
    /// Started though too many clusters had left at once.
    #[error("cluster {cluster}: started though too many clusters left the group at once")]
    StartsWhileMembershipHeld {
        /// The cluster.
        cluster: String,
    },
    /// Started though the group is suspended.
    #[error("cluster {cluster}: started though the group is suspended")]
    StartsWhileSuspended {
        /// The cluster.
        cluster: String,
    },
    /// Started before its share of the jitter is over.
    #[error("cluster {cluster}: started before {eligible}, the end of its share of the jitter")]
    StartsBeforeJitter {
        /// The cluster.
        cluster: String,
        /// When its share is over.
        eligible: Timestamp,
    },
    /// Started though more clusters failed than may.
    #[error("cluster {cluster}: started though {failed} failed of at most {allowed}")]
    StartsBeyondBudget {
        /// The cluster.
        cluster: String,
        /// Clusters that failed.
        failed: usize,
        /// Clusters that may.
        allowed: usize,
    },
    /// More clusters in flight than there are slots, and than there were.
    #[error("{after} clusters in flight afterwards, {bound} at most")]
    TooManyInFlight {
        /// In flight once the plan is executed.
        after: usize,
        /// Slots, or how many were in flight before if that is more.
        bound: usize,
    },
    /// This release has reached more clusters that are not through with it than there are slots, and than before.
    #[error("the release not through with {after} clusters afterwards, {bound} at most")]
    ReleaseTooWide {
        /// Clusters that it has reached once the plan is executed.
        after: usize,
        /// Slots, or how many it had reached before if that is more.
        bound: usize,
    },
    /// Called in flight though nothing of this release is under way there.
    #[error("cluster {cluster}: called in flight, but nothing is under way")]
    NothingUnderWay {
        /// The cluster.
        cluster: String,
    },
    /// In flight, and its slot is given away.
    #[error("cluster {cluster}: in flight, but held")]
    UnderWayUnnoticed {
        /// The cluster.
        cluster: String,
    },
    /// In flight until another time than the plan says.
    #[error("cluster {cluster}: in flight until {expected:?}, not {said:?}")]
    WrongDeadline {
        /// The cluster.
        cluster: String,
        /// The plan's.
        said: Option<Timestamp>,
        /// Its admission and the progress deadline.
        expected: Option<Timestamp>,
    },
    /// Called lost though it is ready, or the other way round.
    #[error("cluster {cluster}: called lost: {said}")]
    WrongLost {
        /// The cluster.
        cluster: String,
        /// The plan's.
        said: bool,
    },
    /// Called failed though nothing failed.
    #[error("cluster {cluster}: called failed, but nothing failed")]
    NothingFailed {
        /// The cluster.
        cluster: String,
    },
    /// It failed, and the plan says something else.
    #[error("cluster {cluster}: failed, but not called so")]
    FailureUnnoticed {
        /// The cluster.
        cluster: String,
    },
    /// It failed for another reason, or is tried again at another time.
    #[error("cluster {cluster}: failed, but not for that reason or with that retry")]
    WrongFailure {
        /// The cluster.
        cluster: String,
    },
    /// Held for a reason that is not true of it.
    #[error("cluster {cluster}: held for {}, which is not so", reason.as_str())]
    WrongHold {
        /// The cluster.
        cluster: String,
        /// The plan's.
        reason: HoldReason,
    },
    /// Time changes the hold at another time than the plan says, or not at all.
    #[error("cluster {cluster}: its hold is looked at again at {expected:?}, not {said:?}")]
    WrongHoldRecheck {
        /// The cluster.
        cluster: String,
        /// The plan's.
        said: Option<Timestamp>,
        /// When time changes it.
        expected: Option<Timestamp>,
    },
    /// Held for want of a slot while one is free for it.
    #[error("cluster {cluster}: waits for a slot while one is free")]
    IdleSlot {
        /// The cluster.
        cluster: String,
    },
    /// The counts are wrong.
    #[error("counted {said:?}, expected {expected:?}")]
    WrongTally {
        /// The plan's.
        said: Tally,
        /// What there is.
        expected: Tally,
    },
    /// The plan wants to be looked at again at a time that is not in the future.
    #[error("to be looked at again at {at}, which is past")]
    RecheckPast {
        /// The plan's.
        at: Timestamp,
    },
    /// Nothing changes at the time at which the plan wants to be looked at again.
    #[error("to be looked at again at {at}, when nothing changes")]
    RecheckEarly {
        /// The plan's.
        at: Timestamp,
    },
    /// Time changes a decision before the plan wants to be looked at again, or though it does not want to be.
    #[error("to be looked at again at {at:?}, after time has changed a decision")]
    RecheckLate {
        /// The plan's; `None`: it does not want to be.
        at: Option<Timestamp>,
        /// What is wrong by then.
        #[source]
        stale: Box<Violation>,
    },
}
