//! Deletions that wait for a person: how they are told, and when they no longer wait.

use kube::ResourceExt;
use starling_api::conditions::{ConditionStatus, ConditionUpdate, DELETION_HELD};
use starling_api::{APPROVE_DELETIONS, DeletionHold};
use starling_core::apply::HeldDeletions;
use starling_core::apply::budget::is_approved;
use starling_core::step::Wanted;

use super::observe::Observed;
use crate::controller::cache::ObjectKey;
use crate::controller::context::Context;

/// The reason of Ready while deletions wait.
pub(super) const REASON: &str = "DeletionHeld";

/// The digests that a person approved for this Sync: on itself, and on its group for all of its Syncs.
pub(super) fn approved(context: &Context, observed: &Observed) -> String {
    let own = observed.sync.annotations().get(APPROVE_DELETIONS).cloned();
    let group = observed
        .spec
        .group_ref
        .as_ref()
        .and_then(|of| {
            context
                .groups
                .get(&ObjectKey::new(&observed.key.namespace, &of.name))
        })
        .and_then(|group| group.annotations().get(APPROVE_DELETIONS).cloned());
    own.into_iter().chain(group).collect::<Vec<_>>().join(",")
}

/// Whether what waits was approved meanwhile, so that it is tried now and not at the next interval.
pub(super) fn is_released(context: &Context, observed: &Observed) -> bool {
    let held = observed.status.held_deletions.as_ref();
    held.is_some_and(|held| is_approved(&approved(context, observed), &held.digest))
}

/// Whether the last attempt at this very target left deletions waiting.
pub(super) fn waits(observed: &Observed, wanted: &Wanted) -> bool {
    observed.status.held_deletions.is_some() && observed.status.last_attempted_target == wanted.target
}

/// As it stands in status.
pub(super) fn in_status(held: &HeldDeletions) -> DeletionHold {
    let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
    DeletionHold {
        digest: held.digest.clone(),
        deletions: narrow(held.deletions),
        of: narrow(held.of),
        objects: held.objects.iter().map(ToString::to_string).collect(),
    }
}

/// The condition, while something waits. What can be cut off is last.
pub(super) fn condition(held: &DeletionHold) -> ConditionUpdate {
    ConditionUpdate {
        type_: DELETION_HELD,
        status: ConditionStatus::True,
        reason: "ApprovalNeeded".into(),
        message: format!("{}: {}", message(held), held.objects.join(", ")),
    }
}

/// For Ready and for people.
pub(super) fn message(held: &DeletionHold) -> String {
    format!(
        "{} of {} objects left the render; nothing is deleted until {APPROVE_DELETIONS} on the Sync or its SyncGroup names {}",
        held.deletions, held.of, held.digest
    )
}
