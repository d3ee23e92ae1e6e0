//! Passes in which a rollout begins.

use super::*;
use crate::plan::{Direction, RemovalDecision, RemovalHold};
use crate::rollout::next::Cause;
use crate::rollout::pass::removal_digest;

#[test]
fn the_first_release_is_stored_recorded_and_in_status_before_anything_is_admitted() {
    let mut case = fresh(&["c1", "c2"]);
    let transition = case.step();
    assert_eq!(
        writes(&transition),
        [
            "store r1",
            "record rollout 1",
            "write status, durable: RolloutBegan",
            "append journal 1",
            "evaluate gates",
            "record admissions c1",
            "admit c1",
            "forget all but r1",
        ]
    );
    let rollout = transition.status.rollout.as_ref().unwrap();
    assert_eq!((rollout.id, rollout.release.as_str()), (1, "r1"));
    assert_eq!(rollout.phase, RolloutPhase::Progressing);
    assert_eq!(rollout.start_time, t(0).to_string());
    assert_eq!(transition.status.clusters.total, 2);
    assert_eq!(transition.status.observed_generation, Some(3));
    let began = transition.began.unwrap();
    assert_eq!(
        (began.cause, began.direction),
        (Cause::Offered, Direction::Forward)
    );
    assert!(transition.decided.is_some() && transition.left.is_none() && !transition.again);
}

/// With `Finish` or `Queue`, the pass in which a rollout succeeded began the next one before the success was recorded:
/// its release could not be rolled back to, and the ledger said `Superseded`.
#[test]
fn a_release_that_succeeded_is_reported_before_the_next_one_begins() {
    for (policy, queue) in [
        (OnNewRevision::Replace, &[][..]),
        (OnNewRevision::Finish, &[]),
        (OnNewRevision::Queue, &[]),
        (OnNewRevision::Queue, &["r2"]),
    ] {
        let mut case = rolling("r1", &[("c1", healthy("r1"))]);
        (case.on_new_revision, case.offer) = (policy, offer("r2"));
        case.status.last_known_good = Some(named("r0"));
        case.status.queue = queue.iter().copied().map(named).collect();
        let transition = case.pass();
        assert!(transition.again && transition.began.is_none(), "{policy:?}");
        let reported = writes(&transition);
        let reported = &reported[reported.len() - 3..];
        let is_left = if queue.is_empty() {
            "forget all but r1"
        } else {
            "forget all but r1 r2"
        };
        assert_eq!(
            reported,
            ["write status", "end rollout 1 Succeeded", is_left],
            "{policy:?} {queue:?}"
        );
        assert_eq!(case.status.last_known_good, Some(named("r1")), "{policy:?}");
        let transition = case.pass();
        assert_eq!(
            writes(&transition),
            [
                "store r2",
                "record rollout 2 after Succeeded",
                "write status, durable: RolloutBegan",
                "end rollout 1 Succeeded",
                "append journal 2",
                "evaluate gates",
                "record admissions c1",
                "admit c1",
                "forget all but r1 r2",
            ],
            "{policy:?} {queue:?}"
        );
        assert_eq!(case.status.last_known_good, Some(named("r1")), "{policy:?}");
        assert_eq!(case.status.queue, [], "{policy:?}");
    }
}

#[test]
fn a_release_that_did_not_succeed_is_superseded() {
    let mut case = rolling("r1", &[("c1", healthy("r1")), ("c2", working("r1"))]);
    (case.offer, case.status.last_known_good) = (offer("r2"), Some(named("r0")));
    let transition = case.step();
    assert!(writes(&transition).contains(&"end rollout 1 Superseded".to_owned()));
    assert_eq!(transition.status.last_known_good, Some(named("r0")));
    assert_eq!(transition.status.held_release, None);
}

