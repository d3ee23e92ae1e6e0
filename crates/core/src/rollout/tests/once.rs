//! Earlier settlements, retries and stored releases are neither repeated nor forgotten.

use super::*;
use crate::plan::{Decision, Retry};

/// Guards against a commit of the ledger in every pass for each failed cluster beyond the tenth: status names ten
/// clusters with problems, and admissions on the others were settled again.
#[test]
fn an_admission_that_failed_by_time_is_settled_once_however_many_did() {
    let names: Vec<String> = (10..22).map(|n| format!("c{n}")).collect();
    let overdue = || sync("r1", -100_000, Progress::Working);
    let clusters: Vec<(&str, ObservedSync)> = names.iter().map(|name| (name.as_str(), overdue())).collect();
    let mut case = rolling("r1", &clusters);
    let first = writes(&case.pass());
    let settles = |effects: &[String]| {
        effects
            .iter()
            .filter(|effect| effect.starts_with("settle"))
            .count()
    };
    assert_eq!(settles(&first), 12);
    for second in 1..4 {
        case.now = t(second);
        let effects = writes(&case.pass());
        assert_eq!(effects, ["evaluate gates"], "pass {second}");
    }
}

/// Guards against a blocker that disappears for one pass and then has a new time: an operator requests a rollback to a
/// revision that is not stored, and a newer release joins the queue.
#[test]
fn a_request_that_cannot_be_fulfilled_is_reported_also_while_a_release_joins_the_queue() {
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    case.on_new_revision = OnNewRevision::Queue;
    case.lost.insert("r9".into());
    case.request_rollback(Some("r9"));
    let since = |case: &Case| {
        let rollout = case.status.rollout.clone().unwrap();
        let mut blockers = rollout.blocked_by.into_iter();
        blockers
            .find(|blocker| blocker.reason == "NothingToGoBackTo")
            .map(|blocker| blocker.since)
    };
    let _ = case.pass();
    assert_eq!(since(&case), Some(t(0).to_string()));
    (case.now, case.offer) = (t(10), offer("r2"));
    let transition = case.pass();
    assert_eq!(transition.queued.as_deref(), Some("r2"));
    let while_queued = (transition.stuck.is_some(), since(&case));
    case.now = t(20);
    let _ = case.pass();
    assert_eq!(
        (while_queued, since(&case)),
        ((true, Some(t(0).to_string())), Some(t(0).to_string()))
    );
}

/// Guards against a cluster that gave its slot back and is never admitted again: the clock went back, and the next
/// admission had the time, and so the name, of the one that was given back (seed 766).
#[test]
fn an_admission_has_another_time_than_the_last_one_of_the_sync() {
    let returned = ObservedSync {
        target: None,
        ..sync("r1", 0, Progress::Working)
    };
    let mut case = rolling("r1", &[("c1", returned)]);
    case.now = t(0);
    let transition = case.pass();
    let admitted = transition.effects.iter().find_map(|effect| match &effect.action {
        Action::Admit(admissions) => admissions.first().map(|admission| admission.at),
        _ => None,
    });
    assert_eq!(admitted, Some(t(0) + SignedDuration::from_millis(1)));
}

/// Guards against a commit that is taken back while it waits for its turn, and rolls out all the same: the branch was
/// reset to the current commit, or to one that is queued before it.
#[test]
fn a_queued_release_that_the_sources_take_back_gets_no_turn() {
    for (offered, withdrawn, left, next) in [
        ("r1", &["r2", "r3"][..], &[][..], None),
        ("r2", &["r3"], &["r2"], Some("r2")),
        ("r3", &[], &["r2", "r3"], Some("r2")),
    ] {
        let mut case = rolling("r1", &[("c1", working("r1"))]);
        (case.on_new_revision, case.offer) = (OnNewRevision::Queue, offer(offered));
        case.status.queue = vec![named("r2"), named("r3")];
        let transition = case.pass();
        let expected: Vec<String> = withdrawn.iter().map(|&release| release.into()).collect();
        assert_eq!(
            transition.withdrawn.into_iter().collect::<Vec<_>>(),
            expected,
            "{offered}"
        );
        let queue = case.status.queue.iter().map(|waiting| waiting.release.as_str());
        assert_eq!(queue.collect::<Vec<_>>(), left, "{offered}");
        assert_eq!(case.pass().withdrawn, [].into(), "{offered}: told once");
        case.observed.clusters = rolling("r1", &[("c1", healthy("r1"))]).observed.clusters;
        let _ = case.pass();
        assert_eq!(
            case.pass().began.map(|began| began.release),
            next.map(Into::into),
            "{offered}"
        );
    }
}

/// While the release of a group is lost, its wanted Syncs are unknown and an operator has to act: no Sync is removed
/// (ADR 35).
#[test]
fn no_sync_is_removed_while_the_current_release_is_lost() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.lost.insert("r1".into());
    case.offer.snapshot = None;
    case.observed.leaving.insert(
        "web-gone".into(),
        LeavingSync {
            cluster: "gone".into(),
            entry: ENTRY.into(),
            cause: LeavingCause::ClusterUnselected {
                settles_at: t(-5),
                stage: 0,
                windows: Vec::new(),
            },
            policy: DeletionPolicy::Delete,
            depends_on: BTreeSet::new(),
            removing_since: None,
            suspended: false,
            not_ready: false,
            budget_until: None,
            approval: None,
        },
    );
    assert_eq!(writes(&case.step()), ["evaluate gates", "write status"]);
}

/// Guards against a request that counts twice: the annotation that records a retry also requests a reconcile of the
/// Sync, and users may set it within the second of the retry.
#[test]
fn a_retry_is_made_once_even_if_a_reconcile_of_the_sync_is_requested_afterwards() {
    let mut case = rolling("r1", &[("c1", failing("r1")), ("c2", healthy("r1"))]);
    case.strategy = strategy(serde_json::json!({"maxConcurrency": 1, "maxFailures": 1}));
    case.observed.actions.0 = 1;
    case.observed.actions.1.input.retries.push(Retry {
        cluster: None,
        stage: None,
        attribution: attribution(0),
    });
    case.now = t(0) + SignedDuration::from_millis(400);
    let is_retried = |transition: &Transition| {
        let decided = transition.decided.as_ref().unwrap();
        matches!(decided.plan.decisions["c1"], Decision::Retry { .. })
    };
    assert!(is_retried(&case.pass()));
    // It fails again. Then: kubectl annotate sync web-c1 starling.dev/requested-at=...
    case.now = t(60);
    let sync = case.observed.clusters.get_mut("c1").unwrap().1.as_mut().unwrap();
    sync.progress = failing("r1").progress;
    assert!(!is_retried(&case.step()));
    let sync = case.observed.clusters.get_mut("c1").unwrap().1.as_mut().unwrap();
    sync.retried_for = Some(t(59));
    assert!(!is_retried(&case.step()), "one request causes a second retry");
}

/// A release is stored before status names it, even a held release that never rolled out.
#[test]
fn a_held_release_is_stored() {
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    (case.on_new_revision, case.offer) = (OnNewRevision::Finish, offer("r3"));
    case.observed.not_stored.insert("r3".into());
    case.request_rollback(Some("r0"));
    let transition = case.step();
    let held = transition
        .status
        .held_release
        .as_ref()
        .map(|held| held.release.as_str());
    assert_eq!(held, Some("r3"));
    let effects = writes(&transition);
    assert!(effects.contains(&"store r3".to_owned()), "{effects:?}");
}
