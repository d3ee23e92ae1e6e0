//! The guarantees of each table: idempotence, supersession, retention, and the state after a restart.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use starling_ledger::{
    Admission, AdmissionEnd, AdmissionOutcome, Attempt, AttemptEnd, AttemptOutcome, Due, EntryOnCluster,
    Existing, Forgotten, LedgerError, NOTHING_WRITTEN, Opened, RolloutEnd, RolloutOutcome,
};
use tempfile::TempDir;

use crate::build::*;

#[tokio::test]
async fn a_rollout_begins_once_and_ends_once() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let rollout = mk_rollout("group-1", 1);
    assert!(ledger.begin_rollout(&rollout).await.unwrap());
    assert!(
        ledger
            .end_rollout(&group("group-1"), number(1), RolloutOutcome::Failed, at(9))
            .await
            .unwrap()
    );

    // Repetitions, as after a crash, change nothing.
    assert!(!ledger.begin_rollout(&rollout).await.unwrap());
    assert!(
        !ledger
            .end_rollout(&group("group-1"), number(1), RolloutOutcome::Succeeded, at(10))
            .await
            .unwrap()
    );
    assert!(
        !ledger
            .end_rollout(&group("group-1"), number(404), RolloutOutcome::Succeeded, at(10))
            .await
            .unwrap()
    );

    let found = ledger.rollouts(&group("group-1")).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].rollout, rollout);
    assert_eq!(
        found[0].end,
        Some(RolloutEnd {
            outcome: RolloutOutcome::Failed,
            ended_at: at(9)
        })
    );
    assert!(ledger.rollouts(&group("group-2")).await.unwrap().is_empty());
}

/// Guards against a history with the wrong release: the process died before the rollout reached the status of the
/// group, and git had a newer commit at the next start.
#[tokio::test]
async fn the_id_of_an_unpublished_rollout_is_reused_by_the_next_release() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let unpublished = mk_rollout("group-1", 1);
    assert!(ledger.begin_rollout(&unpublished).await.unwrap());
    let mut next = unpublished.clone();
    next.release = "sha256:newer".into();
    next.started_at = at(5);
    assert!(ledger.begin_rollout(&next).await.unwrap());
    assert!(!ledger.begin_rollout(&next).await.unwrap());
    let found = ledger.rollouts(&group("group-1")).await.unwrap();
    assert_eq!((found.len(), &found[0].rollout), (1, &next));

    // Ended rollouts are never changed.
    ledger
        .end_rollout(&group("group-1"), number(1), RolloutOutcome::Succeeded, at(9))
        .await
        .unwrap();
    assert!(!ledger.begin_rollout(&unpublished).await.unwrap());
    assert_eq!(ledger.rollouts(&group("group-1")).await.unwrap()[0].rollout, next);
}

/// Guards against a history with the release of a lost rollout: after a restore of the management cluster, the numbers
/// of rollouts begin again, and the new rollout was not recorded.
#[tokio::test]
async fn a_number_that_begins_again_is_another_rollout() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for id in [8, 9] {
        ledger.begin_rollout(&mk_rollout("group-1", id)).await.unwrap();
        let group = group("group-1");
        let ended = ledger.end_rollout(&group, number(id), RolloutOutcome::Succeeded, at(9));
        ended.await.unwrap();
    }
    let mut again = mk_rollout("group-1", 8);
    again.release = "sha256:restored".into();
    again.started_at = at(20);
    for is_new in [true, false] {
        assert_eq!(ledger.begin_rollout(&again).await.unwrap(), is_new);
    }
    let found = ledger.rollouts(&group("group-1")).await.unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0].rollout, found[0].end), (&again, None));
    // The intent of the lost one, written late, changes nothing once the new one has ended.
    let group = group("group-1");
    let ended = ledger.end_rollout(&group, number(8), RolloutOutcome::Failed, at(21));
    assert!(ended.await.unwrap());
    assert!(!ledger.begin_rollout(&mk_rollout("group-1", 8)).await.unwrap());
}

