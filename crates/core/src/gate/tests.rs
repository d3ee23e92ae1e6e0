use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::ids::{GroupId, RolloutNumber};

/// The ID of a gate.
pub(super) fn id() -> GateId {
    GateId {
        group_id: "6f1c".into(),
        rollout: RolloutNumber::new(7),
        stage: "canary".into(),
        side: Side::After,
        index: 1,
        begun_at: "2026-01-01T12:00:00Z".parse().unwrap(),
    }
}

fn at(seconds: i64) -> Timestamp {
    id().begun_at + SignedDuration::from_secs(seconds)
}

/// Rejects a test that ends with an operator.
pub(crate) fn check(test: &str) -> Result<(), metric::TestError> {
    match test.ends_with('<') {
        true => Err(metric::TestError::new("no expression".to_owned())),
        false => Ok(()),
    }
}

fn task(task: serde_json::Value) -> Result<Option<Task>, TaskError> {
    Task::read(&serde_json::from_value(task).unwrap(), &check)
}

fn webhook(more: &serde_json::Value) -> Task {
    let mut whole =
        json!({"type": "Webhook", "webhook": {"url": "https://h/gate", "secretRef": {"name": "s"}}});
    whole
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    task(whole).unwrap().unwrap()
}

#[test]
fn a_task_has_its_own_times_or_the_defaults() {
    let plain = webhook(&json!({}));
    assert_eq!((plain.timeout, plain.interval), (TIMEOUT, INTERVAL));
    let own = webhook(&json!({"timeout": "1h", "interval": "2s"}));
    assert_eq!((own.timeout, own.interval), (JOB_TIMEOUT, Duration::from_secs(2)));
    let job = json!({"type": "Job", "job": {"template": {"spec": {"template": {"spec": {}}}}}});
    assert_eq!(task(job).unwrap().unwrap().timeout, JOB_TIMEOUT);
    assert_eq!(task(json!({"type": "Approval"})), Ok(None));
}

#[test]
fn a_missing_field_of_a_task_is_named() {
    let hook = |more: serde_json::Value| json!({"type": "Webhook", "webhook": more});
    let metric =
        |test: &str| json!({"type": "Metric", "metric": {"url": "http://p", "query": "up", "test": test}});
    for (given, expected) in [
        (json!({"type": "Webhook"}), "a Webhook needs webhook"),
        (json!({"type": "Metric"}), "a Metric needs metric"),
        (json!({"type": "Job"}), "a Job needs job"),
        (metric("value <"), "metric.test: no expression"),
        (
            hook(json!({"url": "http://h", "secretRef": {"name": ""}})),
            "webhook.secretRef.name is empty",
        ),
        (
            json!({"type": "Job", "job": {"template": {}}}),
            "job.template.spec.template.spec is missing",
        ),
    ] {
        let problem = task(given.clone()).unwrap_err().to_string();
        assert!(problem.contains(expected), "{given}: {problem}");
    }
    for (field, value) in [("timeout", "0s"), ("interval", "999ms")] {
        let mut given = metric("value > 0.0");
        given[field] = value.into();
        assert!(task(given).unwrap_err().to_string().starts_with(field));
    }
}

#[test]
fn the_key_of_a_gate_is_unique_and_stable() {
    let key = id().key();
    assert_eq!(key.len(), 64);
    assert_eq!(key, id().key());
    let changes: [fn(&mut GateId); 6] = [
        |id| id.group_id = GroupId::new("6f1cx"),
        |id| id.rollout = RolloutNumber::new(8),
        |id| id.stage.push('x'),
        |id| id.side = Side::Before,
        |id| id.index += 1,
        |id| id.begun_at = at(1),
    ];
    for change in changes {
        let mut other = id();
        change(&mut other);
        assert_ne!(other.key(), key, "{other:?}");
    }
}

#[test]
fn a_result_ends_the_gate_and_anything_else_waits() {
    let task = webhook(&json!({}));
    let mut tries = Evaluations::default();
    let mut after = |evaluation, seconds| {
        super::after(&task, &id(), &mut tries, evaluation, Duration::from_secs(seconds))
    };
    assert_eq!(
        after(Evaluation::Passed, 0),
        NextStep::Finished(GateResult::Passed)
    );
    let no = GateResult::Failed { message: "no".into() };
    assert_eq!(after(Evaluation::Failed("no".into()), 0), NextStep::Finished(no));
    let wait = |seconds, why: &str| NextStep::Wait {
        wait: Duration::from_secs(seconds),
        why: why.to_owned(),
    };
    assert_eq!(after(Evaluation::Pending("half".into()), 10), wait(30, "half"));
    // The last evaluation is made when the timeout is over.
    assert_eq!(after(Evaluation::Pending("half".into()), 295), wait(5, "half"));
    let late = GateResult::Failed {
        message: "not within 5m: half".into(),
    };
    assert_eq!(
        after(Evaluation::Pending("half".into()), 300),
        NextStep::Finished(late)
    );
}

#[test]
fn an_error_is_retried_with_backoff_or_as_the_response_requests() {
    let task = webhook(&json!({"interval": "8s"}));
    let mut tries = Evaluations::default();
    let mut wait = |evaluation| match super::after(&task, &id(), &mut tries, evaluation, Duration::ZERO) {
        NextStep::Wait { wait, .. } => wait,
        NextStep::Finished(result) => panic!("{result:?}"),
    };
    let refused = || Evaluation::error("refused");
    let waits: Vec<Duration> = (0..6).map(|_| wait(refused())).collect();
    for (wait, longest) in waits.iter().zip([1, 2, 4, 8, 8, 8]) {
        let longest = Duration::from_secs(longest);
        assert!(*wait <= longest && *wait >= longest / 2, "{waits:?}");
    }
    let asked = refused().with_retry_after(Some(Duration::from_secs(20)));
    assert_eq!(wait(asked), Duration::from_secs(20));
    // A response ends the sequence of errors.
    assert_eq!(wait(Evaluation::Pending("half".into())), Duration::from_secs(8));
    assert!(wait(refused()) <= Duration::from_secs(1));
}
