//! What must be true of the world, whatever the controller thinks: held against every write that reaches it.

use starling::ledger::AdmissionRecord;
use starling_api::{ActionType, RolloutDirection, RolloutStatus, SyncGroupStatus};
use starling_core::plan::{Progress, StageRecord, record};

use crate::world::{World, Written};

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A plan that the checker of plans refuses.
    Plan(String),
    /// A cluster was written to without an intent in the ledger.
    NoIntent { cluster: String },
    /// A cluster was admitted, and the journal does not say why.
    NotInJournal { cluster: String },
    /// `starling verify` finds fault with the journal.
    Journal(String),
    /// A cluster was admitted by a rollout that is not the one in status.
    OfNoRollout { cluster: String, rollout: i64 },
    /// A cluster was admitted and status does not remember that its stage has begun.
    StageNotRecorded { cluster: String, stage: String },
    /// A cluster that holds the target was started with it again.
    StartedAgain { cluster: String },
    /// A release is under way on more clusters than there are slots.
    TooMany {
        release: String,
        stage: Option<String>,
        clusters: Vec<String>,
        slots: usize,
    },
    /// What was remembered of a stage is not remembered any more, or otherwise.
    RecordTakenBack { stage: String },
    /// One number, two releases.
    TwoReleases { rollout: i64 },
    /// Numbers of rollouts go backwards.
    Backwards { from: i64, to: i64 },
    /// What was left behind started again, and nobody asked for it.
    ReturnedToHeld { release: String },
    /// The ledger does not tell of rollouts what status does.
    History(String),
}

/// A status is about to be written.
pub(crate) fn of_status(world: &World, after: &SyncGroupStatus) -> Vec<Broken> {
    let (Some(before), Some(after)) = (world.rollout(), after.rollout.as_ref()) else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    if after.id < before.id {
        broken.push(Broken::Backwards {
            from: before.id,
            to: after.id,
        });
    }
    if after.id == before.id {
        if after.release != before.release {
            broken.push(Broken::TwoReleases { rollout: after.id });
        }
        broken.extend(taken_back(before, after));
    } else if returns_to_held(world, before, after) {
        broken.push(Broken::ReturnedToHeld {
            release: after.release.clone(),
        });
    }
    broken
}

fn returns_to_held(world: &World, before: &RolloutStatus, after: &RolloutStatus) -> bool {
    let held = world.api.status.held_release.as_ref();
    let asked = world
        .api
        .actions
        .iter()
        .any(|said| said.spec.rollout == before.id && said.spec.action == ActionType::Release);
    held.is_some_and(|held| held.release == after.release) && !asked
}

fn taken_back(before: &RolloutStatus, after: &RolloutStatus) -> Vec<Broken> {
    let (before, after) = (record::recorded(before), record::recorded(after));
    before
        .iter()
        .filter(|(name, record)| !after.get(*name).is_some_and(|after| is_kept(record, after)))
        .map(|(name, _)| Broken::RecordTakenBack { stage: name.clone() })
        .collect()
}

/// The strategy does not change here, so that no record of a gate is ever void.
fn is_kept(before: &StageRecord, after: &StageRecord) -> bool {
    let time = |before: Option<_>, after| before.is_none() || before == after;
    time(before.opened_at, after.opened_at)
        && time(before.completed_at, after.completed_at)
        && time(before.passed_at, after.passed_at)
        && after.before.starts_with(&before.before)
        && after.after.starts_with(&before.after)
}

/// A Sync is about to be written.
pub(crate) fn of_sync(world: &World, written: &Written, intents: &[AdmissionRecord]) -> Vec<Broken> {
    let cluster = || written.cluster.clone();
    let mut broken = Vec::new();
    let intended = intents
        .iter()
        .map(|record| &record.admission.key)
        .any(|key| key.cluster == written.cluster && key.target == written.release);
    if !intended {
        broken.push(Broken::NoIntent { cluster: cluster() });
    }
    let rollout = world.rollout().filter(|rollout| rollout.id == written.rollout);
    match rollout {
        None => broken.push(Broken::OfNoRollout {
            cluster: cluster(),
            rollout: written.rollout,
        }),
        Some(rollout) => broken.extend(of_stage(world, rollout, written)),
    }
    let observed = world
        .api
        .clusters
        .get(&written.cluster)
        .and_then(|cluster| cluster.member.observed.as_ref());
    let held = observed.is_some_and(|sync| {
        sync.target.as_ref() == Some(&written.release) && matches!(sync.progress, Progress::Held(_))
    });
    if held {
        broken.push(Broken::StartedAgain { cluster: cluster() });
    }
    broken
}

