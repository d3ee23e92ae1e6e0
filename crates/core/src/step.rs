//! The next step of one Sync: a pure function from its spec, its status and what it depends on.

use std::time::Duration;

use jiff::Timestamp;
use starling_api::conditions::{self, HEALTHY, READY, STALLED};
use starling_api::{SyncSpec, SyncStatus};

use crate::depend::{self, Dependencies};
use crate::plan::{Held, Progress, Reach, Trouble};
use crate::target;

/// Reason of a Sync's Ready condition while its cluster cannot be worked on: no failure of the revision.
pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";

/// Reason of Ready and Healthy while objects that were applied are not healthy yet, and there is time left.
pub const PROGRESSING: &str = "Progressing";

/// Reason of Ready and Healthy once an object has failed, or was not healthy within `timeout`.
pub const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// Everything that the next step depends on.
#[derive(Clone, Debug)]
pub struct StepInput<'a> {
    /// The present.
    pub now: Timestamp,
    /// The Sync's spec.
    pub spec: &'a SyncSpec,
    /// Its generation.
    pub generation: i64,
    /// Its status as last written; the default if never.
    pub status: &'a SyncStatus,
    /// Fields that are set and not implemented.
    pub not_implemented: &'a [String],
    /// A parameter that cannot be resolved, if there is one.
    pub invalid: Option<&'a str>,
    /// The revision that its Source offers; `None` while it offers none.
    pub source_revision: Option<&'a str>,
    /// How it stands with what it depends on.
    pub dependencies: &'a Dependencies,
    /// Its Cluster: reach and identity; `None`: there is no such Cluster.
    pub cluster: Option<ClusterState<'a>>,
    /// When it is next checked for drift; `None`: nobody knows, so now.
    pub next_check: Option<Timestamp>,
    /// Somebody asked for a look by annotation, and it was not yet answered.
    pub requested: bool,
}

/// What a Sync needs to know of its Cluster.
#[derive(Clone, Debug)]
pub struct ClusterState<'a> {
    /// Whether it can be worked on.
    pub reach: Reach,
    /// UID of its `kube-system` namespace, from its status.
    pub id: &'a str,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Nothing: somebody holds it.
    Suspended,
    /// Nothing, until it is edited: these fields promise what is not there (I10).
    NotImplemented {
        /// Paths of the fields.
        fields: Vec<String>,
    },
    /// Nothing, until it or its cluster is edited: a parameter cannot be resolved.
    Invalid {
        /// Which one, and why.
        message: String,
    },
    /// Nothing, until one of them is edited: it depends on itself.
    DependencyCycle {
        /// By which way.
        message: String,
    },
    /// Nothing: what it depends on is not done; that wakes it.
    DependencyNotReady {
        /// Which one, and how it stands.
        message: String,
    },
    /// Nothing: its group has not admitted a revision.
    AwaitingAdmission,
    /// Nothing: its Source offers no revision yet.
    AwaitingSource,
    /// Nothing: its Cluster does not exist.
    ClusterMissing,
    /// Nothing: its Cluster cannot be worked on; the Cluster's status wakes it.
    ClusterNotReady {
        /// What the Cluster says.
        message: String,
    },
    /// Nothing until then: the last attempt failed.
    Backoff {
        /// When it is tried again.
        until: Timestamp,
    },
    /// Make the cluster hold this.
    Apply(Wanted),
    /// The cluster holds this; look whether somebody changed it.
    CheckDrift(Wanted),
    /// The cluster holds this, and not all of it was healthy when it was last looked at: look again.
    CheckHealth(Wanted),
    /// The cluster holds this; nothing to do until then.
    Idle {
        /// What is held.
        wanted: Wanted,
        /// When drift is looked for.
        until: Timestamp,
    },
}

/// What a Sync shall hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The revision.
    pub revision: String,
    /// Its target.
    pub target: String,
}

/// Decides what one Sync does now.
pub fn next_step(input: &StepInput<'_>) -> Step {
    if input.spec.template.suspend {
        return Step::Suspended;
    }
    if !input.not_implemented.is_empty() {
        return Step::NotImplemented {
            fields: input.not_implemented.to_vec(),
        };
    }
    if let Some(message) = input.invalid {
        return Step::Invalid {
            message: message.to_owned(),
        };
    }
    if let Dependencies::Cycle { names } = input.dependencies {
        return Step::DependencyCycle {
            message: format!("spec.dependsOn: it depends on itself: {}", depend::way(names)),
        };
    }
    let revision = match (&input.spec.revision, &input.spec.group_ref) {
        (revision, _) if !revision.is_empty() => revision.as_str(),
        (_, Some(_)) => return Step::AwaitingAdmission,
        (_, None) => match input.source_revision {
            Some(revision) => revision,
            None => return Step::AwaitingSource,
        },
    };
    let Some(cluster) = &input.cluster else {
        return Step::ClusterMissing;
    };
    if let Some(message) = not_ready(&cluster.reach) {
        return Step::ClusterNotReady { message };
    }
    let wanted = Wanted {
        revision: revision.to_owned(),
        target: target::of_sync(revision, &input.spec.template),
    };
    if holds(input.status, &wanted.target, cluster.id) {
        at_rest(input, wanted)
    } else {
        to_do(input, wanted)
    }
}

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

