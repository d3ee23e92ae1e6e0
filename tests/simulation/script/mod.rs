//! The events of a run with their times, drawn from the seed before the run starts.

mod knowledge;
mod removals;

use std::time::Duration;

use starling_apiserver::faults::{Effect, Fault};
use starling_apiserver::random::Random;

use crate::extras::Extras;
use crate::staged::{Staged, UserAction, any_action, any_stage};

/// Members of the fleet.
pub(crate) const MEMBERS: usize = 8;
/// No fault begins or ends after this.
pub(crate) const FAULT_PERIOD: Duration = Duration::from_secs(120);

/// With stages a run takes longer, and so does its period of faults.
const LONG_FAULT_PERIOD: Duration = Duration::from_secs(220);

/// Maximum number of faults in a run.
const MAX_FAULTS: u64 = 16;
/// Maximum number of further faults, in the second half of a run with stages.
const MAX_LATE_FAULTS: u64 = 8;
/// Maximum number of operator actions in a run with stages.
const MAX_ACTIONS: u64 = 8;

/// Returns the name of a member.
pub(crate) fn member(number: usize) -> String {
    format!("m{number}")
}

/// An event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The next revision is pushed.
    Push,
    /// Starts a fault of a cluster's API server.
    Fault { cluster: String, fault: Fault },
    /// Ends all faults of a cluster's API server.
    Clear { cluster: String },
    /// Messages between a member and the controller are lost.
    Partition { cluster: String },
    /// Messages between a member and the controller arrive again.
    Repair { cluster: String },
    /// Messages between a cluster and the controller are held back.
    Hold { cluster: String },
    /// Held messages arrive, all at once.
    Release { cluster: String },
    /// The controller crashes.
    Crash,
    /// The controller restarts.
    Start { disk: DiskFate },
    /// A snapshot of the controller's disk is taken. One is taken at the start and at each push, too.
    Snapshot,
    /// A cluster's API server restarts: its connections end, its objects stay.
    Bounce { cluster: String },
    /// A backup of a cluster is taken.
    Backup { cluster: String },
    /// A cluster's API server stops, and its objects are set back to the last backup. `bump`: its revision continues to
    /// grow, otherwise it goes back, too.
    SetBack { cluster: String, bump: bool },
    /// A cluster's API server that stopped starts again.
    Serve { cluster: String },
    /// The user brings the management cluster up to date after it was set back.
    Remake,
    /// The management cluster compacts its history: watches and lists of older versions get 410.
    Compact,
    /// The git server stops responding, or responds again.
    Git { away: bool },
    /// The controller's clock jumps by so many seconds.
    Jump { seconds: i64 },
    /// A Cluster loses the label by which it is selected, or gets it back.
    Label { cluster: String, selected: bool },
    /// An object on a member is edited.
    Edit { cluster: String },
    /// A Cluster is deleted, or added again.
    Cluster { cluster: String, present: bool },
    /// A Cluster moves to another stage.
    Move { cluster: String, stage: &'static str },
    /// The group gets its stages.
    Stages,
    /// The groups get the entry that comes and goes, or lose it.
    Entry { present: bool },
    /// A Cluster moves to another group.
    Transfer { cluster: String, group: &'static str },
    /// The groups are suspended, or resumed.
    Suspend { on: bool },
    /// The operator creates an action for the current rollout.
    Act(UserAction),
}

/// What became of the controller's disk when it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFate {
    Kept,
    /// It is replaced with an empty one.
    Lost,
    /// Its ledger is put back to a snapshot: 0 is the last one, 1 the one before it. `mirror`: the mirror is put back
    /// as well, otherwise it stays.
    PutBack {
        age: usize,
        mirror: bool,
    },
}

/// All events, by time.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) events: Vec<(Duration, Event)>,
    /// The strategy with stages; `None`: three at once, and no stages.
    pub(crate) staged: Option<Staged>,
    /// The entry that comes and goes, and policies that delete; `None`: one entry, and nothing is deleted.
    pub(crate) extras: Option<Extras>,
    /// Delay of the release of a restore, in seconds.
    pub(crate) release_delay: i64,
}