#[tokio::test]
async fn a_group_keeps_its_newest_rollouts_and_all_open_ones() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for n in 0..25 {
        let id = n;
        ledger.begin_rollout(&mk_rollout("group-1", id)).await.unwrap();
        // Each on its own cluster, so that none supersedes another.
        let admission = mk_admission(id, &format!("c{n}"), "t");
        ledger
            .record_admissions(std::slice::from_ref(&admission))
            .await
            .unwrap();
        if n == 1 {
            continue; // stays open, with its admission
        }
        ledger
            .end_rollout(&group("group-1"), number(id), RolloutOutcome::Succeeded, at(9))
            .await
            .unwrap();
        if n != 2 {
            ledger
                .settle_admission(&admission.key, AdmissionOutcome::Applied, "", at(9))
                .await
                .unwrap();
        }
    }
    let ids: Vec<_> = ledger
        .rollouts(&group("group-1"))
        .await
        .unwrap()
        .into_iter()
        .map(|r| r.rollout.id)
        .collect();
    let wanted: Vec<_> = (5..25).rev().chain([1]).map(number).collect();
    assert_eq!(ids, wanted);

    assert!(
        ledger
            .admissions(&group("group-1"), number(0))
            .await
            .unwrap()
            .is_empty(),
        "went with its rollout"
    );
    assert_eq!(
        ledger
            .admissions(&group("group-1"), number(5))
            .await
            .unwrap()
            .len(),
        1
    );
    let open: Vec<_> = ledger
        .open_admissions(&group("group-1"))
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.key.rollout)
        .collect();
    assert_eq!(open, [number(1), number(2)], "what is open outlives its rollout");
}

#[tokio::test]
async fn a_newer_target_supersedes_open_admissions_of_the_same_entry_and_cluster() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let old = mk_admission(1, "eu1", "t1");
    let neighbour = mk_admission(1, "eu2", "t1");
    let mut other_entry = mk_admission(1, "eu1", "t1");
    other_entry.key.entry = "db".into();
    let mut other_group = mk_admission(1, "eu1", "t1");
    other_group.key.group_id = "group-2".into();
    ledger
        .record_admissions(&[
            old.clone(),
            neighbour.clone(),
            other_entry.clone(),
            other_group.clone(),
        ])
        .await
        .unwrap();

    // The clock went back meanwhile: the last recorded admission is still the newest.
    let mut new = mk_admission(2, "eu1", "t2");
    new.admitted_at = at(-3600);
    ledger
        .record_admissions(std::slice::from_ref(&new))
        .await
        .unwrap();

    let open = ledger.open_admissions(&group("group-1")).await.unwrap();
    assert_eq!(open, [neighbour, other_entry, new.clone()]);
    assert_eq!(
        ledger.open_admissions(&group("group-2")).await.unwrap(),
        [other_group]
    );
    let ended = ledger
        .admissions(&group("group-1"), number(1))
        .await
        .unwrap()
        .swap_remove(0);
    assert_eq!(ended.admission, old);
    assert_eq!(
        ended.end,
        Some(AdmissionEnd {
            outcome: AdmissionOutcome::Superseded,
            ended_at: at(-3600)
        })
    );
    assert_eq!(ended.reason, "target t2 of rollout 2 was admitted");

    // A late repetition of the old admission neither reopens it nor ends the new one.
    ledger
        .record_admissions(std::slice::from_ref(&old))
        .await
        .unwrap();
    assert!(
        ledger
            .open_admissions(&group("group-1"))
            .await
            .unwrap()
            .contains(&new)
    );
    assert!(
        !ledger
            .settle_admission(&old.key, AdmissionOutcome::Applied, "", at(9))
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn of_two_targets_for_one_cluster_in_one_call_the_later_wins() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let (first, second) = (mk_admission(1, "eu1", "t1"), mk_admission(2, "eu1", "t2"));
    ledger.record_admissions(&[first, second.clone()]).await.unwrap();
    assert_eq!(ledger.open_admissions(&group("group-1")).await.unwrap(), [second]);
}

