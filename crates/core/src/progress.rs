//! Reads from the status of a Sync whether a target is applied to the member, and the progress of that target.

use std::time::Duration;

use jiff::Timestamp;
use kube_core::ResourceExt as _;
use starling_api::conditions::{self, HEALTHY, READY, STALLED};
use starling_api::{REQUESTED_AT, RETRIED_FOR, SyncResource, SyncStatus};

use crate::ids::ClusterId;
use crate::plan::{Applied, HealthProblem, Progress};

/// The reason of Ready and Healthy while applied objects are not healthy yet and the timeout is not over.
pub const PROGRESSING: &str = "Progressing";

/// The reason of Ready and Healthy once an object failed, or was not healthy within `timeout`.
pub const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// Reports whether the status of a Sync shows that this target is applied to this cluster. It does not if another
/// target was attempted since, which may have been applied in part.
#[must_use]
pub fn has_applied(status: &SyncStatus, target: &str, cluster_id: &ClusterId) -> bool {
    let attempted_another =
        !status.last_attempted_target.is_empty() && status.last_attempted_target != target;
    status.last_applied_target == target
        && status.last_applied_cluster_id == cluster_id.as_str()
        && !attempted_another
}

/// Reports whether nothing is left to do for a target until the next drift check: it is applied and, with `wait`,
/// healthy.
#[must_use]
pub fn is_settled(status: &SyncStatus, wait: bool, target: &str, cluster_id: &ClusterId) -> bool {
    has_applied(status, target, cluster_id) && !(wait && status.healthy_since.is_empty())
}

/// A Sync of a group as it was admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    /// The target of its spec.
    pub target: &'a str,
    /// Whether the target is done only once it is healthy.
    pub wait: bool,
    /// The identity of the cluster.
    pub cluster_id: &'a ClusterId,
    /// `metadata.generation`.
    pub generation: i64,
    /// The request that the Sync was retried for: annotation `starling.dev/retried-for`.
    pub retried_for: Option<&'a str>,
    /// The last request of a reconcile: annotation `starling.dev/requested-at`, which a retry sets too.
    pub requested_at: Option<&'a str>,
}

impl<'a> Admitted<'a> {
    /// Returns a Sync with this target on this cluster.
    #[must_use]
    pub fn of(sync: &'a SyncResource, target: &'a str, cluster_id: &'a ClusterId) -> Self {
        let annotation = |key: &str| sync.annotations().get(key).map(String::as_str);
        Self {
            target,
            wait: sync.spec.template.wait,
            cluster_id,
            generation: sync.metadata.generation.unwrap_or(0),
            retried_for: annotation(RETRIED_FOR),
            requested_at: annotation(REQUESTED_AT),
        }
    }

    /// Reports whether the attempt of a retry has not ended: a Sync reports the request that it has handled with the
    /// outcome.
    fn is_being_retried(&self, status: &SyncStatus) -> bool {
        let handled = Some(status.last_handled_reconcile_at.as_str());
        self.retried_for.is_some() && handled != self.retried_for && handled != self.requested_at
    }
}

/// Returns the progress of a Sync of a group with the target of its spec.
///
/// With `wait`, a target is done once the whole set was healthy with it, and stays so: later failures do not undo the
/// rollout (ADR 10). A Sync that is retried works from the request on, although its status reports the failure until
/// the attempt has ended: otherwise its slot would be free in the meantime.
#[must_use]
pub fn progress(status: &SyncStatus, admitted: &Admitted<'_>) -> Progress {
    let Admitted {
        target,
        wait,
        cluster_id,
        generation,
        ..
    } = *admitted;
    if has_applied(status, target, cluster_id) {
        return if wait {
            applied(status, target)
        } else {
            let applied_at = status.last_applied_time.parse();
            Progress::healthy_since(applied_at.unwrap_or(Timestamp::UNIX_EPOCH))
        };
    }
    let ready = conditions::find(&status.conditions, READY);
    let failed = status.last_attempted_target == target && status.attempts > 0;
    let stalled = conditions::is_true(&status.conditions, STALLED, generation);
    if (!failed && !stalled) || admitted.is_being_retried(status) {
        return Progress::Working;
    }
    Progress::Failing {
        reason: ready.map_or_else(|| "Failed".into(), |c| c.reason.clone()),
        message: ready.map(|c| c.message.clone()).unwrap_or_default(),
        retry_at: status.next_attempt_time.parse().ok(),
    }
}