fn at_rest(input: &StepInput<'_>, wanted: Wanted) -> Step {
    match (backing_off(input, &wanted), input.next_check) {
        // What somebody changed could not be put right: the failure stands until it is tried again.
        (Some(until), _) => Step::Backoff { until },
        (None, Some(until)) if until > input.now && !input.requested => {
            if input.spec.template.wait && input.status.healthy_since.is_empty() {
                Step::CheckHealth(wanted)
            } else {
                Step::Idle { wanted, until }
            }
        }
        (None, _) => Step::CheckDrift(wanted),
    }
}

fn to_do(input: &StepInput<'_>, wanted: Wanted) -> Step {
    match (backing_off(input, &wanted), input.dependencies) {
        (Some(until), _) => Step::Backoff { until },
        // Only what is new waits: drift of what is held is repaired whatever the dependency does.
        (None, Dependencies::Waiting { message }) => Step::DependencyNotReady {
            message: message.clone(),
        },
        (None, _) => Step::Apply(wanted),
    }
}

/// Until when nothing is tried because the last attempt at this very target failed.
fn backing_off(input: &StepInput<'_>, wanted: &Wanted) -> Option<Timestamp> {
    let failed = input.status.last_attempted_target == wanted.target && input.status.attempts > 0;
    let until: Timestamp = input.status.next_attempt_time.parse().ok()?;
    (failed && until > input.now && !input.requested).then_some(until)
}