#[tokio::test]
async fn an_admission_ends_once_and_is_reopened_only_by_a_new_admission() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let admission = mk_admission(1, "eu1", "t1");
    let once = std::slice::from_ref(&admission);
    ledger.record_admissions(once).await.unwrap();
    assert!(
        ledger
            .settle_admission(&admission.key, AdmissionOutcome::Left, "unlabelled", at(2))
            .await
            .unwrap()
    );
    assert!(
        !ledger
            .settle_admission(&admission.key, AdmissionOutcome::Applied, "", at(3))
            .await
            .unwrap()
    );

    ledger.record_admissions(once).await.unwrap();
    assert!(
        ledger
            .open_admissions(&group("group-1"))
            .await
            .unwrap()
            .is_empty(),
        "a repetition is no new admission"
    );

    let again = starling_ledger::Admission {
        admitted_at: at(4),
        ..admission.clone()
    };
    ledger
        .record_admissions(std::slice::from_ref(&again))
        .await
        .unwrap();
    assert_eq!(
        ledger.open_admissions(&group("group-1")).await.unwrap(),
        std::slice::from_ref(&again)
    );
    assert!(
        ledger
            .settle_admission(&again.key, AdmissionOutcome::Applied, "", at(5))
            .await
            .unwrap()
    );

    // Applied is final.
    let more = starling_ledger::Admission {
        admitted_at: at(6),
        ..again
    };
    ledger.record_admissions(&[more]).await.unwrap();
    assert!(
        ledger
            .open_admissions(&group("group-1"))
            .await
            .unwrap()
            .is_empty()
    );
}

/// Guards against a target in flight without an open row: a label of the cluster changed and changed back within one
/// rollout.
#[tokio::test]
async fn a_target_that_returns_within_a_rollout_is_in_flight_again() {
    for end in [
        None,
        Some((AdmissionOutcome::Applied, "")),
        Some((AdmissionOutcome::Failed, "ApplyFailed")),
    ] {
        let folder = TempDir::new().unwrap();
        let (ledger, _) = open(folder.path()).await;
        let first = mk_admission(1, "eu1", "t1");
        ledger
            .record_admissions(std::slice::from_ref(&first))
            .await
            .unwrap();
        if let Some((outcome, reason)) = end {
            ledger
                .settle_admission(&first.key, outcome, reason, at(2))
                .await
                .unwrap();
        }
        let other = starling_ledger::Admission {
            admitted_at: at(3),
            ..mk_admission(1, "eu1", "t2")
        };
        ledger
            .record_admissions(std::slice::from_ref(&other))
            .await
            .unwrap();
        let back = starling_ledger::Admission {
            admitted_at: at(4),
            ..first
        };
        ledger
            .record_admissions(std::slice::from_ref(&back))
            .await
            .unwrap();
        assert_eq!(
            ledger.open_admissions(&group("group-1")).await.unwrap(),
            std::slice::from_ref(&back),
            "{end:?}"
        );
        // A repetition of the other target does not end it.
        ledger.record_admissions(&[other]).await.unwrap();
        assert_eq!(
            ledger.open_admissions(&group("group-1")).await.unwrap(),
            std::slice::from_ref(&back)
        );
        let settled = ledger
            .settle_admission(&back.key, AdmissionOutcome::Applied, "", at(5))
            .await;
        assert!(settled.unwrap(), "{end:?}");
    }
}

/// Guards against intents that never end: a crash, or a refused write, between an intent and its Sync, and the cluster
/// left after that.
#[tokio::test]
async fn an_entry_that_leaves_a_cluster_ends_its_admission_whatever_the_target() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let (gone, stays) = (mk_admission(1, "eu1", "t1"), mk_admission(1, "eu2", "t1"));
    ledger
        .record_admissions(&[gone.clone(), stays.clone()])
        .await
        .unwrap();
    let id = group("group-1");
    let place = EntryOnCluster {
        group_id: &id,
        entry: &"app".into(),
        cluster: &"eu1".into(),
    };
    assert!(ledger.leave(place, at(2)).await.unwrap());
    assert!(!ledger.leave(place, at(3)).await.unwrap());
    assert_eq!(ledger.open_admissions(&group("group-1")).await.unwrap(), [stays]);
    let record = ledger
        .admissions(&group("group-1"), number(1))
        .await
        .unwrap()
        .swap_remove(0);
    assert_eq!(record.admission, gone);
    assert_eq!(
        record.end,
        Some(AdmissionEnd {
            outcome: AdmissionOutcome::Left,
            ended_at: at(2)
        })
    );
}

