//! The health verdict on all objects of a Sync.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::conditions::{self, Condition, READY};

use super::{Health, Status};
use crate::clock_jumps::ClockJumps;
use crate::object::ObjectId;

/// The health of a whole set. Objects are listed worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthVerdict {
    /// All objects are healthy.
    Healthy,
    /// Some objects are not healthy, and the timeout is not over.
    Waiting {
        /// Time at which the set counts as failed.
        until: Timestamp,
        /// The objects that are not healthy.
        unhealthy: Vec<(ObjectId, Health)>,
    },
    /// An object has failed, or the timeout is over.
    Failed {
        /// The objects that are not healthy.
        unhealthy: Vec<(ObjectId, Health)>,
    },
}

/// Returns the verdict on a set by its unhealthy objects. `since` is when the wait for the set began. A clock that is
/// set forward brings the timeout no closer.
#[must_use]
pub fn judge(
    unhealthy: BTreeMap<ObjectId, Health>,
    since: Timestamp,
    timeout: Duration,
    now: Timestamp,
    clock_jumps: &ClockJumps,
) -> HealthVerdict {
    if unhealthy.is_empty() {
        return HealthVerdict::Healthy;
    }
    let mut unhealthy: Vec<_> = unhealthy.into_iter().collect();
    unhealthy.sort_by(|a, b| (a.1.status, &a.0).cmp(&(b.1.status, &b.0)));
    let until = clock_jumps.due(since, timeout).unwrap_or(Timestamp::MAX);
    // Waiting does not make a failed object healthy.
    let failed = unhealthy
        .iter()
        .any(|(_, health)| health.status == Status::Failed);
    if failed || until <= now {
        HealthVerdict::Failed { unhealthy }
    } else {
        HealthVerdict::Waiting { until, unhealthy }
    }
}

/// Returns when the wait for a set began: with the apply, or when the set stopped being Ready, whichever is later. A
/// set that breaks later has as much time to recover as one that was just applied; time in which the cluster was
/// unreachable does not count.
#[must_use]
pub fn waiting_since(before: &[Condition], applied: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let unready_since = conditions::find(before, READY)
        .filter(|ready| ready.status != "True")
        .map_or(now, |ready| ready.last_transition_time.0);
    applied
        .map_or(unready_since, |applied| applied.max(unready_since))
        .min(now)
}

/// Returns the message of the worst object, and the number of the others.
#[must_use]
pub fn summary(unhealthy: &[(ObjectId, Health)]) -> String {
    let Some((object, health)) = unhealthy.first() else {
        return String::new();
    };
    let more = match unhealthy.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("{object}: {}{more}", health.message)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn set(members: &[(&str, Status)]) -> BTreeMap<ObjectId, Health> {
        let key = |name: &str| ObjectId {
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        members
            .iter()
            .map(|(name, status)| (key(name), Health::new(*status, format!("{name} is {status}"))))
            .collect()
    }

    #[test]
    fn a_set_waits_until_the_timeout_unless_an_object_failed() {
        let (minute, none) = (Duration::from_secs(60), ClockJumps::none());
        assert_eq!(
            judge(set(&[]), at(0), minute, at(1000), &none),
            HealthVerdict::Healthy
        );
        let slow = || set(&[("a", Status::InProgress), ("b", Status::Terminating)]);
        let HealthVerdict::Waiting { until, unhealthy } = judge(slow(), at(10), minute, at(69), &none) else {
            panic!("not waiting");
        };
        assert_eq!(until, at(70));
        assert_eq!(
            summary(&unhealthy),
            "Deployment shop/b: b is Terminating (and 1 more)"
        );
        assert!(matches!(
            judge(slow(), at(10), minute, at(70), &none),
            HealthVerdict::Failed { .. }
        ));
        let broken = set(&[("a", Status::InProgress), ("z", Status::Failed)]);
        let HealthVerdict::Failed { unhealthy } = judge(broken, at(10), minute, at(10), &none) else {
            panic!("not failed");
        };
        assert_eq!(summary(&unhealthy), "Deployment shop/z: z is Failed (and 1 more)");
    }

    /// Guards against a clock that is set forward by ten minutes in a rollout: every set that waited counted as failed.
    #[test]
    fn a_clock_that_is_set_forward_ends_no_wait() {
        let (minute, mut jumps) = (Duration::from_secs(60), ClockJumps::none());
        assert!(jumps.observe(at(20), at(631), Duration::from_secs(11)));
        let slow = || set(&[("a", Status::InProgress)]);
        let HealthVerdict::Waiting { until, .. } = judge(slow(), at(10), minute, at(631), &jumps) else {
            panic!("not waiting");
        };
        assert_eq!(until, at(670));
        assert!(matches!(
            judge(slow(), at(10), minute, at(670), &jumps),
            HealthVerdict::Failed { .. }
        ));
    }

    #[test]
    fn the_timeout_counts_from_the_apply_or_from_when_the_set_stopped_being_ready() {
        let ready = |status: &str, since: i64| {
            vec![Condition {
                type_: READY.into(),
                status: status.into(),
                reason: String::new(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: Time(at(since)),
            }]
        };
        let cases = [
            // Applied just now, after it was Ready with something else, or never.
            (ready("True", 5), Some(100), 100),
            (Vec::new(), Some(100), 100),
            // Not Ready since long before it was applied, which is not a fault of the apply.
            (ready("False", 5), Some(90), 90),
            // Broke after it was applied, and is found broken now, or was before.
            (ready("True", 5), Some(10), 100),
            (ready("False", 60), Some(10), 60),
            // The cluster was unreachable.
            (ready("Unknown", 80), Some(10), 80),
            // A clock that was set back.
            (ready("False", 200), Some(300), 100),
        ];
        for (before, applied, expected) in cases {
            assert_eq!(
                waiting_since(&before, applied.map(at), at(100)),
                at(expected),
                "{before:?} {applied:?}"
            );
        }
    }
}
