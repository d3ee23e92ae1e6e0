//! The invariants of the world, whatever the controller knows: checked at every write.

use std::collections::BTreeSet;

use starling_api::{ActionType, DeletionPolicy, RolloutDirection, RolloutStatus, SyncGroupStatus};
use starling_core::apply::ApprovedDigests;
use starling_core::gate::Side;
use starling_core::ids::{ClusterName, ReleaseDigest, SyncName};
use starling_core::journal::RecordedPlan;
use starling_core::plan::{
    AdmittedRelease, Decision, GateRecord, GateResult, LeavingCause, Progress, Reach, RemovalDecision,
    StageRecord, began_before, record,
};
use starling_core::rollout::{Removal, operator};
use starling_ledger::{AdmissionOutcome, AdmissionRecord};

use crate::memory::GateTasks;
use crate::world::{Api, ENTRY, GateKey, World, Written};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A plan that the plan checker rejects.
    Plan(String),
    /// A cluster was written to without an intent in the ledger.
    NoIntent { cluster: ClusterName },
    /// A cluster was admitted without a journal entry.
    NotInJournal { cluster: ClusterName },
    /// `starling verify` finds an error in the journal.
    Journal(String),
    /// A cluster was admitted by a rollout that is not the one in status.
    UnknownRollout { cluster: ClusterName, rollout: i64 },
    /// A cluster was admitted, and the status does not record the start of its stage.
    StageNotRecorded { cluster: ClusterName, stage: String },
    /// A cluster on which the target is applied was started with it again.
    StartedAgain { cluster: ClusterName },
    /// More clusters are in flight for a release than there are slots.
    TooMany {
        release: String,
        stage: Option<String>,
        clusters: Vec<ClusterName>,
        slots: usize,
    },
    /// The record of a stage was removed or changed.
    StageRecordChanged { stage: String },
    /// One rollout number for two releases.
    TwoReleases { rollout: i64 },
    /// A rollout number decreased.
    RolloutNumberDecreased { from: i64, to: i64 },
    /// A held release started again without an operator action.
    HeldReleaseStarted { release: String },
    /// The rollouts in the ledger differ from the status.
    History(String),
    /// A release was admitted that is neither stored nor offered.
    NotStored { release: String },
    /// A release in the status is not stored any more.
    NamedReleaseDeleted { release: String },
    /// A release is recorded as good that is not applied on every reachable cluster.
    GoodReleaseNotOnAllClusters { release: String, cluster: ClusterName },
    /// The status was written more than once in a pass.
    StatusTwice,
    /// The machine did not return borrowed views.
    ViewsNotReturned,
    /// A cluster was retried without a request.
    RetriedWithoutRequest { cluster: ClusterName },
    /// A cluster was retried twice for one request.
    RetriedTwice { cluster: ClusterName },
    /// A Sync of a selected cluster was removed.
    RemovedSelected { cluster: ClusterName },
    /// After a start, an admission is open in the ledger that no Sync can end.
    OpenWithoutSync { cluster: ClusterName },
    /// A Sync of a removed entry was removed before the release was applied on its cluster, which may take its objects
    /// over.
    RemovedBeforeApplied { cluster: ClusterName },
    /// The status has a result of a gate that no other system has given.
    GateInvented { stage: String },
    /// A cluster that left lost its objects, and was not counted against the deletion budget before.
    RemovedUncounted { cluster: ClusterName },
    /// A Sync was removed without a journal entry.
    RemovalNotInJournal { cluster: ClusterName },
    /// A prune is allowed, and the newest journal entry of the rollout does not have it.
    PruneNotInJournal { sync: SyncName },
    /// A Sync was removed while too many clusters left together.
    RemovedWhileHeld { cluster: ClusterName },
    /// The group is idle, and an action or approval of its rollouts has no mark.
    NotMarked { object: String },
    /// A mark says something else than the status does.
    WrongMark { object: String },
}

/// Checks a write of the status by a controller that knows `cache`.
pub(crate) fn of_status(world: &World, after: &SyncGroupStatus, cache: &Api) -> Vec<Violation> {
    let mut violations = not_on_all_clusters(world, after, cache);
    let (Some(before), Some(after)) = (world.rollout(), after.rollout.as_ref()) else {
        return violations;
    };
    if after.id < before.id {
        violations.push(Violation::RolloutNumberDecreased {
            from: before.id,
            to: after.id,
        });
    }
    if after.id == before.id {
        if after.release != before.release {
            violations.push(Violation::TwoReleases { rollout: after.id });
        }
        violations.extend(changed_stage_records(world, before, after));
        violations.extend(invented_gates(world, after));
    } else if starts_held_release(world, before, after) {
        violations.push(Violation::HeldReleaseStarted {
            release: after.release.clone(),
        });
    }
    violations
}

