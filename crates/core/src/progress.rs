//! What the status of a Sync says of a target: whether its cluster holds it, and how far it is with it.

use std::time::Duration;

use jiff::Timestamp;
use starling_api::SyncStatus;
use starling_api::conditions::{self, HEALTHY, READY, STALLED};

use crate::plan::{Held, Progress, Trouble};

/// Reason of Ready and Healthy while objects that were applied are not healthy yet, and there is time left.
pub const PROGRESSING: &str = "Progressing";

/// Reason of Ready and Healthy once an object has failed, or was not healthy within `timeout`.
pub const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// Whether a Sync's status says that this very cluster holds this very target. It does not where another target was
/// tried since: what of that got there is not known.
#[must_use]
pub fn holds(status: &SyncStatus, target: &str, cluster_id: &str) -> bool {
    let tried_another = !status.last_attempted_target.is_empty() && status.last_attempted_target != target;
    status.last_applied_target == target && status.last_applied_cluster_id == cluster_id && !tried_another
}

/// Whether nothing is left to do for a target until the next check: it is held and, with `wait`, healthy.
#[must_use]
pub fn is_settled(status: &SyncStatus, wait: bool, target: &str, cluster_id: &str) -> bool {
    holds(status, target, cluster_id) && !(wait && status.healthy_since.is_empty())
}

/// How far a group's Sync is with the target of its own spec: what the planner asks.
///
/// With `wait` it is done once the whole set was healthy with this very target, and stays so: what breaks later does
/// not undo the rollout (ADR 10).
#[must_use]
pub fn progress(
    status: &SyncStatus,
    wait: bool,
    target: &str,
    cluster_id: &str,
    generation: i64,
) -> Progress {
    if holds(status, target, cluster_id) {
        return if wait {
            held(status, target)
        } else {
            let applied_at = status.last_applied_time.parse();
            Progress::healthy_since(applied_at.unwrap_or(Timestamp::UNIX_EPOCH))
        };
    }
    let ready = conditions::find(&status.conditions, READY);
    let failed = status.last_attempted_target == target && status.attempts > 0;
    let stalled = conditions::is_true(&status.conditions, STALLED, generation);
    if !failed && !stalled {
        return Progress::Working;
    }
    Progress::Failing {
        reason: ready.map_or_else(|| "Failed".into(), |c| c.reason.clone()),
        message: ready.map(|c| c.message.clone()).unwrap_or_default(),
        retry_at: status.next_attempt_time.parse().ok(),
    }
}

/// How far a Sync with `wait` is whose cluster holds the target. The verdict stands in Healthy, which outlasts the loss
/// of the cluster: to lose sight of a failure is not to recover.
fn held(status: &SyncStatus, target: &str) -> Progress {
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
        trouble => Progress::Held(Held {
            since: status.healthy_since.parse().ok(),
            longest: status
                .longest_healthy
                .map_or(Duration::ZERO, starling_api::Duration::as_std),
            trouble: trouble.map(|failed| Trouble {
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

    /// Holds what the Sync wants.
    pub(crate) fn held(spec: &SyncSpec) -> SyncStatus {
        SyncStatus {
            last_applied_target: target::of_sync("main@sha1:a", &spec.template),
            last_applied_cluster_id: "id".into(),
            ..SyncStatus::default()
        }
    }

    /// The same, and is healthy with it.
    pub(crate) fn healthy(spec: &SyncSpec) -> SyncStatus {
        SyncStatus {
            healthy_since: "2026-01-01T11:00:00Z".into(),
            last_healthy_target: target::of_sync("main@sha1:a", &spec.template),
            ..held(spec)
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

    #[test]
    fn progress_of_another_target_is_not_progress_of_this_one() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        let status = healthy(&spec);
        assert!(matches!(
            progress(&status, true, &target, "id", 1),
            Progress::Held(_)
        ));
        assert_eq!(
            progress(&status, true, "sha256:other", "id", 1),
            Progress::Working
        );
        assert_eq!(progress(&status, true, &target, "other", 1), Progress::Working);
        let failed = SyncStatus {
            last_attempted_target: target.clone(),
            attempts: 1,
            ..SyncStatus::default()
        };
        assert!(matches!(
            progress(&failed, true, &target, "id", 1),
            Progress::Failing { .. }
        ));
        assert_eq!(
            progress(&failed, true, "sha256:other", "id", 1),
            Progress::Working
        );
    }

    #[test]
    fn with_wait_it_is_done_once_it_was_healthy_with_this_target_and_stays_so() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        let told = |status: SyncStatus, conditions| {
            let status = SyncStatus { conditions, ..status };
            progress(&status, true, &target, "id", 1)
        };
        let failed = || verdict(ConditionStatus::False, HEALTH_CHECK_FAILED);
        let waiting = || verdict(ConditionStatus::False, PROGRESSING);
        // Applied, not healthy yet.
        assert_eq!(told(held(&spec), Vec::new()), Progress::Working);
        assert_eq!(told(held(&spec), waiting()), Progress::Working);
        assert!(matches!(
            told(held(&spec), failed()),
            Progress::Failing { reason, message, .. }
                if reason == HEALTH_CHECK_FAILED && message == "Deployment shop/web: Available: 0/1"
        ));
        // Healthy with the release before this one says nothing.
        let older = SyncStatus {
            last_healthy_target: "sha256:other".into(),
            ..held(&spec)
        };
        assert_eq!(told(older, waiting()), Progress::Working);
        // Healthy once, and broken since.
        let broken = || SyncStatus {
            healthy_since: String::new(),
            ..healthy(&spec)
        };
        assert!(matches!(
            told(broken(), waiting()),
            Progress::Held(Held {
                since: None,
                trouble: None,
                ..
            })
        ));
        assert!(matches!(
            told(broken(), failed()),
            Progress::Held(Held { trouble: Some(_), .. })
        ));
        // Without wait health is not asked for.
        assert!(matches!(
            progress(&held(&spec), false, &target, "id", 1),
            Progress::Held(_)
        ));
    }

    #[test]
    fn settled_is_applied_and_with_wait_healthy() {
        let spec = spec(serde_json::json!({"revision": "main@sha1:a"}));
        let target = target::of_spec(&spec).unwrap();
        for (status, wait, settled) in [
            (held(&spec), true, false),
            (held(&spec), false, true),
            (healthy(&spec), true, true),
            (SyncStatus::default(), false, false),
        ] {
            assert_eq!(is_settled(&status, wait, &target, "id"), settled, "{status:?}");
        }
    }
}
