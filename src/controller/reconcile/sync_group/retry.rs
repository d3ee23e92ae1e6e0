//! Tries again what failed, where a person asked for it: a failed cluster is admitted once more to what it was admitted to, and
//! so has its `progressDeadline` anew. It takes a slot for that, as whoever starts does; where none is free it waits for one, for the
//! word stands. What keeps everybody from starting (suspended, paused, given up, clusters that vanished) keeps it back, too; the
//! failures themselves and closed windows do not, since it has started before.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{ADMITTED_AT, REQUESTED_AT, SyncResource};
use starling_core::plan::{Decision, Plan, Tally};
use starling_core::steering::{Asked, Retry};
use starling_core::target;

use super::observe::Group;
use super::release::Rolling;
use super::{admit, steer};
use crate::controller::context::Context;

/// Admits once more. Returns whether all were written.
pub(super) async fn retry(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    plan: &Plan,
    asked: &Asked,
    membership_held: bool,
) -> bool {
    let steering = &asked.steering;
    let nobody_starts = group.object.spec.suspend
        || membership_held
        || steering.paused.is_some()
        || steering.aborted.is_some();
    if asked.retries.is_empty() || nobody_starts {
        return true;
    }
    let mut room = Room::left_by(plan, |cluster| stage_of(plan, group, cluster));
    let mut written = true;
    for (cluster, decision) in &plan.decisions {
        let Decision::Failed { .. } = decision else {
            continue;
        };
        let place = stage_of(plan, group, cluster);
        let stage = place
            .and_then(|place| plan.stages.get(place))
            .map(|stage| stage.name.as_str());
        let retries = asked
            .retries
            .iter()
            .filter(|retry| is_about(retry, cluster, stage));
        let Some(last) = retries.map(|retry| retry.word.at).max() else {
            continue;
        };
        let again = once_more(group, rolling, cluster, last, context.now());
        if again.is_empty() || !room.take(place) {
            continue;
        }
        for sync in again {
            written &= admit::write(context, &group.key, sync).await;
        }
    }
    written
}

/// The Syncs of a cluster that hold what this release wants there, and were admitted to it before the word.
fn once_more(
    group: &Group,
    rolling: &Rolling,
    cluster: &str,
    asked_at: Timestamp,
    now: Timestamp,
) -> Vec<SyncResource> {
    let entries = rolling.vector.entries.iter();
    entries
        .filter_map(|entry| {
            let known = group.syncs.get(cluster, &entry.name)?;
            let mut sync = admit::mk_sync(group, rolling, &rolling.vector, (cluster, &entry.name), now)?;
            // What it lacks of the release is the planner's to start.
            let holds_it = target::of_spec(&known.spec) == target::of_spec(&sync.spec);
            if !holds_it || !admitted_before(known, asked_at) {
                return None;
            }
            sync.annotations_mut()
                .insert(REQUESTED_AT.to_owned(), asked_at.to_string());
            Some(sync)
        })
        .collect()
}

/// The place of a cluster's stage in the plan; on the way back at once there is one.
fn stage_of(plan: &Plan, group: &Group, cluster: &str) -> Option<usize> {
    let labels = group.clusters.get(cluster)?.labels();
    Some(
        group
            .strategy
            .place(labels)
            .stage
            .min(plan.stages.len().saturating_sub(1)),
    )
}

/// Slots that the plan leaves free.
struct Room {
    group: usize,
    /// `None`: the stage has no bound of its own.
    stages: Vec<Option<usize>>,
}

impl Room {
    fn left_by(plan: &Plan, stage_of: impl Fn(&str) -> Option<usize>) -> Self {
        let free = |tally: &Tally| tally.slots.map(|slots| slots.saturating_sub(tally.in_flight));
        let mut room = Self {
            group: free(&plan.tally).unwrap_or(usize::MAX),
            stages: plan.stages.iter().map(|stage| free(&stage.tally)).collect(),
        };
        for (cluster, decision) in &plan.decisions {
            if matches!(decision, Decision::Start { .. }) {
                room.take(stage_of(cluster));
            }
        }
        room
    }

    /// Takes a slot in the group and in the stage, if both have one.
    fn take(&mut self, stage: Option<usize>) -> bool {
        let mut of_stage = stage.and_then(|stage| self.stages.get_mut(stage)?.as_mut());
        if self.group == 0 || of_stage.as_deref() == Some(&0) {
            return false;
        }
        self.group -= 1;
        if let Some(left) = &mut of_stage {
            **left -= 1;
        }
        true
    }
}

