//! The requests of operators as the machine takes them: another release, and gates that begin anew.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::next::RequestedRelease;
use super::observe::{Loaded, Need};
use super::operator::OperatorActions;
use super::transition::Blocked;
use crate::ids::ReleaseDigest;
use crate::plan::{GateRecord, GateResult, REQUEST_RESOLUTION, Retry, StageRecord, began_before};

/// An operator's request for another release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReleaseRequest {
    /// Roll back to this release; `None`: to the last known good one.
    RollBack(Option<ReleaseDigest>),
    /// Start the held release after all.
    ResumeHeld,
    /// Roll back to a revision that no stored release has.
    Unknown(String),
}

impl ReleaseRequest {
    /// Returns the request that counts, with the release that its revision stands for: of a rollback and a release, the
    /// later one.
    pub(super) fn of(actions: &OperatorActions, loaded: &Loaded) -> Result<Option<Self>, Need> {
        let release = actions.release.as_ref().map(|attribution| attribution.at);
        let Some(rollback) = &actions.rollback else {
            return Ok(release.map(|_| Self::ResumeHeld));
        };
        if release.is_some_and(|at| at > rollback.attribution.at) {
            return Ok(Some(Self::ResumeHeld));
        }
        let Some(revision) = &rollback.revision else {
            return Ok(Some(Self::RollBack(None)));
        };
        Ok(Some(match loaded.revision(revision)? {
            Some(digest) => Self::RollBack(Some(digest)),
            None => Self::Unknown(revision.clone()),
        }))
    }

    /// Returns the request as [`super::next`] takes it; `None` if it cannot be fulfilled.
    pub(super) fn known(&self) -> Option<RequestedRelease<'_>> {
        match self {
            Self::RollBack(to) => Some(RequestedRelease::RollBack(to.as_deref())),
            Self::ResumeHeld => Some(RequestedRelease::ResumeHeld),
            Self::Unknown(_) => None,
        }
    }

    /// Returns why the request cannot be fulfilled, for status.
    pub(super) fn impossible(&self) -> Option<Blocked> {
        match self {
            Self::Unknown(revision) => Some(Blocked::nothing_to_go_back_to(format!(
                "no stored release has revision {revision:?}"
            ))),
            Self::RollBack(_) | Self::ResumeHeld => None,
        }
    }
}

/// Returns the records of stages without the failed gates that an operator requested to retry: such a gate begins anew.
///
/// A request counts once its second is over ([`retry_counts_at`]). A gate that begins then began after the request, so
/// an attempt that fails at once is not mistaken for the attempt that the request is about.
#[must_use]
pub fn without_retried(
    mut stages: BTreeMap<String, StageRecord>,
    retries: &[Retry],
    now: Timestamp,
) -> BTreeMap<String, StageRecord> {
    for (name, record) in &mut stages {
        let last = retries
            .iter()
            .filter(|retry| !began_before(now, retry.attribution.at))
            .filter(|retry| retry.cluster.is_none())
            .filter(|retry| retry.stage.as_ref().is_none_or(|stage| stage == name))
            .map(|retry| retry.attribution.at)
            .max();
        let Some(last) = last else { continue };
        for gates in [&mut record.before, &mut record.after] {
            if let Some(place) = gates.iter().position(|gate| is_retried(gate, last)) {
                gates.truncate(place);
            }
        }
    }
    stages
}

/// Returns when the first request counts whose second is not over.
#[must_use]
pub fn retry_counts_at(retries: &[Retry], now: Timestamp) -> Option<Timestamp> {
    let young = retries
        .iter()
        .map(|retry| retry.attribution.at)
        .filter(|at| began_before(now, *at));
    young
        .filter_map(|at| at.checked_add(REQUEST_RESOLUTION).ok())
        .min()
}

fn is_retried(gate: &GateRecord, requested_at: Timestamp) -> bool {
    matches!(gate.result, Some(GateResult::Failed { .. })) && began_before(gate.begun_at, requested_at)
}

#[cfg(test)]
mod tests {
    use starling_api::StageTaskType;

    use crate::ids::ClusterName;
    use crate::plan::{Attribution, Gate};

    use jiff::SignedDuration;

    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn gate(begun: i64, result: Option<GateResult>) -> GateRecord {
        GateRecord {
            gate: Gate::Effect(StageTaskType::Webhook),
            begun_at: t(begun),
            result,
        }
    }

    fn retry(at: i64, stage: Option<&str>, cluster: Option<&str>) -> Retry {
        let attribution = Attribution {
            by: "jane".into(),
            reason: "again".into(),
            at: t(at),
        };
        Retry {
            cluster: cluster.map(ClusterName::from),
            stage: stage.map(str::to_owned),
            attribution,
        }
    }

    #[test]
    fn a_failed_gate_begins_anew_once_for_each_request() {
        let failed = || Some(GateResult::Failed { message: "no".into() });
        let record = StageRecord {
            after: vec![gate(5, Some(GateResult::Passed)), gate(6, failed())],
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
            // The gate began after that request: this is the new attempt, and it failed too.
            (vec![retry(5, None, None)], 2),
            (vec![retry(5, None, None), retry(6, None, None)], 1),
        ] {
            assert_eq!(left(&retries), expected, "{retries:?}");
        }
        // The second of the request is not over: the new attempt would seem to have begun before it.
        let young = [retry(7, None, None)];
        let now = t(8) - SignedDuration::from_millis(1);
        assert_eq!(without_retried(stages(), &young, now)["canary"].after.len(), 2);
        assert_eq!(retry_counts_at(&young, now), Some(t(8)));
        assert_eq!(retry_counts_at(&young, t(8)), None);
    }
}
