//! The end of a Sync: its objects go or stay, as core decides, and then its finalizer goes.
//!
//! A Sync carries the finalizer while its deletion may mean work: it, or its group, says `deletionPolicy: Delete`. The finalizer
//! is there before anything is applied. Every pass looks at the member anew and goes on from the inventory there, so a crash
//! between any two requests costs a pass.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, READY, RECONCILING};
use starling_api::{
    ABANDON, Cluster, DeletionPolicy, FINALIZER, ObjectProblem, SyncGroup, SyncResource, SyncStatus,
};
use starling_core::backoff;
use starling_core::finalize::{
    Finalize, FinalizeInput, Orphaned, Surroundings, Target, Waiting, dependents, finalize as decide,
};
use starling_core::plan::Reach;
use starling_core::step;

use super::super::surroundings::surroundings;
use super::super::{ReconcileError, ready};
use super::attempt::{cluster_key, deadline};
use super::lane::{self, Closed, Watch};
use super::observe::Observed;
use super::outcome;
use super::siblings::SiblingsOf;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
use crate::controller::wake::By;
use crate::member::{DeleteJob, DeleteOutcome, MemberError};

/// The reason of Ready while objects are deleted and have not gone yet.
const DELETING: &str = "Deleting";
/// The reason of Ready after a pass in which objects could not be deleted.
const FAILED: &str = "DeletionFailed";
/// First wait for objects that are on their way out: most are gone within seconds. It doubles.
const GOING: Duration = Duration::from_secs(2);
/// Wait after the management cluster did not say what else goes.
const RETRY: Duration = Duration::from_secs(5);

/// Puts the finalizer on a Sync whose deletion may mean work, and takes it off any other.
///
/// # Errors
/// [`ReconcileError`] if it could not be put on: then nothing may be applied.
pub(super) async fn ensure(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let sync = &observed.sync;
    let has = has_finalizer(sync);
    let group = match &sync.spec.group_ref {
        None => false,
        Some(of) => {
            let group = context
                .groups
                .get(&ObjectKey::new(&observed.key.namespace, &of.name));
            // Without its group nobody knows; what is there stays.
            group.map_or(has, |group| group.spec.deletion_policy == DeletionPolicy::Delete)
        }
    };
    let wanted = group || sync.spec.template.deletion_policy == DeletionPolicy::Delete;
    if wanted != has {
        let written = context.hub.set_finalizer(&**sync, wanted).await?;
        if let Some(change) = context.syncs.observe_write(written) {
            context.wake_for_sync(&change, By::Us);
        }
    }
    Ok(())
}

/// Whether a Sync of a group is no longer one of its entries: it holds still until the group takes it away.
pub(super) fn is_retired(context: &Context, observed: &Observed) -> bool {
    let Some(of) = &observed.sync.spec.group_ref else {
        return false;
    };
    context
        .groups
        .get(&ObjectKey::new(&observed.key.namespace, &of.name))
        .is_some_and(|group| !group.spec.syncs.iter().any(|entry| entry.name == of.entry))
}

/// One pass over a Sync that is being deleted.
///
/// # Errors
/// [`ReconcileError`] where the management cluster or the ledger did not take something.
pub(super) async fn finalize(context: &Context, observed: &Observed) -> Result<Next, ReconcileError> {
    if !has_finalizer(&observed.sync) {
        return Ok(Next::OnEvent);
    }
    if let Some(wait) = backing_off(context, observed) {
        return Ok(wait);
    }
    let policy = policy(context, observed).await;
    let surroundings = match policy.surroundings {
        Surroundings::Stay => surroundings(context, &observed.key.namespace).await,
        known => known,
    };
    let waiting = waiting_for(context, observed);
    let abandoned = is_abandoned(observed);
    let decision = decide(&FinalizeInput {
        policy: policy.policy,
        suspended: observed.spec.template.suspend,
        group_lost: policy.group_lost,
        surroundings,
        cluster: target(context, observed).await,
        abandoned,
        dependents: &waiting,
    });
    match decision {
        Finalize::Orphan(why) => orphan(context, observed, &why).await,
        Finalize::Wait(waiting) => {
            wait(context, observed, &waiting).await?;
            Ok(match waiting {
                Waiting::Surroundings(_) => Next::Retry(RETRY),
                // What is waited for wakes the Sync.
                Waiting::Dependents(_) | Waiting::Cluster(_) => Next::OnEvent,
            })
        }
        Finalize::Delete => delete(context, observed).await,
    }
}

