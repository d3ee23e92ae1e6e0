//! The removals of a group that is being deleted: one plan, its entry in the journal, and the Syncs that it removes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{ABANDON, DeletionPolicy, IntOrPercent, RolloutStrategy, SyncGroup, SyncResource};
use starling_core::identity;
use starling_core::ids::SyncName;
use starling_core::journal::Recorder;
use starling_core::plan::{
    LeavingCause, LeavingSync, Reach, ReadStrategy, RemovalDecision, RemovalHold, StrategyError,
    needed_by_suspended,
};
use starling_core::rollout::{DeletedGroup, Epoch, PlannedDeletion, Removal, plan_deletion};
use starling_ledger::LedgerError;

use super::super::ReconcileError;
use super::super::cluster::reach;
use super::super::group_state::{self, is_abandoned};
use super::super::sync::depends_on;
use super::{api, observe, recorder, remove};
use crate::controller::caches::sync_index::GroupSyncs;
use crate::controller::context::GroupContext;
use crate::controller::interpreter::{self, RecordedGroup};
use crate::controller::object_key::ObjectKey;

/// The result of a pass.
pub(super) struct Removed {
    /// What the next Sync waits for, as a part of a message; empty if none waits.
    pub(super) waits_for: String,
    /// Every removal of the plan was carried out.
    pub(super) is_complete: bool,
    /// When time alone changes the plan.
    pub(super) recheck_at: Option<Timestamp>,
}

/// Plans the next removals, records the plan, and carries it out.
///
/// # Errors
/// [`ReconcileError`] if the plan cannot be recorded: nothing is removed that the journal does not explain.
pub(super) async fn pass(
    context: GroupContext<'_>,
    group: &SyncGroup,
    syncs: &GroupSyncs,
) -> Result<Removed, ReconcileError> {
    let key = ObjectKey::of(group);
    let identity = RecordedGroup {
        id: identity::id_of(context.installation, group),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    };
    let strategy = match strategy(group) {
        Ok(strategy) => strategy,
        Err(error) => {
            return Ok(Removed {
                waits_for: format!("; the strategy cannot be read: {error}"),
                is_complete: false,
                recheck_at: None,
            });
        }
    };
    let heads = &context.caches.journal_heads;
    let mut recorder = recorder(context, &key, group, &identity.id).await?;
    let planned = match plan(context, group, &strategy, syncs, &recorder) {
        Ok(planned) => planned,
        Err(source) => {
            heads.put(&key, recorder);
            let subject = "an entry of the journal";
            return Err(LedgerError::Encode { subject, source }.into());
        }
    };
    recorder.forget_read();
    if !context.permit.is_valid() {
        heads.put(&key, recorder);
        return Ok(Removed {
            waits_for: String::new(),
            is_complete: false,
            recheck_at: None,
        });
    }
    if let Some(draft) = planned.entry {
        // If this fails, the head is dropped, and the next pass reads it from the ledger.
        interpreter::append(context.ledger, &identity, planned.rollout, &draft).await?;
        recorder.wrote(draft);
    }
    context.caches.prune_requests.decided(&key, &planned.plan.prunes);
    api::allow_prunes(context, &key, &planned.allowed, context.clock.now());
    let is_complete = remove_all(context, group, syncs, &planned.removals).await?;
    heads.put(&key, recorder);
    Ok(Removed {
        waits_for: waits_for(group, &planned.input.leaving, &planned.plan.removals),
        is_complete,
        recheck_at: planned.plan.recheck_at,
    })
}

/// Returns the plan for a group that is being deleted.
fn plan(
    context: GroupContext<'_>,
    group: &SyncGroup,
    strategy: &ReadStrategy,
    syncs: &GroupSyncs,
    recorder: &Recorder,
) -> Result<PlannedDeletion, serde_json::Error> {
    let now = context.clock.now();
    let actions = observe::judged(
        Some(context.policies),
        context.objects.actions.indexed(&ObjectKey::of(group)),
    );
    let deleted = DeletedGroup {
        now,
        clock_jumps: &context.clock.jumps(),
        epoch: Epoch::NONE,
        strategy: &strategy.strategy,
        rollout: group.status.as_ref().and_then(|status| status.rollout.as_ref()),
        operator: group_state::requests(group, actions.iter().map(|action| &**action)),
        suspended: group.spec.suspend,
        leaving: leaving(context, group, strategy, syncs, now),
        late: context
            .caches
            .prune_requests
            .of_group(&ObjectKey::of(group), syncs, now),
    };
    plan_deletion(deleted, recorder)
}

/// Returns the strategy of the group. With an invalid one, one cluster at a time loses its Syncs.
fn strategy(group: &SyncGroup) -> Result<ReadStrategy, StrategyError> {
    let one_at_a_time = || {
        ReadStrategy::new(&RolloutStrategy {
            max_concurrency: IntOrPercent::Int(1),
            ..RolloutStrategy::default()
        })
    };
    ReadStrategy::new(&group.spec.rollout_strategy).or_else(|_| one_at_a_time())
}