fn is_about(retry: &Retry, cluster: &str, stage: Option<&str>) -> bool {
    retry.cluster.as_ref().is_none_or(|of| of == cluster)
        && retry.stage.as_ref().is_none_or(|of| Some(of.as_str()) == stage)
}

/// One that was admitted since is the new try already.
fn admitted_before(sync: &SyncResource, asked_at: Timestamp) -> bool {
    let admitted = sync.annotations().get(ADMITTED_AT);
    let came_before = admitted
        .and_then(|text| text.parse::<Timestamp>().ok())
        .is_none_or(|at| steer::came_before(at, asked_at));
    came_before && sync.annotations().get(REQUESTED_AT) != Some(&asked_at.to_string())
}

#[cfg(test)]
mod tests {
    use starling_core::plan::{StagePhase, StagePlan, StageRecord, To, Verdict, Word};

    use super::*;

    /// A plan with such `slots` and clusters in flight in the group and in each stage, that starts these clusters.
    fn plan(group: (usize, usize), stages: &[(Option<usize>, usize)], starts: &[&str]) -> Plan {
        let tally = |(slots, in_flight): (Option<usize>, usize)| Tally {
            slots,
            in_flight,
            ..Tally::default()
        };
        let stages = stages.iter().map(|stage| StagePlan {
            name: "s".to_owned(),
            phase: StagePhase::Open,
            record: StageRecord::default(),
            tally: tally(*stage),
        });
        let start = Decision::Start {
            entries: Vec::new(),
            to: To::Release,
        };
        Plan {
            decisions: starts
                .iter()
                .map(|name| ((*name).to_owned(), start.clone()))
                .collect(),
            stages: stages.collect(),
            tally: tally((Some(group.0), group.1)),
            verdict: Verdict::Rolls,
            recheck_at: None,
        }
    }

    /// How many of a list of clusters, given by their stages, get a slot. Clusters are named after theirs.
    fn admitted(plan: &Plan, wanted: &[usize]) -> Vec<usize> {
        let mut room = Room::left_by(plan, |cluster| cluster.split('-').next()?.parse().ok());
        let taken = wanted.iter().filter(|stage| room.take(Some(**stage)));
        taken.copied().collect()
    }

    #[test]
    fn retries_take_the_slots_that_are_left_and_no_more() {
        let unbounded = [(None, 0)];
        for (group, stages, starts, wanted, expected) in [
            ((2, 0), &unbounded[..], &[][..], &[0, 0, 0][..], vec![0, 0]),
            // What is under way has its slots, and so has what this plan starts.
            ((3, 1), &unbounded, &["0-a"], &[0, 0, 0], vec![0]),
            ((2, 2), &unbounded, &[], &[0], vec![]),
            // More than there are slots, since the bound was lowered.
            ((1, 3), &unbounded, &[], &[0], vec![]),
            // A full stage keeps its own back, not those of another.
            (
                (9, 1),
                &[(Some(1), 1), (Some(2), 0)],
                &[],
                &[0, 1, 0, 1, 1],
                vec![1, 1],
            ),
            (
                (9, 0),
                &[(Some(1), 0), (Some(2), 0)],
                &["1-a"],
                &[0, 0, 1, 1],
                vec![0, 1],
            ),
            // One that its stage keeps back takes none of the group's.
            ((1, 0), &[(Some(0), 0), (None, 0)], &[], &[0, 1], vec![1]),
        ] {
            let plan = plan(group, stages, starts);
            assert_eq!(
                admitted(&plan, wanted),
                expected,
                "{group:?} {stages:?} {starts:?}"
            );
        }
    }

    #[test]
    fn a_word_is_about_its_cluster_and_its_stage() {
        let word = Word {
            by: "ann".to_owned(),
            reason: "mended".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        };
        let retry = |cluster: Option<&str>, stage: Option<&str>| Retry {
            word: word.clone(),
            cluster: cluster.map(str::to_owned),
            stage: stage.map(str::to_owned),
        };
        for (retry, expected) in [
            (retry(None, None), true),
            (retry(Some("m1"), None), true),
            (retry(Some("m2"), None), false),
            (retry(None, Some("canary")), true),
            (retry(None, Some("prod")), false),
            (retry(Some("m1"), Some("prod")), false),
        ] {
            assert_eq!(is_about(&retry, "m1", Some("canary")), expected, "{retry:?}");
        }
        assert!(!is_about(&retry(None, Some("canary")), "m1", None));
    }
}
