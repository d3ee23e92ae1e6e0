//! What may happen to a fleet and to the group that rolls through it.

use proptest::prelude::*;

/// What may happen. A number picks the cluster (or Sync, or stage), modulo those to which it can happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Every Sync of a cluster that is at work is healthy.
    Finish(u8),
    /// One Sync that is at work is healthy.
    FinishEntry(u8),
    /// An attempt at a Sync fails.
    Fail(u8),
    /// A cluster with a failing Sync is healthy after all.
    Recover(u8),
    /// A failing Sync is healthy after all, whatever the others do.
    RecoverEntry(u8),
    /// What a cluster holds is not healthy for a while.
    Break(u8),
    /// What a cluster holds has failed.
    Trouble(u8),
    /// What a cluster holds is healthy again.
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
    /// A cluster's labels take it out of the selection.
    Leave(u8),
    Join(u8),
    /// A cluster's parameters change, and so do its targets.
    Relabel(u8),
    /// A cluster lacks a label that a parameter needs.
    BreakLabel(u8),
    Mend(u8),
    /// A cluster's labels take it to another stage.
    Move(u8),
    /// A release that changes the entries of this bit mask, or all of them.
    Release(u8),
    /// The release before this one comes back: by the stages, or at once.
    RollBack(bool),
    /// Another strategy takes hold of the rollout.
    NewStrategy(u8),
    Approve(u8),
    /// A gate that waits for somebody to find something out: passed, or failed.
    Find(bool),
    Promote(u8),
    SkipStage(u8),
    SkipCluster(u8),
    Pause,
    Abort,
    /// Nobody holds the rollout any more.
    GoOn,
    /// The process dies after so many writes.
    Crash(u8),
    /// So many seconds, in which nobody looks.
    Later(u16),
    /// Nothing, until the plan's own time to look again.
    Tick,
}

impl Event {
    /// Whether it is about one cluster that stays selected.
    pub(crate) fn is_about_a_member(&self) -> bool {
        !self.changes_what_rolls()
            && !self.is_asked_for()
            && !matches!(
                self,
                Self::SuspendGroup
                    | Self::ResumeGroup
                    | Self::Crash(_)
                    | Self::Tick
                    | Self::Later(_)
                    | Self::Approve(_)
                    | Self::Find(_)
            )
    }

    /// Whether it changes the release, the rules, or who is selected.
    pub(crate) fn changes_what_rolls(&self) -> bool {
        matches!(
            self,
            Self::Leave(_) | Self::Join(_) | Self::Release(_) | Self::RollBack(_) | Self::NewStrategy(_)
        )
    }

    /// Whether a person asked for something by which more starts than the rules alone would let.
    pub(crate) fn is_asked_for(&self) -> bool {
        matches!(
            self,
            Self::Promote(_)
                | Self::SkipStage(_)
                | Self::SkipCluster(_)
                | Self::Pause
                | Self::Abort
                | Self::GoOn
        )
    }
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => calm_event(),
        1 => any::<u8>().prop_map(Event::ComeBack),
        1 => steering_event(),
        1 => disturbance(),
    ]
}

/// Events after which no cluster is in flight that was not before: nothing comes back that had been given up.
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
        2 => prop::bool::weighted(0.8).prop_map(Event::Find),
        2 => (0u8..6).prop_map(Event::Crash),
        4 => Just(Event::Tick),
    ]
}

fn steering_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u8>().prop_map(Event::Promote),
        any::<u8>().prop_map(Event::SkipStage),
        any::<u8>().prop_map(Event::SkipCluster),
        Just(Event::Pause),
        Just(Event::Abort),
        Just(Event::GoOn),
        Just(Event::GoOn),
    ]
}

fn disturbance() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u8>().prop_map(Event::RecoverEntry),
        any::<u8>().prop_map(Event::Break),
        any::<u8>().prop_map(Event::Trouble),
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
        any::<u8>().prop_map(Event::Mend),
        any::<u8>().prop_map(Event::Move),
        any::<bool>().prop_map(Event::RollBack),
        any::<u8>().prop_map(Event::NewStrategy),
        (0u16..2000).prop_map(Event::Later),
    ]
}

/// What a bad release does to a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Curse {
    CutsOff,
    Fails,
    FailsAndCutsOff,
    Hangs,
}

pub(crate) fn curse() -> impl Strategy<Value = Curse> {
    prop_oneof![
        Just(Curse::CutsOff),
        Just(Curse::Fails),
        Just(Curse::FailsAndCutsOff),
        Just(Curse::Hangs)
    ]
}
