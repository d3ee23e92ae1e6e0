//! State that a pass must not lose: the slot of a retried cluster, the turn of a queued release, a success.

use super::*;
use crate::ids::ClusterId;
use crate::plan::{Decision, Retry};
use crate::progress;

/// The progress of a Sync whose attempt at `r1` has failed, read from its status as the controller reads it. A retry
/// changes annotations only, so the status stays as it is until the next attempt has ended.
fn progress_after_a_failed_attempt(retried_for: Option<Timestamp>) -> Progress {
    let status: starling_api::SyncStatus = serde_json::from_value(serde_json::json!({
        "lastAttemptedTarget": "r1", "attempts": 1, "nextAttemptTime": t(60).to_string(),
    }))
    .unwrap();
    let retried_for = retried_for.map(|at| at.to_string());
    let admitted = progress::Admitted {
        target: "r1",
        wait: true,
        cluster_id: &ClusterId::new("id"),
        generation: 1,
        retried_for: retried_for.as_deref(),
        requested_at: retried_for.as_deref(),
    };
    progress::progress(&status, &admitted)
}

/// Three failed clusters, one slot, a request to retry all of them.
#[test]
fn a_retried_cluster_keeps_its_slot_while_its_attempt_is_in_progress() {
    let failed = || sync("r1", -10, progress_after_a_failed_attempt(None));
    let mut case = rolling("r1", &[("c1", failed()), ("c2", failed()), ("c3", failed())]);
    case.strategy = strategy(serde_json::json!({"maxConcurrency": 1, "maxFailures": 3}));
    case.observed.actions.0 = 1;
    case.observed.actions.1.input.retries.push(Retry {
        cluster: None,
        stage: None,
        attribution: attribution(-5),
    });
    let mut retried = Vec::new();
    for second in 0..4 {
        // A write of a Sync wakes its group at once.
        case.now = t(0) + SignedDuration::from_millis(second);
        let transition = case.pass();
        let plan = &transition.decided.as_ref().unwrap().plan;
        let of_pass = plan
            .decisions
            .iter()
            .filter(|(_, decision)| matches!(decision, Decision::Retry { .. }));
        retried.extend(of_pass.map(|(name, _)| name.clone()));
        // By the status of the Sync, its attempt has not ended.
        for (_, observed) in case.observed.clusters.values_mut() {
            let sync = observed.as_mut().unwrap();
            sync.progress = progress_after_a_failed_attempt(sync.retried_for);
        }
    }
    assert_eq!(retried, ["c1"], "there is one slot, and no attempt has ended");
}

/// `Queue`, a failed rollout, and two Sources of which one has a new revision: the queued release keeps its turn.
#[test]
fn a_queued_release_keeps_its_turn_in_a_rollback_while_a_newer_one_settles() {
    for settling in [false, true] {
        let mut case = rolling("r2", &[("c1", failing("r2"))]);
        case.strategy = strategy(serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"}));
        case.on_new_revision = OnNewRevision::Queue;
        case.status.last_known_good = Some(named("r1"));
        case.status.queue = vec![named("r3")];
        case.offer = if settling {
            Offer {
                release: "r2".into(),
                snapshot: None,
                settles_at: Some(t(5)),
            }
        } else {
            offer("r3")
        };
        let transition = case.pass();
        assert_eq!(transition.began.unwrap().release, "r1");
        assert_eq!(case.status.queue, [named("r3")], "settling: {settling}");
    }
}

/// A rollout succeeds in the pass that first observes the request to start the held release. The success is in the
/// ledger, so it must be in status.
#[test]
fn a_success_is_reported_before_an_operator_starts_the_held_release() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.offer = offer("r2");
    case.status.last_known_good = Some(named("r0"));
    case.status.held_release = Some(HeldRelease {
        release: "r2".into(),
        revisions: revisions("r2"),
        ..HeldRelease::default()
    });
    case.observed.actions.0 = 1;
    case.observed.actions.1.release = Some(attribution(-5));
    let mut ended = Vec::new();
    for _ in 0..3 {
        let transition = case.pass();
        ended.extend(
            writes(&transition)
                .into_iter()
                .filter(|effect| effect.starts_with("end rollout")),
        );
        if transition.began.is_some() {
            break;
        }
    }
    assert_eq!(case.current(), (2, "r2"));
    assert!(ended.contains(&"end rollout 1 Succeeded".to_owned()), "{ended:?}");
    assert_eq!(case.status.last_known_good, Some(named("r1")));
}

/// A rollback is due, and no release has succeeded yet: status reports it under each `onNewRevision`.
#[test]
fn that_there_is_nothing_to_roll_back_to_is_reported_under_each_policy() {
    for policy in [
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ] {
        let mut case = rolling("r1", &[("c1", failing("r1"))]);
        case.strategy = strategy(serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"}));
        case.on_new_revision = policy;
        let transition = case.step();
        assert!(transition.stuck.is_some(), "{policy:?}");
    }
}