#[tokio::test]
async fn a_group_that_no_longer_exists_has_nothing_open() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for group in ["group-1", "group-2"] {
        ledger.begin_rollout(&mk_rollout(group, 1)).await.unwrap();
        let mut admission = mk_admission(1, "eu1", "t1");
        admission.key.group_id = group.into();
        ledger.record_admissions(&[admission]).await.unwrap();
    }
    let exists = BTreeSet::from([group("group-2")]);
    ledger.abandon_others(&exists, at(9)).await.unwrap();
    let end = |records: Vec<starling_ledger::RolloutRecord>| records[0].end;
    assert_eq!(
        end(ledger.rollouts(&group("group-1")).await.unwrap()),
        Some(RolloutEnd {
            outcome: RolloutOutcome::Abandoned,
            ended_at: at(9)
        })
    );
    assert_eq!(end(ledger.rollouts(&group("group-2")).await.unwrap()), None);
    let ends = ledger.admissions(&group("group-1"), number(1)).await.unwrap();
    assert_eq!(
        ends[0].end,
        Some(AdmissionEnd {
            outcome: AdmissionOutcome::Left,
            ended_at: at(9)
        })
    );
    assert_eq!(ledger.open_admissions(&group("group-2")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_failed_target_is_not_reopened_after_a_newer_one() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let old = mk_admission(1, "eu1", "t1");
    ledger
        .record_admissions(std::slice::from_ref(&old))
        .await
        .unwrap();
    ledger
        .settle_admission(&old.key, AdmissionOutcome::Failed, "HealthCheckFailed", at(2))
        .await
        .unwrap();
    let new = mk_admission(2, "eu1", "t2");
    ledger
        .record_admissions(std::slice::from_ref(&new))
        .await
        .unwrap();

    let stale = starling_ledger::Admission {
        admitted_at: at(3),
        ..old
    };
    ledger.record_admissions(&[stale]).await.unwrap();
    assert_eq!(ledger.open_admissions(&group("group-1")).await.unwrap(), [new]);
}

#[tokio::test]
async fn a_failure_needs_a_reason_and_long_reasons_are_truncated() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let admission = mk_admission(1, "eu1", "t1");
    ledger
        .record_admissions(std::slice::from_ref(&admission))
        .await
        .unwrap();
    let refused = ledger
        .settle_admission(&admission.key, AdmissionOutcome::Failed, "", at(2))
        .await;
    let Err(error @ LedgerError::Write { .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        error.to_string(),
        "ledger: cannot settle the admission of app on eu1"
    );

    ledger
        .settle_admission(&admission.key, AdmissionOutcome::Failed, &"é".repeat(999), at(2))
        .await
        .unwrap();
    assert_eq!(
        ledger.admissions(&group("group-1"), number(1)).await.unwrap()[0].reason,
        "é".repeat(256)
    );
}

#[tokio::test]
async fn an_attempt_ends_once_with_all_its_details() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let attempt = mk_attempt("sync-1", 1);
    let id = ledger.begin_attempt(&attempt).await.unwrap();
    assert_eq!(ledger.attempts("sync-1").await.unwrap()[0].end, None);
    let end = mk_end(AttemptOutcome::Failed);
    assert!(ledger.finish_attempt(id, &end).await.unwrap());
    assert!(
        !ledger
            .finish_attempt(id, &mk_end(AttemptOutcome::Succeeded))
            .await
            .unwrap()
    );

    let found = ledger.attempts("sync-1").await.unwrap().swap_remove(0);
    assert_eq!(
        (found.id, found.attempt, found.end),
        (id, attempt, Some(end.clone()))
    );

    let id = ledger.begin_attempt(&mk_attempt("sync-1", 2)).await.unwrap();
    let long_end = starling_ledger::AttemptEnd {
        message: "m".repeat(5000),
        ..end
    };
    ledger.finish_attempt(id, &long_end).await.unwrap();
    let found = ledger.attempts("sync-1").await.unwrap().swap_remove(0);
    assert_eq!(found.end.unwrap().message, "m".repeat(512));
}

