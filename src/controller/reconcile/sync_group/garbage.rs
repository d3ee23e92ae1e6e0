//! Collects garbage at the end of a rollout: releases that nothing names, except for the newest, and operator actions
//! and approvals of rollouts that the ledger no longer has.

use std::collections::BTreeSet;

use starling_api::{RolloutAction, RolloutApproval};
use starling_core::ids::{ReleaseDigest, RolloutNumber};
use starling_ledger::ROLLOUTS_KEPT;

use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::hub::HubError;

/// Collects garbage. A failure does not stop the rollout: the next rollout that ends collects the rest.
pub(super) async fn collect(
    context: GroupContext<'_>,
    group: &Group,
    rollout: RolloutNumber,
    named: &BTreeSet<ReleaseDigest>,
) {
    if let Err(error) = forget(context, group, rollout, named).await {
        tracing::warn!(group = %group.key, error = %crate::chain(&error), "unneeded releases not deleted");
    }
}

async fn forget(
    context: GroupContext<'_>,
    group: &Group,
    current: RolloutNumber,
    named: &BTreeSet<ReleaseDigest>,
) -> Result<(), HubError> {
    let snapshots = &context.caches.release_snapshots;
    snapshots.tidy(context.hub, group.stored(), named).await?;
    for action in group
        .actions
        .iter()
        .filter(|action| is_forgotten(RolloutNumber::new(action.spec.rollout), current))
    {
        context.hub.delete::<RolloutAction>(action).await?;
    }
    for approval in group
        .approvals
        .iter()
        .filter(|approval| is_forgotten(RolloutNumber::new(approval.spec.rollout), current))
    {
        context.hub.delete::<RolloutApproval>(approval).await?;
    }
    Ok(())
}

/// Returns whether a rollout is older than those that the ledger keeps, counted from the current one. Later numbers
/// belong to a deleted or restored group, and are kept.
fn is_forgotten(rollout: RolloutNumber, current: RolloutNumber) -> bool {
    rollout.get() <= current.get() - ROLLOUTS_KEPT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_rollouts_are_remembered() {
        for (rollout, current, expected) in [
            (1, 1, false),
            (1, 20, false),
            (1, 21, true),
            (2, 21, false),
            (30, 21, false),
        ] {
            let (rollout, current) = (RolloutNumber::new(rollout), RolloutNumber::new(current));
            assert_eq!(is_forgotten(rollout, current), expected, "{rollout} of {current}");
        }
    }
}
