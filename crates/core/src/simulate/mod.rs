//! A rollout in simulated time: the rollout machine ([`crate::rollout`]) against a model of the clusters. It serves
//! `starling simulate` and the golden scripts of the machine.
//!
//! The model is simple on purpose. A cluster that is admitted works for a known time, and then is healthy, fails, or
//! hangs. The caller changes the [`World`] in between. The machine decides as in the controller; the world executes its
//! effects at once and without faults.

pub(crate) mod carry;
mod forecast;
mod member;
mod observe;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::{OnNewRevision, ReleaseStatus, RollbackType, SyncGroupStatus};

use crate::clock_jumps::ClockJumps;
use crate::plan::{
    Attribution, Direction, GateResult, OperatorInput, Plan, PlanInput, ReadStrategy, RolloutVerdict, Stop,
};
use crate::rollout::next::Cause;
use crate::rollout::{
    self, Epoch, Facts, Known, Loaded, Need, Offer, PlannerInput, ReleaseSnapshot, StepError, Transition,
};
use observe::Observed;

pub use forecast::{Assumptions, RolloutEnd, RolloutForecast, StageForecast};
pub use member::{Fate, SimulatedMember};
pub use summary::Summary;

/// The entry of every group in a simulation: the number of entries does not matter here.
const ENTRY: &str = "app";

/// The most passes at one time. Each but the last starts a cluster or advances a stage, of which there are fewer.
const PASSES: usize = 1_000;

/// A group, its clusters, and the current time.
#[derive(Clone, Debug)]
pub struct World {
    /// The current time.
    pub now: Timestamp,
    /// The strategy.
    pub strategy: ReadStrategy,
    /// The handling of a newer release.
    pub on_new_revision: OnNewRevision,
    /// The type of a rollback.
    pub rollback: RollbackType,
    /// Whether the group is suspended.
    pub suspended: bool,
    /// Whether too many clusters left at once.
    pub membership_held: bool,
    /// The requests of operators in this rollout.
    pub operator: OperatorInput,
    /// The selected clusters.
    pub members: BTreeMap<String, SimulatedMember>,
    /// The release of the Sources; empty: none yet.
    pub offered: String,
    /// The status of the group.
    pub status: SyncGroupStatus,
    /// The approved stages of this rollout.
    approvals: BTreeMap<String, Attribution>,
    /// The results of open gates, until status has them.
    gate_results: BTreeMap<String, GateResult>,
    request: Option<Request>,
    summary: Summary,
    /// Time at which the next pass is due without an event.
    recheck_at: Option<Timestamp>,
    /// The last plan that stopped, since another rollout may follow it at the same time.
    stopped: Option<Stopped>,
}

/// The state of a rollout that stopped.
#[derive(Clone, Debug)]
struct Stopped {
    why: Stop,
    done: usize,
    failed: usize,
}

#[derive(Clone, Debug)]
enum Request {
    RollBack(Option<String>),
    ResumeHeld,
}

/// An action of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A rollout started.
    Began {
        /// The release.
        release: String,
        /// The direction.
        direction: Direction,
        /// The cause of the rollout.
        cause: Cause,
    },
    /// A rollback was due, and there is no release to roll back to.
    NothingToRollBackTo,
    /// A release joined the queue.
    Queued(String),
    /// A plan was made.
    Planned(Box<Plan>),
}

impl World {
    /// Returns a group without Syncs at a time.
    #[must_use]
    pub fn new(
        now: Timestamp,
        strategy: ReadStrategy,
        members: BTreeMap<String, SimulatedMember>,
        offered: &str,
    ) -> Self {
        Self {
            now,
            strategy,
            on_new_revision: OnNewRevision::default(),
            rollback: RollbackType::default(),
            suspended: false,
            membership_held: false,
            operator: OperatorInput::default(),
            members,
            offered: offered.to_owned(),
            status: SyncGroupStatus::default(),
            approvals: BTreeMap::new(),
            gate_results: BTreeMap::new(),
            request: None,
            summary: Summary::default(),
            recheck_at: None,
            stopped: None,
        }
    }

    /// Requests a rollback as an operator.
    pub fn request_rollback(&mut self, to: Option<&str>) {
        self.request = Some(Request::RollBack(to.map(str::to_owned)));
    }

    /// Requests, as an operator, that the held release may start again.
    pub fn request_release(&mut self) {
        self.request = Some(Request::ResumeHeld);
    }

    /// Approves a stage of the current rollout as an operator.
    pub fn approve(&mut self, stage: &str, attribution: Attribution) {
        if self.status.rollout.is_some() {
            self.approvals.insert(stage.to_owned(), attribution);
        }
    }

    /// Sets the result of the open gate of a stage.
    pub fn set_gate_result(&mut self, stage: &str, result: GateResult) {
        self.gate_results.insert(stage.to_owned(), result);
    }

    /// Sets the last release that succeeded on the whole group.
    pub fn set_known_good(&mut self, release: Option<&str>) {
        self.status.last_known_good = release.map(|release| ReleaseStatus {
            release: release.to_owned(),
            revisions: Vec::new(),
        });
    }

