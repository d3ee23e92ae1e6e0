//! What happens in a run and when, drawn from its seed before it begins.

use std::time::Duration;

use starling_apiserver::faults::{Effect, Fault};
use starling_apiserver::random::Random;

use crate::staged::{Staged, Word, any_stage, any_word};

/// Members of the fleet.
pub(crate) const MEMBERS: usize = 8;
/// No fault begins or ends after this.
pub(crate) const TROUBLE: Duration = Duration::from_secs(120);

/// With stages a run takes longer, and so do its troubles.
const LONG_TROUBLE: Duration = Duration::from_secs(220);

/// Troubles in a run at most.
const TROUBLES: u64 = 16;
/// Further ones, in the second half of a run with stages.
const LATE_TROUBLES: u64 = 8;
/// Words of people in a run with stages at most.
const WORDS: u64 = 8;

/// The name of a member.
pub(crate) fn member(number: usize) -> String {
    format!("m{number}")
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The next revision is pushed.
    Push,
    /// A cluster's API server begins to do something wrong.
    Fault { cluster: String, fault: Fault },
    /// It does nothing wrong any more.
    Clear { cluster: String },
    /// A member's and the controller's messages are lost.
    Partition { cluster: String },
    /// They arrive again.
    Repair { cluster: String },
    /// A cluster's and the controller's messages are held back.
    Hold { cluster: String },
    /// They arrive, all at once.
    Release { cluster: String },
    /// The controller dies.
    Crash,
    /// It starts anew, with what is on its disk or on another disk.
    Start { loses_disk: bool },
    /// A cluster's API server starts anew: its connections end, its objects stay.
    Bounce { cluster: String },
    /// The management cluster forgets the past: watches and lists of it get 410.
    Compact,
    /// The git server does not answer, or answers again.
    Git { away: bool },
    /// The controller's clock jumps by so many seconds.
    Jump { seconds: i64 },
    /// A Cluster loses the label by which it is selected, or gets it back.
    Label { cluster: String, selected: bool },
    /// Somebody edits an object on a member.
    Edit { cluster: String },
    /// A Cluster is deleted, or added again.
    Cluster { cluster: String, present: bool },
    /// A Cluster moves to another stage.
    Move { cluster: String, stage: &'static str },
    /// The group gets its stages.
    Stages,
    /// Somebody says something to the rollout under way.
    Say(Word),
}

/// All that happens, by time.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) events: Vec<(Duration, Event)>,
    /// At what pace; `None`: three at once, and no stages.
    pub(crate) staged: Option<Staged>,
}

impl Script {
    /// The script of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut draft = Draft::new(seed);
        for _ in 0..draft.random.below(TROUBLES + 1) {
            draft.trouble();
        }
        let staged = Staged::of(seed);
        if let Some(staged) = &staged {
            draft.with_stages(seed, staged);
        }
        draft.finish(staged)
    }

    /// Three revisions and no trouble.
    pub(crate) fn calm(seed: u64) -> Self {
        Draft::new(seed).finish(None)
    }

    /// Three revisions through stages and no trouble but that of the strategy.
    pub(crate) fn calm_with_stages(seed: u64) -> Self {
        let mut draft = Draft::new(seed);
        let staged = Staged::draw(&mut Random::named(seed, "stages"));
        draft.random = Random::named(seed, "steering");
        draft.push_later();
        draft.get_stages(&staged);
        draft.join(&staged);
        draft.finish(Some(staged))
    }
}

struct Draft {
    random: Random,
    /// Between these times something happens.
    during: (Duration, Duration),
    events: Vec<(Duration, Event)>,
}

impl Draft {
    fn new(seed: u64) -> Self {
        let mut random = Random::named(seed, "script");
        let second = random.below(40) * 1000 + random.below(1000);
        let third = second + random.below(50) * 1000;
        let push = |at| (Duration::from_millis(at), Event::Push);
        Self {
            events: vec![push(5_000 + second), push(6_000 + third)],
            during: (Duration::ZERO, TROUBLE),
            random,
        }
    }

    fn finish(mut self, staged: Option<Staged>) -> Script {
        // Stable: what was drawn first happens first.
        self.events.sort_by_key(|(at, _)| *at);
        Script {
            events: self.events,
            staged,
        }
    }

    /// What happens in a run with stages besides: more of the same later, people who speak, clusters that come, go and move,
    /// and clocks that jump further.
    fn with_stages(&mut self, seed: u64, staged: &Staged) {
        self.random = Random::named(seed, "steering");
        self.push_later();
        self.get_stages(staged);
        self.during = (TROUBLE, LONG_TROUBLE);
        for _ in 0..self.random.below(LATE_TROUBLES + 1) {
            self.trouble();
        }
        self.during = (Duration::from_secs(5), LONG_TROUBLE);
        for _ in 0..self.random.below(WORDS + 1) {
            let word = any_word(&mut self.random);
            self.once(Event::Say(word));
        }
        self.join(staged);
        for _ in 0..self.random.below(5) {
            let cluster = self.any_member();
            let stage = any_stage(&mut self.random, 3);
            self.once(Event::Move { cluster, stage });
        }
        if self.random.below(3) == 0 {
            self.shrink();
        }
        for _ in 0..self.random.below(3) {
            self.jump_far();
        }
    }

