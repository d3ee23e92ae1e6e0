//! What people asked of the rollout under way: from the caches to what planner, course and Syncs are told.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use starling_core::course;
use starling_core::plan::{Finding, GateRecord, StageRecord};
use starling_core::steering::{self, Asked, Of, Retry};

use super::observe::Group;
use super::release::Rolling;
use crate::controller::context::Context;
use crate::controller::hub::HubError;

/// The grain of the times at which API servers say that objects were made.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// What was asked of the rollout that a plan is for.
pub(super) fn asked(group: &Group, rolling: &Rolling) -> Asked {
    let digest = rolling.rollout.release_digest.as_str();
    let of = Of {
        group: &group.key.name,
        since: group
            .object
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        rollout: rolling.rollout.id,
        digest: (!digest.is_empty()).then_some(digest),
    };
    let actions = group.actions.iter().map(|action| &**action);
    steering::asked(of, actions, group.approvals.iter().map(|approval| &**approval))
}

/// Where somebody asked to go.
pub(super) enum Wish {
    /// Back, to this release or to what was good.
    Back(Option<String>),
    /// On to what is held.
    Release,
    /// Back to a revision that is in no release that is kept.
    Unknown(String),
}

impl Wish {
    /// The wish as the rules know it; `None` where it cannot be granted.
    pub(super) fn known(&self) -> Option<course::Asked<'_>> {
        match self {
            Self::Back(to) => Some(course::Asked::Back(to.as_deref())),
            Self::Release => Some(course::Asked::Release),
            Self::Unknown(_) => None,
        }
    }

    /// Why it cannot be granted, for people.
    pub(super) fn unknown(&self) -> Option<String> {
        match self {
            Self::Unknown(revision) => Some(format!(
                "there is no release with revision {revision:?} among those that are kept"
            )),
            Self::Back(_) | Self::Release => None,
        }
    }
}

/// Where somebody asked this rollout to go, with the release that a revision stands for. Of both wishes the later one counts.
///
/// # Errors
/// [`HubError`] where the releases that are kept cannot be read.
pub(super) async fn wish(context: &Context, group: &Group, asked: &Asked) -> Result<Option<Wish>, HubError> {
    let release = asked.release.as_ref().map(|word| word.at);
    let Some((revision, word)) = &asked.rollback else {
        return Ok(release.map(|_| Wish::Release));
    };
    if release.is_some_and(|at| at > word.at) {
        return Ok(Some(Wish::Release));
    }
    let Some(revision) = revision else {
        return Ok(Some(Wish::Back(None)));
    };
    let found = context
        .releases
        .with_revision(&context.hub, &group.object, revision)
        .await?;
    Ok(Some(match found {
        Some(vector) => Wish::Back(Some(vector.digest.clone())),
        None => Wish::Unknown(revision.clone()),
    }))
}

/// The records of stages without those of gates that failed and are to be tried again: such a gate begins anew.
///
/// A word counts once its second is over (see [`retry_counts_at`]): what begins then began after it, so that a try that fails
/// at once is not taken for the one that was meant.
pub(super) fn without_retried(
    mut stages: BTreeMap<String, StageRecord>,
    retries: &[Retry],
    now: Timestamp,
) -> BTreeMap<String, StageRecord> {
    for (name, record) in &mut stages {
        let last = retries
            .iter()
            .filter(|retry| !came_before(now, retry.word.at))
            .filter(|retry| retry.cluster.is_none())
            .filter(|retry| retry.stage.as_ref().is_none_or(|stage| stage == name))
            .map(|retry| retry.word.at)
            .max();
        let Some(last) = last else { continue };
        for gates in [&mut record.before, &mut record.after] {
            if let Some(place) = gates.iter().position(|gate| is_to_be_tried_again(gate, last)) {
                gates.truncate(place);
            }
        }
    }
    stages
}

/// When the first of those words counts that are too young yet.
pub(super) fn retry_counts_at(retries: &[Retry], now: Timestamp) -> Option<Timestamp> {
    let young = retries
        .iter()
        .map(|retry| retry.word.at)
        .filter(|at| came_before(now, *at));
    young.filter_map(|at| at.checked_add(SECOND).ok()).min()
}

fn is_to_be_tried_again(gate: &GateRecord, asked_at: Timestamp) -> bool {
    matches!(gate.found, Some(Finding::Failed { .. })) && came_before(gate.begun_at, asked_at)
}

/// Whether something had begun when a person asked. What began after that is the new try, which is not meant. API servers date
/// objects in whole seconds.
pub(super) fn came_before(begun_at: Timestamp, asked_at: Timestamp) -> bool {
    begun_at.duration_since(asked_at) < SECOND
}

#[cfg(test)]
mod tests {
    use starling_api::StageTaskType;
    use starling_core::plan::{Gate, Word};

    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn gate(begun: i64, found: Option<Finding>) -> GateRecord {
        GateRecord {
            gate: Gate::Effect(StageTaskType::Webhook),
            begun_at: t(begun),
            found,
        }
    }

    fn retry(at: i64, stage: Option<&str>, cluster: Option<&str>) -> Retry {
        let word = Word {
            by: "jane".into(),
            reason: "again".into(),
            at: t(at),
        };
        Retry {
            cluster: cluster.map(str::to_owned),
            stage: stage.map(str::to_owned),
            word,
        }
    }

    #[test]
    fn a_failed_gate_is_begun_anew_once_for_each_time_that_somebody_asks() {
        let failed = || Some(Finding::Failed { message: "no".into() });
        let record = StageRecord {
            after: vec![gate(5, Some(Finding::Passed)), gate(6, failed())],
            ..StageRecord::default()
        };
        let stages = || BTreeMap::from([("canary".to_owned(), record.clone())]);
        let left = |retries: &[Retry]| without_retried(stages(), retries, t(9))["canary"].after.len();
        for (retries, expected) in [
            (vec![], 2),
            (vec![retry(7, None, None)], 1),
            (vec![retry(7, Some("canary"), None)], 1),
            (vec![retry(7, Some("eu"), None)], 2),
            (vec![retry(7, None, Some("eu-1"))], 2),
            // The gate began after that: it is the new try, and it failed too.
            (vec![retry(5, None, None)], 2),
            (vec![retry(5, None, None), retry(6, None, None)], 1),
        ] {
            assert_eq!(left(&retries), expected, "{retries:?}");
        }
        // Its second is not over: the new try would seem to have begun before it.
        let young = [retry(7, None, None)];
        let now = t(8) - SignedDuration::from_millis(1);
        assert_eq!(without_retried(stages(), &young, now)["canary"].after.len(), 2);
        assert_eq!(retry_counts_at(&young, now), Some(t(8)));
        assert_eq!(retry_counts_at(&young, t(8)), None);
    }
}
