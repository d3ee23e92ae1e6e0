//! What was settled, answered and stored before is not done again, and nothing of it is forgotten.

use super::*;
use crate::plan::{Decision, Retry};

/// Status names ten clusters in trouble. What it does not name was settled all the same, and is settled again by every
/// pass: one commit of the ledger for each cluster beyond the tenth, for as long as the rollout stands.
#[test]
fn an_admission_that_failed_by_time_is_settled_once_however_many_did() {
    let names: Vec<String> = (10..22).map(|n| format!("c{n}")).collect();
    let overdue = || sync("r1", -100_000, Progress::Working);
    let clusters: Vec<(&str, ObservedSync)> = names.iter().map(|name| (name.as_str(), overdue())).collect();
    let mut case = rolling("r1", &clusters);
    let first = told(&case.pass());
    let settles = |effects: &[String]| {
        effects
            .iter()
            .filter(|effect| effect.starts_with("settle"))
            .count()
    };
    assert_eq!(settles(&first), 12);
    for second in 1..4 {
        case.now = t(second);
        let effects = told(&case.pass());
        assert_eq!(effects, ["evaluate gates"], "pass {second}");
    }
}

/// An operator wants to go back to a revision that is not stored, and status says so. A newer release joins the queue:
/// for one pass status does not say so any more, and then says that it has been so since just now.
#[test]
fn a_request_that_cannot_be_fulfilled_is_answered_also_while_a_release_joins_the_queue() {
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

/// What a group wants is not known while its release is lost, and an operator has to act anyway: nothing is taken away
/// meanwhile (ADR 35).
#[test]
fn nothing_is_removed_while_the_release_that_rolls_is_lost() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    case.lost.insert("r1".into());
    case.offer.snapshot = None;
    case.observed.leaving.insert(
        "web-gone".into(),
        LeavingSync {
            cluster: "gone".into(),
            entry: ENTRY.into(),
            cause: LeavingCause::ClusterUnselected { settles_at: t(-5) },
            policy: DeletionPolicy::Delete,
            depends_on: BTreeSet::new(),
        },
    );
    assert_eq!(told(&case.step()), ["evaluate gates", "write status"]);
}

/// The annotation that answers a request is the one by which anybody may request a reconcile of the Sync. Whoever does
/// so within the second of a retry makes the same request count twice.
#[test]
fn a_request_is_answered_once_whoever_requests_a_reconcile_of_the_sync_afterwards() {
    let mut case = rolling("r1", &[("c1", failing("r1")), ("c2", healthy("r1"))]);
    case.strategy = strategy(serde_json::json!({"maxConcurrency": 1, "maxFailures": 1}));
    case.observed.actions.0 = 1;
    case.observed.actions.1.steering.retries.push(Retry {
        cluster: None,
        stage: None,
        attribution: word(0),
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
    assert!(
        !is_retried(&case.step()),
        "the one request is answered a second time"
    );
}

/// "What status names is stored before it": a release that never rolled is held, and is not.
#[test]
fn a_release_that_status_holds_is_stored() {
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
    let effects = told(&transition);
    assert!(effects.contains(&"store r3".to_owned()), "{effects:?}");
}
