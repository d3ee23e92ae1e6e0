//! The next step of one Sync: a pure function from its spec, its status and what it depends on.

use jiff::Timestamp;
use starling_api::{SyncSpec, SyncStatus};

use crate::depend::{self, Dependencies};
use crate::plan::Reach;
use crate::progress::holds;
use crate::target;

/// Reason of a Sync's Ready condition while its cluster cannot be worked on: no failure of the revision.
pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";

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
    use super::*;
    use crate::progress::tests::{healthy, held, spec};

    const NOW: &str = "2026-01-01T12:00:00Z";

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
}