/// Guards against a slot that is free although something was written for its admission: by an attempt that a crash
/// ended, by one whose record was deleted since, or that a lost ledger does not have.
#[tokio::test]
async fn tenant_an_admission_counts_as_not_written_only_with_proof() {
    let folder = TempDir::new().unwrap();
    let (mut ledger, _) = open(folder.path()).await;
    let admission = mk_admission(1, "eu1", "sha256:t");
    assert!(
        !ledger.nothing_written(&admission, None).await.unwrap(),
        "not recorded"
    );
    ledger
        .record_admissions(std::slice::from_ref(&admission))
        .await
        .unwrap();
    assert!(ledger.nothing_written(&admission, None).await.unwrap());
    let other_time = Admission {
        admitted_at: at(7),
        ..admission.clone()
    };
    assert!(!ledger.nothing_written(&other_time, None).await.unwrap());

    let nothing = AttemptEnd {
        reason: NOTHING_WRITTEN.into(),
        ..mk_end(AttemptOutcome::Failed)
    };
    let attempt = mk_attempt("shop/web-eu1", 1);
    let of_another = Attempt {
        target: "sha256:other".into(),
        ..attempt.clone()
    };
    ledger.begin_attempt(&of_another).await.unwrap();
    ledger
        .begin_attempt(&mk_attempt("shop/web-us1", 1))
        .await
        .unwrap();
    assert!(
        ledger.nothing_written(&admission, None).await.unwrap(),
        "of others"
    );
    let id = ledger.begin_attempt(&attempt).await.unwrap();
    assert!(
        !ledger.nothing_written(&admission, None).await.unwrap(),
        "in progress"
    );
    ledger.finish_attempt(id, &nothing).await.unwrap();
    assert!(ledger.nothing_written(&admission, None).await.unwrap());

    // Guards against an older ledger than the status of the Sync, which names an attempt that may have written.
    let started = Some(attempt.started_at);
    assert!(ledger.nothing_written(&admission, started).await.unwrap());
    let later = Some(at(11));
    assert_ne!(later, started);
    assert!(!ledger.nothing_written(&admission, later).await.unwrap(), "older");

    // The process dies during an attempt.
    ledger.begin_attempt(&attempt).await.unwrap();
    ledger.close().await;
    ledger = open(folder.path()).await.0;
    assert!(
        !ledger.nothing_written(&admission, None).await.unwrap(),
        "interrupted"
    );
    ledger.close_interrupted(at(20)).await.unwrap();
    assert!(!ledger.nothing_written(&admission, None).await.unwrap(), "closed");
    // Twenty attempts later nothing is known of that one.
    for number in 0..40 {
        let id = ledger
            .begin_attempt(&mk_attempt("shop/web-eu1", number))
            .await
            .unwrap();
        ledger.finish_attempt(id, &nothing).await.unwrap();
        assert!(
            !ledger.nothing_written(&admission, None).await.unwrap(),
            "{number}"
        );
    }

    let empty = TempDir::new().unwrap();
    let (lost, _) = open(empty.path()).await;
    assert!(!lost.nothing_written(&admission, None).await.unwrap(), "lost");
}