fn has_finalizer(sync: &SyncResource) -> bool {
    sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

fn is_abandoned(observed: &Observed) -> bool {
    observed.sync.annotations().get(ABANDON).map(String::as_str) == Some("true")
}

/// Until when the last pass wants to be left alone. Whoever asks for a look, or gives the cluster up, does not wait.
fn backing_off(context: &Context, observed: &Observed) -> Option<Next> {
    let until = context.checks.get(&observed.key)?;
    let was_at_it = conditions::find(&observed.status.conditions, READY)
        .is_some_and(|ready| [DELETING, FAILED].contains(&ready.reason.as_str()));
    let waits = was_at_it && until > context.now() && !observed.requested() && !is_abandoned(observed);
    waits.then(|| Next::at(until, context.now()))
}

/// What is to become of the objects, as the Sync or its group says.
struct Policy {
    policy: DeletionPolicy,
    group_lost: bool,
    surroundings: Surroundings,
}

/// The policy of a group that is being deleted goes before that of its Syncs. It is read past the cache: the garbage
/// collector may delete a Sync before the group's watch says that the group goes.
async fn policy(context: &Context, observed: &Observed) -> Policy {
    let mut policy = Policy {
        policy: observed.sync.spec.template.deletion_policy,
        group_lost: false,
        surroundings: Surroundings::Stay,
    };
    let Some(of) = &observed.sync.spec.group_ref else {
        return policy;
    };
    let key = ObjectKey::new(&observed.key.namespace, &of.name);
    match context.hub.find::<SyncGroup>(&key).await {
        Ok(Some(group)) if group.metadata.deletion_timestamp.is_some() => {
            policy.policy = group.spec.deletion_policy;
        }
        Ok(Some(_)) => {}
        Ok(None) => policy.group_lost = true,
        Err(error) => policy.surroundings = Surroundings::Unknown(crate::chain(&error)),
    }
    policy
}

async fn target(context: &Context, observed: &Observed) -> Target {
    let key = cluster_key(observed);
    match observed.cluster_state().map(|state| state.reach) {
        Some(Reach::Ready) => Target::Ready,
        Some(Reach::Unprobed) => Target::Unavailable("it has not been probed yet".into()),
        Some(Reach::Suspended) => Target::Unavailable("it is suspended".into()),
        Some(Reach::Unreachable { reason, message, .. }) => {
            Target::Unavailable(format!("{reason}: {message}"))
        }
        None if context.clusters.is_unreadable(&key) => {
            Target::Unavailable("its Cluster cannot be read".into())
        }
        // That the cache has no such Cluster may be a list that was not complete.
        None => match context.hub.find::<Cluster>(&key).await {
            Ok(None) => Target::Gone,
            Ok(Some(_)) => Target::Unavailable("its Cluster was only just seen".into()),
            Err(error) => Target::Unavailable(crate::chain(&error)),
        },
    }
}

/// The Syncs that have to go first.
fn waiting_for(context: &Context, observed: &Observed) -> Vec<String> {
    let group_goes = |sync: &SyncResource| {
        let of = sync.spec.group_ref.as_ref();
        of.and_then(|of| {
            context
                .groups
                .get(&ObjectKey::new(&observed.key.namespace, &of.name))
        })
        .is_some_and(|group| group.metadata.deletion_timestamp.is_some())
    };
    // Those that depend on it, and all that it depends on: with one of those it may be in a cycle.
    let mut names: Vec<String> = context.syncs.dependents(&observed.key).into_iter().collect();
    if names.is_empty() {
        return names;
    }
    names.push(observed.key.name.clone());
    let mut leaving: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(name) = names.pop() {
        if leaving.contains_key(&name) {
            continue;
        }
        let key = ObjectKey::new(&observed.key.namespace, &name);
        let leaves = |sync: &SyncResource| {
            has_finalizer(sync) && (sync.metadata.deletion_timestamp.is_some() || group_goes(sync))
        };
        if let Some(sync) = context.syncs.get(&key).filter(|sync| leaves(sync)) {
            let on = depends_on(&sync);
            names.extend(on.iter().cloned());
            leaving.insert(name, on);
        }
    }
    dependents(&observed.key.name, &leaving)
}

/// The names of the Syncs that a Sync depends on.
pub(in super::super) fn depends_on(sync: &SyncResource) -> Vec<String> {
    let on = sync.spec.template.depends_on.iter();
    on.map(|on| on.name.clone()).collect()
}

async fn orphan(context: &Context, observed: &Observed, why: &Orphaned) -> Result<Next, ReconcileError> {
    let cluster = &observed.spec.cluster_ref.name;
    let why = match why {
        Orphaned::Policy => return release(context, observed).await,
        Orphaned::Suspended => "the Sync is suspended".to_owned(),
        Orphaned::Surroundings(what) => format!("{what} is being deleted"),
        Orphaned::GroupLost => "its SyncGroup is gone".into(),
        Orphaned::ClusterGone => "its Cluster is gone".into(),
        Orphaned::Abandoned => format!("it was abandoned ({ABANDON})"),
    };
    let objects = observed.status.inventory.objects;
    let note = format!("{objects} objects stay on cluster {cluster}: {why}");
    tracing::info!(sync = %observed.key, %cluster, %why, objects, "objects stay");
    context
        .events
        .warning(&*observed.sync, "ObjectsOrphaned", note)
        .await;
    release(context, observed).await
}

/// Says what is waited for.
async fn wait(context: &Context, observed: &Observed, waiting: &Waiting) -> Result<(), ReconcileError> {
    let (status, reason, message) = match waiting {
        Waiting::Surroundings(why) => (
            ConditionStatus::False,
            "AwaitingManagementCluster",
            format!("nothing is deleted until it is known what else goes: {why}"),
        ),
        Waiting::Dependents(names) => (
            ConditionStatus::False,
            "AwaitingDependents",
            format!("these depend on it and go first: {}", names.join(", ")),
        ),
        Waiting::Cluster(why) => (
            ConditionStatus::Unknown,
            step::CLUSTER_NOT_READY,
            format!(
                "its objects cannot be deleted from cluster {}: {why}; {ABANDON}: \"true\" leaves them there",
                observed.spec.cluster_ref.name
            ),
        ),
    };
    tell(context, observed, vec![ready(status, reason, message)], |_| {}).await
}

async fn delete(context: &Context, observed: &Observed) -> Result<Next, ReconcileError> {
    let member = match lane::enter(context, observed) {
        Ok(member) => member,
        // An abandoned cluster that only asks for a pause is there, and is cleaned up like any other.
        Err(Closed::Lost(_) | Closed::Account(_)) if is_abandoned(observed) => {
            return orphan(context, observed, &Orphaned::Abandoned).await;
        }
        Err(closed) => return shut_out(context, observed, closed).await,
    };
    context.pace.attempt(&cluster_key(observed)).await;
    let elsewhere = Box::pin(SiblingsOf { context, observed }.held_now()).await;
    let job = DeleteJob {
        owner: &observed.owner,
        elsewhere: &elsewhere,
        deadline: deadline(observed),
    };
    let watch = Watch::begin(&member);
    let deleted = member.delete(job).await;
    watch.end(context, observed, deleted.interrupted.as_ref());
    let cluster = &observed.spec.cluster_ref.name;
    if deleted.is_complete() {
        let (gone, stay) = (deleted.deleted.len(), deleted.released.len());
        tracing::info!(sync = %observed.key, %cluster, deleted = gone, released = stay, "objects deleted");
        let note = format!("the objects on cluster {cluster} are deleted");
        context
            .events
            .normal(&*observed.sync, "ObjectsDeleted", note)
            .await;
        return release(context, observed).await;
    }
    if let Some(MemberError::Throttled { retry_after, .. }) = &deleted.interrupted {
        let pause = context.lanes.throttled(&cluster_key(observed), *retry_after);
        return shut_out(context, observed, Closed::Busy(pause)).await;
    }
    if is_abandoned(observed) {
        return orphan(context, observed, &Orphaned::Abandoned).await;
    }
    match &deleted.interrupted {
        Some(error) if error.is_connectivity() || matches!(error, MemberError::Unauthorized { .. }) => {
            // The Cluster loop finds out what is the matter.
            context.queues.clusters.add(cluster_key(observed));
            shut_out(context, observed, Closed::Lost(crate::chain(error))).await
        }
        Some(_) | None => unfinished(context, observed, &deleted).await,
    }
}

/// Nothing may be sent to the cluster now. A change of its Cluster wakes the Sync; the time is for a cluster that was away so
/// shortly that its Cluster never said so.
async fn shut_out(context: &Context, observed: &Observed, closed: Closed) -> Result<Next, ReconcileError> {
    let next = match &closed {
        Closed::Busy(pause) => Next::After(pause.left()),
        Closed::Lost(_) | Closed::Account(_) => Next::Retry(observed.spec.template.retry_interval.as_std()),
    };
    wait(context, observed, &Waiting::Cluster(closed.message())).await?;
    Ok(next)
}

/// Some objects are still there: tells which, and tries again after a backoff.
async fn unfinished(
    context: &Context,
    observed: &Observed,
    deleted: &DeleteOutcome,
) -> Result<Next, ReconcileError> {
    let failed = !deleted.failures.is_empty() || deleted.interrupted.is_some();
    let (reason, start) = if failed {
        (FAILED, observed.spec.template.retry_interval.as_std())
    } else {
        (DELETING, GOING)
    };
    let was_at_it = conditions::find(&observed.status.conditions, READY)
        .is_some_and(|ready| [DELETING, FAILED].contains(&ready.reason.as_str()));
    let passes = if was_at_it { observed.status.attempts } else { 0 }.saturating_add(1);
    let pause = backoff::delay(start, passes, &observed.sync.uid().unwrap_or_default());
    let until = context
        .now()
        .checked_add(SignedDuration::try_from(pause).unwrap_or(SignedDuration::from_mins(10)))
        .unwrap_or_else(|_| context.now());
    context.checks.set(&observed.key, until);
    let message = what_is_left(deleted);
    tracing::warn!(sync = %observed.key, cluster = %observed.spec.cluster_ref.name, %message, "objects are not gone yet");
    let under_way = ConditionUpdate {
        type_: RECONCILING,
        status: ConditionStatus::True,
        reason: DELETING.into(),
        message: message.clone(),
    };
    let updates = vec![ready(ConditionStatus::False, reason, message), under_way];
    let problems = outcome::problems(&deleted.failures);
    tell(context, observed, updates, |status| {
        status.attempts = passes;
        status.next_attempt_time = until.to_string();
        status.problems = problems;
        status.problems.extend(waiting_objects(deleted));
        status.problems.truncate(10);
    })
    .await?;
    Ok(Next::at(until, context.now()))
}

fn waiting_objects(deleted: &DeleteOutcome) -> impl Iterator<Item = ObjectProblem> {
    deleted.terminating.iter().map(|key| ObjectProblem {
        object: key.to_string(),
        reason: "Terminating".into(),
        message: "deleted, and waits for its finalizers".into(),
    })
}

fn what_is_left(deleted: &DeleteOutcome) -> String {
    if let Some(error) = &deleted.interrupted {
        return crate::chain(error);
    }
    let left = deleted.failures.len() + deleted.terminating.len();
    let first = match (deleted.failures.first(), deleted.terminating.first()) {
        (Some((key, error)), _) => format!("{key}: {}", crate::chain(error)),
        (None, Some(key)) => format!("{key} is deleted and waits for its finalizers"),
        (None, None) => String::new(),
    };
    match left {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

/// Writes what is waited for, if that says something new.
async fn tell(
    context: &Context,
    observed: &Observed,
    updates: Vec<ConditionUpdate>,
    change: impl FnOnce(&mut SyncStatus),
) -> Result<(), ReconcileError> {
    let mut after = observed.status.clone();
    after.observed_generation = observed.sync.metadata.generation;
    after.held_deletions = None;
    change(&mut after);
    after.conditions = conditions::merge(
        &observed.status.conditions,
        updates,
        after.observed_generation,
        context.now(),
    );
    if after == observed.status {
        return Ok(());
    }
    let written = context.hub.write_status(&*observed.sync, &after).await?;
    if let Some(change) = context.syncs.observe_write(written) {
        context.wake_for_sync(&change, By::Us);
    }
    Ok(())
}

/// Lets the Sync go. Whoever comes after it under the same name starts without memories: what the ledger knows of its
/// objects goes first.
async fn release(context: &Context, observed: &Observed) -> Result<Next, ReconcileError> {
    context
        .ledger
        .drop_owner_records(observed.cluster_id(), &observed.owner)
        .await?;
    context.hub.set_finalizer(&*observed.sync, false).await?;
    context.checks.forget(&observed.key);
    Ok(Next::OnEvent)
}
