//! A rollout in simulated time: the same engine, against clusters of which it is known how long they take and what
//! becomes of them. It serves `starling simulate` and the golden scripts of the engine.
//!
//! The model is simple on purpose. A cluster that is admitted is at work for as long as it takes, then healthy, or
//! failing, or it hangs; whatever else shall happen is done to the [`World`] from outside between two moments. What the
//! engine wants to remember is remembered, what it admits is admitted, and the releases follow [`crate::course`].

mod forecast;
mod member;
mod summary;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::{OnNewRevision, RollbackType};

use crate::course::{self, Asked, Course, CourseInput, Current, Reason};
use crate::plan::{
    ClusterView, Decision, Direction, EntryView, Plan, PlanInput, ReadStrategy, RolloutView, StagePhase,
    Steering, Stop, To, Verdict, Word, plan,
};
pub use forecast::{Assumptions, End, Forecast, StageForecast};
pub use member::{Fate, Member};
pub use summary::Summary;

/// The entries of every group in a simulation: how many there are decides nothing here.
const ENTRY: &str = "app";

/// Plans that one moment may take. Each but the last starts something or moves a stage, of which there are not more.
const PLANS: usize = 1_000;

/// A group, its clusters, and the present.
#[derive(Clone, Debug)]
pub struct World {
    /// The present.
    pub now: Timestamp,
    /// The strategy in force.
    pub strategy: ReadStrategy,
    /// What happens to something newer.
    pub on_new_revision: OnNewRevision,
    /// How to go back.
    pub rollback: RollbackType,
    /// The group is suspended.
    pub suspended: bool,
    /// Too many clusters left.
    pub membership_held: bool,
    /// What people asked for in this rollout.
    pub steering: Steering,
    /// The selected clusters.
    pub members: BTreeMap<String, Member>,
    /// What the Sources offer; empty: nothing yet.
    pub offered: String,
    /// The rollout under way.
    pub rollout: Option<RolloutView>,
    /// The last release that succeeded on the whole group.
    pub known_good: Option<String>,
    /// What is not to start again.
    pub held: Option<String>,
    /// What waits for its turn.
    pub queue: Vec<String>,
    asked: Option<Request>,
    watched: Summary,
    /// The last plan that stopped, as it may be followed by another rollout within one moment.
    stopped: Option<Stopped>,
}

/// Where a rollout stopped.
#[derive(Clone, Debug)]
struct Stopped {
    why: Stop,
    done: usize,
    failed: usize,
}

#[derive(Clone, Debug)]
enum Request {
    Back(Option<String>),
    Release,
}

/// What the engine did at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A rollout began.
    Began {
        /// Of this release.
        release: String,
        /// Which way.
        direction: Direction,
        /// Why.
        reason: Reason,
    },
    /// Somebody or something wanted to go back, and there is nothing to go back to.
    NothingToGoBackTo,
    /// A release waits for its turn.
    Queued(String),
    /// A plan was made.
    Planned(Box<Plan>),
}

impl World {
    /// A group that has nothing yet, at a time.
    #[must_use]
    pub fn new(
        now: Timestamp,
        strategy: ReadStrategy,
        members: BTreeMap<String, Member>,
        offered: &str,
    ) -> Self {
        Self {
            now,
            strategy,
            on_new_revision: OnNewRevision::default(),
            rollback: RollbackType::default(),
            suspended: false,
            membership_held: false,
            steering: Steering::default(),
            members,
            offered: offered.to_owned(),
            rollout: None,
            known_good: None,
            held: None,
            queue: Vec::new(),
            asked: None,
            watched: Summary::default(),
            stopped: None,
        }
    }

    /// A person asks to go back.
    pub fn ask_back(&mut self, to: Option<&str>) {
        self.asked = Some(Request::Back(to.map(str::to_owned)));
    }

    /// A person lets go what is held.
    pub fn ask_release(&mut self) {
        self.asked = Some(Request::Release);
    }

