//! Observes the inputs of the deletion of a Sync. Reads the API server where a cache may lag.

use std::collections::BTreeMap;

use kube::ResourceExt;
use starling_api::{ABANDON, Cluster, DeletionPolicy, FINALIZER, SyncGroup, SyncResource};
use starling_core::deletion_subject::DeletionCause;
use starling_core::expand::SelectorError;
use starling_core::finalize::{ParentDeletion, Target, dependents as dependents_among};
use starling_core::plan::Reach;

use super::super::super::group_state;
use super::super::dependencies::depends_on;
use super::super::observe::SyncSnapshot;
use crate::controller::context::SyncContext;
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;
use crate::controller::removal;

pub(super) fn has_finalizer(sync: &SyncResource) -> bool {
    sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

pub(super) fn is_abandoned(observed: &SyncSnapshot) -> bool {
    observed.object.annotations().get(ABANDON).map(String::as_str) == Some("true")
}

/// The deletion policy, from the Sync or its group.
pub(super) struct Policy {
    pub(super) policy: DeletionPolicy,
    /// The group was deleted without deleting this Sync.
    pub(super) group_lost: bool,
    /// Why the group deletes nothing now.
    pub(super) stopped: Option<String>,
    /// Whether the group wants the Sync.
    pub(super) wanted: bool,
    /// Why the objects are deleted, which approvals are of.
    pub(super) cause: DeletionCause,
    /// Whether the removal gave its slot back.
    pub(super) is_late: bool,
    /// `Unknown` if the Sync, its group or its Cluster cannot be read.
    pub(super) parent: ParentDeletion,
}

/// Reads the deletion policy. The policy of a group that is being deleted overrides that of its Syncs. The group is
/// read from the API server: the garbage collector may delete a Sync before the watch reports the deletion of the
/// group, and a removal that was decided while the member was unreachable may have been taken back since.
pub(super) async fn policy(context: SyncContext<'_>, observed: &SyncSnapshot) -> Policy {
    let mut policy = Policy {
        policy: observed.object.spec.template.deletion_policy,
        group_lost: false,
        stopped: None,
        wanted: false,
        cause: DeletionCause::SyncDeleted,
        is_late: false,
        parent: ParentDeletion::None,
    };
    let Some(key) = observed.group_key() else {
        return policy;
    };
    let group = match context.hub.find::<SyncGroup>(&key).await {
        Ok(Some(group)) => group,
        Ok(None) => {
            policy.group_lost = true;
            return policy;
        }
        Err(error) => {
            policy.parent = ParentDeletion::Unknown(crate::chain(&error));
            return policy;
        }
    };
    // A plan begins a removal in its stage, in a window and in a slot, and finishes it. A Sync that the group wants is
    // released, whoever deleted it.
    let actions = match group_state::actions_now(context.hub, &group).await {
        Ok(actions) => actions,
        Err(error) => {
            policy.parent = ParentDeletion::Unknown(crate::chain(&error));
            return policy;
        }
    };
    policy.stopped = group_state::stopped_by(&group, &actions);
    policy.is_late = is_late(context, observed, &group);
    let name = group.name_any();
    let undecided = || {
        format!(
            "SyncGroup {name} has not decided to remove the Sync yet; for the reason, run: starling why {name}"
        )
    };
    let undecided = (!removal::is_decided(&observed.object)).then(undecided);
    if group.metadata.deletion_timestamp.is_some() {
        // The plan leaves the objects of some Syncs, whatever the policy of the group.
        if !removal::is_decided(&observed.object) || policy.policy == DeletionPolicy::Delete {
            policy.policy = group.spec.deletion_policy;
        }
        policy.cause = DeletionCause::GroupDeleted;
        policy.stopped = policy.stopped.or(undecided);
        return policy;
    }
    match unwanted(context, observed, &group).await {
        Ok(Some((cause, is_selected))) => {
            if keeps_objects(&group, observed, (cause, is_selected)) {
                policy.policy = DeletionPolicy::Orphan;
            }
            policy.cause = cause;
            policy.stopped = policy.stopped.or(undecided);
            // A removed entry is a part of the release, and what a cluster loses that left is not.
            if policy.is_late && cause == DeletionCause::EntryRemoved && is_selected {
                policy.stopped = policy
                    .stopped
                    .or_else(|| group_state::aborted_by(&group, &actions));
            }
        }
        Ok(None) => policy.wanted = true,
        Err(Unwanted::Unread(why)) => policy.parent = ParentDeletion::Unknown(why),
        Err(Unwanted::Selector(error)) => {
            let why = format!("the clusterSelector of SyncGroup {name} is invalid: {error}");
            policy.stopped = policy.stopped.or(Some(why));
        }
    }
    policy
}

/// Why it is not known whether a group wants a Sync.
enum Unwanted {
    /// The Cluster cannot be read.
    Unread(String),
    /// The selector of the group is invalid.
    Selector(SelectorError),
}

/// Reports whether a Sync of a deleted group depends on others, which would go once it is gone. The plan leaves the
/// objects of both, unless it was suspended later.
pub(super) fn needs_others(observed: &SyncSnapshot, cause: DeletionCause) -> bool {
    cause == DeletionCause::GroupDeleted && !depends_on(&observed.object).is_empty()
}

/// Reports whether the group says by now that the objects stay: that may have been set while the removal was under way.
/// A cluster that is not selected has left with all its entries, also those that the group no longer has.
fn keeps_objects(
    group: &SyncGroup,
    observed: &SyncSnapshot,
    (cause, is_selected): (DeletionCause, bool),
) -> bool {
    let entry = observed.object.spec.group_ref.as_ref().map(|of| &of.entry);
    let status = group.status.as_ref();
    let kept = status.map_or(&[][..], |status| &*status.kept_entries);
    let is_kept = entry.is_some_and(|entry| kept.contains(entry));
    if !is_selected {
        return group.spec.when_unselected == DeletionPolicy::Orphan;
    }
    cause == DeletionCause::EntryRemoved && is_kept
}

/// Reports whether the removal of a Sync gave its slot back.
fn is_late(context: SyncContext<'_>, observed: &SyncSnapshot, group: &SyncGroup) -> bool {
    let (now, jumps) = (context.clock.now(), context.clock.jumps());
    let key = ObjectKey::of(group);
    let since = context.removal_times.since(&key, &observed.object, now);
    since.is_some_and(|since| group_state::is_removal_over(group, since, (now, &jumps)))
}

/// Returns why a group does not want a Sync, and whether it selects the Cluster by the labels that it has now; `None`:
/// it wants the Sync. A removed entry is the cause whether the cluster is selected or not: approvals are of a cause,
/// and labels may come and go.
///
/// # Errors
/// [`Unwanted`]: it is not known.
async fn unwanted(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    group: &SyncGroup,
) -> Result<Option<(DeletionCause, bool)>, Unwanted> {
    let Some(of) = &observed.object.spec.group_ref else {
        return Ok(Some((DeletionCause::SyncDeleted, true)));
    };
    let cluster = context.hub.find::<Cluster>(&observed.cluster_key()).await;
    let selects = match cluster.map_err(|error| Unwanted::Unread(crate::chain(&error)))? {
        Some(cluster) => group_state::selects(group, &cluster).map_err(Unwanted::Selector)?,
        None => false,
    };
    Ok(match (group_state::has_entry(group, &of.entry), selects) {
        (false, _) => Some((DeletionCause::EntryRemoved, selects)),
        (true, false) => Some((DeletionCause::ClusterUnselected, false)),
        (true, true) => None,
    })
}

/// Returns the Sync as the management cluster has it: a person may have suspended or abandoned it, or changed its
/// policy, and a watch may deliver nothing. `None`: it is gone, or another one has its name.
///
/// # Errors
/// [`HubError`]: nothing is known, so nothing may be deleted.
pub(super) async fn current(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<Option<SyncResource>, HubError> {
    let found = context.hub.find::<SyncResource>(&observed.key).await?;
    Ok(found.filter(|sync| sync.metadata.uid == observed.object.metadata.uid))
}

/// Returns the state of the cluster. Whether its Cluster is there, and whether it is suspended, is read from the
/// management cluster: a Cluster that is being deleted is one that goes, whatever finalizer it waits for, and its
/// objects stay.
pub(super) async fn target(context: SyncContext<'_>, observed: &SyncSnapshot) -> Target {
    let key = observed.cluster_key();
    match context.hub.find::<Cluster>(&key).await {
        Ok(None) => return Target::Gone,
        Ok(Some(cluster)) if cluster.metadata.deletion_timestamp.is_some() => return Target::Gone,
        Ok(Some(cluster)) if cluster.spec.suspend => {
            return Target::Unavailable("the Cluster is suspended".into());
        }
        Ok(Some(_)) => {}
        Err(error) => return Target::Unknown(crate::chain(&error)),
    }
    match observed.cluster_state().map(|state| state.reach) {
        Some(Reach::Ready) if is_another_member(observed) => Target::Other,
        Some(Reach::Ready) => Target::Ready,
        Some(Reach::Unprobed) => Target::Unavailable("not probed yet".into()),
        Some(Reach::Suspended) => Target::Unavailable("the Cluster is suspended".into()),
        Some(Reach::Unreachable { reason, message, .. }) => {
            Target::Unavailable(format!("{reason}: {message}"))
        }
        None if context.objects.clusters.is_unreadable(&key) => {
            Target::Unavailable("the Cluster cannot be read".into())
        }
        // The cache may lack the Cluster because of an incomplete list.
        None => Target::Unavailable("the Cluster is not in the cache yet".into()),
    }
}

/// Reports whether the Cluster connects to another member than the one that the last attempt wrote to. Earlier versions
/// recorded attempts that succeeded only.
fn is_another_member(observed: &SyncSnapshot) -> bool {
    let status = &observed.status;
    let written_to = match status.last_attempted_cluster_id.as_str() {
        "" => status.last_applied_cluster_id.as_str(),
        attempted => attempted,
    };
    !written_to.is_empty() && written_to != observed.cluster_id.as_str()
}

/// Returns the names of the Syncs that have to be deleted first.
pub(super) fn dependents(context: SyncContext<'_>, observed: &SyncSnapshot) -> Vec<String> {
    let namespace = &observed.key.namespace;
    let group_goes = |sync: &SyncResource| {
        let group = sync.spec.group_ref.as_ref();
        let group = group.and_then(|group| {
            context
                .objects
                .groups
                .get(&ObjectKey::new(namespace, &group.name))
        });
        group.is_some_and(|group| group.metadata.deletion_timestamp.is_some())
    };
    // The dependents, and all their dependencies, since a dependent may be in a cycle with one of these.
    let mut names: Vec<String> = context
        .objects
        .syncs
        .dependents(&observed.key)
        .into_iter()
        .collect();
    if names.is_empty() {
        return names;
    }
    names.push(observed.key.name.clone());
    let mut leaving: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(name) = names.pop() {
        if leaving.contains_key(&name) {
            continue;
        }
        let leaves = |sync: &SyncResource| {
            has_finalizer(sync) && (sync.metadata.deletion_timestamp.is_some() || group_goes(sync))
        };
        let sync = context.objects.syncs.get(&ObjectKey::new(namespace, &name));
        if let Some(sync) = sync.filter(|sync| leaves(sync)) {
            let on = depends_on(&sync);
            names.extend(on.iter().cloned());
            leaving.insert(name, on);
        }
    }
    dependents_among(&observed.key.name, &leaving)
}