impl Script {
    /// Creates the script of a seed without removals, and without a management cluster that is set back.
    pub(crate) fn without_removals(seed: u64) -> Self {
        let (mut draft, staged) = Draft::of(seed);
        draft.with_old_knowledge(seed);
        draft.finish(staged)
    }

    /// Creates the script of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let (mut draft, staged) = Draft::of(seed);
        draft.with_old_knowledge(seed);
        draft.with_old_hub(seed);
        let extras = Extras::of(seed);
        if extras.is_some() {
            draft.with_removals(seed);
        }
        Script {
            extras,
            release_delay: knowledge::release_delay(seed),
            ..draft.finish(staged)
        }
    }

    /// Creates a script with three revisions and no faults.
    pub(crate) fn without_faults(seed: u64) -> Self {
        Draft::new(seed).finish(None)
    }

    /// Creates a script with three revisions through stages, and no faults except those of the strategy.
    pub(crate) fn without_faults_with_stages(seed: u64) -> Self {
        let mut draft = Draft::new(seed);
        let staged = Staged::draw(&mut Random::named(seed, "stages"));
        draft.random = Random::named(seed, "steering");
        draft.delay_pushes();
        draft.set_stages(&staged);
        draft.add_late_members(&staged);
        draft.finish(Some(staged))
    }
}

struct Draft {
    random: Random,
    /// The period of the next events.
    period: (Duration, Duration),
    events: Vec<(Duration, Event)>,
}

impl Draft {
    /// Draws the faults of one process that knows everything, and the strategy.
    fn of(seed: u64) -> (Self, Option<Staged>) {
        let mut draft = Self::new(seed);
        for _ in 0..draft.random.below(MAX_FAULTS + 1) {
            draft.add_fault();
        }
        let staged = Staged::of(seed);
        if let Some(staged) = &staged {
            draft.with_stages(seed, staged);
        }
        (draft, staged)
    }

    fn new(seed: u64) -> Self {
        let mut random = Random::named(seed, "script");
        let second = random.below(40) * 1000 + random.below(1000);
        let third = second + random.below(50) * 1000;
        let push = |at| (Duration::from_millis(at), Event::Push);
        Self {
            events: vec![push(5_000 + second), push(6_000 + third)],
            period: (Duration::ZERO, FAULT_PERIOD),
            random,
        }
    }

    fn finish(mut self, staged: Option<Staged>) -> Script {
        // The sort is stable: of events at the same time, the one that was drawn first comes first.
        self.events.sort_by_key(|(at, _)| *at);
        Script {
            events: self.events,
            staged,
            extras: None,
            release_delay: 0,
        }
    }

    /// Adds the events of a run with stages: later faults, operator actions, clusters that join, leave and move, and
    /// larger clock jumps.
    fn with_stages(&mut self, seed: u64, staged: &Staged) {
        self.random = Random::named(seed, "steering");
        self.delay_pushes();
        self.set_stages(staged);
        self.period = (FAULT_PERIOD, LONG_FAULT_PERIOD);
        for _ in 0..self.random.below(MAX_LATE_FAULTS + 1) {
            self.add_fault();
        }
        self.period = (Duration::from_secs(5), LONG_FAULT_PERIOD);
        for _ in 0..self.random.below(MAX_ACTIONS + 1) {
            let action = any_action(&mut self.random);
            self.add_event(Event::Act(action));
        }
        self.add_late_members(staged);
        for _ in 0..self.random.below(5) {
            let cluster = self.any_member();
            let stage = any_stage(&mut self.random, 3);
            self.add_event(Event::Move { cluster, stage });
        }
        if self.random.below(3) == 0 {
            self.deselect_many();
        }
        for _ in 0..self.random.below(3) {
            self.jump_by_minutes();
        }
    }

    /// Increases the intervals between revisions: a rollout through stages takes a minute or more.
    fn delay_pushes(&mut self) {
        let second = 35_000 + self.random.below(80_000);
        let third = second + self.random.below(120_000);
        for (place, at) in [second, third].into_iter().enumerate() {
            self.events[place].0 = Duration::from_millis(at);
        }
    }

    fn set_stages(&mut self, staged: &Staged) {
        if staged.starts_without_stages {
            let at = self.between(22_000, 35_000);
            self.events.push((Duration::from_millis(at), Event::Stages));
        }
    }

