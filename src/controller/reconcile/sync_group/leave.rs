//! Who leaves the group, and what becomes of their Syncs.
//!
//! A cluster leaves when its labels no longer fit, or its Cluster is gone; an entry when it is taken out of the group. What
//! becomes of the objects is told to the Sync before it is deleted: the Sync then sees to it by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use starling_api::{
    APPROVE_MEMBERSHIP, Cluster, DeletionPolicy, FINALIZER, ROLLOUT, SyncGroup, SyncResource,
};
use starling_core::finalize::dependents_first;
use starling_core::membership::{Departure, HeldDeparture, Members, departure};
use starling_core::plan::{Decision, Plan};

use super::super::ReconcileError;
use super::super::sync::depends_on;
use super::admit::admission_key;
use super::observe::Group;
use super::release::Rolling;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
use crate::controller::hub::HubError;
use crate::controller::wake::By;
use crate::ledger::AdmissionOutcome;

/// How long the same clusters have to be about to leave before they do. Labels that a script takes away one by one come
/// faster than this, and count together.
const SETTLE: Duration = Duration::from_secs(3);
/// Wait after the management cluster did not take something.
const RETRY: Duration = Duration::from_secs(2);

/// Who is about to leave.
pub(super) struct Leaving {
    clusters: BTreeSet<String>,
    /// Too many at once: nobody leaves, and nothing more starts.
    pub(super) held: Option<HeldDeparture>,
    /// When they leave, if nobody comes back before.
    settles: Option<Next>,
}

/// Looks who is about to leave.
pub(super) fn observe(context: &Context, group: &Group) -> Leaving {
    let (clusters, held) = match departing(group) {
        Departure::Free(clusters) => (clusters, None),
        Departure::Held(held) => (BTreeSet::new(), Some(held)),
    };
    let now = context.now();
    let since = context.departures.since(&group.key, &clusters, now);
    let due = since
        .checked_add(SignedDuration::try_from(SETTLE).unwrap_or_default())
        .unwrap_or(now);
    let settles = (!clusters.is_empty() && due > now).then(|| Next::at(due, now));
    Leaving {
        clusters,
        held,
        settles,
    }
}

fn departing(group: &Group) -> Departure {
    // Most of the time nobody leaves, and nobody has to be counted.
    let mut selected = group.clusters.keys().map(String::as_str).peekable();
    let all_selected = group.syncs.clusters().all(|(cluster, _)| {
        while selected.next_if(|name| *name < cluster).is_some() {}
        selected.next_if(|name| *name == cluster).is_some()
    });
    if all_selected {
        return Departure::Free(BTreeSet::new());
    }
    let previous = group
        .syncs
        .iter()
        .filter(|(.., sync)| sync.metadata.deletion_timestamp.is_none())
        .map(|(cluster, ..)| cluster.to_owned())
        .collect();
    let selected = group.clusters.keys().cloned().collect();
    let approved = group.object.annotations().get(APPROVE_MEMBERSHIP);
    departure(Members {
        previous: &previous,
        selected: &selected,
        unknown: &group.unreadable,
        allowed: group.object.spec.max_unselected,
        approved: approved.map(String::as_str).unwrap_or_default(),
    })
}

/// Takes away the Syncs of those that leave. Returns when to look again.
///
/// # Errors
/// [`ReconcileError`] where the ledger did not take the end of an admission.
pub(super) async fn release(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    leaving: &Leaving,
    plan: &Plan,
) -> Result<Option<Next>, ReconcileError> {
    if !context.clusters.is_synced() || leaving.held.is_some() {
        return Ok(None);
    }
    let mut again = leaving.settles;
    let mut doomed: BTreeMap<String, (Arc<SyncResource>, DeletionPolicy)> = BTreeMap::new();
    if leaving.settles.is_none() {
        for cluster in &leaving.clusters {
            match is_out(context, group, cluster).await {
                Ok(true) => {
                    let policy = group.object.spec.when_unselected;
                    doomed.extend(syncs_of(group, cluster).map(|sync| (sync.name_any(), (sync, policy))));
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(group = %group.key, %cluster, error = %crate::chain(&error), "not known whether it left");
                    again = Some(Next::After(RETRY));
                }
            }
        }
    }
    for sync in of_removed_entries(group, rolling, plan) {
        let policy = sync.spec.template.deletion_policy;
        doomed.insert(sync.name_any(), (sync, policy));
    }
    let order = dependents_first(
        &doomed
            .iter()
            .map(|(name, (sync, _))| (name.clone(), depends_on(sync)))
            .collect(),
    );
    for (sync, policy) in order.iter().filter_map(|name| doomed.get(name)) {
        match take_away(context, &group.object, sync, *policy).await? {
            Ok(()) if *policy == DeletionPolicy::Orphan => tell_people(context, group, leaving, sync).await,
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "not taken away");
                again = Some(Next::After(RETRY));
            }
        }
    }
    Ok(again)
}

