//! Passes that keep the rollout in status.

use super::*;
use crate::ids::RolloutNumber;
use crate::plan::{Gate, GateRecord};

fn ms(milliseconds: i64) -> SignedDuration {
    SignedDuration::from_millis(milliseconds)
}

#[test]
fn a_pass_in_which_nothing_is_new_evaluates_gates_and_writes_nothing() {
    let mut case = fresh(&["c1", "c2"]);
    let _ = case.pass();
    case.now = t(10);
    assert_eq!(writes(&case.pass()), ["append journal 1", "evaluate gates"]);
    for second in 11..14 {
        case.now = t(second);
        let transition = case.pass();
        assert_eq!(writes(&transition), ["evaluate gates"]);
        assert_eq!(transition.status, case.status);
        assert!(
            transition.recheck_at > Some(case.now),
            "{:?}",
            transition.recheck_at
        );
    }
}

#[test]
fn marks_are_written_last_in_each_pass_until_none_is_missing() {
    let mut case = fresh(&["c1", "c2"]);
    case.observed.unmarked = true;
    let begun = writes(&case.pass());
    assert_eq!(begun.last().map(String::as_str), Some("write marks"), "{begun:?}");
    case.now = t(10);
    assert_eq!(
        writes(&case.pass()),
        ["append journal 1", "evaluate gates", "write marks"]
    );
    case.observed.unmarked = false;
    case.now = t(11);
    assert_eq!(writes(&case.pass()), ["evaluate gates"]);
}

fn staged() -> Case {
    let mut case = rolling("r1", &[("c1", healthy("r1")), ("c2", healthy("r0"))]);
    case.strategy = strategy(serde_json::json!({
        "maxConcurrency": 1,
        "stages": [{"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}}],
    }));
    case.observed.clusters.get_mut("c2").unwrap().0 = 1;
    case
}

#[test]
fn new_records_of_stages_are_durable_before_the_journal_and_the_admissions_that_follow_from_them() {
    let mut case = staged();
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "write status, durable: StagesRecorded",
            "append journal 1",
            "evaluate gates",
            "record admissions c2",
            "admit c2",
        ]
    );
    let records = crate::plan::record::recorded(case.status.rollout.as_ref().unwrap());
    assert_eq!(records["canary"].passed_at, Some(t(0)));
    assert_eq!(records["*"].opened_at, Some(t(0)));
}

/// Guards against a gate of a year: a clock that was wrong wrote when its stage was complete, and a new process knows
/// of no jump.
#[test]
fn a_timed_gate_does_not_wait_for_a_time_that_lies_far_ahead() {
    for (ahead, waits) in [(365 * 24 * 3600, 60), (300, 360), (0, 60)] {
        let mut case = staged();
        case.strategy = strategy(serde_json::json!({
            "maxConcurrency": 1,
            "stages": [{
                "name": "canary",
                "clusterSelector": {"matchLabels": {"tier": "canary"}},
                "afterStageTasks": [{"type": "TimedWait", "waitTime": "1m"}],
            }],
        }));
        let _ = case.pass();
        let now = t(0) - SignedDuration::from_secs(ahead);
        let admitted = |case: &mut Case, after: i64| {
            case.now = now + SignedDuration::from_secs(after);
            writes(&case.pass()).contains(&"admit c2".to_owned())
        };
        assert!(!admitted(&mut case, 0), "{ahead}");
        assert!(!admitted(&mut case, waits - 1), "{ahead}");
        assert!(admitted(&mut case, waits + 1), "{ahead}");
    }
}

#[test]
fn the_result_of_a_gate_is_durable_before_the_admissions_that_it_allows() {
    let mut case = staged();
    let gate =
        serde_json::json!({"type": "Webhook", "webhook": {"url": "https://x", "secretRef": {"name": "s"}}});
    case.strategy = strategy(serde_json::json!({
        "maxConcurrency": 1,
        "stages": [{
            "name": "canary",
            "clusterSelector": {"matchLabels": {"tier": "canary"}},
            "afterStageTasks": [gate],
        }],
    }));
    assert_eq!(
        writes(&case.pass()),
        [
            "write status, durable: StagesRecorded",
            "append journal 1",
            "evaluate gates"
        ]
    );
    case.observed
        .gate_results
        .insert("canary".into(), GateResult::Passed);
    assert_eq!(
        writes(&case.pass())[..1],
        ["write status, durable: StagesRecorded"]
    );
    let records = crate::plan::record::recorded(case.status.rollout.as_ref().unwrap());
    assert!(matches!(
        records["canary"].after[..],
        [GateRecord {
            gate: Gate::Effect(_),
            result: Some(GateResult::Passed),
            ..
        }]
    ));
}