#[test]
fn a_release_that_an_operator_rolls_back_is_not_recorded_as_known_good() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.status.last_known_good = Some(named("r0"));
    case.request_rollback(None);
    let transition = case.step();
    assert_eq!(
        writes(&transition)[..4],
        [
            "append journal 1",
            "store r0",
            "record rollout 2 after Succeeded",
            "write status, durable: RolloutBegan",
        ]
    );
    assert_eq!(transition.status.last_known_good, Some(named("r0")));
    let held = transition.status.held_release.as_ref().unwrap();
    assert_eq!((held.release.as_str(), held.revisions.len()), ("r1", 1));
    assert_eq!(held.reason, "an operator rolled it back");
    let began = transition.began.unwrap();
    assert_eq!(
        (began.cause, began.direction),
        (Cause::Requested, Direction::Back)
    );
}

/// A request for the current release has no effect.
#[test]
fn a_rollback_to_the_current_release_does_not_keep_it_from_being_known_good() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    (case.offer, case.status.last_known_good) = (offer("r2"), Some(named("r0")));
    case.request_rollback(Some("r1"));
    assert!(case.pass().again);
    assert_eq!(case.status.last_known_good, Some(named("r1")));
    assert_eq!(case.pass().began.unwrap().release, "r2");
}

fn failed() -> Case {
    let mut case = rolling("r2", &[("c1", failing("r2"))]);
    case.strategy = strategy(serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"}));
    case.status.last_known_good = Some(named("r1"));
    case
}

#[test]
fn a_failed_rollout_is_rolled_back_and_its_release_is_held() {
    let mut case = failed();
    case.rollback = RollbackType::Immediate;
    let transition = case.step();
    assert_eq!(
        writes(&transition),
        [
            "settle c1 ApplyFailed",
            "append journal 1",
            "store r1",
            "record rollout 2 after Failed",
            "write status, durable: RolloutBegan",
            "end rollout 1 Failed",
            "append journal 2",
            "evaluate gates",
            "record admissions c1",
            "admit c1",
            "forget all but r1 r2",
        ]
    );
    assert_eq!(
        transition.status.held_release,
        Some(HeldRelease {
            release: "r2".into(),
            revisions: revisions("r2"),
            reason: "rollout 1 failed".into(),
            since: t(0).to_string(),
        })
    );
    let began = transition.began.unwrap();
    assert_eq!(
        (began.cause, began.direction),
        (Cause::Failed, Direction::BackAtOnce)
    );
    // A held release does not begin again.
    let _ = case.pass();
    assert_eq!(
        writes(&case.pass())
            .iter()
            .filter(|effect| effect.starts_with("record rollout"))
            .count(),
        0
    );
    assert_eq!(case.current(), (2, "r1"));
}

/// A failure by time is known only to the plan of the replaced rollout: the next admission would settle it as
/// superseded.
#[test]
fn an_admission_that_failed_by_time_is_settled_when_its_rollout_is_rolled_back() {
    let mut case = failed();
    let overdue = sync("r2", -100_000, Progress::Working);
    case.observed.clusters.insert("c1".into(), (0, Some(overdue)));
    let transition = case.step();
    assert_eq!(
        writes(&transition)[..4],
        [
            "settle c1 ProgressDeadlineExceeded",
            "append journal 1",
            "store r1",
            "record rollout 2 after Failed",
        ]
    );
}

/// `Replace`, a failed rollout, and a newer offer: the rollback comes first, and the newer release replaces it in the
/// next pass.
#[test]
fn of_rollouts_that_begin_one_after_the_other_only_the_last_admits_anything() {
    let mut case = failed();
    case.offer = offer("r3");
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "settle c1 ApplyFailed",
            "append journal 1",
            "store r1",
            "record rollout 2 after Failed",
            "write status, durable: RolloutBegan",
            "end rollout 1 Failed",
            "forget all but r1 r2",
        ]
    );
    assert!(transition.again && transition.decided.is_none());
    assert_eq!(case.status.held_release.as_ref().unwrap().release, "r2");
    assert_eq!(case.status.conditions[0].reason, "Progressing");
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "append journal 2",
            "store r3",
            "record rollout 3 after Superseded",
            "write status, durable: RolloutBegan",
            "end rollout 2 Superseded",
            "append journal 3",
            "evaluate gates",
            "record admissions c1",
            "admit c1",
            "forget all but r1 r3",
        ]
    );
    assert!(!transition.again);
    assert_eq!(case.status.held_release, None);
}

