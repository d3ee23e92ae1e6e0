//! Releases that have to be loaded, and releases that are no longer stored.

use starling_api::conditions::{self, READY};

use super::*;

fn lost() -> Case {
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    case.lost.insert("r1".into());
    case.offer.snapshot = None;
    case
}

#[test]
fn a_rollout_whose_release_is_lost_is_blocked_and_ends_its_gates() {
    let mut case = lost();
    let transition = case.step();
    assert_eq!(writes(&transition), ["evaluate gates", "write status"]);
    assert!(transition.decided.is_none(), "no gate is open");
    assert_eq!(transition.blocked.unwrap().reason, "ReleaseNotFound");
    let after = &transition.status;
    assert_eq!(after.rollout, case.status.rollout);
    let ready = conditions::find(&after.conditions, READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "ReleaseNotFound")
    );
    assert_eq!(case.observed.lent, 0);
    // The report is written once.
    case.status = transition.status;
    assert_eq!(writes(&case.step()), ["evaluate gates"]);
}

#[test]
fn a_newer_release_replaces_a_lost_one_under_each_policy() {
    for policy in [
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ] {
        let mut case = lost();
        (case.on_new_revision, case.offer) = (policy, offer("r2"));
        let transition = case.step();
        assert_eq!(
            writes(&transition),
            [
                "store r2",
                "record rollout 2 after Superseded",
                "write status, durable: RolloutBegan",
                "end rollout 1 Superseded",
                "append journal 2",
                "evaluate gates",
                "record admissions c1",
                "admit c1",
                "forget all but r2",
            ],
            "{policy:?}"
        );
        assert!(transition.left.is_none() && transition.blocked.is_none());
    }
}

#[test]
fn an_operator_can_roll_back_from_a_lost_release() {
    for to in [None, Some("r0")] {
        let mut case = lost();
        case.status.last_known_good = Some(named("r0"));
        case.request_rollback(to);
        let transition = case.step();
        assert_eq!(transition.began.unwrap().release, "r0", "{to:?}");
        assert_eq!(transition.status.last_known_good, Some(named("r0")));
    }
    let mut case = lost();
    case.lost.insert("r0".into());
    case.request_rollback(Some("r0"));
    let transition = case.step();
    assert_eq!(
        transition.stuck.unwrap().message,
        "no stored release has revision \"r0\""
    );
    let blocked = transition.blocked.unwrap();
    assert_eq!(blocked.reason, "ReleaseNotFound");
    let ends = blocked
        .message
        .ends_with("; no stored release has revision \"r0\"");
    assert!(
        ends,
        "the message covers the request of the operator: {}",
        blocked.message
    );
}

/// Once the Sources offer another one, a release that is not stored cannot be rolled back to.
#[test]
fn a_lost_release_that_is_still_offered_is_stored_again() {
    for observed in [working("r1"), healthy("r1")] {
        let mut case = rolling("r1", &[("c1", observed)]);
        let _ = case.pass();
        case.observed.not_stored.insert("r1".into());
        let again = case.step();
        assert_eq!(writes(&again)[0], "store r1");
        case.observed.not_stored.clear();
        assert!(
            !writes(&case.step())
                .iter()
                .any(|effect| effect.starts_with("store"))
        );
    }
    // The release that begins is stored once.
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    case.offer = offer("r2");
    case.observed.not_stored.insert("r2".into());
    let stores = writes(&case.step())
        .into_iter()
        .filter(|effect| effect == "store r2");
    assert_eq!(stores.count(), 1);
    // A release that is no longer offered is unknown.
    let mut case = lost();
    case.observed.not_stored.insert("r1".into());
    assert_eq!(writes(&case.step()), ["evaluate gates", "write status"]);
}

/// Guards against a queue that blocks every newer release for ever because its first release is lost.
#[test]
fn a_queued_release_that_is_lost_has_no_turn() {
    for lost in [&["r2"][..], &["r2", "r3"]] {
        let mut case = rolling("r1", &[("c1", healthy("r1"))]);
        (case.on_new_revision, case.offer) = (OnNewRevision::Queue, offer("r4"));
        case.status.queue = vec![named("r2"), named("r3")];
        case.lost = lost.iter().map(|release| (*release).to_owned()).collect();
        assert!(case.pass().again, "its success is reported first");
        let began = case.pass().began.unwrap();
        assert_eq!(began.release, if lost.len() == 1 { "r3" } else { "r4" });
        assert_eq!(case.status.queue, []);
    }
}

