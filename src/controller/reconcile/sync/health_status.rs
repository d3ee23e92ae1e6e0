//! Writes the result of a health check to the status of a Sync: the only place that writes Healthy, `healthySince` and
//! `lastHealthyTarget`.

use jiff::Timestamp;
use starling_api::conditions::{
    self, ConditionStatus, ConditionUpdate, HEALTHY, MESSAGE_LIMIT, READY, RECONCILING, cut,
};
use starling_api::{ObjectProblem, SyncStatus};
use starling_core::clock_jumps::ClockJumps;
use starling_core::health::{Health, HealthVerdict, summary};
use starling_core::object::ObjectId;
use starling_core::progress::{self, HEALTH_CHECK_FAILED, PROGRESSING};
use starling_core::step;

use super::super::{ready, repeated, retrying};
use super::health::HealthCheck;
use super::reason::PROBLEMS;
use starling_core::ids::ClusterId;

/// The subject of a health condition.
pub(super) struct HealthSubject<'a> {
    /// `spec.wait`.
    pub(super) wait: bool,
    /// The target that the Sync has to apply; `None` while it is unknown.
    pub(super) target: Option<&'a str>,
    /// The identity of the cluster.
    pub(super) cluster_id: &'a ClusterId,
    /// The time of the next health check.
    pub(super) next: Option<Timestamp>,
    /// The jumps of the clock: they do not count as time in which the target was healthy.
    pub(super) clock_jumps: ClockJumps,
}

/// Adds the health to the conditions in `updates`.
pub(super) fn write(
    after: &mut SyncStatus,
    mut updates: Vec<ConditionUpdate>,
    subject: &HealthSubject<'_>,
    check: Option<&HealthCheck>,
    now: Timestamp,
) -> Vec<ConditionUpdate> {
    if !subject.wait {
        after.healthy_since.clear();
        after.last_healthy_target.clear();
        after.longest_healthy = None;
        return updates;
    }
    let healthy = match check {
        None => unchecked(after, subject),
        Some(HealthCheck::Lost { message }) => {
            replace(
                &mut updates,
                vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)],
            );
            unchecked(after, subject)
        }
        Some(HealthCheck::Verdict(HealthVerdict::Healthy)) => Some(found_healthy(after, subject, now)),
        Some(HealthCheck::Verdict(HealthVerdict::Waiting { until, unhealthy })) => {
            let until = Timestamp::from_second(until.as_second()).unwrap_or(*until);
            let message = format!("waiting until {until} for {}", summary(unhealthy));
            replace(&mut updates, progressing(&message));
            Some(found_unhealthy(after, subject, PROGRESSING, unhealthy, now))
        }
        Some(HealthCheck::Verdict(HealthVerdict::Failed { unhealthy })) => {
            replace(&mut updates, retrying(HEALTH_CHECK_FAILED, &summary(unhealthy)));
            let update = found_unhealthy(after, subject, HEALTH_CHECK_FAILED, unhealthy, now);
            after.next_attempt_time = subject.next.map(|at| at.to_string()).unwrap_or_default();
            Some(update)
        }
    };
    updates.extend(healthy);
    updates
}

/// Returns the condition without a check. A result for this target still holds; a result for another target does not.
fn unchecked(after: &SyncStatus, subject: &HealthSubject<'_>) -> Option<ConditionUpdate> {
    if after.last_applied_target.is_empty() {
        return None;
    }
    let applied = subject
        .target
        .is_some_and(|target| progress::has_applied(after, target, subject.cluster_id));
    let before = conditions::find(&after.conditions, HEALTHY).filter(|_| applied);
    Some(match before {
        Some(before) => repeated(HEALTHY, before),
        None if applied => healthy(ConditionStatus::Unknown, PROGRESSING, "not checked yet".into()),
        None => healthy(
            ConditionStatus::Unknown,
            PROGRESSING,
            "revision not applied yet".into(),
        ),
    })
}

