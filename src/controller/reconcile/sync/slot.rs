//! Gives the slot of an admission back ([`starling_core::slot_return`]): with the proof in the ledger that nothing was
//! written to the member for it.

use kube::ResourceExt;
use starling_api::ROLLOUT;
use starling_core::{identity, slot_return};

use super::super::cluster::reach;
use super::observe::SyncSnapshot;
use super::validate::ValidSync;
use crate::controller::context::SyncContext;
use starling_ledger::{Admission, AdmissionKey};

/// Returns whether the Sync gave the slot of its current admission back. The process remembers it from before the write
/// of the status: a write without a response may be carried out later, while an attempt runs.
pub(super) fn is_returned(context: SyncContext<'_>, observed: &SyncSnapshot) -> bool {
    let object = &observed.object;
    let remembered = context.caches.returned_admissions.get(&observed.key);
    slot_return::has_returned(object, &observed.status)
        || (remembered.is_some() && remembered.as_deref() == slot_return::admission(object))
}

/// Returns the admission whose slot the Sync gives back, or gave back before, for its status; `None`: it keeps its
/// slot.
pub(super) async fn returned(context: SyncContext<'_>, sync: &ValidSync<'_>) -> Option<String> {
    let observed = sync.observed;
    let admission = slot_return::admission(&observed.object)?;
    if is_returned(context, observed) {
        return Some(admission.to_owned());
    }
    let unproven = &context.caches.unproven_admissions;
    if unproven.get(&observed.key).as_deref() == Some(admission) {
        return None;
    }
    let target = observed.target_of(&sync.spec)?;
    let reach = reach(observed.cluster.as_deref()?);
    if !slot_return::may_return(&observed.status, &target, &reach) {
        return None;
    }
    let recorded = recorded(context, sync, admission)?;
    let is_attempted = observed.status.last_attempted_target == *target;
    let attempted = observed.last_attempt().filter(|_| is_attempted);
    match context.ledger.nothing_written(&recorded, attempted).await {
        Ok(true) => {
            tracing::info!(sync = %observed.key, cluster = observed.cluster_name(), "slot given back: nothing was written");
            let admission = admission.to_owned();
            context
                .caches
                .returned_admissions
                .set(&observed.key, admission.clone());
            Some(admission)
        }
        Ok(false) => {
            unproven.set(&observed.key, admission.to_owned());
            None
        }
        Err(error) => {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "attempts not read");
            None
        }
    }
}

/// Returns the admission as the group recorded it in the ledger.
fn recorded(context: SyncContext<'_>, sync: &ValidSync<'_>, admission: &str) -> Option<Admission> {
    let observed = sync.observed;
    let object = &observed.object;
    let entry = &sync.spec.group_ref.as_ref()?.entry;
    let group = observed.group.as_deref()?;
    Some(Admission {
        key: AdmissionKey {
            group_id: identity::id_of(context.installation, group),
            rollout: object.annotations().get(ROLLOUT)?.parse().ok()?,
            entry: entry.clone().into(),
            cluster: observed.cluster_name().into(),
            target: observed.target_of(&object.spec)?,
        },
        sync_namespace: observed.key.namespace.clone(),
        sync_name: observed.key.name.clone().into(),
        revision: object.spec.revision.clone(),
        admitted_at: admission.parse().ok()?,
    })
}
