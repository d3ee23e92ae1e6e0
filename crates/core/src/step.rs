//! The next step of one Sync: a pure function of its spec, its status, its dependencies and its Cluster.

use jiff::Timestamp;
use starling_api::{SyncSpec, SyncStatus, SyncTemplate};

use crate::backoff;
use crate::depend::{self, Dependencies};
use crate::ids::{ClusterId, TargetDigest};
use crate::plan::Reach;
use crate::progress::has_applied;
use crate::target;

/// The reason of the Ready condition of a Sync while its cluster is not ready, which is no failure of the revision.
pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";

/// Everything that the next step depends on.
#[derive(Clone, Debug)]
pub struct StepInput<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The validated spec of the Sync: not suspended, without fields that are not implemented, parameters resolved.
    pub spec: &'a SyncSpec,
    /// The generation of the Sync.
    pub generation: i64,
    /// The status as last written; the default if it was never written.
    pub status: &'a SyncStatus,
    /// The revision of the Source; `None`: it has none yet.
    pub source_revision: Option<&'a str>,
    /// The state of the dependencies.
    pub dependencies: &'a Dependencies,
    /// The Cluster of the Sync; `None`: it does not exist.
    pub cluster: Option<SyncCluster<'a>>,
    /// Time at which the next drift check is due; `None`: unknown, so now.
    pub next_check: Option<Timestamp>,
    /// Whether a reconcile was requested by annotation and not made yet.
    pub requested: bool,
    /// Whether the Sync gave the slot of its admission back ([`crate::slot_return`]).
    pub returned: bool,
}

/// The Cluster of a Sync.
#[derive(Clone, Debug)]
pub struct SyncCluster<'a> {
    /// The reachability of the cluster.
    pub reach: Reach,
    /// The UID of the `kube-system` namespace, from the status of the Cluster.
    pub id: &'a ClusterId,
}

/// The next step of a Sync.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum SyncStep {
    /// Nothing, until one of the Syncs is edited: the Sync depends on itself.
    DependencyCycle {
        /// The path of the dependency.
        message: String,
    },
    /// Nothing: a dependency is not done. The dependency wakes the Sync.
    DependencyNotReady {
        /// The dependency and its state.
        message: String,
    },
    /// Nothing: the group has not admitted a revision.
    AwaitingAdmission,
    /// Nothing: the Sync gave the slot of its admission back, and the group has not admitted it again.
    AwaitingSlot,
    /// Nothing: the Source has no revision yet.
    AwaitingSource,
    /// Nothing: the Cluster does not exist.
    ClusterMissing,
    /// Nothing: the cluster is not ready. The status of the Cluster wakes the Sync.
    ClusterNotReady {
        /// The state of the Cluster.
        message: String,
    },
    /// Wait until this time: the last attempt failed.
    Backoff {
        /// Time at which the Sync retries.
        until: Timestamp,
    },
    /// Apply this target.
    Apply(Wanted),
    /// The target is applied: check for drift.
    CheckDrift(Wanted),
    /// The target is applied, and not all of it was healthy at the last health check: check its health.
    CheckHealth(Wanted),
    /// The target is applied: nothing until this time.
    Idle {
        /// The target.
        wanted: Wanted,
        /// Time at which the next drift check is due.
        until: Timestamp,
    },
}

/// The content that a Sync has to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The revision.
    pub revision: String,
    /// The target.
    pub target: TargetDigest,
}

/// Returns the next step of a Sync.
pub fn next_step(input: &StepInput<'_>) -> SyncStep {
    if let Dependencies::Cycle { names } = input.dependencies {
        return SyncStep::DependencyCycle {
            message: format!("spec.dependsOn: it depends on itself: {}", depend::way(names)),
        };
    }
    let revision = match (&input.spec.revision, &input.spec.group_ref) {
        (revision, _) if !revision.is_empty() => revision.as_str(),
        (_, Some(_)) => return SyncStep::AwaitingAdmission,
        (_, None) => match input.source_revision {
            Some(revision) => revision,
            None => return SyncStep::AwaitingSource,
        },
    };
    let Some(cluster) = &input.cluster else {
        return SyncStep::ClusterMissing;
    };
    if let Some(message) = not_ready(&cluster.reach) {
        return SyncStep::ClusterNotReady { message };
    }
    let wanted = Wanted {
        revision: revision.to_owned(),
        target: target::of_sync(revision, &input.spec.template),
    };
    if has_applied(input.status, &wanted.target, cluster.id) {
        at_rest(input, wanted)
    } else if input.returned {
        SyncStep::AwaitingSlot
    } else {
        to_do(input, wanted)
    }
}