/// Every result of a gate that another system decides was given by it.
fn invented_gates(world: &World, after: &RolloutStatus) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (stage, record) in record::recorded(after) {
        let sides = [(Side::Before, &record.before), (Side::After, &record.after)];
        for (side, gates) in sides {
            for (index, gate) in gates.iter().enumerate() {
                let key = GateKey {
                    rollout: after.id,
                    stage: stage.clone(),
                    side,
                    index,
                    begun_at: gate.begun_at,
                };
                if gate.result.is_some() && !world.evaluated_gates.contains(&key) {
                    violations.push(Violation::GateInvented { stage: stage.clone() });
                }
            }
        }
    }
    violations
}

/// A new last known good release is applied on each reachable cluster, as far as the controller knows.
fn not_on_all_clusters(world: &World, after: &SyncGroupStatus, cache: &Api) -> Vec<Violation> {
    let Some(good) = after
        .last_known_good
        .as_ref()
        .filter(|_| after.last_known_good != world.api.status.last_known_good)
    else {
        return Vec::new();
    };
    let reached = cache
        .selected()
        .filter(|(_, cluster)| cluster.member.reach == Reach::Ready);
    let lacking = reached.filter(|(_, cluster)| {
        let sync = cluster.member.observed.as_ref();
        !sync.is_some_and(|sync| {
            sync.target.as_deref() == Some(good.release.as_str())
                && matches!(sync.progress, Progress::Applied(_))
        })
    });
    lacking
        .map(|(name, _)| Violation::GoodReleaseNotOnAllClusters {
            release: good.release.clone(),
            cluster: name.clone(),
        })
        .collect()
}

fn starts_held_release(world: &World, before: &RolloutStatus, after: &RolloutStatus) -> bool {
    let held = world.api.status.held_release.as_ref();
    let asked = world
        .api
        .actions
        .iter()
        .any(|action| action.spec.rollout == before.id && action.spec.action == ActionType::Release);
    held.is_some_and(|held| held.release == after.release) && !asked
}

fn changed_stage_records(world: &World, before: &RolloutStatus, after: &RolloutStatus) -> Vec<Violation> {
    let rollout = before.id;
    let (before, after) = (record::recorded(before), record::recorded(after));
    let is_kept = |stage: &str, before: &StageRecord, after: &StageRecord| {
        let is_retried = |side: Side, index: usize, gate: &GateRecord| {
            let key = GateKey {
                rollout,
                stage: stage.to_owned(),
                side,
                index,
                begun_at: gate.begun_at,
            };
            is_retried(world, &key, gate)
        };
        is_kept(before, after, &is_retried)
    };
    before
        .iter()
        .filter(|(name, record)| !after.get(*name).is_some_and(|after| is_kept(name, record, after)))
        .map(|(name, _)| Violation::StageRecordChanged { stage: name.clone() })
        .collect()
}

/// Reports whether an operator requested a retry of the gate at this place of a stage.
type IsRetried<'a> = &'a dyn Fn(Side, usize, &GateRecord) -> bool;

/// The strategy does not change here, so the record of a gate is always valid.
fn is_kept(before: &StageRecord, after: &StageRecord, is_retried: IsRetried<'_>) -> bool {
    let time = |before: Option<_>, after| before.is_none() || before == after;
    time(before.opened_at, after.opened_at)
        && time(before.completed_at, after.completed_at)
        && time(before.passed_at, after.passed_at)
        && are_kept(&before.before, &after.before, Side::Before, is_retried)
        && are_kept(&before.after, &after.after, Side::After, is_retried)
}