fn not_ready(reach: &Reach) -> Option<String> {
    match reach {
        Reach::Ready => None,
        Reach::Unprobed => Some("the cluster has not been probed yet".into()),
        Reach::Suspended => Some("the cluster is suspended".into()),
        Reach::Unreachable { reason, message, .. } => Some(format!("{reason}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use starling_api::conditions::{Condition, ConditionStatus, ConditionUpdate};

    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    #[expect(clippy::needless_pass_by_value, reason = "reads like the literal it is given")]
    fn spec(json: serde_json::Value) -> SyncSpec {
        let mut base = serde_json::json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}});
        base.as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        serde_json::from_value(base).unwrap()
    }

    fn step<'a>(spec: &'a SyncSpec, status: &'a SyncStatus, change: impl FnOnce(&mut StepInput<'a>)) -> Step {
        let mut input = StepInput {
            now: NOW.parse().unwrap(),
            spec,
            generation: 1,
            status,
            not_implemented: &[],
            invalid: None,
            source_revision: Some("main@sha1:a"),
            dependencies: &Dependencies::Done,
            cluster: Some(ClusterState {
                reach: Reach::Ready,
                id: "id",
            }),
            next_check: Some("2026-01-01T12:05:00Z".parse().unwrap()),
            requested: false,
        };
        change(&mut input);
        next_step(&input)
    }

    fn held(spec: &SyncSpec) -> SyncStatus {
        SyncStatus {
            last_applied_target: target::of_sync("main@sha1:a", &spec.template),
            last_applied_cluster_id: "id".into(),
            ..SyncStatus::default()
        }
    }

    fn healthy(spec: &SyncSpec) -> SyncStatus {
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
    fn a_sync_alone_follows_its_source_and_a_groups_sync_waits_for_admission() {
        let alone = spec(serde_json::json!({}));
        let status = SyncStatus::default();
        assert!(matches!(step(&alone, &status, |_| {}), Step::Apply(w) if w.revision == "main@sha1:a"));
        assert_eq!(
            step(&alone, &status, |i| i.source_revision = None),
            Step::AwaitingSource
        );
        let part = spec(serde_json::json!({"groupRef": {"name": "g", "entry": "e"}}));
        assert_eq!(step(&part, &status, |_| {}), Step::AwaitingAdmission);
        let admitted =
            spec(serde_json::json!({"groupRef": {"name": "g", "entry": "e"}, "revision": "main@sha1:b"}));
        assert!(matches!(step(&admitted, &status, |_| {}), Step::Apply(w) if w.revision == "main@sha1:b"));
    }

    #[test]
    fn nothing_is_written_to_a_cluster_that_is_not_ready() {
        let spec = spec(serde_json::json!({}));
        let status = SyncStatus::default();
        assert_eq!(step(&spec, &status, |i| i.cluster = None), Step::ClusterMissing);
        for reach in [
            Reach::Unprobed,
            Reach::Suspended,
            Reach::Unreachable {
                reason: "Unreachable".into(),
                message: String::new(),
                since: Timestamp::UNIX_EPOCH,
            },
        ] {
            let step = step(&spec, &status, |i| {
                i.cluster = Some(ClusterState { reach, id: "id" });
            });
            assert!(matches!(step, Step::ClusterNotReady { .. }));
        }
    }

    #[test]
    fn what_is_held_is_left_alone_until_the_next_check() {
        let spec = spec(serde_json::json!({}));
        let status = healthy(&spec);
        assert!(matches!(step(&spec, &status, |_| {}), Step::Idle { .. }));
        assert!(matches!(
            step(&spec, &status, |i| i.next_check = None),
            Step::CheckDrift(_)
        ));
        assert!(matches!(
            step(&spec, &status, |i| i.requested = true),
            Step::CheckDrift(_)
        ));
        let later = "2026-01-01T12:05:00Z".parse().unwrap();
        assert!(matches!(
            step(&spec, &status, |i| i.now = later),
            Step::CheckDrift(_)
        ));
    }

    #[test]
    fn a_repair_that_failed_is_not_taken_for_rest() {
        let spec = spec(serde_json::json!({}));
        let broken = SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &spec.template),
            attempts: 1,
            next_attempt_time: "2026-01-01T12:00:30Z".into(),
            ..held(&spec)
        };
        assert!(matches!(step(&spec, &broken, |_| {}), Step::Backoff { .. }));
        let later = |i: &mut StepInput<'_>| {
            i.now = "2026-01-01T12:00:30Z".parse().unwrap();
            i.next_check = Some(i.now);
        };
        assert!(matches!(step(&spec, &broken, later), Step::CheckDrift(_)));
    }

    #[test]
    fn another_cluster_under_the_same_name_holds_nothing() {
        let spec = spec(serde_json::json!({}));
        let status = held(&spec);
        let rebuilt = step(&spec, &status, |i| {
            i.cluster = Some(ClusterState {
                reach: Reach::Ready,
                id: "other",
            });
        });
        assert!(matches!(rebuilt, Step::Apply(_)));
    }

    #[test]
    fn backoff_is_kept_for_the_target_that_failed_and_dropped_for_a_new_one() {
        let spec = spec(serde_json::json!({}));
        let failed = SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &spec.template),
            attempts: 2,
            next_attempt_time: "2026-01-01T12:01:00Z".into(),
            ..SyncStatus::default()
        };
        assert!(matches!(step(&spec, &failed, |_| {}), Step::Backoff { .. }));
        assert!(matches!(
            step(&spec, &failed, |i| i.source_revision = Some("main@sha1:b")),
            Step::Apply(_)
        ));
        assert!(matches!(
            step(&spec, &failed, |i| i.requested = true),
            Step::Apply(_)
        ));
    }

    #[test]
    fn suspension_and_missing_features_come_first() {
        let suspended = spec(serde_json::json!({"suspend": true}));
        assert_eq!(step(&suspended, &SyncStatus::default(), |_| {}), Step::Suspended);
        let spec = spec(serde_json::json!({}));
        let fields = vec!["spec.force".to_owned()];
        let missing = step(&spec, &SyncStatus::default(), |i| i.not_implemented = &fields);
        assert!(matches!(missing, Step::NotImplemented { fields: named } if named == fields));
    }

    #[test]
    fn what_is_new_waits_for_its_dependencies_and_a_cycle_stalls() {
        let spec = spec(serde_json::json!({"dependsOn": [{"name": "x"}]}));
        let message = String::from("Sync \"x\" is at work");
        let waiting = Dependencies::Waiting {
            message: message.clone(),
        };
        let status = SyncStatus::default();
        let held = held(&spec);
        assert_eq!(
            step(&spec, &status, |i| i.dependencies = &waiting),
            Step::DependencyNotReady { message }
        );
        let due = |i: &mut StepInput<'_>| i.next_check = None;
        let at_rest = step(&spec, &held, |i| {
            i.dependencies = &waiting;
            due(i);
        });
        assert!(
            matches!(at_rest, Step::CheckDrift(_)),
            "drift of what is held is repaired"
        );
        let cycle = Dependencies::Cycle {
            names: vec!["a".into(), "x".into(), "a".into()],
        };
        for status in [&status, &held] {
            let step = step(&spec, status, |i| i.dependencies = &cycle);
            assert!(
                matches!(&step, Step::DependencyCycle { message } if message.ends_with("a → x → a")),
                "{step:?}"
            );
        }
    }

    #[test]
    fn what_is_not_healthy_is_looked_at_whenever_somebody_asks_and_drift_when_it_is_due() {
        let waits = spec(serde_json::json!({}));
        let status = held(&waits);
        assert!(matches!(
            step(&waits, &status, |_| {}),
            Step::CheckHealth(w) if w.revision == "main@sha1:a"
        ));
        assert!(matches!(
            step(&waits, &status, |i| i.next_check = Some(i.now)),
            Step::CheckDrift(_)
        ));
        assert!(matches!(
            step(&waits, &status, |i| i.requested = true),
            Step::CheckDrift(_)
        ));
        let does_not = spec(serde_json::json!({"wait": false}));
        let status = held(&does_not);
        assert!(matches!(step(&does_not, &status, |_| {}), Step::Idle { .. }));
    }

    #[test]
    fn after_an_attempt_at_another_target_the_old_one_is_applied_again() {
        let spec = spec(serde_json::json!({}));
        let half_way = SyncStatus {
            last_attempted_target: "sha256:other".into(),
            ..healthy(&spec)
        };
        assert!(matches!(step(&spec, &half_way, |_| {}), Step::Apply(_)));
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