    /// Returns the figures so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Lets the machine do everything that is due at this time.
    pub fn settle(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        for member in self.members.values_mut() {
            member.live(self.now);
        }
        for _ in 0..PASSES {
            let Some(mut transition) = self.step() else { break };
            self.note_stop(&transition);
            happened.extend(news(&transition));
            let goes_on = self.carry_out(&mut transition);
            self.recheck_at = transition.recheck_at;
            if let Some(decided) = transition.decided {
                happened.push(Happened::Planned(Box::new(decided.plan)));
            }
            if !goes_on {
                break;
            }
        }
        self.summary = self.summary.with(self);
        happened
    }

    /// Returns when something happens by itself next; `None`: never.
    #[must_use]
    pub fn next_time(&self) -> Option<Timestamp> {
        let own = self.members.values().filter_map(SimulatedMember::next_time);
        own.chain(self.recheck_at).filter(|at| *at > self.now).min()
    }

    /// Returns the input of the planner; `None` before the first release.
    #[must_use]
    pub fn input(&self) -> Option<PlanInput> {
        self.planner_input().map(|planned| planned.input)
    }

    /// Returns the input of the planner, with its rollout; `None` before the first release.
    #[must_use]
    pub fn planner_input(&self) -> Option<PlannerInput> {
        match self.drive(rollout::preview)? {
            rollout::Preview::Planned(planned) => Some(*planned),
            rollout::Preview::NotBegun | rollout::Preview::Blocked(_) => None,
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

    /// Returns the clusters with a slot in the present plan.
    #[must_use]
    pub fn in_flight(&self) -> BTreeSet<&str> {
        let holds = self.members.iter().filter(|(_, member)| member.is_at_work());
        holds.map(|(name, _)| name.as_str()).collect()
    }

    fn plan(&self) -> Option<Plan> {
        self.input().as_ref().map(crate::plan::plan)
    }

    fn step(&self) -> Option<Transition> {
        self.drive(rollout::step)
    }

    /// Runs the machine at the current time. `None`: there is no release yet.
    fn drive<T>(
        &self,
        machine: impl Fn(Known<'_>, &Facts<'_>, &mut dyn rollout::Observations) -> Result<T, StepError>,
    ) -> Option<T> {
        if self.offered.is_empty() {
            return None;
        }
        let offer = Offer {
            release: self.offered.clone().into(),
            snapshot: Some(snapshot(&self.offered)),
            settles_at: None,
        };
        let facts = Facts {
            now: self.now,
            clock_jumps: &ClockJumps::default(),
            epoch: Epoch::NONE,
            strategy: &self.strategy,
            on_new_revision: self.on_new_revision,
            rollback: self.rollback,
            suspended: self.suspended,
            membership_held: self.membership_held,
            unselected: &self.status.unselected,
            kept_entries: &self.status.kept_entries,
            offer: &offer,
            identity: None,
            generation: None,
            requested_at: None,
            reported_at: None,
        };
        let mut loaded = Loaded::default();
        loop {
            let known = Known {
                status: &self.status,
                loaded: &loaded,
                recorder: None,
            };
            match machine(known, &facts, &mut Observed(self)) {
                Ok(done) => return Some(done),
                // Every release is stored, and its name is its revision.
                Err(StepError::Needs(Need::Release(digest))) => {
                    let found = Some(snapshot(&digest));
                    loaded.take_release(digest, found);
                }
                Err(StepError::Needs(Need::Revision(revision))) => {
                    loaded.take_revision(revision.clone(), Some(revision.into()));
                }
                Err(StepError::Journal(_)) => return None,
            }
        }
    }

    /// Records where a rollout stopped.
    fn note_stop(&mut self, transition: &Transition) {
        let decided = transition.decided.as_ref().map(|decided| &decided.plan);
        for plan in [transition.left.as_deref(), decided].into_iter().flatten() {
            if let RolloutVerdict::RollBack(why) | RolloutVerdict::Stopped(why) = &plan.verdict {
                self.stopped = Some(Stopped {
                    why: why.clone(),
                    done: plan.tally.done,
                    failed: plan.tally.failed,
                });
            }
        }
    }
}

/// Returns the actions of a transition other than its plan.
fn news(transition: &Transition) -> Vec<Happened> {
    let mut news = Vec::new();
    if let Some(began) = &transition.began {
        news.push(Happened::Began {
            release: began.release.to_string(),
            direction: began.direction,
            cause: began.cause,
        });
    }
    news.extend(transition.queued.clone().map(Happened::Queued));
    news.extend(transition.stuck.as_ref().map(|_| Happened::NothingToRollBackTo));
    news
}

/// Returns a release without content, which does not matter here.
fn snapshot(release: &str) -> Arc<ReleaseSnapshot> {
    Arc::new(ReleaseSnapshot {
        digest: release.into(),
        revisions: Vec::new(),
        entries: Vec::new(),
    })
}