fn at_rest(input: &StepInput<'_>, wanted: Wanted) -> SyncStep {
    let next_check = input.next_check.filter(|until| is_plausible(input, *until));
    match (backing_off(input, &wanted), next_check) {
        // Drift could not be repaired: the failure remains until the retry.
        (Some(until), _) => SyncStep::Backoff { until },
        (None, Some(until)) if until > input.now && !input.requested => {
            if input.spec.template.wait && input.status.healthy_since.is_empty() {
                SyncStep::CheckHealth(wanted)
            } else {
                SyncStep::Idle { wanted, until }
            }
        }
        (None, _) => SyncStep::CheckDrift(wanted),
    }
}

fn to_do(input: &StepInput<'_>, wanted: Wanted) -> SyncStep {
    match (backing_off(input, &wanted), input.dependencies) {
        (Some(until), _) => SyncStep::Backoff { until },
        // Only a new target waits: drift of an applied target is repaired whatever the state of its dependencies.
        (None, Dependencies::Waiting { message }) => SyncStep::DependencyNotReady {
            message: message.clone(),
        },
        (None, _) => SyncStep::Apply(wanted),
    }
}

/// Returns until when nothing is attempted because the last attempt with this target failed.
fn backing_off(input: &StepInput<'_>, wanted: &Wanted) -> Option<Timestamp> {
    let failed = input.status.last_attempted_target == wanted.target && input.status.attempts > 0;
    let until: Timestamp = input.status.next_attempt_time.parse().ok()?;
    (failed && until > input.now && is_plausible(input, until) && !input.requested).then_some(until)
}

