//! Estimates the completion: runs the planner forward in time, with clusters that take as long as they took before.
//!
//! An estimate assumes that nothing else happens: no operator action, no new failure, no recovery. If only an operator
//! or a cluster can end a wait, there is no estimate.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::plan::{
    AdmittedRelease, Applied, ClusterView, Decision, ObservedSync, Plan, PlanInput, Progress,
    RemovalDecision, RolloutVerdict, plan,
};

/// Cluster views that an estimate may evaluate: no limit for four clusters; a thousand plans of 5,000 clusters, which
/// takes seconds.
const VIEWS: usize = 5_000_000;
/// The most plans of one estimate.
const MOMENTS: usize = 20_000;

/// Recorded durations of clusters from admission to healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The last duration of each cluster.
    of: BTreeMap<String, Duration>,
}

/// The estimated completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Estimate {
    /// The time, if nothing else happens.
    At {
        /// Time at which the cluster starts; `None`: it has started, or the estimate is for a group.
        #[serde(skip_serializing_if = "Option::is_none")]
        starts_at: Option<Timestamp>,
        /// Time at which the cluster or group is done.
        done_at: Timestamp,
        /// Number of recorded durations that the estimate uses.
        recorded: usize,
    },
    /// No estimate.
    Unknown {
        /// The reason why there is no estimate.
        why: String,
    },
}

impl Durations {
    /// Records the clusters that are healthy for the first time since their admission.
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

    /// Returns the number of durations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Reports whether there are no durations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns the duration of a cluster, or the median of all durations.
    fn expected(&self, cluster: &str) -> Option<Duration> {
        if let Some(known) = self.of.get(cluster) {
            return Some(*known);
        }
        let mut all: Vec<Duration> = self.of.values().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }
}

/// Returns the duration from admission to healthy of a cluster that is healthy for the first time: after a failure in
/// between, `healthySince` is the time of the recovery.
#[must_use]
pub fn took(admitted_at: Option<Timestamp>, progress: &Progress) -> Option<Duration> {
    let Progress::Applied(Applied {
        since: Some(since),
        longest: Duration::ZERO,
        ..
    }) = progress
    else {
        return None;
    };
    since.duration_since(admitted_at?).try_into().ok()
}

/// Estimates when a cluster is done.
#[must_use]
pub fn estimate_cluster(input: &PlanInput, durations: &Durations, name: &str) -> Estimate {
    let mut starts_at = None;
    let goal = |now: Timestamp, plan: &Plan| {
        let decision = plan.decisions.get(name)?;
        if decision.begins_work() {
            starts_at.get_or_insert(now);
        }
        Some(matches!(decision, Decision::Done))
    };
    let done = run(input, durations, goal);
    estimate(done, starts_at, durations)
}

/// Estimates when a group is done.
#[must_use]
pub fn estimate_group(input: &PlanInput, durations: &Durations) -> Estimate {
    let done = run(input, durations, |_, plan| {
        Some(plan.verdict == RolloutVerdict::Succeeded)
    });
    estimate(done, None, durations)
}

fn estimate(
    done: Result<Timestamp, NoEstimate>,
    starts_at: Option<Timestamp>,
    durations: &Durations,
) -> Estimate {
    match done {
        Ok(done_at) => Estimate::At {
            starts_at,
            done_at,
            recorded: durations.len(),
        },
        Err(why) => Estimate::Unknown { why: why.to_string() },
    }
}

/// The reason why there is no estimate.
#[derive(Debug, thiserror::Error)]
enum NoEstimate {
    #[error("the group does not select this cluster")]
    NotSelected,
    #[error("no durations recorded yet")]
    NoDurations,
    #[error("waiting for a person or a cluster")]
    WaitsForOthers,
    #[error("completion is too far in the future")]
    TooFar,
}

