//! What the health of all objects of a Sync amounts to.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::conditions::{self, Condition, READY};

use super::{Health, Status};
use crate::object::ObjectKey;

/// What the health of a whole set amounts to. Objects are named worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All objects are healthy.
    Healthy,
    /// Some are not, and there is time left.
    Waiting {
        /// When it counts as failed.
        until: Timestamp,
        /// The objects that are waited for.
        unhealthy: Vec<(ObjectKey, Health)>,
    },
    /// One of them has failed, or there is no time left.
    Failed {
        /// The objects that are not healthy.
        unhealthy: Vec<(ObjectKey, Health)>,
    },
}

/// Judges a set by those of its objects that are not healthy. `since` is when it began to be waited for.
#[must_use]
pub fn judge(
    unhealthy: BTreeMap<ObjectKey, Health>,
    since: Timestamp,
    timeout: Duration,
    now: Timestamp,
) -> Verdict {
    if unhealthy.is_empty() {
        return Verdict::Healthy;
    }
    let mut unhealthy: Vec<_> = unhealthy.into_iter().collect();
    unhealthy.sort_by(|a, b| (a.1.status, &a.0).cmp(&(b.1.status, &b.0)));
    let until = SignedDuration::try_from(timeout)
        .ok()
        .and_then(|timeout| since.checked_add(timeout).ok())
        .unwrap_or(Timestamp::MAX);
    // What has failed will not become healthy by being waited for.
    let failed = unhealthy
        .iter()
        .any(|(_, health)| health.status == Status::Failed);
    if failed || until <= now {
        Verdict::Failed { unhealthy }
    } else {
        Verdict::Waiting { until, unhealthy }
    }
}

/// Since when a set is waited for: since it was applied, or since it stopped being Ready, whichever came later. What
/// breaks at rest has as much time to recover as what was just applied; a cluster that was away does not use it up.
#[must_use]
pub fn waiting_since(before: &[Condition], applied: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let unready_since = conditions::find(before, READY)
        .filter(|ready| ready.status != "True")
        .map_or(now, |ready| ready.last_transition_time.0);
    applied
        .map_or(unready_since, |applied| applied.max(unready_since))
        .min(now)
}

/// The worst object and how many more there are, for people.
#[must_use]
pub fn summary(unhealthy: &[(ObjectKey, Health)]) -> String {
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

    fn set(members: &[(&str, Status)]) -> BTreeMap<ObjectKey, Health> {
        let key = |name: &str| ObjectKey {
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
    fn a_set_is_waited_for_until_the_timeout_and_what_failed_is_not_waited_for() {
        let minute = Duration::from_secs(60);
        assert_eq!(judge(set(&[]), at(0), minute, at(1000)), Verdict::Healthy);
        let slow = || set(&[("a", Status::InProgress), ("b", Status::Terminating)]);
        let Verdict::Waiting { until, unhealthy } = judge(slow(), at(10), minute, at(69)) else {
            panic!("not waiting");
        };
        assert_eq!(until, at(70));
        assert_eq!(
            summary(&unhealthy),
            "Deployment shop/b: b is Terminating (and 1 more)"
        );
        assert!(matches!(
            judge(slow(), at(10), minute, at(70)),
            Verdict::Failed { .. }
        ));
        let broken = set(&[("a", Status::InProgress), ("z", Status::Failed)]);
        let Verdict::Failed { unhealthy } = judge(broken, at(10), minute, at(10)) else {
            panic!("not failed");
        };
        assert_eq!(summary(&unhealthy), "Deployment shop/z: z is Failed (and 1 more)");
    }

    #[test]
    fn the_time_counts_from_the_apply_or_from_when_it_stopped_being_ready() {
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
            // Applied a moment ago, after it was Ready with something else, or never.
            (ready("True", 5), Some(100), 100),
            (Vec::new(), Some(100), 100),
            // Not Ready since long before it was applied: that is not its fault.
            (ready("False", 5), Some(90), 90),
            // Broke after it was applied, and is found broken now, or was before.
            (ready("True", 5), Some(10), 100),
            (ready("False", 60), Some(10), 60),
            // The cluster was away.
            (ready("Unknown", 80), Some(10), 80),
            // A clock that jumped back.
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
