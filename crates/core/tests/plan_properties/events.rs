//! The events of a fleet and of a group that rolls out to it.

use proptest::prelude::*;

/// An event. A number selects the cluster (or Sync, or stage), modulo those to which the event can happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Every Sync in progress of a cluster becomes healthy.
    Finish(u8),
    /// One Sync in progress becomes healthy.
    FinishEntry(u8),
    /// An attempt at a Sync fails.
    Fail(u8),
    /// A cluster with a failing Sync becomes healthy.
    Recover(u8),
    /// A failing Sync becomes healthy, whatever the state of the others.
    RecoverEntry(u8),
    /// The applied targets of a cluster are unhealthy for a while.
    Break(u8),
    /// An applied target of a cluster fails.
    HealthProblem(u8),
    /// The applied targets of a cluster are healthy again.
    Heal(u8),
    Lose(u8),
    ComeBack(u8),
    Unprobe(u8),
    SuspendCluster(u8),
    SuspendSync(u8),
    /// A cluster and its Syncs are no longer suspended.
    Resume(u8),
    SuspendGroup,
    ResumeGroup,
    /// The labels of a cluster change so that it is no longer selected.
    Leave(u8),
    Join(u8),
    /// The parameters of a cluster change, and so do its targets.
    Relabel(u8),
    /// A cluster lacks a label that a parameter needs.
    BreakLabel(u8),
    Repair(u8),
    /// The labels of a cluster move it to another stage.
    Move(u8),
    /// A release that changes the entries of this bit mask, or all of them.
    Release(u8),
    /// A rollback to the previous release: by stages, or immediately.
    RollBack(bool),
    /// Another strategy applies to the rollout.
    NewStrategy(u8),
    Approve(u8),
    /// A gate that waits for a result gets one: passed, or failed.
    FinishGates(bool),
    Promote(u8),
    SkipStage(u8),
    SkipCluster(u8),
    Pause,
    Abort,
    /// All operator actions that stop the rollout are undone.
    Unblock,
    /// The process ends after this number of writes.
    Crash(u8),
    /// This number of seconds without a plan.
    Later(u16),
    /// Nothing, until the time of the next plan.
    Tick,
}

impl Event {
    /// Whether the event is about one cluster that stays selected.
    pub(crate) fn is_about_a_member(&self) -> bool {
        !self.changes_the_rollout()
            && !self.is_requested()
            && !matches!(
                self,
                Self::SuspendGroup
                    | Self::ResumeGroup
                    | Self::Crash(_)
                    | Self::Tick
                    | Self::Later(_)
                    | Self::Approve(_)
                    | Self::FinishGates(_)
            )
    }

    /// Whether the event changes the release, the rules, or the selection.
    pub(crate) fn changes_the_rollout(&self) -> bool {
        matches!(
            self,
            Self::Leave(_) | Self::Join(_) | Self::Release(_) | Self::RollBack(_) | Self::NewStrategy(_)
        )
    }

    /// Whether an operator requests something by which more starts than by the rules alone.
    pub(crate) fn is_requested(&self) -> bool {
        matches!(
            self,
            Self::Promote(_)
                | Self::SkipStage(_)
                | Self::SkipCluster(_)
                | Self::Pause
                | Self::Abort
                | Self::Unblock
        )
    }
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => calm_event(),
        1 => any::<u8>().prop_map(Event::ComeBack),
        1 => operator_event(),
        1 => disturbance(),
    ]
}

/// Events after which no other cluster is in flight: no cluster returns whose slot was given away.
pub(crate) fn calm_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => any::<u8>().prop_map(Event::Finish),
        2 => any::<u8>().prop_map(Event::FinishEntry),
        2 => any::<u8>().prop_map(Event::Fail),
        2 => any::<u8>().prop_map(Event::Recover),
        1 => any::<u8>().prop_map(Event::Lose),
        1 => any::<u8>().prop_map(Event::Join),
        1 => any::<u8>().prop_map(Event::Release),
        2 => any::<u8>().prop_map(Event::Approve),
        2 => prop::bool::weighted(0.8).prop_map(Event::FinishGates),
        2 => (0u8..6).prop_map(Event::Crash),
        4 => Just(Event::Tick),
    ]
}

fn operator_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u8>().prop_map(Event::Promote),
        any::<u8>().prop_map(Event::SkipStage),
        any::<u8>().prop_map(Event::SkipCluster),
        Just(Event::Pause),
        Just(Event::Abort),
        Just(Event::Unblock),
        Just(Event::Unblock),
    ]
}

fn disturbance() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u8>().prop_map(Event::RecoverEntry),
        any::<u8>().prop_map(Event::Break),
        any::<u8>().prop_map(Event::HealthProblem),
        any::<u8>().prop_map(Event::Heal),
        any::<u8>().prop_map(Event::Unprobe),
        any::<u8>().prop_map(Event::SuspendCluster),
        any::<u8>().prop_map(Event::SuspendSync),
        any::<u8>().prop_map(Event::Resume),
        Just(Event::SuspendGroup),
        Just(Event::ResumeGroup),
        any::<u8>().prop_map(Event::Leave),
        any::<u8>().prop_map(Event::Relabel),
        any::<u8>().prop_map(Event::BreakLabel),
        any::<u8>().prop_map(Event::Repair),
        any::<u8>().prop_map(Event::Move),
        any::<bool>().prop_map(Event::RollBack),
        any::<u8>().prop_map(Event::NewStrategy),
        (0u16..2000).prop_map(Event::Later),
    ]
}

/// The effect of a bad release on a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    CutsOff,
    Fails,
    FailsAndCutsOff,
    Hangs,
}

pub(crate) fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::CutsOff),
        Just(Fault::Fails),
        Just(Fault::FailsAndCutsOff),
        Just(Fault::Hangs)
    ]
}
