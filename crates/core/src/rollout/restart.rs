//! The outcomes of rollouts that the ledger has open at start.

use std::cmp::Ordering;

use starling_api::SyncGroupStatus;

use super::effect::Outcome;
use super::status::has_succeeded;
use crate::ids::RolloutNumber;

/// Returns the outcome of a rollout that the ledger has open; `None`: the rollout is in progress, or an intent that
/// status never reached, whose number the next rollout takes.
///
/// `recorded`: the outcome by the intent of the next rollout, if there is one.
#[must_use]
pub fn ended(rollout: RolloutNumber, status: &SyncGroupStatus, recorded: Option<Outcome>) -> Option<Outcome> {
    let current = RolloutNumber::of(status.rollout.as_ref()?);
    match rollout.cmp(&current) {
        Ordering::Less => Some(recorded.unwrap_or(Outcome::Superseded)),
        Ordering::Equal => has_succeeded(status).then_some(Outcome::Succeeded),
        Ordering::Greater => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_follows_from_status_and_the_next_intent() {
        use Outcome::{Failed, Succeeded, Superseded};
        let status = |(id, has_succeeded): (i64, bool)| {
            let phase = if has_succeeded { "Succeeded" } else { "Progressing" };
            serde_json::from_value::<SyncGroupStatus>(serde_json::json!({
                "rollout": {"id": id, "release": "r", "phase": phase}, "clusters": {"total": 1},
            }))
            .unwrap()
        };
        assert_eq!(
            ended(RolloutNumber::new(7), &SyncGroupStatus::default(), None),
            None
        );
        for (rollout, current, recorded, expected) in [
            (7, (7, true), None, Some(Succeeded)),
            (7, (7, false), None, None),
            // The intent of the next rollout was never executed.
            (7, (7, false), Some(Failed), None),
            (6, (7, false), None, Some(Superseded)),
            (6, (7, false), Some(Failed), Some(Failed)),
            (6, (7, true), Some(Succeeded), Some(Succeeded)),
            (8, (7, true), None, None),
        ] {
            assert_eq!(
                ended(RolloutNumber::new(rollout), &status(current), recorded),
                expected,
                "{rollout} {current:?} {recorded:?}"
            );
        }
    }
}