    /// What was seen so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.watched
    }

    /// Lets the engine do everything that it does at this moment.
    pub fn settle(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        for member in self.members.values_mut() {
            member.live(self.now);
        }
        for _ in 0..PLANS {
            let plan = self.plan();
            if let Some(plan) = &plan
                && let Verdict::RollBack(why) | Verdict::Stopped(why) = &plan.verdict
            {
                self.stopped = Some(Stopped {
                    why: why.clone(),
                    done: plan.tally.done,
                    failed: plan.tally.failed,
                });
            }
            if let Some(news) = self.take_course(plan.as_ref()) {
                let goes_on = matches!(news, Happened::Began { .. } | Happened::Queued(_));
                happened.push(news);
                if goes_on {
                    continue;
                }
            }
            let Some(plan) = plan else { break };
            let moved = self.execute(&plan);
            let done = !moved;
            happened.push(Happened::Planned(Box::new(plan)));
            if done {
                break;
            }
        }
        self.watched = self.watched.with(self);
        happened
    }

    /// When something happens by itself next; `None`: never.
    #[must_use]
    pub fn next_time(&self) -> Option<Timestamp> {
        let own = self.members.values().filter_map(Member::next_time);
        let planned = self.plan().and_then(|plan| plan.recheck_at);
        own.chain(planned).filter(|at| *at > self.now).min()
    }

    /// What the engine is told now; `None` before the first release.
    #[must_use]
    pub fn input(&self) -> Option<PlanInput> {
        let rollout = self.rollout.clone()?;
        let clusters = self.members.iter().map(|(name, member)| {
            let place = self.strategy.place(&member.labels);
            let view = EntryView {
                wanted: Ok(rollout.release.clone()),
                known_good: self.known_good.clone(),
                observed: member.observed.clone(),
            };
            let cluster = ClusterView {
                uid: member.uid.clone(),
                reach: member.reach.clone(),
                stage: place.stage,
                windows: place.windows,
                entries: [(ENTRY.to_owned(), view)].into(),
            };
            (name.clone(), cluster)
        });
        Some(PlanInput {
            now: self.now,
            strategy: self.strategy.strategy.clone(),
            steering: self.steering.clone(),
            suspended: self.suspended,
            membership_held: self.membership_held,
            clusters: clusters.collect(),
            rollout,
        })
    }

    fn plan(&self) -> Option<Plan> {
        self.input().as_ref().map(plan)
    }

    fn take_course(&mut self, plan: Option<&Plan>) -> Option<Happened> {
        if self.offered.is_empty() {
            return None;
        }
        let release = self.rollout.as_ref().map(|rollout| rollout.release.clone());
        let asked = self.asked.take();
        let is_known_good = plan.is_some_and(Plan::is_known_good);
        let course = course::course(&CourseInput {
            offered: &self.offered,
            current: release.as_deref().zip(plan).map(|(release, plan)| Current {
                release,
                verdict: &plan.verdict,
                is_over: plan.is_over(),
            }),
            held: self.held.as_deref(),
            known_good: self.known_good.as_deref(),
            asked: asked.as_ref().map(|asked| match asked {
                Request::Back(to) => Asked::Back(to.as_deref()),
                Request::Release => Asked::Release,
            }),
            on_new_revision: self.on_new_revision,
            rollback: self.rollback,
            queue: &self.queue,
        });
        match course {
            Course::Keep => {
                if is_known_good {
                    self.known_good = release;
                }
                None
            }
            Course::NothingToGoBackTo => Some(Happened::NothingToGoBackTo),
            Course::Enqueue { release } => {
                self.queue = course::enqueue(&self.queue, &release);
                Some(Happened::Queued(release))
            }
            Course::Start {
                release,
                direction,
                hold,
                reason,
            } => {
                if is_known_good {
                    self.known_good = self.rollout.take().map(|rollout| rollout.release);
                }
                let dropped =
                    course::overtaken(&self.queue, &self.offered, &release, direction, hold.as_deref());
                self.queue.drain(..dropped);
                self.held = hold;
                self.steering = Steering::default();
                self.rollout = Some(RolloutView {
                    release: release.clone(),
                    direction,
                    started_at: self.now,
                    stages: BTreeMap::new(),
                    approvals: BTreeMap::new(),
                });
                Some(Happened::Began {
                    release,
                    direction,
                    reason,
                })
            }
        }
    }

    /// Keeps what is to be remembered and admits what starts. Returns whether anything changed.
    fn execute(&mut self, plan: &Plan) -> bool {
        let Some(rollout) = &mut self.rollout else {
            return false;
        };
        let mut changed = false;
        for stage in &plan.stages {
            let known = rollout.stages.get(&stage.name);
            if known != Some(&stage.record) && !(known.is_none() && stage.phase == StagePhase::Pending) {
                rollout.stages.insert(stage.name.clone(), stage.record.clone());
                changed = true;
            }
        }
        let release = rollout.release.clone();
        for (name, decision) in &plan.decisions {
            let Decision::Start { to, .. } = decision else {
                continue;
            };
            let target = match to {
                To::Release => release.clone(),
                To::LastKnownGood => self.known_good.clone().unwrap_or_default(),
            };
            if let Some(member) = self.members.get_mut(name) {
                member.admit(&target, self.now);
                member.live(self.now);
                changed = true;
            }
        }
        changed
    }

    /// A person approves a stage of the rollout under way.
    pub fn approve(&mut self, stage: &str, word: Word) {
        if let Some(rollout) = &mut self.rollout {
            rollout.approvals.insert(stage.to_owned(), word);
        }
    }

    /// What is found out about the first effect of a stage that waits for it.
    pub fn find(&mut self, stage: &str, found: crate::plan::Finding) {
        let record = self
            .rollout
            .as_mut()
            .and_then(|rollout| rollout.stages.get_mut(stage));
        let Some(record) = record else { return };
        let records = if record.opened_at.is_none() {
            &mut record.before
        } else {
            &mut record.after
        };
        if let Some(last) = records.last_mut() {
            last.found = Some(found);
        }
    }

    /// Runs until nothing happens by itself any more, or until a time.
    pub fn run(&mut self, until: Timestamp) {
        self.settle();
        while let Some(next) = self.next_time().filter(|next| *next <= until) {
            self.now = next;
            self.settle();
        }
    }

    /// The clusters that hold a slot by the plan of now.
    #[must_use]
    pub fn in_flight(&self) -> BTreeSet<&str> {
        let holds = self.members.iter().filter(|(_, member)| member.is_at_work());
        holds.map(|(name, _)| name.as_str()).collect()
    }
}