/// Guards against a succeeded rollout that is blocked for ever, as if it could not be rolled back, by a queued release
/// that is lost.
#[test]
fn a_queued_release_that_is_lost_leaves_the_queue() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.on_new_revision = OnNewRevision::Queue;
    // A newer revision settles.
    case.offer.snapshot = None;
    case.status.queue = vec![named("r2"), named("r3"), named("r2")];
    case.lost.extend(["r2".into(), "r3".into()]);
    let transition = case.pass();
    let rollout = case.status.rollout.clone().unwrap();
    assert_eq!(
        (rollout.phase, rollout.blocked_by, case.status.queue.as_slice()),
        (RolloutPhase::Succeeded, Vec::new(), &[][..])
    );
    assert!(transition.began.is_none());
    assert_eq!(transition.stuck, None);
    assert_eq!(transition.dropped, ["r2".into(), "r3".into()].into());
    assert_eq!(case.pass().dropped, [].into());
}

/// A release that has lost its turn is reported, whatever the pass does otherwise.
#[test]
fn a_lost_release_leaves_the_queue_also_if_another_one_begins() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    (case.on_new_revision, case.offer) = (OnNewRevision::Queue, offer("r3"));
    case.status.queue = vec![named("r2"), named("r3")];
    case.lost.insert("r2".into());
    let reported = case.pass();
    assert_eq!(reported.dropped, ["r2".into()].into(), "with its success");
    assert_eq!(
        (reported.stuck, case.status.queue.as_slice()),
        (None, &[named("r3")][..])
    );
    let rollout = case.status.rollout.clone().unwrap();
    assert_eq!(rollout.blocked_by, []);
    assert_eq!(case.pass().began.unwrap().release, "r3");
}

/// The current release is lost too: the status that reports it has no queue either.
#[test]
fn a_lost_release_leaves_the_queue_of_a_lost_rollout() {
    let mut case = lost();
    case.on_new_revision = OnNewRevision::Queue;
    case.status.queue = vec![named("r2")];
    case.lost.insert("r2".into());
    let transition = case.pass();
    assert_eq!(transition.blocked.unwrap().reason, "ReleaseNotFound");
    assert_eq!(case.status.queue, []);
}

/// Guards against a rollback that blocks newer releases for ever, although there is nothing to roll back to.
#[test]
fn a_lost_known_good_release_does_not_block_newer_releases() {
    let mut case = rolling("r2", &[("c1", failing("r2"))]);
    case.strategy = strategy(serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"}));
    case.status.last_known_good = Some(named("r1"));
    case.lost.insert("r1".into());
    let transition = case.step();
    assert!(transition.began.is_none());
    assert_eq!(
        transition.stuck.unwrap().message,
        "release r1 is no longer stored"
    );
    let rollout = transition.status.rollout.unwrap();
    let blocks = |blocker: &starling_api::Blocker| blocker.reason == "NothingToGoBackTo";
    assert!(rollout.blocked_by.iter().any(blocks), "{:?}", rollout.blocked_by);
    for policy in [
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ] {
        (case.on_new_revision, case.offer) = (policy, offer("r3"));
        assert_eq!(case.step().began.unwrap().release, "r3", "{policy:?}");
    }
}

#[test]
fn needs_come_before_decisions_and_lent_clusters_are_given_back() {
    let release = |name: &str| Need::Release(name.into());
    // The current release, before a cluster is lent.
    let mut case = lost();
    let needs = case.step_with(&Loaded::default());
    assert!(matches!(needs, Err(StepError::Needs(need)) if need == release("r1")));
    assert_eq!(case.observed.lent, 0);
    // The release of a revision, and then that release, after the plan.
    case.lost.clear();
    case.request_rollback(Some("r0"));
    let _ = case.step();
    assert_eq!(
        case.needs,
        [release("r1"), Need::Revision("r0".into()), release("r0")]
    );
    assert_eq!((case.observed.lent, case.observed.given_back), (4, 4));
    // The release for clusters that join while their stage waits: of the rollout in status, and of the one that begins.
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.strategy = strategy(serde_json::json!({
        "stages": [{"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}}],
    }));
    case.offer = offer("r2");
    case.status.last_known_good = Some(named("r0"));
    let _ = case.step();
    assert_eq!(case.needs, [release("r1"), release("r0")]);
}
