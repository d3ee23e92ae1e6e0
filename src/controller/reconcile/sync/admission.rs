//! Settles the admission of a Sync in the ledger when its target is done.

use kube::ResourceExt;
use starling_api::ROLLOUT;
use starling_core::identity;
use starling_core::step::Wanted;

use super::validate::ValidSync;
use crate::controller::context::SyncContext;
use starling_ledger::{AdmissionKey, AdmissionOutcome};

/// Settles the admission in the ledger as done.
pub(super) async fn settle(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted) {
    let observed = sync.observed;
    let object = &observed.object;
    let rollout = object
        .annotations()
        .get(ROLLOUT)
        .and_then(|rollout| rollout.parse().ok());
    let (Some(group), Some(rollout)) = (&sync.spec.group_ref, rollout) else {
        return;
    };
    // Without its group nothing refers to the admission.
    let Some(of) = observed
        .group_key()
        .and_then(|key| context.objects.groups.get(&key))
    else {
        return;
    };
    let key = AdmissionKey {
        group_id: identity::id_of(context.installation, &of),
        rollout,
        entry: group.entry.clone().into(),
        cluster: observed.cluster_name().into(),
        target: wanted.target.clone(),
    };
    let settled = context
        .ledger
        .settle_admission(&key, AdmissionOutcome::Applied, "", context.clock.now())
        .await;
    if let Err(error) = settled {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "admission not settled");
    }
}