/// Time is counted from what is remembered of the stages, so it is remembered before anything starts there. Clusters that
/// get what was good before do not wait for their stage, and on the way back at once there are none.
fn of_stage(world: &World, rollout: &RolloutStatus, written: &Written) -> Option<Broken> {
    let stages = &world.spec.strategy.stages;
    if written.release != rollout.release
        || rollout.direction == RolloutDirection::BackAtOnce
        || stages.len() < 2
    {
        return None;
    }
    let stage = &stages[world.api.clusters.get(&written.cluster)?.stage].name;
    let recorded = record::recorded(rollout);
    let record = recorded.get(stage);
    let begun = record.is_some_and(|record| record.opened_at.is_some() || record.passed_at.is_some());
    (!begun).then(|| Broken::StageNotRecorded {
        cluster: written.cluster.clone(),
        stage: stage.clone(),
    })
}

/// Clusters under way, of each release: in the group, and of this rollout in each stage. One that is over its deadline counts
/// as failed and holds no slot, and what a person took out of the rollout finishes outside of it.
pub(crate) fn of_room(world: &World) -> Vec<Broken> {
    let Some(rollout) = world.rollout() else {
        return Vec::new();
    };
    let limits = &world.spec.strategy.limits;
    let under_way = |release: &str, stage: Option<usize>| -> Vec<String> {
        let clusters = world.api.clusters.iter().filter(|(name, cluster)| {
            let Some(sync) = &cluster.member.observed else {
                return false;
            };
            let deadline = sync
                .admitted_at
                .and_then(|at| at.checked_add(limits.progress_deadline).ok());
            sync.target.as_deref() == Some(release)
                && sync.progress == Progress::Working
                && deadline.is_some_and(|deadline| world.now < deadline)
                && stage.is_none_or(|stage| cluster.stage == stage && cluster.rollout == rollout.id)
                && !is_skipped(world, [rollout.id, cluster.rollout], name)
        });
        clusters.map(|(name, _)| name.clone()).collect()
    };
    let total = world.api.clusters.len();
    let mut broken = Vec::new();
    let mut judge = |release: &str, stage: Option<usize>, slots: usize| {
        let clusters = under_way(release, stage);
        if clusters.len() > slots {
            broken.push(Broken::TooMany {
                release: release.to_owned(),
                stage: stage.map(|stage| world.spec.strategy.stages[stage].name.clone()),
                clusters,
                slots,
            });
        }
    };
    let slots = limits.max_concurrency.of_rounded_up(total).max(1);
    for release in &world.api.kept {
        judge(release, None, slots);
    }
    if rollout.direction == RolloutDirection::BackAtOnce {
        return broken;
    }
    for (place, stage) in world.spec.strategy.stages.iter().enumerate() {
        let of_stage = world
            .api
            .clusters
            .values()
            .filter(|cluster| cluster.stage == place)
            .count();
        if let Some(limit) = stage.max_concurrency {
            judge(
                &rollout.release,
                Some(place),
                limit.of_rounded_up(of_stage).max(1),
            );
        }
    }
    broken
}

fn is_skipped(world: &World, rollouts: [i64; 2], cluster: &str) -> bool {
    let mut skips = world
        .api
        .actions
        .iter()
        .filter(|said| rollouts.contains(&said.spec.rollout) && said.spec.action == ActionType::Skip);
    let stage = world.api.clusters.get(cluster).map(|cluster| cluster.stage);
    let stage = stage.map(|stage| world.spec.strategy.stages[stage].name.as_str());
    skips.any(|said| {
        said.spec.cluster.as_deref() == Some(cluster)
            || (said.spec.cluster.is_none() && said.spec.stage.as_deref() == stage)
    })
}