fn found_healthy(after: &mut SyncStatus, subject: &HealthSubject<'_>, now: Timestamp) -> ConditionUpdate {
    if after.healthy_since.is_empty() {
        after.healthy_since = now.to_string();
    }
    after.last_healthy_target = subject.target.unwrap_or_default().to_owned();
    after.problems.clear();
    after.next_attempt_time.clear();
    healthy(ConditionStatus::True, "Succeeded", "all objects healthy".into())
}

fn found_unhealthy(
    after: &mut SyncStatus,
    subject: &HealthSubject<'_>,
    reason: &str,
    unhealthy: &[(ObjectId, Health)],
    now: Timestamp,
) -> ConditionUpdate {
    // A target that was healthy for long enough remains proven, even if it fails later.
    let since = after.healthy_since.parse().ok();
    if let Some(span) = since.map(|since| subject.clock_jumps.elapsed(since, now)) {
        let longest = after
            .longest_healthy
            .map_or(span, |longest| longest.as_std().max(span));
        after.longest_healthy = Some(longest.into());
    }
    after.healthy_since.clear();
    after.next_attempt_time.clear();
    after.problems = unhealthy
        .iter()
        .take(PROBLEMS)
        .map(|(object, health)| ObjectProblem {
            object: object.to_string(),
            reason: health.status.to_string(),
            message: cut(&health.message, MESSAGE_LIMIT),
        })
        .collect();
    healthy(ConditionStatus::False, reason, summary(unhealthy))
}

fn healthy(status: ConditionStatus, reason: &str, message: String) -> ConditionUpdate {
    ConditionUpdate {
        type_: HEALTHY,
        status,
        reason: reason.to_owned(),
        message,
    }
}

fn progressing(message: &str) -> Vec<ConditionUpdate> {
    let reconciling = ConditionUpdate {
        type_: RECONCILING,
        status: ConditionStatus::True,
        reason: PROGRESSING.to_owned(),
        message: message.to_owned(),
    };
    vec![ready(ConditionStatus::False, PROGRESSING, message), reconciling]
}