/// Reports whether an operator requested a retry of a gate that failed, after it had begun. A pass that learns of the
/// failure after the request begins the gate anew at once, so that no status has its result.
fn is_retried(world: &World, key: &GateKey, gate: &GateRecord) -> bool {
    let mut actions = world.api.actions.iter().filter(|action| {
        let spec = &action.spec;
        let of = (spec.action, spec.rollout, &spec.cluster) == (ActionType::Retry, key.rollout, &None);
        of && spec.stage.as_ref().is_none_or(|of| *of == key.stage)
    });
    let given = || {
        world
            .evaluated_gates
            .contains(key)
            .then(|| GateTasks::result(key))
    };
    let result = gate.result.clone().or_else(given);
    let is_failed = matches!(result, Some(GateResult::Failed { .. }));
    is_failed && actions.any(|action| began_before(gate.begun_at, operator::at(action)))
}

/// Gates begin one after the other, and each gets one result. A gate that failed begins anew if an operator requested a
/// retry, and what had begun after it, because failures do not stop the rollout, begins after it again.
fn are_kept(before: &[GateRecord], after: &[GateRecord], side: Side, is_retried: IsRetried<'_>) -> bool {
    let mut places = before.iter().enumerate();
    let retried =
        places.find(|(place, gate)| after.get(*place) != Some(gate) && is_retried(side, *place, gate));
    let before = match retried {
        Some((place, gate)) => {
            let again = after.get(place);
            if again.is_some_and(|again| again.gate != gate.gate || again.begun_at <= gate.begun_at) {
                return false;
            }
            &before[..place]
        }
        None => before,
    };
    let is_kept = |(before, after): (&GateRecord, &GateRecord)| {
        let same = (&before.gate, before.begun_at) == (&after.gate, after.begun_at);
        same && (before.result.is_none() || before.result == after.result)
    };
    before.len() <= after.len() && before.iter().zip(after).all(is_kept)
}

/// Checks a write of a Sync by a controller that knows `cache`.
pub(crate) fn of_sync(
    world: &World,
    written: &Written,
    intents: &[AdmissionRecord],
    cache: &Api,
) -> Vec<Violation> {
    let cluster = || written.cluster.clone();
    let mut violations = Vec::new();
    if !intents.iter().any(|record| is_intent(record, written)) {
        violations.push(Violation::NoIntent { cluster: cluster() });
    }
    let release = &written.release;
    // The cache lacks what this pass has stored, and has what was deleted since.
    if !cache.stored.contains(release) && !world.api.stored.contains(release) {
        violations.push(Violation::NotStored {
            release: release.to_string(),
        });
    }
    let rollout = world.rollout().filter(|rollout| rollout.id == written.rollout);
    match rollout {
        None => violations.push(Violation::UnknownRollout {
            cluster: cluster(),
            rollout: written.rollout,
        }),
        Some(rollout) => violations.extend(of_stage(world, rollout, written)),
    }
    match written.retried_for {
        Some(_) => violations.extend(of_retry(world, written)),
        None => violations.extend(started_again(world, written)),
    }
    violations
}

/// The ledger has the written admission with its time, and it is open: an ended admission is reopened when the target
/// is admitted again. An applied admission stays applied, even if the cluster left meanwhile.
fn is_intent(record: &AdmissionRecord, written: &Written) -> bool {
    let key = &record.admission.key;
    let is_open = match record.end {
        // The ledger has microseconds.
        None => record.admission.admitted_at.as_microsecond() == written.at.as_microsecond(),
        Some(end) => end.outcome == AdmissionOutcome::Applied,
    };
    key.cluster == written.cluster && key.target == *written.release && is_open
}

fn started_again(world: &World, written: &Written) -> Option<Violation> {
    let cluster = world.api.clusters.get(&written.cluster);
    let observed = cluster.and_then(|cluster| cluster.member.observed.as_ref());
    let held = observed.is_some_and(|sync| {
        sync.target.as_deref() == Some(written.release.as_str())
            && matches!(sync.progress, Progress::Applied(_))
    });
    held.then(|| Violation::StartedAgain {
        cluster: written.cluster.clone(),
    })
}

/// A retry needs a request for this rollout, and happens once per request. Whether the cluster recovers meanwhile
/// cannot be known.
fn of_retry(world: &World, written: &Written) -> Option<Violation> {
    let cluster = world.api.clusters.get(&written.cluster)?;
    let stage = world.spec.strategy.stages.get(cluster.stage)?;
    let requested = world.api.actions.iter().any(|action| {
        let of = &action.spec;
        let at = action.metadata.creation_timestamp.as_ref().map(|time| time.0);
        of.action == ActionType::Retry
            && of.rollout == written.rollout
            && of.cluster.as_ref().is_none_or(|name| *name == written.cluster)
            && of.stage.as_ref().is_none_or(|name| *name == stage.name)
            && at == written.retried_for
    });
    let name = written.cluster.clone();
    if !requested {
        return Some(Violation::RetriedWithoutRequest { cluster: name });
    }
    let sync = cluster.member.observed.as_ref()?;
    let is_handled =
        sync.target.as_deref() == Some(written.release.as_str()) && sync.retried_for == written.retried_for;
    is_handled.then_some(Violation::RetriedTwice { cluster: name })
}