/// Returns the progress of a Sync with `wait` whose target is applied. The verdict is in the condition Healthy,
/// which remains when the cluster becomes unreachable: that is not a recovery.
fn applied(status: &SyncStatus, target: &str) -> Progress {
    let was_healthy = status.last_healthy_target == target;
    let failed =
        conditions::find(&status.conditions, HEALTHY).filter(|healthy| healthy.reason == HEALTH_CHECK_FAILED);
    match failed {
        Some(failed) if !was_healthy => Progress::Failing {
            reason: failed.reason.clone(),
            message: failed.message.clone(),
            retry_at: status.next_attempt_time.parse().ok(),
        },
        None if !was_healthy => Progress::Working,
        problem => Progress::Applied(Applied {
            since: status.healthy_since.parse().ok(),
            longest: status
                .longest_healthy
                .map_or(Duration::ZERO, starling_api::Duration::as_std),
            problem: problem.map(|failed| HealthProblem {
                reason: failed.reason.clone(),
                message: failed.message.clone(),
            }),
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use starling_api::SyncSpec;
    use starling_api::conditions::{Condition, ConditionStatus, ConditionUpdate};

    use super::*;
    use crate::target;

    const NOW: &str = "2026-01-01T12:00:00Z";

    #[expect(clippy::needless_pass_by_value, reason = "reads like the literal it is given")]
    pub(crate) fn spec(json: serde_json::Value) -> SyncSpec {
        let mut base = serde_json::json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}});
        base.as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        serde_json::from_value(base).unwrap()
    }

    /// Returns the status of a Sync whose target is applied.
    pub(crate) fn applied(spec: &SyncSpec) -> SyncStatus {
        SyncStatus {
            last_applied_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            last_applied_cluster_id: "id".into(),
            ..SyncStatus::default()
        }
    }

    /// Returns the status of a Sync whose target is applied and healthy.
    pub(crate) fn healthy(spec: &SyncSpec) -> SyncStatus {
        SyncStatus {
            healthy_since: "2026-01-01T11:00:00Z".into(),
            last_healthy_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            ..applied(spec)
        }
    }

    fn verdict(status: ConditionStatus, reason: &str) -> Vec<Condition> {
        let update = ConditionUpdate {
            type_: HEALTHY,
            status,
            reason: reason.into(),
            message: "Deployment shop/web: Available: 0/1".into(),
        };
        conditions::merge(&[], vec![update], Some(1), NOW.parse().unwrap())
    }

    fn progress_with(status: &SyncStatus, wait: bool, target: &str, cluster_id: &ClusterId) -> Progress {
        let admitted = Admitted {
            target,
            wait,
            cluster_id,
            generation: 1,
            retried_for: None,
            requested_at: None,
        };
        progress(status, &admitted)
    }

    #[test]
    fn a_retry_is_in_progress_until_its_outcome_is_reported() {
        let failed = SyncStatus {
            last_attempted_target: "t".into(),
            attempts: 1,
            ..SyncStatus::default()
        };
        for (retried_for, requested_at, handled, working) in [
            (None, None, "", false),
            // Requested by a person, not a retry.
            (None, Some("5"), "", false),
            (Some("5"), Some("5"), "", true),
            (Some("5"), Some("5"), "4", true),
            (Some("5"), Some("5"), "5", false),
            // Somebody requested a reconcile since.
            (Some("5"), Some("6"), "4", true),
            (Some("5"), Some("6"), "5", false),
            (Some("5"), Some("6"), "6", false),
        ] {
            let status = SyncStatus {
                last_handled_reconcile_at: handled.into(),
                ..failed.clone()
            };
            let admitted = Admitted {
                target: "t",
                wait: true,
                cluster_id: &ClusterId::new("id"),
                generation: 1,
                retried_for,
                requested_at,
            };
            let found = progress(&status, &admitted);
            assert_eq!(found == Progress::Working, working, "{admitted:?} {handled}");
        }
    }

    #[test]
    fn progress_of_another_target_is_not_progress_of_this_one() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        let status = healthy(&spec);
        assert!(matches!(
            progress_with(&status, true, &target, &ClusterId::new("id")),
            Progress::Applied(_)
        ));
        assert_eq!(
            progress_with(&status, true, "sha256:other", &ClusterId::new("id")),
            Progress::Working
        );
        assert_eq!(
            progress_with(&status, true, &target, &ClusterId::new("other")),
            Progress::Working
        );
        let failed = SyncStatus {
            last_attempted_target: target.to_string(),
            attempts: 1,
            ..SyncStatus::default()
        };
        assert!(matches!(
            progress_with(&failed, true, &target, &ClusterId::new("id")),
            Progress::Failing { .. }
        ));
        assert_eq!(
            progress_with(&failed, true, "sha256:other", &ClusterId::new("id")),
            Progress::Working
        );
    }

    #[test]
    fn with_wait_a_target_is_done_once_it_was_healthy_and_stays_so() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        let progress_of = |status: SyncStatus, conditions| {
            let status = SyncStatus { conditions, ..status };
            progress_with(&status, true, &target, &ClusterId::new("id"))
        };
        let failed = || verdict(ConditionStatus::False, HEALTH_CHECK_FAILED);
        let waiting = || verdict(ConditionStatus::False, PROGRESSING);
        // Applied, not healthy yet.
        assert_eq!(progress_of(applied(&spec), Vec::new()), Progress::Working);
        assert_eq!(progress_of(applied(&spec), waiting()), Progress::Working);
        assert!(matches!(
            progress_of(applied(&spec), failed()),
            Progress::Failing { reason, message, .. }
                if reason == HEALTH_CHECK_FAILED && message == "Deployment shop/web: Available: 0/1"
        ));
        // Health with the previous release does not count.
        let older = SyncStatus {
            last_healthy_target: "sha256:other".into(),
            ..applied(&spec)
        };
        assert_eq!(progress_of(older, waiting()), Progress::Working);
        // Healthy once, and broken since.
        let broken = || SyncStatus {
            healthy_since: String::new(),
            ..healthy(&spec)
        };
        assert!(matches!(
            progress_of(broken(), waiting()),
            Progress::Applied(Applied {
                since: None,
                problem: None,
                ..
            })
        ));
        assert!(matches!(
            progress_of(broken(), failed()),
            Progress::Applied(Applied { problem: Some(_), .. })
        ));
        // Without wait, health does not matter.
        assert!(matches!(
            progress_with(&applied(&spec), false, &target, &ClusterId::new("id")),
            Progress::Applied(_)
        ));
    }

    #[test]
    fn settled_is_applied_and_with_wait_healthy() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        for (status, wait, settled) in [
            (applied(&spec), true, false),
            (applied(&spec), false, true),
            (healthy(&spec), true, true),
            (SyncStatus::default(), false, false),
        ] {
            assert_eq!(
                is_settled(&status, wait, &target, &ClusterId::new("id")),
                settled,
                "{status:?}"
            );
        }
    }
}
