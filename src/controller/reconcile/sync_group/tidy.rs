//! What is forgotten when a rollout ends: releases that nothing names any more, but for the newest, and what people said to
//! rollouts that the ledger has forgotten, too.

use std::collections::BTreeSet;

use starling_api::{RolloutAction, RolloutApproval, SyncGroupStatus};

use super::observe::Group;
use crate::controller::context::Context;
use crate::controller::hub::HubError;
use crate::ledger::ROLLOUTS_KEPT;

/// Tidies up. That something stays is no reason to stop a rollout: the next one that ends takes it along.
pub(super) async fn tidy(context: &Context, group: &Group, status: &SyncGroupStatus) {
    if let Err(error) = forget(context, group, status).await {
        tracing::warn!(group = %group.key, error = %crate::chain(&error), "not tidied up");
    }
}

async fn forget(context: &Context, group: &Group, status: &SyncGroupStatus) -> Result<(), HubError> {
    let named = named(status);
    context.releases.tidy(&context.hub, &group.object, &named).await?;
    let Some(current) = status.rollout.as_ref().map(|rollout| rollout.id) else {
        return Ok(());
    };
    for action in group
        .actions
        .iter()
        .filter(|action| is_forgotten(action.spec.rollout, current))
    {
        context.hub.delete::<RolloutAction>(action).await?;
    }
    for approval in group
        .approvals
        .iter()
        .filter(|approval| is_forgotten(approval.spec.rollout, current))
    {
        context.hub.delete::<RolloutApproval>(approval).await?;
    }
    Ok(())
}

/// The releases that a group's status names: each may have to be admitted again.
fn named(status: &SyncGroupStatus) -> BTreeSet<String> {
    let SyncGroupStatus {
        rollout,
        last_known_good,
        held_release,
        queue,
        observed_generation: _,
        last_handled_reconcile_at: _,
        clusters: _,
        problems: _,
        conditions: _,
    } = status;
    let rolls = rollout.iter().map(|rollout| &rollout.release);
    let good = last_known_good.iter().map(|good| &good.release);
    let held = held_release.iter().map(|held| &held.release);
    let waiting = queue.iter().map(|waiting| &waiting.release);
    rolls.chain(good).chain(held).chain(waiting).cloned().collect()
}

/// Whether a rollout is not among the last ones by the number of the one that rolls. What comes later than that one was meant for
/// a group that is no more, or for a restored one, and is left alone.
fn is_forgotten(rollout: i64, current: i64) -> bool {
    rollout <= current - ROLLOUTS_KEPT
}

#[cfg(test)]
mod tests {
    use starling_api::{HeldRelease, ReleaseStatus, RolloutStatus};

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
            assert_eq!(is_forgotten(rollout, current), expected, "{rollout} of {current}");
        }
    }

    #[test]
    fn whatever_status_names_is_kept() {
        let release = |digest: &str| ReleaseStatus {
            release: digest.into(),
            revisions: Vec::new(),
        };
        let status = SyncGroupStatus {
            rollout: Some(RolloutStatus {
                release: "rolls".into(),
                ..RolloutStatus::default()
            }),
            last_known_good: Some(release("good")),
            held_release: Some(HeldRelease {
                release: "held".into(),
                ..HeldRelease::default()
            }),
            queue: vec![release("next"), release("last")],
            ..SyncGroupStatus::default()
        };
        let expected = ["good", "held", "last", "next", "rolls"].map(str::to_owned);
        assert_eq!(named(&status), expected.into());
        assert!(named(&SyncGroupStatus::default()).is_empty());
    }
}