/// Objects stay behind, and no Sync is left that would say so.
async fn tell_people(context: &Context, group: &Group, leaving: &Leaving, sync: &SyncResource) {
    let (cluster, name) = (&sync.spec.cluster_ref.name, sync.name_any());
    let (reason, note) = if leaving.clusters.contains(cluster) {
        (
            "ClusterLeft",
            format!("cluster {cluster} left the group; the objects of {name} stay there"),
        )
    } else {
        let entry = sync.spec.group_ref.as_ref().map_or("", |of| of.entry.as_str());
        (
            "EntryRemoved",
            format!(
                "entry {entry} was taken out of the group; what {name} still had stays on cluster {cluster}"
            ),
        )
    };
    context.events.normal(&*group.object, reason, note).await;
}

/// Whether a cluster is out of the group beyond doubt: its labels say so, or the management cluster says that there is no
/// such Cluster. That the cache lacks it may be a list that was not complete.
async fn is_out(context: &Context, group: &Group, cluster: &str) -> Result<bool, HubError> {
    let key = ObjectKey::new(&group.key.namespace, cluster);
    if context.clusters.get(&key).is_some() {
        return Ok(true);
    }
    Ok(context.hub.find::<Cluster>(&key).await?.is_none())
}

fn syncs_of(group: &Group, cluster: &str) -> impl Iterator<Item = Arc<SyncResource>> {
    group
        .syncs
        .on(cluster)
        .filter(|sync| sync.metadata.deletion_timestamp.is_none())
        .cloned()
}

/// The Syncs of entries that were taken out, on clusters where all present entries are done: what one of those has taken
/// over carries its label by then, so a renamed entry hands its objects over.
fn of_removed_entries(group: &Group, rolling: &Rolling, plan: &Plan) -> Vec<Arc<SyncResource>> {
    let is_known = |name: &str| rolling.vector.entry(name).is_some();
    group
        .syncs
        .iter()
        .filter(|(cluster, entry, sync)| {
            !is_known(entry)
                && sync.metadata.deletion_timestamp.is_none()
                && matches!(plan.decisions.get(*cluster), Some(Decision::Done))
        })
        .map(|(.., sync)| sync.clone())
        .collect()
}

/// Ends a Sync's admission in the ledger, tells the Sync what becomes of its objects, and deletes it.
///
/// # Errors
/// The outer error is the ledger's; the inner one the management cluster's.
pub(super) async fn take_away(
    context: &Context,
    group: &SyncGroup,
    sync: &Arc<SyncResource>,
    policy: DeletionPolicy,
) -> Result<Result<(), HubError>, ReconcileError> {
    let rollout = sync.annotations().get(ROLLOUT).cloned().unwrap_or_default();
    let key = admission_key(group, &rollout, sync);
    context
        .ledger
        .settle_admission(&key, AdmissionOutcome::Left, "", context.now())
        .await?;
    let cluster = &sync.spec.cluster_ref.name;
    let told = match tell(context, sync, policy).await {
        Ok(told) => told,
        Err(error) => return Ok(Err(error)),
    };
    match context.hub.delete(&*told).await {
        Ok(None) => context.syncs.observe_delete(&ObjectKey::of(&*told)),
        Ok(Some(left)) => {
            if let Some(change) = context.syncs.observe_write(left) {
                context.wake_for_sync(&change, By::Others);
            }
        }
        Err(error) => return Ok(Err(error)),
    }
    tracing::info!(sync = %sync.name_any(), %cluster, ?policy, "left the group");
    Ok(Ok(()))
}

/// Makes the Sync say what becomes of its objects, if it does not already.
async fn tell(
    context: &Context,
    sync: &Arc<SyncResource>,
    policy: DeletionPolicy,
) -> Result<Arc<SyncResource>, HubError> {
    let has_finalizer = sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let needs_it = policy == DeletionPolicy::Delete;
    if sync.spec.template.deletion_policy == policy && has_finalizer == needs_it {
        return Ok(sync.clone());
    }
    let written = context.hub.set_deletion_policy(sync, policy).await?;
    context.syncs.observe_write(written.clone());
    Ok(Arc::new(written))
}