/// Two clusters with one slot, of which the first is done in this pass.
fn counting() -> Case {
    let mut case = rolling(
        "r1",
        &[
            ("c1", working("r1")),
            ("c2", healthy("r0")),
            ("c3", healthy("r0")),
        ],
    );
    let _ = case.pass();
    let _ = case.pass();
    case.observed
        .clusters
        .insert("c1".into(), (0, Some(healthy("r1"))));
    case
}

#[test]
fn a_status_that_changes_only_counts_is_written_last_and_once() {
    let mut case = counting();
    case.reported_at = None;
    assert_eq!(
        writes(&case.step()),
        [
            "append journal 1",
            "evaluate gates",
            "record admissions c2",
            "admit c2",
            "write status",
        ]
    );
}

#[test]
fn a_status_that_changes_only_counts_is_delayed_for_a_moment() {
    for (since, put_off) in [
        (0, true),
        (249, true),
        (250, false),
        (400, false),
        // The clock was set back.
        (-5_000, false),
    ] {
        let mut case = counting();
        let reported_at = case.now - ms(since);
        case.reported_at = Some(reported_at);
        let transition = case.step();
        let is_written = writes(&transition).last().unwrap() == "write status";
        assert_eq!(is_written, !put_off, "{since} ms");
        let due = Some(reported_at + ms(250));
        assert_eq!(transition.recheck_at == due, put_off, "{since} ms");
        assert_eq!(transition.status == case.status, put_off, "{since} ms");
    }
}

#[test]
fn the_end_of_a_rollout_is_not_delayed() {
    let mut case = rolling("r1", &[("c1", working("r1"))]);
    let _ = case.pass();
    case.observed
        .clusters
        .insert("c1".into(), (0, Some(healthy("r1"))));
    case.reported_at = Some(case.now);
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "append journal 1",
            "evaluate gates",
            "write status",
            "end rollout 1 Succeeded",
            "forget all but r1",
        ]
    );
    assert_eq!(case.status.last_known_good, Some(named("r1")));
    assert_eq!(writes(&case.pass()), ["evaluate gates"], "it ends once");
}

/// Guards against a success that the ledger never records: if the response to the status write was lost, the next pass
/// finds the rollout over already.
#[test]
fn a_success_is_recorded_again_before_status_reports_that_the_rollout_continues() {
    let mut case = rolling("r1", &[("c1", healthy("r1"))]);
    let _ = case.pass();
    case.observed.clusters.insert("c2".into(), (0, None));
    assert_eq!(
        writes(&case.pass()),
        [
            "end rollout 1 Succeeded",
            "append journal 1",
            "evaluate gates",
            "record admissions c2",
            "admit c2",
            "write status",
        ]
    );
}

/// The rollout of a group without clusters ends with the first cluster, even if that one is unreachable.
#[test]
fn the_ledger_does_not_record_an_end_before_status_does() {
    let mut case = rolling("r1", &[]);
    let _ = case.pass();
    case.observed.clusters.insert("c1".into(), (0, None));
    case.observed.unreachable.insert("c1".into());
    case.reported_at = Some(case.now);
    assert_eq!(
        writes(&case.pass()),
        [
            "append journal 1",
            "evaluate gates",
            "write status",
            "end rollout 1 Succeeded",
            "forget all but r1",
        ]
    );
}

/// An admission that status reports counts as settled, so it must be settled first.
#[test]
fn an_admission_that_failed_by_time_is_settled_before_status_reports_it() {
    let mut case = rolling("r1", &[("c1", sync("r1", -100_000, Progress::Working))]);
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "settle c1 ProgressDeadlineExceeded",
            "append journal 1",
            "evaluate gates",
            "write status",
        ]
    );
    assert_eq!(case.status.problems[0].reason, "ProgressDeadlineExceeded");
    assert_eq!(writes(&case.pass()), ["evaluate gates"], "it is settled once");
}