fn is_plausible(input: &StepInput<'_>, until: Timestamp) -> bool {
    let SyncTemplate {
        interval,
        retry_interval,
        ..
    } = &input.spec.template;
    backoff::is_plausible(until, interval.as_std(), retry_interval.as_std(), input.now)
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
    use std::sync::LazyLock;

    use super::*;
    use crate::progress::tests::{applied, healthy, spec};

    const NOW: &str = "2026-01-01T12:00:00Z";

    static ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::new("id"));
    static OTHER_ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::new("other"));

    fn step<'a>(
        spec: &'a SyncSpec,
        status: &'a SyncStatus,
        change: impl FnOnce(&mut StepInput<'a>),
    ) -> SyncStep {
        let mut input = StepInput {
            now: NOW.parse().unwrap(),
            spec,
            generation: 1,
            status,
            source_revision: Some("main@sha1:a"),
            dependencies: &Dependencies::Done,
            cluster: Some(SyncCluster {
                reach: Reach::Ready,
                id: &ID,
            }),
            next_check: Some("2026-01-01T12:05:00Z".parse().unwrap()),
            requested: false,
            returned: false,
        };
        change(&mut input);
        next_step(&input)
    }

    #[test]
    fn a_sync_alone_follows_its_source_and_a_groups_sync_waits_for_admission() {
        let alone = spec(serde_json::json!({}));
        let status = SyncStatus::default();
        assert!(matches!(step(&alone, &status, |_| {}), SyncStep::Apply(w) if w.revision == "main@sha1:a"));
        assert_eq!(
            step(&alone, &status, |i| i.source_revision = None),
            SyncStep::AwaitingSource
        );
        let part = spec(serde_json::json!({"groupRef": {"name": "g", "entry": "e"}}));
        assert_eq!(step(&part, &status, |_| {}), SyncStep::AwaitingAdmission);
        let admitted =
            spec(serde_json::json!({"groupRef": {"name": "g", "entry": "e"}, "revision": "main@sha1:b"}));
        assert!(
            matches!(step(&admitted, &status, |_| {}), SyncStep::Apply(w) if w.revision == "main@sha1:b")
        );
    }

    /// Guards against an attempt for an admission whose slot another cluster has by now.
    #[test]
    fn tenant_a_sync_without_its_slot_begins_nothing() {
        let spec =
            spec(serde_json::json!({"groupRef": {"name": "g", "entry": "e"}, "revision": "main@sha1:a"}));
        let status = SyncStatus::default();
        let returned = |requested| {
            step(&spec, &status, |input| {
                input.returned = true;
                input.requested = requested;
            })
        };
        assert_eq!(returned(false), SyncStep::AwaitingSlot);
        assert_eq!(returned(true), SyncStep::AwaitingSlot);
        assert!(matches!(step(&spec, &status, |_| {}), SyncStep::Apply(_)));
    }

    #[test]
    fn nothing_is_written_to_a_cluster_that_is_not_ready() {
        let spec = spec(serde_json::json!({}));
        let status = SyncStatus::default();
        assert_eq!(
            step(&spec, &status, |i| i.cluster = None),
            SyncStep::ClusterMissing
        );
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
                i.cluster = Some(SyncCluster { reach, id: &ID });
            });
            assert!(matches!(step, SyncStep::ClusterNotReady { .. }));
        }
    }

    #[test]
    fn an_applied_target_is_idle_until_the_next_check() {
        let spec = spec(serde_json::json!({}));
        let status = healthy(&spec);
        assert!(matches!(step(&spec, &status, |_| {}), SyncStep::Idle { .. }));
        assert!(matches!(
            step(&spec, &status, |i| i.next_check = None),
            SyncStep::CheckDrift(_)
        ));
        assert!(matches!(
            step(&spec, &status, |i| i.requested = true),
            SyncStep::CheckDrift(_)
        ));
        let later = "2026-01-01T12:05:00Z".parse().unwrap();
        assert!(matches!(
            step(&spec, &status, |i| i.now = later),
            SyncStep::CheckDrift(_)
        ));
    }

    #[test]
    fn a_failed_repair_is_retried() {
        let spec = spec(serde_json::json!({}));
        let broken = SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            attempts: 1,
            next_attempt_time: "2026-01-01T12:00:30Z".into(),
            ..applied(&spec)
        };
        assert!(matches!(step(&spec, &broken, |_| {}), SyncStep::Backoff { .. }));
        let later = |i: &mut StepInput<'_>| {
            i.now = "2026-01-01T12:00:30Z".parse().unwrap();
            i.next_check = Some(i.now);
        };
        assert!(matches!(step(&spec, &broken, later), SyncStep::CheckDrift(_)));
    }

    /// Guards against a wait of a year: the clock was wrong when the time was written, or is wrong now.
    #[test]
    fn a_time_further_ahead_than_it_can_have_been_written_is_not_waited_for() {
        let spec = spec(serde_json::json!({"interval": "30m", "retryInterval": "20m"}));
        let failed_until = |until: &str| SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            attempts: 3,
            next_attempt_time: until.into(),
            ..SyncStatus::default()
        };
        let broken_until = |until: &str| SyncStatus {
            last_applied_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            last_applied_cluster_id: "id".into(),
            ..failed_until(until)
        };
        let healthy = healthy(&spec);
        for (until, waits) in [
            ("2026-01-01T12:33:00Z", true),
            ("2026-01-01T12:33:01Z", false),
            ("2027-01-01T12:00:00Z", false),
        ] {
            let found = step(&spec, &failed_until(until), |_| {});
            assert_eq!(
                matches!(found, SyncStep::Backoff { .. }),
                waits,
                "{until}: {found:?}"
            );
            let found = step(&spec, &broken_until(until), |i| i.next_check = None);
            assert_eq!(
                matches!(found, SyncStep::Backoff { .. }),
                waits,
                "{until}: {found:?}"
            );
            let found = step(&spec, &healthy, |i| i.next_check = Some(until.parse().unwrap()));
            assert_eq!(
                matches!(found, SyncStep::Idle { .. }),
                waits,
                "{until}: {found:?}"
            );
        }
        // The backoff of a short retry interval grows up to its ceiling.
        let short =
            crate::progress::tests::spec(serde_json::json!({"interval": "1m", "retryInterval": "1s"}));
        let failed = SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &short.template).into_string(),
            ..failed_until("2026-01-01T12:10:00Z")
        };
        assert!(matches!(step(&short, &failed, |_| {}), SyncStep::Backoff { .. }));
    }

    #[test]
    fn another_cluster_with_the_same_name_has_nothing_applied() {
        let spec = spec(serde_json::json!({}));
        let status = applied(&spec);
        let rebuilt = step(&spec, &status, |i| {
            i.cluster = Some(SyncCluster {
                reach: Reach::Ready,
                id: &OTHER_ID,
            });
        });
        assert!(matches!(rebuilt, SyncStep::Apply(_)));
    }

    #[test]
    fn backoff_is_kept_for_the_target_that_failed_and_dropped_for_a_new_one() {
        let spec = spec(serde_json::json!({}));
        let failed = SyncStatus {
            last_attempted_target: target::of_sync("main@sha1:a", &spec.template).into_string(),
            attempts: 2,
            next_attempt_time: "2026-01-01T12:01:00Z".into(),
            ..SyncStatus::default()
        };
        assert!(matches!(step(&spec, &failed, |_| {}), SyncStep::Backoff { .. }));
        assert!(matches!(
            step(&spec, &failed, |i| i.source_revision = Some("main@sha1:b")),
            SyncStep::Apply(_)
        ));
        assert!(matches!(
            step(&spec, &failed, |i| i.requested = true),
            SyncStep::Apply(_)
        ));
    }

    #[test]
    fn a_new_target_waits_for_its_dependencies_and_a_cycle_stalls() {
        let spec = spec(serde_json::json!({"dependsOn": [{"name": "x"}]}));
        let message = String::from("Sync \"x\" is at work");
        let waiting = Dependencies::Waiting {
            message: message.clone(),
        };
        let status = SyncStatus::default();
        let applied = applied(&spec);
        assert_eq!(
            step(&spec, &status, |i| i.dependencies = &waiting),
            SyncStep::DependencyNotReady { message }
        );
        let due = |i: &mut StepInput<'_>| i.next_check = None;
        let at_rest = step(&spec, &applied, |i| {
            i.dependencies = &waiting;
            due(i);
        });
        assert!(
            matches!(at_rest, SyncStep::CheckDrift(_)),
            "drift of what is applied is repaired"
        );
        let cycle = Dependencies::Cycle {
            names: vec!["a".into(), "x".into(), "a".into()],
        };
        for status in [&status, &applied] {
            let step = step(&spec, status, |i| i.dependencies = &cycle);
            assert!(
                matches!(&step, SyncStep::DependencyCycle { message } if message.ends_with("a → x → a")),
                "{step:?}"
            );
        }
    }

    #[test]
    fn health_is_checked_on_request_and_drift_when_it_is_due() {
        let waits = spec(serde_json::json!({}));
        let status = applied(&waits);
        assert!(matches!(
            step(&waits, &status, |_| {}),
            SyncStep::CheckHealth(w) if w.revision == "main@sha1:a"
        ));
        assert!(matches!(
            step(&waits, &status, |i| i.next_check = Some(i.now)),
            SyncStep::CheckDrift(_)
        ));
        assert!(matches!(
            step(&waits, &status, |i| i.requested = true),
            SyncStep::CheckDrift(_)
        ));
        let does_not = spec(serde_json::json!({"wait": false}));
        let status = applied(&does_not);
        assert!(matches!(step(&does_not, &status, |_| {}), SyncStep::Idle { .. }));
    }

    #[test]
    fn after_an_attempt_at_another_target_the_old_one_is_applied_again() {
        let spec = spec(serde_json::json!({}));
        let half_way = SyncStatus {
            last_attempted_target: "sha256:other".into(),
            ..healthy(&spec)
        };
        assert!(matches!(step(&spec, &half_way, |_| {}), SyncStep::Apply(_)));
    }
}
