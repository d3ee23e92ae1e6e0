//! Whether an entry of a rollout can follow on those before it. Each plan by itself may keep every rule though the facts that it was
//! given do not follow from what was decided: those would have been made up, or something was done that nobody decided.

use std::collections::BTreeSet;

use super::Look;
use crate::plan::{Decision, EntryView, PlanInput, StageRecord};

/// What does not follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    /// Another release, direction or start.
    #[error("the rollout has another release, direction or beginning than in the entry before")]
    Rollout,
    /// A time of a stage that was recorded is not there, or is another one.
    #[error("stage {stage}: what was recorded of it in the entry before is not there any more")]
    Record {
        /// Its name.
        stage: String,
    },
    /// A cluster has got the release, and no plan started it.
    #[error("cluster {cluster} was admitted to the release, and no entry of the rollout decided that")]
    NotDecided {
        /// Its name.
        cluster: String,
    },
}

/// What was decided so far in the entries of one rollout.
#[derive(Debug, Default)]
pub(super) struct Sequel {
    /// Clusters that a plan started.
    started: BTreeSet<String>,
    /// Nothing of the rollout is missing.
    is_whole: bool,
}

impl Sequel {
    /// Begins with a rollout, or with what there is of it behind a gap. Without its beginning it cannot be told what was decided.
    pub(super) fn begin(&mut self, is_whole: bool) {
        self.started.clear();
        self.is_whole = is_whole;
    }

    /// Goes on with the next entry. `before`: the one in front of it, of the same rollout; without one nothing is asked of it.
    pub(super) fn next(&mut self, before: Option<&Look>, look: &Look) -> Vec<Gap> {
        let gaps = before.map_or_else(Vec::new, |before| self.gaps(before, look));
        let decisions = look.plan.decisions.iter();
        let starts = decisions.filter(|(_, decision)| matches!(decision, Decision::Start { .. }));
        self.started.extend(starts.map(|(cluster, _)| cluster.clone()));
        gaps
    }

    fn gaps(&self, before: &Look, look: &Look) -> Vec<Gap> {
        let (then, now) = (&before.input.rollout, &look.input.rollout);
        if (&then.release, then.direction, then.started_at) != (&now.release, now.direction, now.started_at) {
            return vec![Gap::Rollout];
        }
        let records = taken_back(before, look).into_iter();
        let records = records.map(|stage| Gap::Record { stage });
        let admitted = admitted_between(&before.input, &look.input);
        let nobody_decided = admitted.filter(|cluster| self.is_whole && !self.started.contains(*cluster));
        let nobody_decided = nobody_decided.map(|cluster| Gap::NotDecided {
            cluster: cluster.clone(),
        });
        records.chain(nobody_decided).collect()
    }
}

/// Stages of which the planner was told a time before, and is told none now, or another one. What the plan before wanted to have recorded
/// may not have been: something newer was to begin in place of it, and could not be written.
fn taken_back(before: &Look, look: &Look) -> Vec<String> {
    // Of a strategy without stages nothing is remembered: its only one is the group. Status forgets them before the journal tells of it.
    if before.plan.stages.len() < 2 || look.plan.stages.len() < 2 {
        return Vec::new();
    }
    let (then, now) = (&before.input.rollout.stages, &look.input.rollout.stages);
    let is_there = |name: &str| look.input.strategy.stages.iter().any(|stage| stage.name == name);
    let none = StageRecord::default();
    let lost = then.iter().filter(|(name, record)| {
        let told = now.get(*name).unwrap_or(&none);
        let kept = |then: Option<_>, now| then.is_none() || then == now;
        let all_kept = kept(record.opened_at, told.opened_at)
            && kept(record.completed_at, told.completed_at)
            && kept(record.passed_at, told.passed_at);
        is_there(name) && !all_kept
    });
    lost.map(|(name, _)| name.clone()).collect()
}

/// Clusters of which a Sync holds a target of this release now, and held something of another one before.
fn admitted_between<'l>(then: &'l PlanInput, now: &'l PlanInput) -> impl Iterator<Item = &'l String> {
    let release = &now.rollout.release;
    let of_release = move |view: &EntryView| {
        let observed = view.observed.as_ref();
        observed.is_some_and(|sync| sync.release == *release)
    };
    let target = |view: &'l EntryView| view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    let is_new =
        move |(before, after)| of_release(after) && !of_release(before) && target(before) != target(after);
    let both = now
        .clusters
        .iter()
        .filter_map(|(name, view)| Some((name, then.clusters.get(name)?, view)));
    both.filter(move |(_, before, after)| {
        let entries = after.entries.iter();
        let mut entries = entries.filter_map(|(entry, view)| Some((before.entries.get(entry)?, view)));
        entries.any(is_new)
    })
    .map(|(name, ..)| name)
}