/// An admission that has ended, or another outcome, proves nothing.
#[tokio::test]
async fn an_attempt_that_succeeded_or_failed_otherwise_may_have_written() {
    for (outcome, reason) in [
        (AttemptOutcome::Succeeded, "Succeeded"),
        (AttemptOutcome::Failed, "Timeout"),
        (AttemptOutcome::Failed, "ClusterLost"),
        (AttemptOutcome::Interrupted, NOTHING_WRITTEN),
    ] {
        let folder = TempDir::new().unwrap();
        let (ledger, _) = open(folder.path()).await;
        let admission = mk_admission(1, "eu1", "sha256:t");
        ledger
            .record_admissions(std::slice::from_ref(&admission))
            .await
            .unwrap();
        let id = ledger
            .begin_attempt(&mk_attempt("shop/web-eu1", 1))
            .await
            .unwrap();
        let end = AttemptEnd {
            reason: reason.into(),
            ..mk_end(outcome)
        };
        ledger.finish_attempt(id, &end).await.unwrap();
        assert!(
            !ledger.nothing_written(&admission, None).await.unwrap(),
            "{reason}"
        );
    }
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let admission = mk_admission(1, "eu1", "sha256:t");
    ledger
        .record_admissions(std::slice::from_ref(&admission))
        .await
        .unwrap();
    ledger
        .settle_admission(&admission.key, AdmissionOutcome::Left, "", at(2))
        .await
        .unwrap();
    assert!(!ledger.nothing_written(&admission, None).await.unwrap(), "ended");
}

#[tokio::test]
async fn a_sync_keeps_its_newest_twenty_attempts() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let other = ledger.begin_attempt(&mk_attempt("sync-2", 1)).await.unwrap();
    for number in 1..=30 {
        let id = ledger.begin_attempt(&mk_attempt("sync-1", number)).await.unwrap();
        ledger
            .finish_attempt(id, &mk_end(AttemptOutcome::Succeeded))
            .await
            .unwrap();
    }
    let numbers: Vec<_> = ledger
        .attempts("sync-1")
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.attempt.number)
        .collect();
    assert_eq!(numbers, (11..=30).rev().collect::<Vec<_>>());
    assert_eq!(ledger.attempts("sync-2").await.unwrap()[0].id, other);
}

/// Guards against a ledger that grows with every object that was ever deleted.
#[tokio::test]
async fn tenant_what_was_deleted_is_forgotten_some_time_after_its_end() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for group_id in ["kept", "gone"] {
        for id in 1..=3 {
            ledger.begin_rollout(&mk_rollout(group_id, id)).await.unwrap();
            let mut admission = mk_admission(id, "eu1", &format!("t{id}"));
            admission.key.group_id = group_id.into();
            ledger.record_admissions(&[admission]).await.unwrap();
        }
        for id in 1..=2 {
            let (group_id, outcome) = (group(group_id), RolloutOutcome::Succeeded);
            let ended = ledger.end_rollout(&group_id, number(id), outcome, at(10 * id));
            assert!(ended.await.unwrap());
        }
    }
    for sync in ["kept", "gone"] {
        let ended = ledger.begin_attempt(&mk_attempt(sync, 1)).await.unwrap();
        let end = AttemptEnd {
            ended_at: at(5),
            ..mk_end(AttemptOutcome::Succeeded)
        };
        ledger.finish_attempt(ended, &end).await.unwrap();
        ledger.begin_attempt(&mk_attempt(sync, 2)).await.unwrap();
    }
    let (objects, none) = (
        BTreeMap::from([(mk_object("web"), mk_record("r"))]),
        BTreeSet::new(),
    );
    for cluster_id in ["kept", "gone"] {
        let (cluster, owner) = (cluster(cluster_id), owner("o"));
        ledger
            .save_records(&cluster, &owner, &objects, &none)
            .await
            .unwrap();
        ledger.set_record_attempt(&cluster, &owner, at(3)).await.unwrap();
    }
    let existing = Existing {
        groups: [group("kept")].into(),
        syncs: ["kept".to_owned()].into(),
        clusters: [cluster("kept")].into(),
    };
    let forget = || ledger.forget_deleted(&existing, at(15));
    let forgotten = forget().await.unwrap();
    assert_eq!((forgotten.rollouts, forgotten.records), (1, 1), "{forgotten:?}");
    assert_eq!(forget().await.unwrap(), Forgotten::default());

    for (group_id, rollouts) in [("kept", 3), ("gone", 2)] {
        let found = ledger.rollouts(&group(group_id)).await.unwrap();
        assert_eq!(found.len(), rollouts, "{group_id}");
        assert!(
            found.iter().any(|rollout| rollout.end.is_none()),
            "what is open stays"
        );
        assert_eq!(ledger.open_admissions(&group(group_id)).await.unwrap().len(), 1);
    }
    let of = async |sync| ledger.attempts(sync).await.unwrap().len();
    assert_eq!(
        (of("kept").await, of("gone").await, forgotten.attempts),
        (2, 1, 1)
    );
    for (cluster_id, records) in [("kept", 1), ("gone", 0)] {
        let loaded = ledger
            .load_records(&cluster(cluster_id), &owner("o"))
            .await
            .unwrap();
        assert_eq!(loaded.objects.len(), records, "{cluster_id}");
        assert_eq!(loaded.attempted_at.is_some(), records == 1, "{cluster_id}");
    }
}