/// Checks a write of a Sync: the newest entry of the journal is of its rollout, and contains this decision.
pub(crate) fn of_journal(written: &Written, journal: Option<&(i64, RecordedPlan)>) -> Option<Violation> {
    let found = journal.is_some_and(|(rollout, recorded)| {
        let release = match recorded.plan.decisions.get(&written.cluster) {
            Some(Decision::Start {
                to: AdmittedRelease::Release,
                ..
            }) if written.retried_for.is_none() => Some(recorded.input.rollout.release.as_str()),
            Some(Decision::Start {
                to: AdmittedRelease::LastKnownGood,
                ..
            }) if written.retried_for.is_none() => known_good(recorded, &written.cluster),
            Some(Decision::Retry { requested_at, .. }) if written.retried_for == Some(*requested_at) => {
                Some(recorded.input.rollout.release.as_str())
            }
            _ => None,
        };
        *rollout == written.rollout && release == Some(written.release.as_str())
    });
    (!found).then(|| Violation::NotInJournal {
        cluster: written.cluster.clone(),
    })
}

fn known_good<'a>(recorded: &'a RecordedPlan, cluster: &ClusterName) -> Option<&'a str> {
    let entries = &recorded.input.clusters.get(cluster)?.entries;
    entries.get(ENTRY)?.known_good.as_deref()
}

/// Checks the removal of a Sync by a controller that knows `cache`.
pub(crate) fn of_removal(
    world: &World,
    removal: &Removal,
    journal: Option<&(i64, RecordedPlan)>,
    cache: &Api,
) -> Vec<Violation> {
    let cluster = || removal.cluster.clone();
    let mut violations = Vec::new();
    let known = world.api.clusters.get(&removal.cluster);
    if removal.entry == ENTRY && known.is_some_and(|known| known.is_selected) {
        violations.push(Violation::RemovedSelected { cluster: cluster() });
    }
    let found = journal.is_some_and(|(rollout, recorded)| {
        let rolls = world.rollout().is_some_and(|current| current.id == *rollout);
        rolls && recorded.plan.removals.get(&removal.sync) == Some(&RemovalDecision::Remove)
    });
    if !found {
        violations.push(Violation::RemovalNotInJournal { cluster: cluster() });
    }
    let is_applied = known
        .and_then(|known| known.member.observed.as_ref())
        .is_some_and(|sync| matches!(sync.progress, Progress::Applied(_)));
    if removal.cause == LeavingCause::EntryRemoved && !is_applied {
        violations.push(Violation::RemovedBeforeApplied { cluster: cluster() });
    }
    let loses = removal.cause != LeavingCause::EntryRemoved && removal.policy == DeletionPolicy::Delete;
    if loses && !world.counted.contains(&removal.cluster) {
        violations.push(Violation::RemovedUncounted { cluster: cluster() });
    }
    if is_held(world, cache) {
        violations.push(Violation::RemovedWhileHeld { cluster: cluster() });
    }
    violations
}

/// Checks that the journal has the prune of a Sync before it is allowed.
pub(crate) fn of_prune(
    world: &World,
    sync: &SyncName,
    journal: Option<&(i64, RecordedPlan)>,
) -> Option<Violation> {
    let is_decided = journal.is_some_and(|(rollout, recorded)| {
        let rolls = world.rollout().is_some_and(|current| current.id == *rollout);
        rolls && recorded.plan.prunes.get(sync) == Some(&RemovalDecision::Remove)
    });
    (!is_decided).then(|| Violation::PruneNotInJournal { sync: sync.clone() })
}