    /// A rollout through stages takes a minute or more: the revisions come at longer intervals.
    fn push_later(&mut self) {
        let second = 35_000 + self.random.below(80_000);
        let third = second + self.random.below(120_000);
        for (place, at) in [second, third].into_iter().enumerate() {
            self.events[place].0 = Duration::from_millis(at);
        }
    }

    fn get_stages(&mut self, staged: &Staged) {
        if staged.comes_later {
            let at = self.between(22_000, 35_000);
            self.events.push((Duration::from_millis(at), Event::Stages));
        }
    }

    /// Who is late joins.
    fn join(&mut self, staged: &Staged) {
        for &late in &staged.late {
            let cluster = member(late);
            self.once(Event::Cluster {
                cluster,
                present: true,
            });
        }
    }

    /// Many clusters are not selected any more, all at once, and come back.
    fn shrink(&mut self) {
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

    /// The clock jumps by minutes, while the controller runs or between two of its lives.
    fn jump_far(&mut self) {
        let far = i64::try_from(self.between(15, 300)).unwrap_or(0);
        let seconds = if self.random.below(2) == 0 { far } else { -far / 3 };
        let jump = Event::Jump { seconds };
        if self.random.below(2) == 0 {
            self.once(jump);
            return;
        }
        let (from, to) = self.span(10_000);
        let start = Event::Start { loses_disk: false };
        self.events
            .extend([(from, Event::Crash), (from, jump), (to, start)]);
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.random.below(most - least + 1)
    }

    /// A time of trouble: from when to when.
    fn span(&mut self, longest: u64) -> (Duration, Duration) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (begin, end) = (millis(self.during.0), millis(self.during.1));
        let from = begin + self.random.below(end - begin - 1000);
        let to = (from + self.between(200, longest)).min(end);
        (Duration::from_millis(from), Duration::from_millis(to))
    }

    fn pair(&mut self, longest: u64, begin: Event, end: Event) {
        let (from, to) = self.span(longest);
        self.events.push((from, begin));
        self.events.push((to, end));
    }

    fn once(&mut self, event: Event) {
        let (at, _) = self.span(1000);
        self.events.push((at, event));
    }

    fn any_member(&mut self) -> String {
        member(self.random.below(MEMBERS as u64) as usize)
    }

    fn trouble(&mut self) {
        let cluster = self.any_member();
        match self.random.below(18) {
            0..=3 => {
                let fault = self.member_fault();
                let begin = Event::Fault {
                    cluster: cluster.clone(),
                    fault,
                };
                self.pair(40_000, begin, Event::Clear { cluster });
            }
            4 | 5 => {
                let cluster = crate::world::HUB.to_owned();
                let fault = self.hub_fault();
                let begin = Event::Fault {
                    cluster: cluster.clone(),
                    fault,
                };
                self.pair(20_000, begin, Event::Clear { cluster });
            }
            6 | 7 => {
                let begin = Event::Partition {
                    cluster: cluster.clone(),
                };
                self.pair(60_000, begin, Event::Repair { cluster });
            }
            8 => {
                let begin = Event::Hold {
                    cluster: cluster.clone(),
                };
                self.pair(30_000, begin, Event::Release { cluster });
            }
            9 => {
                let cluster = crate::world::HUB.to_owned();
                let begin = Event::Hold {
                    cluster: cluster.clone(),
                };
                self.pair(20_000, begin, Event::Release { cluster });
            }
            10 | 11 => {
                let loses_disk = self.random.below(3) == 0;
                self.pair(15_000, Event::Crash, Event::Start { loses_disk });
            }
            12 => {
                self.once(Event::Bounce { cluster });
                self.once(Event::Compact);
            }
            13 => self.pair(30_000, Event::Git { away: true }, Event::Git { away: false }),
            14 => {
                let seconds = i64::try_from(self.random.below(241)).unwrap_or(0) - 120;
                self.once(Event::Jump { seconds });
            }
            15 | 16 => self.once(Event::Edit { cluster }),
            _ => self.membership(&cluster),
        }
    }

    fn membership(&mut self, cluster: &str) {
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
        self.pair(60_000, begin, end);
    }

    fn member_fault(&mut self) -> Fault {
        let effect = match self.random.below(11) {
            0 => Effect::Latency(Duration::from_millis(self.between(100, 8_000))),
            1 => Effect::TooMany(u32::try_from(self.between(1, 10)).unwrap_or(1)),
            2 => Effect::Error(500),
            3 => Effect::Error(503),
            4 => Effect::Refuse,
            5 | 6 => Effect::LoseAnswer,
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
            4 | 5 => Effect::LoseAnswer,
            6 => Effect::CutAnswer,
            7 => Effect::Garbage,
            8 => return Fault::always(Effect::CutWatch(self.between(0, 5) as u32)).on(&["watch"]),
            _ => return Fault::always(Effect::ExpireWatch(self.between(0, 5) as u32)).on(&["watch"]),
        };
        self.some_of(effect)
    }

    /// Of all requests or of one verb, of each or of some.
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