/// Returns the Syncs of the group.
fn leaving(
    context: GroupContext<'_>,
    group: &SyncGroup,
    strategy: &ReadStrategy,
    syncs: &GroupSyncs,
    now: Timestamp,
) -> BTreeMap<SyncName, LeavingSync> {
    let key = ObjectKey::of(group);
    let times = &context.caches.removal_times;
    times.observe(&key, syncs.values().map(|sync| &**sync), now);
    let mut all = BTreeMap::new();
    for (cluster, of_cluster) in syncs.clusters() {
        let found = context
            .objects
            .clusters
            .get(&ObjectKey::new(&key.namespace, cluster));
        let is_away = found
            .as_ref()
            .is_some_and(|cluster| reach(cluster) != Reach::Ready);
        let place = found.map_or_else(
            || strategy.last_place(),
            |cluster| strategy.place(cluster.labels()),
        );
        for sync in of_cluster.iter() {
            let Some(of) = &sync.spec.group_ref else {
                continue;
            };
            let leaving = LeavingSync {
                cluster: cluster.into(),
                entry: of.entry.as_str().into(),
                cause: LeavingCause::GroupDeleted {
                    stage: place.stage,
                    windows: place.windows.clone(),
                },
                policy: group.spec.deletion_policy,
                depends_on: depends_on(sync).into_iter().map(SyncName::from).collect(),
                removing_since: times.since(&key, sync, now),
                suspended: sync.spec.template.suspend,
                not_ready: is_away && !is_abandoned(sync),
                budget_until: None,
                approval: None,
            };
            all.insert(sync.name_any().into(), leaving);
        }
    }
    keep_suspended(&mut all);
    all
}

/// The objects of a suspended Sync stay, and what they may need later stays with them, such as their operator.
fn keep_suspended(leaving: &mut BTreeMap<SyncName, LeavingSync>) {
    let needed: BTreeSet<SyncName> = needed_by_suspended(leaving).into_iter().cloned().collect();
    for (name, sync) in leaving {
        if sync.suspended || needed.contains(name) {
            sync.policy = DeletionPolicy::Orphan;
        }
    }
}

/// Removes Syncs in this order, each independently of the others. Returns whether all were removed.
async fn remove_all(
    context: GroupContext<'_>,
    group: &SyncGroup,
    syncs: &GroupSyncs,
    removals: &[Removal],
) -> Result<bool, LedgerError> {
    let mut all = true;
    for removal in removals {
        let Some(sync) = syncs.get(&removal.cluster, &removal.entry) else {
            continue;
        };
        // The loop takes long if the management cluster does not respond, and may go on with a restored one.
        if !context.permit.is_valid() {
            return Ok(false);
        }
        // A Sync that cannot be removed may still be applied, and only the first end counts.
        match remove::remove(context, sync, removal.policy).await {
            Ok(()) => {
                remove::end_left(context, group, sync).await?;
                if removal.policy != group.spec.deletion_policy {
                    report_kept(context, sync, &removal.cluster).await;
                }
            }
            Err(error) => {
                tracing::warn!(sync = %removal.sync, error = %crate::chain(&error), "Sync not removed");
                all = false;
            }
        }
    }
    Ok(all)
}

/// Records an event for objects that stay although the policy of the group is to delete them.
async fn report_kept(context: GroupContext<'_>, sync: &SyncResource, cluster: &str) {
    let why = match sync.spec.template.suspend {
        true => "the Sync is suspended",
        false => "a Sync that depends on it is suspended",
    };
    let note = format!("the objects stay on cluster {cluster}: {why}");
    context.events.warning(sync, "ObjectsOrphaned", note).await;
}

/// Returns what the next Sync waits for, as a part of a message. Clusters that are not ready hold no others, so they
/// are named only if nothing else waits.
fn waits_for(
    group: &SyncGroup,
    leaving: &BTreeMap<SyncName, LeavingSync>,
    decisions: &BTreeMap<SyncName, RemovalDecision>,
) -> String {
    let held = decisions.iter().filter_map(|(name, decision)| match decision {
        RemovalDecision::Hold { reason, .. } => {
            Some((*reason == RemovalHold::ClusterNotReady, name, *reason))
        }
        RemovalDecision::Remove | RemovalDecision::Removing => None,
    });
    let Some((_, name, reason)) = held.min_by_key(|(is_away, ..)| *is_away) else {
        return String::new();
    };
    let named = group.name_any();
    match reason {
        RemovalHold::GroupSuspended => {
            "; the group is suspended: to continue, set spec.suspend to false".to_owned()
        }
        RemovalHold::Paused => {
            format!("; the rollout is paused: to continue, run starling resume {named}")
        }
        RemovalHold::StageNotOpen => {
            let stage = leaving.get(name).and_then(|sync| match &sync.cause {
                LeavingCause::GroupDeleted { stage, .. } => group.spec.rollout_strategy.stages.get(*stage),
                LeavingCause::ClusterUnselected { .. } | LeavingCause::EntryRemoved => None,
            });
            match stage {
                Some(stage) => format!("; stage {} waits for the stages before it", stage.name),
                None => "; clusters without a stage wait for the stages".to_owned(),
            }
        }
        RemovalHold::ClusterNotReady => format!(
            "; clusters are unreachable, and lose their Syncs when they return; set {ABANDON}: \"true\" on a Sync to \
             leave its objects there"
        ),
        RemovalHold::WindowClosed => "; clusters wait for a window".to_owned(),
        RemovalHold::NoSlot => "; clusters wait for a slot (maxConcurrency)".to_owned(),
        other => format!("; {}", other.as_str()),
    }
}
