//! When something may be done: the planner itself is asked, moment after moment, with clusters that take as long as they took before.
//!
//! It is what would be if nothing else happened: nobody says anything, nothing fails that has not, nothing comes back. Where only a
//! person or a cluster can end a wait, there is no estimate.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::plan::{ClusterView, Decision, Held, ObservedSync, Plan, PlanInput, Progress, To, Verdict, plan};

/// Views of clusters that an estimate may cost. For four clusters that is no bound; of 5,000 a thousand moments are looked at, which
/// takes seconds.
const VIEWS: usize = 5_000_000;
/// Moments of one estimate.
const MOMENTS: usize = 20_000;

/// How long clusters took from admission to healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The last time of each.
    of: BTreeMap<String, Duration>,
}

/// When something may be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Estimate {
    /// Then, if nothing else happens.
    At {
        /// When it is started; `None`: it is already, or it is a group.
        #[serde(skip_serializing_if = "Option::is_none")]
        starts_at: Option<Timestamp>,
        /// When it is done.
        done_at: Timestamp,
        /// From so many recorded durations.
        recorded: usize,
    },
    /// It cannot be said, and why.
    Unknown {
        /// For people.
        why: String,
    },
}

impl Durations {
    /// Takes in what can be seen now: of clusters that are healthy for the first time since they were admitted.
    pub fn learn(&mut self, clusters: &BTreeMap<String, ClusterView>) {
        for (name, view) in clusters {
            let took = view
                .entries
                .values()
                .filter_map(|entry| entry.observed.as_ref())
                .filter_map(|sync| took(sync.admitted_at, &sync.progress));
            if let Some(took) = took.max() {
                self.of.insert(name.clone(), took);
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// What a cluster took, or the one in the middle of all.
    fn expected(&self, cluster: &str) -> Option<Duration> {
        if let Some(known) = self.of.get(cluster) {
            return Some(*known);
        }
        let mut all: Vec<Duration> = self.of.values().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }
}

/// From admission to healthy. Only of what is healthy for the first time: where something broke in between, the time of today's health
/// tells when it was mended, and not how long the release took.
#[must_use]
pub fn took(admitted_at: Option<Timestamp>, progress: &Progress) -> Option<Duration> {
    let Progress::Held(Held {
        since: Some(since),
        longest: Duration::ZERO,
        ..
    }) = progress
    else {
        return None;
    };
    since.duration_since(admitted_at?).try_into().ok()
}

/// When a cluster may be done.
#[must_use]
pub fn estimate_cluster(input: &PlanInput, durations: &Durations, name: &str) -> Estimate {
    let mut starts_at = None;
    let goal = |now: Timestamp, plan: &Plan| {
        let decision = plan.decisions.get(name)?;
        if matches!(decision, Decision::Start { .. }) {
            starts_at.get_or_insert(now);
        }
        Some(matches!(decision, Decision::Done))
    };
    let done = run(input, durations, goal);
    told(done, starts_at, durations)
}

/// When a whole group may be.
#[must_use]
pub fn estimate_group(input: &PlanInput, durations: &Durations) -> Estimate {
    let done = run(input, durations, |_, plan| Some(plan.verdict == Verdict::Through));
    told(done, None, durations)
}

fn told(done: Result<Timestamp, String>, starts_at: Option<Timestamp>, durations: &Durations) -> Estimate {
    match done {
        Ok(done_at) => Estimate::At {
            starts_at,
            done_at,
            recorded: durations.len(),
        },
        Err(why) => Estimate::Unknown { why },
    }
}

/// Lets the planner go on until the goal is reached; the error says why it never is, or what is not known. The goal is `None` where
/// there is no such thing.
fn run(
    input: &PlanInput,
    durations: &Durations,
    mut goal: impl FnMut(Timestamp, &Plan) -> Option<bool>,
) -> Result<Timestamp, String> {
    let mut world = World::new(input, durations);
    let moments = MOMENTS.min(VIEWS / input.clusters.len().max(1));
    for _ in 0..moments {
        let plan = plan(&world.input);
        match goal(world.input.now, &plan) {
            None => return Err("the group does not select it".to_owned()),
            Some(true) => return Ok(world.input.now),
            Some(false) => {}
        }
        if durations.is_empty() {
            return Err("it is recorded of no cluster how long it took".to_owned());
        }
        if world.execute(&plan) {
            continue;
        }
        world.input.now = match world.next_time(&plan) {
            Some(next) => next,
            None => return Err("it waits for something that time alone does not bring".to_owned()),
        };
        world.live();
    }
    Err("it is too far ahead".to_owned())
}

/// A fleet to which nothing happens but what has to.
struct World<'a> {
    input: PlanInput,
    durations: &'a Durations,
    /// When each cluster at work is healthy.
    ends: BTreeMap<String, Timestamp>,
}

impl<'a> World<'a> {
    fn new(input: &PlanInput, durations: &'a Durations) -> Self {
        let mut world = Self {
            input: input.clone(),
            durations,
            ends: BTreeMap::new(),
        };
        for (name, view) in &input.clusters {
            let syncs = view.entries.values().filter_map(|entry| entry.observed.as_ref());
            let working = syncs.filter(|sync| sync.progress == Progress::Working && sync.target.is_some());
            if let Some(since) = working.filter_map(|sync| sync.admitted_at).max() {
                world.work(name, since);
            }
        }
        world
    }

    /// A cluster is at work since then. One that takes longer than before is taken to have begun just now.
    fn work(&mut self, cluster: &str, since: Timestamp) {
        let now = self.input.now;
        let Some(takes) = self.durations.expected(cluster) else {
            return;
        };
        let ends = since.checked_add(takes).ok().filter(|ends| *ends > now);
        if let Some(ends) = ends.or_else(|| now.checked_add(takes).ok()) {
            self.ends.insert(cluster.to_owned(), ends);
        }
    }

    /// Remembers and admits what the plan says. Returns whether anything changed.
    fn execute(&mut self, plan: &Plan) -> bool {
        let mut changed = false;
        for stage in &plan.stages {
            let known = self.input.rollout.stages.get(&stage.name);
            if known.cloned().unwrap_or_default() != stage.record {
                self.input
                    .rollout
                    .stages
                    .insert(stage.name.clone(), stage.record.clone());
                changed = true;
            }
        }
        let now = self.input.now;
        for (name, decision) in &plan.decisions {
            let Decision::Start { entries, to } = decision else {
                continue;
            };
            let release = self.input.rollout.release.clone();
            if let Some(view) = self.input.clusters.get_mut(name) {
                admit(view, entries, (*to, release), now);
                self.work(name, now);
                changed = true;
            }
        }
        changed
    }

    fn next_time(&self, plan: &Plan) -> Option<Timestamp> {
        let ends = self.ends.values().copied();
        ends.chain(plan.recheck_at)
            .filter(|at| *at > self.input.now)
            .min()
    }

    /// Lets those be healthy whose time has come.
    fn live(&mut self) {
        let now = self.input.now;
        let due: Vec<String> = self
            .ends
            .iter()
            .filter(|(_, ends)| **ends <= now)
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            let since = self.ends.remove(&name).unwrap_or(now);
            let entries = self.input.clusters.get_mut(&name).map(|view| &mut view.entries);
            for entry in entries.into_iter().flat_map(BTreeMap::values_mut) {
                if let Some(sync) = entry
                    .observed
                    .as_mut()
                    .filter(|sync| sync.progress == Progress::Working)
                {
                    sync.progress = Progress::healthy_since(since);
                }
            }
        }
    }
}

fn admit(view: &mut ClusterView, entries: &[String], (to, release): (To, String), now: Timestamp) {
    for name in entries {
        let Some(entry) = view.entries.get_mut(name) else {
            continue;
        };
        let target = match to {
            To::Release => entry.wanted.clone().ok(),
            To::LastKnownGood => entry.known_good.clone(),
        };
        entry.observed = Some(ObservedSync {
            target,
            release: match to {
                To::Release => release.clone(),
                To::LastKnownGood => String::new(),
            },
            admitted_at: Some(now),
            progress: Progress::Working,
            suspended: false,
        });
    }
}