#[tokio::test]
async fn a_restart_lists_only_the_interrupted_attempts_of_earlier_processes() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let cut_off = ledger.begin_attempt(&mk_attempt("sync-1", 1)).await.unwrap();
    let finished = ledger.begin_attempt(&mk_attempt("sync-1", 2)).await.unwrap();
    ledger
        .finish_attempt(finished, &mk_end(AttemptOutcome::Succeeded))
        .await
        .unwrap();
    assert!(
        ledger.interrupted_attempts().await.unwrap().is_empty(),
        "this process's own attempt is under way"
    );
    assert_eq!(ledger.close_interrupted(at(50)).await.unwrap(), 0);
    ledger.close().await;

    let (ledger, opened) = open(folder.path()).await;
    assert_eq!(opened, Opened::Existing);
    let own = ledger.begin_attempt(&mk_attempt("sync-1", 3)).await.unwrap();
    let listed: Vec<_> = ledger
        .interrupted_attempts()
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.id)
        .collect();
    assert_eq!(listed, [cut_off]);
    assert_eq!(ledger.close_interrupted(at(50)).await.unwrap(), 1);
    assert!(ledger.interrupted_attempts().await.unwrap().is_empty());

    let found = ledger.attempts("sync-1").await.unwrap();
    assert_eq!(
        found.iter().map(|a| a.id).collect::<Vec<_>>(),
        [own, finished, cut_off]
    );
    assert_eq!(found[0].end, None);
    assert_eq!(found[1].end.as_ref().unwrap().outcome, AttemptOutcome::Succeeded);
    assert_eq!(
        found[2].end.as_ref().unwrap().outcome,
        AttemptOutcome::Interrupted
    );
    assert_eq!(found[2].end.as_ref().unwrap().ended_at, at(50));
}

#[tokio::test]
async fn twenty_syncs_with_two_hundred_objects_each() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let objects = |owner: usize| -> BTreeMap<_, _> {
        (0..200)
            .map(|n| (mk_object(&format!("web-{n}")), mk_record(&format!("{owner}-{n}"))))
            .collect()
    };
    let owners: Vec<_> = (0..20)
        .map(|n| (owner(&format!("owner-{n}")), objects(n)))
        .collect();
    let none = BTreeSet::new();
    let id = cluster("cluster-1");
    let saved = join_all(
        owners
            .iter()
            .map(|(owner, objects)| ledger.save_records(&id, owner, objects, &none)),
    );
    assert!(saved.await.into_iter().all(|result| result.is_ok()));
    for (owner, objects) in &owners {
        assert_eq!(
            &ledger
                .load_records(&cluster("cluster-1"), owner)
                .await
                .unwrap()
                .objects,
            objects
        );
    }

    ledger.close().await;
    let (ledger, _) = open(folder.path()).await;
    for (owner, objects) in &owners {
        assert_eq!(
            &ledger
                .load_records(&cluster("cluster-1"), owner)
                .await
                .unwrap()
                .objects,
            objects
        );
    }
    assert!(
        ledger
            .load_records(&cluster("cluster-2"), &owner("owner-1"))
            .await
            .unwrap()
            .objects
            .is_empty()
    );
}

