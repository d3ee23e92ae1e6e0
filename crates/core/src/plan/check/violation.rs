//! The ways in which a plan can be wrong.

use crate::ids::{ClusterName, EntryName, SyncName};
use jiff::Timestamp;

use crate::plan::leaving::RemovalDecision;
use crate::plan::stages::Tally;
use crate::plan::stages::{RolloutVerdict, StagePhase, StageRecord, Stop};
use crate::plan::types::HoldReason;

/// A rule that a plan breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A selected cluster has no decision.
    #[error("cluster {cluster}: no decision")]
    Undecided {
        /// The cluster.
        cluster: ClusterName,
    },
    /// A decision about a cluster that is not selected.
    #[error("cluster {cluster}: decided, but not selected")]
    NotSelected {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Decided as done though an entry does not hold its target, or has not soaked.
    #[error("cluster {cluster}: decided as done, but an entry does not hold its target or has not soaked")]
    NotDone {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Every entry is applied and has soaked, and the decision is not done.
    #[error("cluster {cluster}: every entry is applied and has soaked, but not decided as done")]
    DoneUnnoticed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started without an entry.
    #[error("cluster {cluster}: started without an entry")]
    StartsNothing {
        /// The cluster.
        cluster: ClusterName,
    },
    /// An entry is started that the cluster does not have.
    #[error("cluster {cluster}: starts entry {entry}, which it does not have")]
    StartsUnknownEntry {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// An entry is named twice.
    #[error("cluster {cluster}: starts entry {entry} twice")]
    StartsEntryTwice {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// An entry is admitted again to the target that it is at.
    #[error("cluster {cluster}: starts entry {entry}, which is at its target")]
    StartsEntryAgain {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// A slot is for a cluster with all its entries, and one is left out.
    #[error("cluster {cluster}: starts without entry {entry}, which is not at its target")]
    LeavesEntryOut {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// Started though one of its parameters is invalid.
    #[error("cluster {cluster}: started with invalid parameters of entry {entry}")]
    StartsInvalid {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// Started though it is not ready.
    #[error("cluster {cluster}: started though it is not ready")]
    StartsUnready {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though one of its Syncs is suspended.
    #[error("cluster {cluster}: started though the Sync of entry {entry} is suspended")]
    StartsSuspendedSync {
        /// The cluster.
        cluster: ClusterName,
        /// The entry.
        entry: EntryName,
    },
    /// Started though too many clusters left at once.
    #[error("cluster {cluster}: started though too many clusters left the group at once")]
    StartsWhileMembershipHeld {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though the group is suspended.
    #[error("cluster {cluster}: started though the group is suspended")]
    StartsWhileSuspended {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though an operator paused the rollout.
    #[error("cluster {cluster}: started though the rollout is paused")]
    StartsWhilePaused {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started with a release that an operator aborted.
    #[error("cluster {cluster}: started with an aborted release")]
    StartsWhileAborted {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though an operator skipped it, on its own or with its stage.
    #[error("cluster {cluster}: started though it is skipped")]
    StartsSkipped {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started with the release though its stage is not open.
    #[error("cluster {cluster}: started though stage {stage} is not open")]
    StartsBeforeStage {
        /// The cluster.
        cluster: ClusterName,
        /// The index of its stage.
        stage: usize,
    },
    /// Started with the last known good release though its stage is open.
    #[error("cluster {cluster}: started with the last known good release though its stage is open")]
    StartsWithKnownGoodInOpenStage {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started with the last known good release though something else is applied, or all of that release already is.
    #[error("cluster {cluster}: started with the last known good release, but it is not new")]
    NotNew {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started with other entries of the last known good release than those that it lacks.
    #[error(
        "cluster {cluster}: lacks entries {expected:?} of the last known good release; started with others"
    )]
    WrongKnownGoodEntries {
        /// The cluster.
        cluster: ClusterName,
        /// The entries that it lacks.
        expected: Vec<EntryName>,
    },
    /// Held though it is new, its stage waits, and a slot is free to start it with the last known good release.
    #[error("cluster {cluster}: new, and not started with the last known good release")]
    KnownGoodForgotten {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though no window is open for it.
    #[error("cluster {cluster}: started though its windows are closed")]
    StartsInClosedWindow {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Started though a gate failed, which stops all starts.
    #[error("cluster {cluster}: started though a gate of stage {stage} failed")]
    StartsBehindFailedGate {
        /// The cluster.
        cluster: ClusterName,
        /// The index of that stage.
        stage: usize,
    },
    /// Started before another cluster that precedes it and needs no more.
    #[error("cluster {cluster}: started before {before}, which precedes it")]
    OutOfTurn {
        /// The cluster.
        cluster: ClusterName,
        /// The cluster that precedes it.
        before: ClusterName,
    },
    /// Started before its jitter is over.
    #[error("cluster {cluster}: started before {eligible}, when its jitter is over")]
    StartsBeforeJitter {
        /// The cluster.
        cluster: ClusterName,
        /// Time at which its jitter is over.
        eligible: Timestamp,
    },
    /// Started though the failure limit is exceeded.
    #[error("cluster {cluster}: started though {failed} clusters failed (limit {allowed})")]
    StartsBeyondBudget {
        /// The cluster.
        cluster: ClusterName,
        /// The stage whose limit is exceeded; `None`: that of the group.
        stage: Option<usize>,
        /// The number of failed clusters.
        failed: usize,
        /// The failure limit.
        allowed: usize,
    },
    /// More clusters are in flight than there are slots, and more than before.
    #[error("{after} clusters in flight after the plan (limit {bound})")]
    TooManyInFlight {
        /// The stage; `None`: the group.
        stage: Option<String>,
        /// The clusters in flight after the plan is executed.
        after: usize,
        /// The slots, or the clusters in flight before the plan if they are more.
        bound: usize,
    },
    /// More clusters begin to be in flight than the installation allows.
    #[error("{begun} clusters begin to be in flight with the plan (limit of the installation: {bound})")]
    InstallationLimit {
        /// The clusters that begin to be in flight.
        begun: usize,
        /// The slots of the installation for this group.
        bound: usize,
    },
    /// The release of the rollout is in flight on more clusters than there are slots, and on more than before.
    #[error("the release in flight on {after} clusters after the plan (limit {bound})")]
    ReleaseTooWide {
        /// The stage; `None`: the group.
        stage: Option<String>,
        /// The clusters with this release in flight after the plan is executed.
        after: usize,
        /// The slots, or the clusters with this release in flight before the plan if they are more.
        bound: usize,
    },
    /// More clusters are unavailable than allowed, and more than before.
    #[error("{after} clusters unavailable after the plan (limit {bound})")]
    TooManyUnavailable {
        /// The stage; `None`: the group.
        stage: Option<String>,
        /// The unavailable clusters after the plan is executed.
        after: usize,
        /// The limit, or the unavailable clusters before the plan if they are more.
        bound: usize,
    },
    /// Decided as in flight though nothing of this release is in progress there.
    #[error("cluster {cluster}: decided as in flight, but nothing is in progress")]
    NothingUnderWay {
        /// The cluster.
        cluster: ClusterName,
    },
    /// In flight, and its slot is given to another cluster.
    #[error("cluster {cluster}: in flight, but held")]
    UnderWayUnnoticed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// In flight until another time than decided.
    #[error("cluster {cluster}: in flight until {expected:?}, decided: {actual:?}")]
    WrongDeadline {
        /// The cluster.
        cluster: ClusterName,
        /// The decided deadline.
        actual: Option<Timestamp>,
        /// The admission and the progress deadline; `None`: it was healthy before.
        expected: Option<Timestamp>,
    },
    /// Decided as lost though it is ready, or the other way round.
    #[error("cluster {cluster}: decided as lost: {actual}")]
    WrongLost {
        /// The cluster.
        cluster: ClusterName,
        /// The decision.
        actual: bool,
    },
    /// Decided as soaking though an entry is not applied or not healthy, or all entries have soaked.
    #[error("cluster {cluster}: decided as soaking, but it is not")]
    NotSoaking {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Soaking, and the decision is another one.
    #[error("cluster {cluster}: soaking, but not decided as soaking")]
    SoakUnnoticed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Soaking until another time than decided.
    #[error("cluster {cluster}: soaking until {expected}, decided: {actual}")]
    WrongSoak {
        /// The cluster.
        cluster: ClusterName,
        /// The decided time.
        actual: Timestamp,
        /// Time at which the last of its entries has soaked.
        expected: Timestamp,
    },
    /// Decided as failed though nothing failed.
    #[error("cluster {cluster}: decided as failed, but nothing failed")]
    NothingFailed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Failed, and the decision is another one.
    #[error("cluster {cluster}: failed, but not decided as failed")]
    FailureUnnoticed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Failed for another reason, or retried at another time, than decided.
    #[error("cluster {cluster}: failed, but not for that reason or with that retry")]
    WrongFailure {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Held for a reason that does not apply.
    #[error("cluster {cluster}: held for {}, which does not apply", reason.as_str())]
    WrongHold {
        /// The cluster.
        cluster: ClusterName,
        /// The decided reason.
        reason: HoldReason,
    },
    /// Held for a reason that applies but is not the first, or though nothing blocks it.
    #[error("cluster {cluster}: held for {}, which is not the first reason", reason.as_str())]
    NotTheFirstReason {
        /// The cluster.
        cluster: ClusterName,
        /// The decided reason.
        reason: HoldReason,
    },
    /// Time ends the hold at another time than decided, or not at all.
    #[error("cluster {cluster}: its hold ends at {expected:?}, decided: {actual:?}")]
    WrongHoldRecheck {
        /// The cluster.
        cluster: ClusterName,
        /// The decided time.
        actual: Option<Timestamp>,
        /// Time at which time alone ends the hold.
        expected: Option<Timestamp>,
    },
    /// Held for a slot while one is free for it.
    #[error("cluster {cluster}: waits for a slot while one is free")]
    IdleSlot {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Held for unavailable clusters though it may be unavailable as well.
    #[error("cluster {cluster}: waits for unavailable clusters, but it may start")]
    MayBeUnavailable {
        /// The cluster.
        cluster: ClusterName,
    },
    /// The stages are not those of the strategy, or are in another order.
    #[error("the stages of the plan are not those of the strategy")]
    WrongStages,
    /// The stage has another phase than planned.
    #[error("stage {stage}: planned as {actual:?}, expected one of {expected:?}")]
    WrongStagePhase {
        /// The stage.
        stage: String,
        /// The planned phase.
        actual: StagePhase,
        /// The phases that apply.
        expected: Vec<StagePhase>,
    },
    /// The stage has another record than planned.
    #[error("stage {stage}: wrong record of {what}: {actual:?}, expected {expected:?}")]
    WrongRecord {
        /// The stage.
        stage: String,
        /// The part of the record.
        what: &'static str,
        /// The planned record.
        actual: Box<StageRecord>,
        /// The record of the input, with what is new.
        expected: Box<StageRecord>,
    },
    /// The rollout has another verdict than planned.
    #[error("the verdict on the rollout is {actual:?}; what stops it: {stops:?}")]
    WrongVerdict {
        /// The planned verdict.
        actual: RolloutVerdict,
        /// Everything that stops it.
        stops: Vec<Stop>,
    },
    /// Retried though it has not failed.
    #[error("cluster {cluster}: retried, but it has not failed")]
    RetriesNothingFailed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Retried though the group is suspended, the rollout is paused or aborted, or too many clusters left at once.
    #[error("cluster {cluster}: retried while nothing may start")]
    RetriesWhileStopped {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Retried though no retry was requested since its admission, or with other entries, or for another request.
    #[error("cluster {cluster}: retried without an open request for these entries")]
    RetryNotRequested {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Not retried though a request is pending and a slot is free.
    #[error("cluster {cluster}: not retried, though a request is pending and a slot is free")]
    RetryForgotten {
        /// The cluster.
        cluster: ClusterName,
    },
    /// A Sync that the group no longer wants has no decision.
    #[error("Sync {sync}: leaves, and has no decision")]
    RemovalUndecided {
        /// The Sync.
        sync: SyncName,
    },
    /// Entries are removed before those of the release are done, or none is to be removed.
    #[error("cluster {cluster}: removes entries too early")]
    RemovesTooEarly {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Wrong entries are removed.
    #[error("cluster {cluster}: does not remove exactly {expected:?}")]
    WrongRemovedEntries {
        /// The cluster.
        cluster: ClusterName,
        /// The right entries.
        expected: Vec<EntryName>,
    },
    /// More clusters that left lose their Syncs than there are slots.
    #[error("{after} clusters in flight or about to leave, {bound} allowed")]
    TooManyLeave {
        /// Their number after the plan is executed.
        after: usize,
        /// The limit, or as many as before.
        bound: usize,
    },
    /// A cluster that left waits for a slot that is free.
    #[error("Sync {sync}: waits for a slot, and one is free")]
    RemovalIdleSlot {
        /// The Sync.
        sync: SyncName,
    },
    /// A Sync that the group wants has a decision to remove it.
    #[error("Sync {sync}: decided to be removed, but the group wants it")]
    RemovesWanted {
        /// The Sync.
        sync: SyncName,
    },
    /// A Sync that leaves has a wrong decision.
    #[error("Sync {sync}: decided {actual:?}, expected {expected:?}")]
    WrongRemoval {
        /// The Sync.
        sync: SyncName,
        /// The decision.
        actual: RemovalDecision,
        /// The right decision.
        expected: RemovalDecision,
    },
    /// A prune that is requested has no decision.
    #[error("Sync {sync}: requests a prune, and has no decision")]
    PruneUndecided {
        /// The Sync.
        sync: SyncName,
    },
    /// A prune has a decision, and was not requested.
    #[error("Sync {sync}: decided to prune, but it does not request that")]
    PruneNotRequested {
        /// The Sync.
        sync: SyncName,
    },
    /// A prune has a wrong decision.
    #[error("Sync {sync}: its prune is decided {actual:?}, expected {expected:?}")]
    WrongPrune {
        /// The Sync.
        sync: SyncName,
        /// The decision.
        actual: RemovalDecision,
        /// The right decision.
        expected: RemovalDecision,
    },
    /// More clusters prune than there are slots.
    #[error("{after} clusters in flight, about to leave or about to prune, {bound} allowed")]
    TooManyPrune {
        /// Their number after the plan is executed.
        after: usize,
        /// The limit, or as many as before.
        bound: usize,
    },
    /// A prune waits for a slot that is free.
    #[error("Sync {sync}: its prune waits for a slot, and one is free")]
    PruneIdleSlot {
        /// The Sync.
        sync: SyncName,
    },
    /// The counts are wrong.
    #[error("counted {actual:?}, expected {expected:?}")]
    WrongTally {
        /// The stage; `None`: the group.
        stage: Option<String>,
        /// The planned counts.
        actual: Tally,
        /// The right counts.
        expected: Tally,
    },
    /// The time of the next plan is not in the future.
    #[error("the next plan is at {at}, which is past")]
    RecheckPast {
        /// The time of the next plan.
        at: Timestamp,
    },
    /// A decision ends before the next plan.
    #[error("{subject}: its decision ends at {changes}, before the next plan at {at:?}")]
    RecheckAfterDecision {
        /// The cluster, or the Sync that leaves or prunes.
        subject: String,
        /// The time of the next plan; `None`: there is none.
        at: Option<Timestamp>,
        /// Time at which the decision ends.
        changes: Timestamp,
    },
    /// Time changes a decision or a stage before the next plan, or without a next plan.
    #[error("the next plan is at {at:?}, after time has changed this one")]
    RecheckLate {
        /// The time of the next plan; `None`: there is none.
        at: Option<Timestamp>,
        /// The violation at that time.
        #[source]
        stale: Box<Violation>,
    },
}