/// Whether more clusters are about to leave than allowed, as far as the controller knows, without an approval.
fn is_held(world: &World, cache: &Api) -> bool {
    let with_sync = |cluster: &&crate::world::Cluster| cluster.member.observed.is_some();
    let syncs = cache.clusters.values().filter(with_sync).count();
    let gone = cache
        .clusters
        .values()
        .filter(with_sync)
        .filter(|cluster| !cluster.is_selected);
    let allowed = world.spec.max_unselected.of_rounded_down(syncs).max(1);
    gone.count() > allowed && cache.approved_deselection == ApprovedDigests::default()
}

/// Checks the deletion of releases that are not named: the status names none of them.
pub(crate) fn of_garbage(world: &World, named: &BTreeSet<ReleaseDigest>) -> Vec<Violation> {
    let status = &world.api.status;
    let mut needed: BTreeSet<&String> = status.queue.iter().map(|of| &of.release).collect();
    needed.extend(status.rollout.as_ref().map(|rollout| &rollout.release));
    needed.extend(status.last_known_good.as_ref().map(|good| &good.release));
    needed.extend(status.held_release.as_ref().map(|held| &held.release));
    needed
        .into_iter()
        .filter(|release| world.api.stored.contains(release.as_str()) && !named.contains(release.as_str()))
        .map(|release| Violation::NamedReleaseDeleted {
            release: release.clone(),
        })
        .collect()
}

/// Waits are counted from the recorded times of the stages, so a stage is recorded before its first cluster starts.
/// Clusters that get the last known good release do not wait for their stage, and an immediate rollback has no stages.
fn of_stage(world: &World, rollout: &RolloutStatus, written: &Written) -> Option<Violation> {
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
    (!begun).then(|| Violation::StageNotRecorded {
        cluster: written.cluster.clone(),
        stage: stage.clone(),
    })
}

/// Checks the clusters in flight of each release: in the group, and of this rollout in each stage. A cluster past its
/// deadline counts as failed and uses no slot, and a skipped cluster does not count. The number of slots depends on the
/// selected clusters, as far as the controller knows; clusters that leave reduce it, so that from then on only the
/// `written` release is checked.
pub(crate) fn of_room(world: &World, written: &Written, cache: &Api) -> Vec<Violation> {
    let Some(rollout) = world.rollout() else {
        return Vec::new();
    };
    let limits = &world.spec.strategy.limits;
    let is_counted = |name: &ClusterName| {
        cache
            .clusters
            .get(name)
            .is_some_and(|cluster| cluster.is_selected)
    };
    let under_way = |release: &str, stage: Option<usize>| -> Vec<ClusterName> {
        let clusters = world.api.clusters.iter().filter(|(name, cluster)| {
            if !is_counted(name) {
                return false;
            }
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
    let total = cache.selected().count();
    let mut violations = Vec::new();
    let mut judge = |release: &str, stage: Option<usize>, slots: usize| {
        let clusters = under_way(release, stage);
        if clusters.len() > slots {
            violations.push(Violation::TooMany {
                release: release.to_owned(),
                stage: stage.map(|stage| world.spec.strategy.stages[stage].name.clone()),
                clusters,
                slots,
            });
        }
    };
    let slots = limits.max_concurrency.of_rounded_up(total).max(1);
    let is_checked = |release: &str| !world.has_shrunk || written.release == *release;
    for release in world.releases.iter().filter(|release| is_checked(release)) {
        judge(release, None, slots);
    }
    if rollout.direction == RolloutDirection::BackAtOnce || !is_checked(&rollout.release) {
        return violations;
    }
    for (place, stage) in world.spec.strategy.stages.iter().enumerate() {
        let of_stage = cache.selected().filter(|(_, cluster)| cluster.stage == place);
        let of_stage = of_stage.count();
        if let Some(limit) = stage.max_concurrency {
            judge(
                &rollout.release,
                Some(place),
                limit.of_rounded_up(of_stage).max(1),
            );
        }
    }
    violations
}

fn is_skipped(world: &World, rollouts: [i64; 2], cluster: &str) -> bool {
    let mut skips =
        world.api.actions.iter().filter(|action| {
            rollouts.contains(&action.spec.rollout) && action.spec.action == ActionType::Skip
        });
    let stage = world.api.clusters.get(cluster).map(|cluster| cluster.stage);
    let stage = stage.map(|stage| world.spec.strategy.stages[stage].name.as_str());
    skips.any(|action| {
        action.spec.cluster.as_deref() == Some(cluster)
            || (action.spec.cluster.is_none() && action.spec.stage.as_deref() == stage)
    })
}
