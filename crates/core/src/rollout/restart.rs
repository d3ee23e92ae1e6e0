//! What is concluded about rollouts that the ledger has open.

use std::cmp::Ordering;

use starling_api::SyncGroupStatus;

use super::effect::Outcome;
use super::status::has_succeeded;

/// How a rollout ended that the ledger has open; `None`: it rolls, or is an intent that status never reached, whose
/// number the next rollout takes.
///
/// `recorded`: how it ends by the intent of its successor, where there is one.
#[must_use]
pub fn ended(rollout: i64, status: &SyncGroupStatus, recorded: Option<Outcome>) -> Option<Outcome> {
    let current = status.rollout.as_ref()?.id;
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
    fn status_and_the_intent_of_the_successor_tell_how_a_rollout_ended() {
        use Outcome::{Failed, Succeeded, Superseded};
        let status = |(id, has_succeeded): (i64, bool)| {
            let phase = if has_succeeded { "Succeeded" } else { "Progressing" };
            serde_json::from_value::<SyncGroupStatus>(serde_json::json!({
                "rollout": {"id": id, "release": "r", "phase": phase}, "clusters": {"total": 1},
            }))
            .unwrap()
        };
        assert_eq!(ended(7, &SyncGroupStatus::default(), None), None);
        for (rollout, current, recorded, expected) in [
            (7, (7, true), None, Some(Succeeded)),
            (7, (7, false), None, None),
            // The intent of its successor was never carried out.
            (7, (7, false), Some(Failed), None),
            (6, (7, false), None, Some(Superseded)),
            (6, (7, false), Some(Failed), Some(Failed)),
            (6, (7, true), Some(Succeeded), Some(Succeeded)),
            (8, (7, true), None, None),
        ] {
            assert_eq!(
                ended(rollout, &status(current), recorded),
                expected,
                "{rollout} {current:?} {recorded:?}"
            );
        }
    }
}