/// Runs the planner forward until the goal is reached. The goal is `None` if the plan has no such cluster.
fn run(
    input: &PlanInput,
    durations: &Durations,
    mut goal: impl FnMut(Timestamp, &Plan) -> Option<bool>,
) -> Result<Timestamp, NoEstimate> {
    let mut world = World::new(input, durations);
    let moments = MOMENTS.min(VIEWS / input.clusters.len().max(1));
    for _ in 0..moments {
        let plan = plan(&world.input);
        match goal(world.input.now, &plan) {
            None => return Err(NoEstimate::NotSelected),
            Some(true) => return Ok(world.input.now),
            Some(false) => {}
        }
        if durations.is_empty() {
            return Err(NoEstimate::NoDurations);
        }
        if world.execute(&plan) {
            continue;
        }
        world.input.now = match world.next_time(&plan) {
            Some(next) => next,
            None => return Err(NoEstimate::WaitsForOthers),
        };
        world.advance();
    }
    Err(NoEstimate::TooFar)
}

/// The simulated fleet of an estimate.
struct World<'a> {
    input: PlanInput,
    durations: &'a Durations,
    /// Time at which each cluster in progress is healthy.
    ends: BTreeMap<String, Timestamp>,
}

impl<'a> World<'a> {
    fn new(input: &PlanInput, durations: &'a Durations) -> Self {
        let mut world = Self {
            input: input.clone(),
            durations,
            ends: BTreeMap::new(),
        };
        world
            .input
            .leaving
            .retain(|_, sync| sync.removing_since.is_none());
        for (name, view) in &input.clusters {
            let syncs = view.entries.values().filter_map(|entry| entry.observed.as_ref());
            let working = syncs.filter(|sync| sync.progress == Progress::Working && sync.target.is_some());
            if let Some(since) = working.filter_map(|sync| sync.admitted_at).max() {
                world.work(name, since);
            }
        }
        world
    }

    /// Records that a cluster is in progress since a time. A cluster that takes longer than before counts as having
    /// begun now.
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

    /// Stores the records of the plan and admits what it starts. Returns whether anything changed.
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
            let (entries, to, retried_for) = match decision {
                Decision::Start { entries, to } => (entries, *to, None),
                Decision::Retry {
                    entries,
                    requested_at,
                } => (entries, AdmittedRelease::Release, Some(*requested_at)),
                _ => continue,
            };
            // A cluster that is given the last known good release belongs to no rollout.
            let release = match to {
                AdmittedRelease::Release => self.input.rollout.release.clone(),
                AdmittedRelease::LastKnownGood => String::new(),
            };
            if let Some(view) = self.input.clusters.get_mut(name) {
                let sync = ObservedSync {
                    target: None,
                    release,
                    admitted_at: Some(now),
                    progress: Progress::Working,
                    retried_for,
                    suspended: false,
                };
                admit(view, entries, to, &sync);
                self.work(name, now);
                changed = true;
            }
        }
        // A removal takes no time: no duration of one is recorded.
        for (name, decision) in &plan.removals {
            if *decision != RemovalDecision::Remove {
                continue;
            }
            changed |= self.input.leaving.remove(name).is_some();
        }
        changed
    }

    fn next_time(&self, plan: &Plan) -> Option<Timestamp> {
        let ends = self.ends.values().copied();
        ends.chain(plan.recheck_at)
            .filter(|at| *at > self.input.now)
            .min()
    }

    /// Makes the clusters healthy whose time has come.
    fn advance(&mut self) {
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

/// Admits entries of a cluster: each gets a Sync like `sync`, with its target of the release.
fn admit(view: &mut ClusterView, entries: &[String], to: AdmittedRelease, sync: &ObservedSync) {
    for name in entries {
        let Some(entry) = view.entries.get_mut(name) else {
            continue;
        };
        let target = match to {
            AdmittedRelease::Release => entry.wanted.clone().ok(),
            AdmittedRelease::LastKnownGood => entry.known_good.clone(),
        };
        entry.observed = Some(ObservedSync {
            target,
            ..sync.clone()
        });
    }
}