/// Replaces the conditions that were determined without the health.
fn replace(updates: &mut Vec<ConditionUpdate>, verdict: Vec<ConditionUpdate>) {
    updates.retain(|update| update.type_ != READY && update.type_ != RECONCILING);
    updates.splice(0..0, verdict);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::LazyLock;
    use std::time::Duration;

    use starling_api::conditions::{Condition, find};
    use starling_core::health::{Status, judge};

    use super::*;

    const TARGET: &str = "sha256:t";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn subject(wait: bool) -> HealthSubject<'static> {
        static ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::new("id"));
        HealthSubject {
            wait,
            target: Some(TARGET),
            cluster_id: &ID,
            next: Some(at(500)),
            clock_jumps: ClockJumps::default(),
        }
    }

    /// Returns the status of a Sync that has applied the target.
    fn holding() -> SyncStatus {
        SyncStatus {
            last_attempted_target: TARGET.into(),
            last_applied_target: TARGET.into(),
            last_applied_cluster_id: "id".into(),
            ..SyncStatus::default()
        }
    }

    fn well() -> SyncStatus {
        let update = healthy(ConditionStatus::True, "Succeeded", String::new());
        SyncStatus {
            healthy_since: at(1).to_string(),
            last_healthy_target: TARGET.into(),
            conditions: conditions::merge(&[], vec![update], None, at(1)),
            ..holding()
        }
    }

    fn found(status: Status, timeout: u64) -> HealthCheck {
        let key = ObjectId {
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            name: "web".into(),
        };
        let unhealthy: BTreeMap<_, _> = (status != Status::Current)
            .then(|| (key, Health::new(status, "Available: 0/1")))
            .into_iter()
            .collect();
        let (timeout, none) = (Duration::from_secs(timeout), ClockJumps::none());
        HealthCheck::Verdict(judge(unhealthy, at(100), timeout, at(100), &none))
    }

    /// Returns the status after an attempt or a check that succeeded.
    fn written(before: SyncStatus, subject: &HealthSubject<'_>, check: Option<&HealthCheck>) -> SyncStatus {
        let mut after = before;
        let updates = vec![ready(ConditionStatus::True, "Succeeded", "applied r")];
        let updates = write(&mut after, updates, subject, check, at(100));
        after.conditions = conditions::merge(&after.conditions, updates, None, at(100));
        after
    }

    /// Returns types, statuses and reasons.
    fn summary_of(conditions: &[Condition]) -> Vec<(&str, &str, &str)> {
        conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()))
            .collect()
    }

    #[test]
    fn a_healthy_sync_reports_since_when_and_with_which_target() {
        let after = written(holding(), &subject(true), Some(&found(Status::Current, 60)));
        assert_eq!(
            summary_of(&after.conditions),
            [("Ready", "True", "Succeeded"), ("Healthy", "True", "Succeeded")]
        );
        assert_eq!(after.healthy_since, at(100).to_string());
        assert_eq!(after.last_healthy_target, TARGET);
        // The time does not change while the Sync stays healthy.
        let again = written(well(), &subject(true), Some(&found(Status::Current, 60)));
        assert_eq!(again.healthy_since, at(1).to_string());
    }

    #[test]
    fn objects_in_progress_have_time_left_and_failed_objects_have_none() {
        let waiting = written(well(), &subject(true), Some(&found(Status::InProgress, 60)));
        assert_eq!(
            summary_of(&waiting.conditions),
            [
                ("Ready", "False", "Progressing"),
                ("Reconciling", "True", "Progressing"),
                ("Healthy", "False", "Progressing")
            ]
        );
        let message = "waiting until 1970-01-01T00:02:40Z for Deployment shop/web: Available: 0/1";
        assert_eq!(waiting.conditions[0].message, message);
        assert_eq!(
            (
                waiting.healthy_since.as_str(),
                waiting.last_healthy_target.as_str()
            ),
            ("", TARGET)
        );
        let problem = &waiting.problems[0];
        assert_eq!(
            (&*problem.object, &*problem.reason, &*problem.message),
            ("Deployment shop/web", "InProgress", "Available: 0/1")
        );
        assert_eq!(waiting.next_attempt_time, "");

        for check in [found(Status::Failed, 60), found(Status::InProgress, 0)] {
            let failed = written(well(), &subject(true), Some(&check));
            assert_eq!(
                summary_of(&failed.conditions),
                [
                    ("Ready", "False", "HealthCheckFailed"),
                    ("Reconciling", "True", "ProgressingWithRetry"),
                    ("Healthy", "False", "HealthCheckFailed")
                ]
            );
            assert_eq!(failed.next_attempt_time, at(500).to_string());
            let recovered = written(failed, &subject(true), Some(&found(Status::Current, 60)));
            assert_eq!(
                (recovered.problems.len(), recovered.next_attempt_time.as_str()),
                (0, "")
            );
        }
    }

    #[test]
    fn without_a_check_the_last_finding_counts_for_its_own_target_only() {
        let kept = written(well(), &subject(true), None);
        assert_eq!(find(&kept.conditions, HEALTHY).unwrap().status, "True");
        let other = HealthSubject {
            target: Some("sha256:other"),
            ..subject(true)
        };
        let stale = written(well(), &other, None);
        assert_eq!(find(&stale.conditions, HEALTHY).unwrap().status, "Unknown");
        let never = written(SyncStatus::default(), &subject(true), None);
        assert_eq!(find(&never.conditions, HEALTHY), None);
        let lost = HealthCheck::Lost {
            message: "no answer".into(),
        };
        let lost = written(well(), &subject(true), Some(&lost));
        assert_eq!(
            summary_of(&lost.conditions),
            [
                ("Ready", "Unknown", "ClusterNotReady"),
                ("Healthy", "True", "Succeeded")
            ]
        );
        assert_eq!(lost.healthy_since, at(1).to_string());
    }

    #[test]
    fn without_wait_there_is_no_health() {
        let after = written(well(), &subject(false), None);
        assert_eq!(summary_of(&after.conditions), [("Ready", "True", "Succeeded")]);
        assert_eq!(
            (after.healthy_since.as_str(), after.last_healthy_target.as_str()),
            ("", "")
        );
    }
}
