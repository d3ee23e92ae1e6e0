//! The releases that a status names, and the collection of all others.

use std::collections::BTreeSet;

use starling_api::SyncGroupStatus;

use super::effect::Action;
use crate::ids::{ReleaseDigest, RolloutNumber};

/// Collects the releases that status does not name.
pub(super) fn garbage(rollout: RolloutNumber, status: &SyncGroupStatus) -> Action {
    Action::CollectGarbage {
        rollout,
        named: named(status),
    }
}

/// Returns the releases that a status names: each may have to be admitted again.
pub(super) fn named(status: &SyncGroupStatus) -> BTreeSet<ReleaseDigest> {
    let SyncGroupStatus {
        rollout,
        last_known_good,
        held_release,
        queue,
        observed_generation: _,
        last_handled_reconcile_at: _,
        identity: _,
        clusters: _,
        unselected: _,
        kept_entries: _,
        problems: _,
        conditions: _,
        deletions: _,
        held_deletions: _,
    } = status;
    let rolls = rollout.iter().map(|rollout| &rollout.release);
    let good = last_known_good.iter().map(|good| &good.release);
    let held = held_release.iter().map(|held| &held.release);
    let waiting = queue.iter().map(|waiting| &waiting.release);
    rolls
        .chain(good)
        .chain(held)
        .chain(waiting)
        .map(ReleaseDigest::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use starling_api::{HeldRelease, ReleaseStatus, RolloutStatus};

    use super::*;

    #[test]
    fn releases_in_status_are_kept() {
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
        let expected = ["good", "held", "last", "next", "rolls"].map(ReleaseDigest::from);
        assert_eq!(named(&status), expected.into());
        assert!(named(&SyncGroupStatus::default()).is_empty());
    }
}