/// Guards against an intent that never ends: the Sync of a failed cluster retries, and ends only what it has applied.
#[test]
fn an_admission_that_keeps_failing_ends_at_its_deadline() {
    let mut case = rolling("r1", &[("c1", failing("r1"))]);
    assert_eq!(
        writes(&case.pass()),
        ["append journal 1", "evaluate gates", "write status"]
    );
    case.now = t(100_000);
    let settled = |case: &mut Case| {
        let written = writes(&case.pass());
        let settled = written.into_iter().filter(|write| write.starts_with("settle"));
        settled.collect::<Vec<_>>()
    };
    assert_eq!(settled(&mut case), ["settle c1 ApplyFailed"]);
    assert_eq!(settled(&mut case), Vec::<String>::new(), "it is settled once");
}

#[test]
fn a_cluster_is_retried_for_a_request_and_that_is_recorded_with_the_admission() {
    let mut case = rolling("r1", &[("c1", failing("r1"))]);
    let _ = case.pass();
    let retry = crate::plan::Retry {
        cluster: Some("c1".into()),
        stage: None,
        attribution: attribution(-5),
    };
    case.observed.actions.0 = 1;
    case.observed.actions.1.input.retries.push(retry);
    let transition = case.step();
    let admitted = transition.effects.iter().find_map(|effect| match &effect.action {
        Action::Admit(admissions) => Some(admissions.clone()),
        _ => None,
    });
    assert_eq!(
        admitted.unwrap(),
        [Admission {
            cluster: "c1".into(),
            entry: ENTRY.into(),
            release: "r1".into(),
            rollout: RolloutNumber::new(1),
            target: "r1".into(),
            revision: "main@sha1:r1".into(),
            at: t(0),
            retried_for: Some(t(-5)),
        }]
    );
    let _ = case.pass();
    let again = writes(&case.pass());
    assert!(
        !again.iter().any(|effect| effect.starts_with("admit")),
        "{again:?}"
    );
}

pub(super) fn leaving(cluster: &str, depends_on: &[&str]) -> LeavingSync {
    LeavingSync {
        cluster: cluster.into(),
        entry: ENTRY.into(),
        cause: LeavingCause::ClusterUnselected {
            settles_at: t(0),
            stage: 0,
            windows: Vec::new(),
        },
        policy: DeletionPolicy::Orphan,
        depends_on: depends_on.iter().map(|name| (*name).into()).collect(),
        removing_since: None,
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    }
}

#[test]
fn syncs_that_are_not_wanted_are_removed_after_the_admissions_dependents_first() {
    let mut case = rolling("r1", &[("c1", healthy("r0"))]);
    case.strategy = strategy(serde_json::json!({"maxConcurrency": 2}));
    for (name, depends_on) in [("a", &[][..]), ("b", &["a"]), ("c", &["b"])] {
        case.observed
            .leaving
            .insert(name.into(), leaving("gone", depends_on));
    }
    let transition = case.pass();
    assert_eq!(
        writes(&transition),
        [
            "append journal 1",
            "evaluate gates",
            "record admissions c1",
            "admit c1",
            "remove c b a",
            "write status",
        ]
    );
}

#[test]
fn a_rollout_that_waits_for_an_approval_is_digested_last() {
    let mut case = staged();
    case.strategy = strategy(serde_json::json!({
        "stages": [{
            "name": "canary",
            "clusterSelector": {"matchLabels": {"tier": "canary"}},
            "afterStageTasks": [{"type": "Approval"}],
        }],
    }));
    assert_eq!(writes(&case.step()).last().unwrap(), "digest release");
    case.observed.digest = Some("sha256:d".into());
    let transition = case.step();
    assert_eq!(transition.status.rollout.unwrap().release_digest, "sha256:d");
}

/// Guards against a label that is changed in the pass that finds the approval of its former value.
#[test]
fn tenant_an_approval_counts_for_the_values_that_the_clusters_of_the_pass_have() {
    let mut case = staged();
    case.status.rollout.as_mut().unwrap().release_digest = "sha256:before".into();
    for (digest, expected) in [
        (None, "sha256:before"),
        (Some(""), ""),
        (Some("sha256:now"), "sha256:now"),
    ] {
        case.observed.digest = digest.map(str::to_owned);
        let transition = case.step();
        assert_eq!(*case.observed.approvals_of.borrow(), expected);
        assert_eq!(transition.status.rollout.unwrap().release_digest, expected);
    }
}
