//! Prepares a group for a restore to another API server, so that nothing is lost (ADR 44): marks actions and
//! approvals with the rollout that they count for, and sets the owner references of restored Syncs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{DeletionApproval, RolloutAction, RolloutApproval, RolloutStatus, SyncResource};
use starling_core::ids::RolloutNumber;
use starling_core::rollout::operator::{RolloutSubject, marks};
use starling_core::{deletion_approval, identity};

use super::super::marks::{Marks, with_verdict};
use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::hub::Kind;
use crate::controller::policies::AdmissionPolicies;

/// Maximum number of concurrent writes, as for admissions.
const WIDTH: usize = 16;

/// Returns the rollout that actions must name, without its digest.
pub(super) fn subject<'a>(group: &'a Group, rollout: &'a RolloutStatus) -> RolloutSubject<'a> {
    RolloutSubject {
        group: &group.key.name,
        since: identity::created_at(&group.object),
        rollout: RolloutNumber::of(rollout),
        started_at: &rollout.start_time,
        digest: None,
    }
}

/// The marks and references that a restore to another API server needs.
struct Missing {
    deletion_approvals: Vec<Unmarked<DeletionApproval>>,
    actions: Vec<Unmarked<RolloutAction>>,
    approvals: Vec<Unmarked<RolloutApproval>>,
    /// The Syncs without an owner reference to the group.
    syncs: Vec<Arc<SyncResource>>,
}

/// An object without its annotations.
struct Unmarked<K> {
    object: Arc<K>,
    marks: BTreeMap<String, String>,
}

/// Reports whether marks or owner references are missing.
pub(super) fn are_missing(context: GroupContext<'_>, group: &Group) -> bool {
    let Missing {
        deletion_approvals,
        actions,
        approvals,
        syncs,
    } = missing(context, group);
    !(deletion_approvals.is_empty() && actions.is_empty() && approvals.is_empty() && syncs.is_empty())
}

/// Returns what is missing of the objects in the caches: those of the group carry the verdict already that is written
/// here.
fn missing(context: GroupContext<'_>, group: &Group) -> Missing {
    let (objects, policies) = (context.objects, context.policies);
    let status = group.object.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let of = rollout.map(|rollout| subject(group, rollout));
    let uid = group.object.uid();
    let restored = group.syncs.values();
    let restored = restored.filter(|sync| !is_owned_by(sync, uid.as_deref()) && !is_deleted(&***sync));
    // Without a rollout there is nothing that an action or an approval could count for.
    let (actions, approvals) = match of {
        Some(_) => (
            objects.actions.indexed(&group.key),
            objects.approvals.indexed(&group.key),
        ),
        None => (Vec::new(), Vec::new()),
    };
    Missing {
        deletion_approvals: unmarked(
            policies,
            group.deletion_approvals.clone(),
            deletion_approval::marks,
        ),
        actions: unmarked(policies, actions, |action| {
            marks(of?, RolloutNumber::new(action.spec.rollout), action)
        }),
        approvals: unmarked(policies, approvals, |approval| {
            marks(of?, RolloutNumber::new(approval.spec.rollout), approval)
        }),
        syncs: restored.cloned().collect(),
    }
}

fn unmarked<K: Kind>(
    policies: &AdmissionPolicies,
    objects: Vec<Arc<K>>,
    marks: impl Fn(&K) -> Option<BTreeMap<String, String>>,
) -> Vec<Unmarked<K>> {
    let present = objects.into_iter().filter(|object| !is_deleted(&**object));
    let missing = present.filter_map(|object| {
        let marks = with_verdict(policies, marks(&object), &*object)?;
        Some(Unmarked { object, marks })
    });
    missing.collect()
}

fn is_deleted<K: Kind>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Writes what is missing. Returns whether all of it was written.
pub(super) async fn write(context: GroupContext<'_>, group: &Group, now: Timestamp) -> bool {
    let to = Marks {
        hub: context.hub,
        retries: &context.caches.mark_retries,
        of: &group.key,
        now,
    };
    let objects = context.objects;
    let Missing {
        deletion_approvals,
        actions,
        approvals,
        syncs,
    } = missing(context, group);
    let mut all = true;
    for Unmarked { object, marks } in deletion_approvals {
        all &= to.write(&objects.deletion_approvals, &*object, Some(marks)).await;
    }
    for Unmarked { object, marks } in actions {
        all &= to.write(&objects.actions, &*object, Some(marks)).await;
    }
    for Unmarked { object, marks } in approvals {
        all &= to.write(&objects.approvals, &*object, Some(marks)).await;
    }
    futures::stream::iter(syncs)
        .map(|sync| own(context, group, sync))
        .buffer_unordered(WIDTH)
        .fold(all, |all, written| std::future::ready(all && written))
        .await
}

fn is_owned_by(sync: &SyncResource, uid: Option<&str>) -> bool {
    let mut owners = sync.owner_references().iter();
    owners.any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Sets the owner reference of a Sync, so that it is deleted with its group. Returns whether the write is confirmed.
async fn own(context: GroupContext<'_>, group: &Group, sync: Arc<SyncResource>) -> bool {
    match context.hub.set_owner(&*sync, &group.object).await {
        Ok(written) => {
            if let Some(change) = context.objects.syncs.observe_write(written) {
                context.handlers.on_sync(&change, ChangedBy::Others);
            }
            true
        }
        Err(error) => {
            tracing::warn!(group = %group.key, sync = %sync.name_any(), error = %crate::chain(&error), "owner reference not set");
            false
        }
    }
}
