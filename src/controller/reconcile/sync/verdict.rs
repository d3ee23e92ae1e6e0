//! What a look at the health makes of a Sync's status. The one place that writes Healthy, `healthySince` and
//! `lastHealthyTarget`.

use jiff::Timestamp;
use starling_api::conditions::{
    self, ConditionStatus, ConditionUpdate, HEALTHY, MESSAGE_LIMIT, READY, RECONCILING, cut,
};
use starling_api::{ObjectProblem, SyncStatus};
use starling_core::health::{Health, Verdict, summary};
use starling_core::object::ObjectKey;
use starling_core::step::{self, HEALTH_CHECK_FAILED, PROGRESSING};

use super::super::{ready, retrying};
use super::health::Look;

/// Problems that a status names at most.
const PROBLEMS: usize = 10;

/// What the status has to be about.
pub(super) struct About<'a> {
    /// `spec.wait`.
    pub(super) wait: bool,
    /// The target that is wanted, where one is.
    pub(super) target: Option<&'a str>,
    /// The cluster's identity.
    pub(super) cluster_id: &'a str,
    /// When the next look is.
    pub(super) next: Option<Timestamp>,
}

/// Adds the health to what is said otherwise. `updates` are the conditions without it.
pub(super) fn write(
    after: &mut SyncStatus,
    mut updates: Vec<ConditionUpdate>,
    about: &About<'_>,
    look: Option<&Look>,
    now: Timestamp,
) -> Vec<ConditionUpdate> {
    if !about.wait {
        after.healthy_since.clear();
        after.last_healthy_target.clear();
        return updates;
    }
    let healthy = match look {
        None => unseen(after, about),
        Some(Look::Lost { message }) => {
            replace(
                &mut updates,
                vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)],
            );
            unseen(after, about)
        }
        Some(Look::Verdict(Verdict::Healthy)) => Some(found_healthy(after, about, now)),
        Some(Look::Verdict(Verdict::Waiting { until, unhealthy })) => {
            let until = Timestamp::from_second(until.as_second()).unwrap_or(*until);
            let message = format!("waiting until {until} for {}", summary(unhealthy));
            replace(&mut updates, progressing(&message));
            Some(found_unhealthy(after, PROGRESSING, unhealthy))
        }
        Some(Look::Verdict(Verdict::Failed { unhealthy })) => {
            replace(&mut updates, retrying(HEALTH_CHECK_FAILED, &summary(unhealthy)));
            let update = found_unhealthy(after, HEALTH_CHECK_FAILED, unhealthy);
            after.next_attempt_time = about.next.map(|at| at.to_string()).unwrap_or_default();
            Some(update)
        }
    };
    updates.extend(healthy);
    updates
}

/// The condition where nobody looked. What was found of this target still stands; of another one it says nothing
/// about what is wanted now.
fn unseen(after: &SyncStatus, about: &About<'_>) -> Option<ConditionUpdate> {
    if after.last_applied_target.is_empty() {
        return None;
    }
    let held = about
        .target
        .is_some_and(|target| step::holds(after, target, about.cluster_id));
    let before = conditions::find(&after.conditions, HEALTHY).filter(|_| held);
    Some(match before {
        Some(before) => healthy(
            match before.status.as_str() {
                "True" => ConditionStatus::True,
                "False" => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            },
            &before.reason,
            before.message.clone(),
        ),
        None if held => healthy(ConditionStatus::Unknown, PROGRESSING, "not looked at yet".into()),
        None => healthy(
            ConditionStatus::Unknown,
            PROGRESSING,
            "the wanted revision is not applied yet".into(),
        ),
    })
}

fn found_healthy(after: &mut SyncStatus, about: &About<'_>, now: Timestamp) -> ConditionUpdate {
    if after.healthy_since.is_empty() {
        after.healthy_since = now.to_string();
    }
    after.last_healthy_target = about.target.unwrap_or_default().to_owned();
    after.problems.clear();
    after.next_attempt_time.clear();
    healthy(
        ConditionStatus::True,
        "Succeeded",
        "all objects are healthy".into(),
    )
}

fn found_unhealthy(
    after: &mut SyncStatus,
    reason: &str,
    unhealthy: &[(ObjectKey, Health)],
) -> ConditionUpdate {
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

/// Puts a verdict in the place of the one that did not know of health.
fn replace(updates: &mut Vec<ConditionUpdate>, verdict: Vec<ConditionUpdate>) {
    updates.retain(|update| update.type_ != READY && update.type_ != RECONCILING);
    updates.splice(0..0, verdict);
}