/// Without clusters there is nothing to roll out, so each queued release has its turn at once: one in each pass.
#[test]
fn a_queue_without_clusters_is_worked_off_one_rollout_a_pass() {
    let mut case = rolling("r1", &[]);
    (case.on_new_revision, case.offer) = (OnNewRevision::Queue, offer("r3"));
    case.status.queue = vec![named("r2"), named("r3")];
    assert!(case.pass().again, "that there is nothing to do is reported first");
    assert!(case.pass().again);
    assert_eq!((case.current(), case.status.queue.len()), ((2, "r2"), 1));
    let transition = case.pass();
    assert!(!transition.again);
    assert_eq!((case.current(), case.status.queue.len()), ((3, "r3"), 0));
    assert_eq!(case.status.last_known_good, None, "applied nowhere");
    assert!(writes(&transition).contains(&"record rollout 3 after Superseded".to_owned()));
}

/// The release is applied to every cluster already: its rollout begins and ends in one pass, with one write of status.
#[test]
fn a_rollout_that_succeeds_at_once_ends_in_the_pass_in_which_it_begins() {
    let mut case = rolling("r1", &[("c1", healthy("r2"))]);
    case.offer = offer("r2");
    let transition = case.step();
    assert_eq!(
        writes(&transition),
        [
            "append journal 1",
            "store r2",
            "record rollout 2 after Superseded",
            "write status, durable: RolloutBegan",
            "end rollout 2 Succeeded",
            "end rollout 1 Superseded",
            "append journal 2",
            "evaluate gates",
            "forget all but r2",
        ]
    );
    assert_eq!(transition.status.rollout.unwrap().phase, RolloutPhase::Succeeded);
}

#[test]
fn a_release_that_joins_the_queue_is_stored_before_status_names_it() {
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    (case.on_new_revision, case.offer) = (OnNewRevision::Queue, offer("r2"));
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "store r2",
            "write status, durable: ReleaseQueued",
            "append journal 1",
            "evaluate gates",
        ]
    );
    assert_eq!(transition.queued.as_deref(), Some("r2"));
    assert_eq!(transition.status.queue, [named("r2")]);
    assert_eq!(case.current(), (1, "r1"));
    assert_eq!(writes(&case.pass()), ["evaluate gates"], "it waits once");
}

/// The removal of an entry by a rollback waits for a person if no person asked for the rollback.
#[test]
fn only_an_automatic_rollback_holds_the_removal_of_an_entry() {
    for (automatic, cause) in [(true, Cause::Failed), (false, Cause::Requested)] {
        let mut case = rolling("r2", &[("c1", failing("r2"))]);
        case.strategy = strategy(serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"}));
        case.status.last_known_good = Some(named("r1"));
        if cause == Cause::Requested {
            case.observed.actions.0 = 1;
            case.observed.actions.1.rollback = Some(RollbackRequest {
                revision: None,
                attribution: attribution(-5),
            });
        }
        let removed = LeavingSync {
            entry: "old".into(),
            cause: LeavingCause::EntryRemoved,
            ..keep::leaving("c1", &[])
        };
        case.observed.leaving.insert("c1-old".into(), removed);
        let transition = case.pass();
        assert_eq!(transition.began.map(|began| began.cause), Some(cause));
        let rollout = case.status.rollout.clone().unwrap();
        assert_eq!(rollout.automatic, automatic, "{cause:?}");
        // The cluster is back.
        case.observed
            .clusters
            .insert("c1".into(), (0, Some(healthy("r1"))));
        let decision = |case: &mut Case| case.step().decided.unwrap().plan.removals["c1-old"];
        if !automatic {
            assert_eq!(decision(&mut case), RemovalDecision::Remove);
            continue;
        }
        let held = RemovalDecision::Hold {
            reason: RemovalHold::AutomaticRollback,
            recheck_at: None,
        };
        assert_eq!(decision(&mut case), held);
        case.observed.approved.insert(removal_digest("", &rollout));
        assert_eq!(decision(&mut case), RemovalDecision::Remove);
        // The approval is of this rollout.
        case.status.rollout.as_mut().unwrap().id += 1;
        assert_eq!(decision(&mut case), held);
    }
}