    /// Lets the late members join.
    fn add_late_members(&mut self, staged: &Staged) {
        for &late in &staged.late_members {
            let cluster = member(late);
            self.add_event(Event::Cluster {
                cluster,
                present: true,
            });
        }
    }

    /// Deselects many clusters at once, and selects them again.
    fn deselect_many(&mut self) {
        let (from, to) = self.span(60_000);
        let count = self.between(3, MEMBERS as u64) as usize;
        let first = self.random.below(MEMBERS as u64) as usize;
        for place in 0..count {
            for (at, selected) in [(from, false), (to, true)] {
                let cluster = member((first + place) % MEMBERS);
                self.events.push((at, Event::Label { cluster, selected }));
            }
        }
    }

    /// Lets the clock jump by minutes, while the controller runs or is stopped.
    fn jump_by_minutes(&mut self) {
        let far = i64::try_from(self.between(15, 300)).unwrap_or(0);
        let seconds = if self.random.below(2) == 0 { far } else { -far / 3 };
        let jump = Event::Jump { seconds };
        if self.random.below(2) == 0 {
            self.add_event(jump);
            return;
        }
        let (from, to) = self.span(10_000);
        let start = Event::Start { disk: DiskFate::Kept };
        self.events
            .extend([(from, Event::Crash), (from, jump), (to, start)]);
    }

    fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.random.below(max - min + 1)
    }

    /// Draws a span within the period.
    fn span(&mut self, max: u64) -> (Duration, Duration) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (begin, end) = (millis(self.period.0), millis(self.period.1));
        let from = begin + self.random.below(end - begin - 1000);
        let to = (from + self.between(200, max)).min(end);
        (Duration::from_millis(from), Duration::from_millis(to))
    }

    fn add_pair(&mut self, max: u64, begin: Event, end: Event) {
        let (from, to) = self.span(max);
        self.events.push((from, begin));
        self.events.push((to, end));
    }

    fn add_event(&mut self, event: Event) {
        let (at, _) = self.span(1000);
        self.events.push((at, event));
    }

    fn any_member(&mut self) -> String {
        member(self.random.below(MEMBERS as u64) as usize)
    }

    fn add_fault(&mut self) {
        let cluster = self.any_member();
        match self.random.below(18) {
            0..=3 => {
                let fault = self.member_fault();
                let begin = Event::Fault {
                    cluster: cluster.clone(),
                    fault,
                };
                self.add_pair(40_000, begin, Event::Clear { cluster });
            }
            4 | 5 => {
                let cluster = crate::world::HUB.to_owned();
                let fault = self.hub_fault();
                let begin = Event::Fault {
                    cluster: cluster.clone(),
                    fault,
                };
                self.add_pair(20_000, begin, Event::Clear { cluster });
            }
            6 | 7 => {
                let begin = Event::Partition {
                    cluster: cluster.clone(),
                };
                self.add_pair(60_000, begin, Event::Repair { cluster });
            }
            8 => {
                let begin = Event::Hold {
                    cluster: cluster.clone(),
                };
                self.add_pair(30_000, begin, Event::Release { cluster });
            }
            9 => {
                let cluster = crate::world::HUB.to_owned();
                let begin = Event::Hold {
                    cluster: cluster.clone(),
                };
                self.add_pair(20_000, begin, Event::Release { cluster });
            }
            10 | 11 => {
                let disk = match self.random.below(3) {
                    0 => DiskFate::Lost,
                    1 => DiskFate::PutBack {
                        age: 0,
                        mirror: false,
                    },
                    _ => DiskFate::Kept,
                };
                self.add_pair(15_000, Event::Crash, Event::Start { disk });
            }
            12 => {
                self.add_event(Event::Bounce { cluster });
                self.add_event(Event::Compact);
            }
            13 => self.add_pair(30_000, Event::Git { away: true }, Event::Git { away: false }),
            14 => {
                let seconds = i64::try_from(self.random.below(241)).unwrap_or(0) - 120;
                self.add_event(Event::Jump { seconds });
            }
            15 | 16 => self.add_event(Event::Edit { cluster }),
            _ => self.change_membership(&cluster),
        }
    }

    fn change_membership(&mut self, cluster: &str) {
        let (begin, end) = if self.random.below(2) == 0 {
            let label = |selected| Event::Label {
                cluster: cluster.to_owned(),
                selected,
            };
            (label(false), label(true))
        } else {
            let present = |present| Event::Cluster {
                cluster: cluster.to_owned(),
                present,
            };
            (present(false), present(true))
        };
        self.add_pair(60_000, begin, end);
    }

    fn member_fault(&mut self) -> Fault {
        let effect = match self.random.below(11) {
            0 => Effect::Latency(Duration::from_millis(self.between(100, 8_000))),
            1 => Effect::TooMany(u32::try_from(self.between(1, 10)).unwrap_or(1)),
            2 => Effect::Error(500),
            3 => Effect::Error(503),
            4 => Effect::Refuse,
            5 | 6 => Effect::LoseResponse,
            7 => Effect::CutAnswer,
            8 => Effect::BlackHole,
            9 => Effect::Garbage,
            _ => Effect::Stale(self.between(1, 5)),
        };
        self.some_of(effect)
    }

    fn hub_fault(&mut self) -> Fault {
        let effect = match self.random.below(10) {
            0 => Effect::Latency(Duration::from_millis(self.between(100, 5_000))),
            1 => Effect::TooMany(u32::try_from(self.between(1, 5)).unwrap_or(1)),
            2 => Effect::Error(500),
            3 => Effect::Refuse,
            4 | 5 => Effect::LoseResponse,
            6 => Effect::CutAnswer,
            7 => Effect::Garbage,
            8 => return Fault::always(Effect::CutWatch(self.between(0, 5) as u32)).on(&["watch"]),
            _ => return Fault::always(Effect::ExpireWatch(self.between(0, 5) as u32)).on(&["watch"]),
        };
        self.some_of(effect)
    }

    /// Creates a fault of all requests or of one verb, of every request or of some.
    fn some_of(&mut self, effect: Effect) -> Fault {
        let fault = Fault::always(effect);
        let fault = match self.random.below(5) {
            0 => fault.on(&["patch"]),
            1 => fault.on(&["get", "list"]),
            2 => fault.on(&["create", "delete", "patch"]),
            _ => fault,
        };
        let count = self.between(1, 4);
        fault.one_in(u32::try_from(count).unwrap_or(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::world::HUB;

    /// The kinds of faults and removals in a script that a run without them would not notice.
    fn kinds(script: &Script) -> BTreeMap<&'static str, bool> {
        let has = |is: &dyn Fn(&Event) -> bool| script.events.iter().any(|(_, event)| is(event));
        let is_freeze = |event: &Event| matches!(event, Event::Fault { fault, .. } if fault.effect == Effect::FreezeWatch);
        let is_old_disk = |event: &Event| {
            let old = |disk: &DiskFate| matches!(disk, DiskFate::PutBack { .. });
            matches!(event, Event::Start { disk } if old(disk))
        };
        let labels = |event: &Event| matches!(event, Event::Label { .. });
        [
            ("old disk", has(&is_old_disk)),
            ("clock jump", has(&|event| matches!(event, Event::Jump { .. }))),
            ("frozen watch", has(&is_freeze)),
            (
                "member set back",
                has(&|event| matches!(event, Event::SetBack { cluster, .. } if cluster != HUB)),
            ),
            (
                "hub set back",
                has(&|event| matches!(event, Event::SetBack { cluster, .. } if cluster == HUB)),
            ),
            (
                "labels that flap",
                script.events.iter().filter(|(_, event)| labels(event)).count() >= 4,
            ),
            ("policies that delete", script.extras.is_some()),
            (
                "an entry that leaves",
                has(&|event| matches!(event, Event::Entry { present: false })),
            ),
            (
                "clusters that move between groups",
                has(&|event| matches!(event, Event::Transfer { .. })),
            ),
            (
                "suspended groups",
                has(&|event| matches!(event, Event::Suspend { on: true })),
            ),
        ]
        .into()
    }

    /// A fault that is never drawn is never survived.
    #[test]
    fn two_hundred_seeds_have_every_kind_of_fault() {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 0..200 {
            for (kind, has) in kinds(&Script::of(seed)) {
                *counts.entry(kind).or_default() += usize::from(has);
            }
        }
        eprintln!("{counts:?}");
        assert!(counts.values().all(|count| *count >= 20), "{counts:?}");
    }
}