#[tokio::test]
async fn other_owners_of_an_object_are_returned_by_cluster_and_owner() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let none = BTreeSet::new();
    for (of, by, names) in [
        ("c", "me", &["web", "mine"][..]),
        ("c", "b", &["web", "theirs"]),
        ("c", "a", &["web"]),
        ("elsewhere", "z", &["web", "mine"]),
    ] {
        let objects = names
            .iter()
            .map(|name| (mk_object(name), mk_record(name)))
            .collect();
        ledger
            .save_records(&cluster(of), &owner(by), &objects, &none)
            .await
            .unwrap();
    }
    let requested = ["web", "mine", "nobody's"].map(mk_object).into();
    let owners = ledger
        .other_owners(&cluster("c"), &owner("me"), &requested)
        .await
        .unwrap();
    let expected = BTreeMap::from([(mk_object("web"), vec![owner("a"), owner("b")])]);
    assert_eq!(owners, expected);
    assert!(
        ledger
            .other_owners(&cluster("c"), &owner("me"), &none)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn an_object_that_is_deleted_and_saved_in_one_call_exists() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let objects = BTreeMap::from([(mk_object("web"), mk_record("1"))]);
    ledger
        .save_records(
            &cluster("c"),
            &owner("o"),
            &objects,
            &BTreeSet::from([mk_object("web")]),
        )
        .await
        .unwrap();
    assert_eq!(
        ledger
            .load_records(&cluster("c"), &owner("o"))
            .await
            .unwrap()
            .objects,
        objects
    );
}

#[tokio::test]
async fn records_belong_to_the_attempt_that_was_set_last_until_they_are_dropped() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let objects = BTreeMap::from([(mk_object("web"), mk_record("1"))]);
    let none = BTreeSet::new();
    for by in ["a", "b"] {
        ledger
            .save_records(&cluster("c"), &owner(by), &objects, &none)
            .await
            .unwrap();
        assert_eq!(
            ledger
                .load_records(&cluster("c"), &owner(by))
                .await
                .unwrap()
                .attempted_at,
            None
        );
    }
    for time in [at(1), at(2)] {
        ledger
            .set_record_attempt(&cluster("c"), &owner("a"), time)
            .await
            .unwrap();
    }
    // Later changes of records are of the same attempt.
    ledger
        .save_records(&cluster("c"), &owner("a"), &objects, &none)
        .await
        .unwrap();
    ledger.close().await;
    let (ledger, _) = open(folder.path()).await;
    let attempt = async |by| {
        ledger
            .load_records(&cluster("c"), &owner(by))
            .await
            .unwrap()
            .attempted_at
    };
    assert_eq!((attempt("a").await, attempt("b").await), (Some(at(2)), None));

    for by in ["a", "b"] {
        ledger
            .set_record_attempt(&cluster("c"), &owner(by), at(3))
            .await
            .unwrap();
    }
    ledger
        .drop_owner_records(&cluster("c"), &owner("a"))
        .await
        .unwrap();
    ledger
        .save_records(&cluster("c"), &owner("a"), &objects, &none)
        .await
        .unwrap();
    assert_eq!((attempt("a").await, attempt("b").await), (None, Some(at(3))));
    ledger.forget_deleted(&Existing::default(), at(0)).await.unwrap();
    ledger
        .save_records(&cluster("c"), &owner("b"), &objects, &none)
        .await
        .unwrap();
    assert_eq!(attempt("b").await, None);
}

#[tokio::test]
async fn the_queue_survives_a_restart_to_the_microsecond() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let due = |name, second| Due {
        key: mk_queue_key(name),
        at: at(second),
    };
    ledger
        .save_due(&[due("late", 9), due("soon", -5), due("moved", 1), due("gone", 2)])
        .await
        .unwrap();
    ledger
        .save_due(&[due("moved", 3), due("moved", 4)])
        .await
        .unwrap();
    ledger
        .remove_due(&[mk_queue_key("gone"), mk_queue_key("never-there")])
        .await
        .unwrap();
    ledger.close().await;
    let (ledger, _) = open(folder.path()).await;
    assert_eq!(
        ledger.load_queue().await.unwrap(),
        [due("soon", -5), due("moved", 4), due("late", 9)]
    );
}
