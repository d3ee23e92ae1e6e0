//! The ways in which a plan can be wrong.

use jiff::Timestamp;

use crate::plan::stages::{StagePhase, StageRecord, Stop, Verdict};
use crate::plan::types::{HoldReason, Tally};

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
    /// Called done though an entry does not hold its target, or is not soaked.
    #[error("cluster {cluster}: called done, but an entry does not hold its target, or not for long enough")]
    NotDone {
        /// The cluster.
        cluster: String,
    },
    /// Every entry holds its target and soaked, and the plan says something else.
    #[error("cluster {cluster}: every entry holds its target and soaked, but it is not called done")]
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
    /// Started though a person paused the rollout.
    #[error("cluster {cluster}: started though the rollout is paused")]
    StartsWhilePaused {
        /// The cluster.
        cluster: String,
    },
    /// Started with a release that a person gave up.
    #[error("cluster {cluster}: started with a release that was given up")]
    StartsWhileAborted {
        /// The cluster.
        cluster: String,
    },
    /// Started though a person had it passed over, alone or with its stage.
    #[error("cluster {cluster}: started though it is to be passed over")]
    StartsSkipped {
        /// The cluster.
        cluster: String,
    },
    /// Started with the release though its stage is not open.
    #[error("cluster {cluster}: started though stage {stage} is not open")]
    StartsBeforeStage {
        /// The cluster.
        cluster: String,
        /// The place of its stage.
        stage: usize,
    },
    /// Started with the last known good release though its stage is open.
    #[error("cluster {cluster}: started with the last known good release though its stage is open")]
    StartsWithKnownGoodInOpenStage {
        /// The cluster.
        cluster: String,
    },
    /// Started with the last known good release though it holds something else, or all of that already.
    #[error("cluster {cluster}: started with the last known good release, but it is not new")]
    NotNew {
        /// The cluster.
        cluster: String,
    },
    /// Started with other entries of the last known good release than it lacks.
    #[error(
        "cluster {cluster}: lacks entries {expected:?} of the last known good release; started with others"
    )]
    WrongKnownGoodEntries {
        /// The cluster.
        cluster: String,
        /// Those that it lacks.
        expected: Vec<String>,
    },
    /// Held though it is new, its stage waits, and there is room to start it with the last known good release.
    #[error("cluster {cluster}: new, and not started with the last known good release")]
    KnownGoodForgotten {
        /// The cluster.
        cluster: String,
    },
    /// Started though no window is open for it.
    #[error("cluster {cluster}: started though its windows are closed")]
    StartsInClosedWindow {
        /// The cluster.
        cluster: String,
    },
    /// Started though a gate failed, which stops everything.
    #[error("cluster {cluster}: started though a gate of stage {stage} failed")]
    StartsBehindFailedGate {
        /// The cluster.
        cluster: String,
        /// The place of that stage.
        stage: usize,
    },
    /// Started before another whose turn it was, and that needs no more.
    #[error("cluster {cluster}: started before {before}, whose turn it was")]
    OutOfTurn {
        /// The cluster.
        cluster: String,
        /// Whose turn it was.
        before: String,
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
        /// The stage whose budget is overdrawn; `None`: that of the group.
        stage: Option<usize>,
        /// Clusters that failed.
        failed: usize,
        /// Clusters that may.
        allowed: usize,
    },
    /// More clusters in flight than there are slots, and than there were.
    #[error("{after} clusters in flight afterwards, {bound} at most")]
    TooManyInFlight {
        /// In which stage; `None`: in the group.
        stage: Option<String>,
        /// In flight once the plan is executed.
        after: usize,
        /// Slots, or how many were in flight before if that is more.
        bound: usize,
    },
    /// This release has reached more clusters that are not through with it than there are slots, and than before.
    #[error("the release not through with {after} clusters afterwards, {bound} at most")]
    ReleaseTooWide {
        /// In which stage; `None`: in the group.
        stage: Option<String>,
        /// Clusters that it has reached once the plan is executed.
        after: usize,
        /// Slots, or how many it had reached before if that is more.
        bound: usize,
    },
    /// More clusters are not available than may be, and than were.
    #[error("{after} clusters not available afterwards, {bound} at most")]
    TooManyUnavailable {
        /// In which stage; `None`: in the group.
        stage: Option<String>,
        /// Unavailable once the plan is executed.
        after: usize,
        /// How many may be, or were if that is more.
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
        /// Its admission and the progress deadline; `None`: it was healthy already.
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
    /// Called soaking though it is not: an entry is not held or not healthy, or all soaked.
    #[error("cluster {cluster}: called soaking, but it is not")]
    NotSoaking {
        /// The cluster.
        cluster: String,
    },
    /// Soaking, and the plan says something else.
    #[error("cluster {cluster}: soaking, but not called so")]
    SoakUnnoticed {
        /// The cluster.
        cluster: String,
    },
    /// Soaking until another time than the plan says.
    #[error("cluster {cluster}: soaking until {expected}, not {said}")]
    WrongSoak {
        /// The cluster.
        cluster: String,
        /// The plan's.
        said: Timestamp,
        /// When the last of its entries has been healthy for long enough.
        expected: Timestamp,
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
    /// Held for a reason that is true, but not the first in their order, or though nothing stands in its way.
    #[error("cluster {cluster}: held for {}, which is not what comes first", reason.as_str())]
    NotTheFirstReason {
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
    /// Held for what is unavailable though it may be unavailable as well.
    #[error("cluster {cluster}: waits for others to be available, but it may be started")]
    MayBeUnavailable {
        /// The cluster.
        cluster: String,
    },
    /// Other stages than those of the strategy, or in another order.
    #[error("the stages of the plan are not those of the strategy")]
    WrongStages,
    /// A stage is doing something else than the plan says.
    #[error("stage {stage}: called {said:?}, expected one of {expected:?}")]
    WrongStagePhase {
        /// The stage.
        stage: String,
        /// The plan's.
        said: StagePhase,
        /// Each phase that would be a true one.
        expected: Vec<StagePhase>,
    },
    /// Something else is to be recorded of a stage than the plan says.
    #[error("stage {stage}: wrong record of {what}: {said:?}, expected {expected:?}")]
    WrongRecord {
        /// The stage.
        stage: String,
        /// The part of the record.
        what: &'static str,
        /// The plan's.
        said: Box<StageRecord>,
        /// What was recorded, and what is new.
        expected: Box<StageRecord>,
    },
    /// Something else becomes of the rollout than the plan says.
    #[error("the rollout is called {said:?}; what stops it: {stops:?}")]
    WrongVerdict {
        /// The plan's.
        said: Verdict,
        /// Everything that stops it.
        stops: Vec<Stop>,
    },
    /// The counts are wrong.
    #[error("counted {said:?}, expected {expected:?}")]
    WrongTally {
        /// Of which stage; `None`: of the group.
        stage: Option<String>,
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
    /// A decision says that time changes it before the plan wants to be looked at again.
    #[error(
        "cluster {cluster}: its decision changes at {changes}, before the plan is looked at again at {at:?}"
    )]
    RecheckAfterDecision {
        /// The cluster.
        cluster: String,
        /// The plan's; `None`: it does not want to be.
        at: Option<Timestamp>,
        /// The decision's.
        changes: Timestamp,
    },
    /// Time changes a decision or a stage before the plan wants to be looked at again, or though it does not want to be.
    #[error("to be looked at again at {at:?}, after time has changed it")]
    RecheckLate {
        /// The plan's; `None`: it does not want to be.
        at: Option<Timestamp>,
        /// What is wrong by then.
        #[source]
        stale: Box<Violation>,
    },
}
