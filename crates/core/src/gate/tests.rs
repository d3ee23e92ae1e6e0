use serde_json::json;

use super::*;

/// Some gate.
pub(super) fn id() -> GateId {
    GateId {
        group_uid: "6f1c".into(),
        rollout: 7,
        stage: "canary".into(),
        side: Side::After,
        index: 1,
        begun_at: "2026-01-01T12:00:00Z".parse().unwrap(),
    }
}

fn at(seconds: i64) -> Timestamp {
    id().begun_at + SignedDuration::from_secs(seconds)
}

fn task(task: serde_json::Value) -> Result<Option<Task>, String> {
    Task::read(&serde_json::from_value(task).unwrap())
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
fn a_task_has_the_times_that_it_names_or_the_usual() {
    let plain = webhook(&json!({}));
    assert_eq!((plain.timeout, plain.interval), (TIMEOUT, INTERVAL));
    let own = webhook(&json!({"timeout": "1h", "interval": "2s"}));
    assert_eq!((own.timeout, own.interval), (JOB_TIMEOUT, Duration::from_secs(2)));
    let job = json!({"type": "Job", "job": {"template": {"spec": {"template": {"spec": {}}}}}});
    assert_eq!(task(job).unwrap().unwrap().timeout, JOB_TIMEOUT);
    assert_eq!(task(json!({"type": "Approval"})), Ok(None));
}

#[test]
fn what_a_task_lacks_is_named() {
    let hook = |more: serde_json::Value| json!({"type": "Webhook", "webhook": more});
    let metric =
        |test: &str| json!({"type": "Metric", "metric": {"url": "http://p", "query": "up", "test": test}});
    for (given, words) in [
        (json!({"type": "Webhook"}), "a Webhook needs webhook"),
        (json!({"type": "Metric"}), "a Metric needs metric"),
        (json!({"type": "Job"}), "a Job needs job"),
        (
            hook(json!({"url": "http://h", "secretRef": {"name": ""}})),
            "webhook.secretRef.name is empty",
        ),
        (metric("value"), "metric.test: gives a double"),
        (metric("value <"), "metric.test: "),
        (
            json!({"type": "Job", "job": {"template": {}}}),
            "job.template.spec.template.spec is missing",
        ),
    ] {
        let problem = task(given.clone()).unwrap_err();
        assert!(problem.contains(words), "{given}: {problem}");
    }
    for (field, value) in [("timeout", "0s"), ("interval", "999ms")] {
        let mut given = metric("value > 0.0");
        given[field] = value.into();
        assert!(task(given).unwrap_err().starts_with(field));
    }
}

#[test]
fn the_key_of_a_gate_is_its_own_and_lasts() {
    let key = id().key();
    assert_eq!(key.len(), 64);
    assert_eq!(key, id().key());
    let changes: [fn(&mut GateId); 6] = [
        |id| id.group_uid.push('x'),
        |id| id.rollout += 1,
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
fn what_was_found_ends_it_and_anything_else_waits() {
    let task = webhook(&json!({}));
    let mut tries = Tries::default();
    let mut after = |tried, seconds| super::after(&task, &id(), &mut tries, tried, at(seconds));
    assert_eq!(after(Tried::Passed, 0), After::Found(Finding::Passed));
    let no = Finding::Failed { message: "no".into() };
    assert_eq!(after(Tried::Failed("no".into()), 0), After::Found(no));
    let wait = |seconds, why: &str| After::Wait {
        wait: Duration::from_secs(seconds),
        why: why.to_owned(),
    };
    assert_eq!(after(Tried::NotYet("half".into()), 10), wait(30, "half"));
    // The last try is when the time is over.
    assert_eq!(after(Tried::NotYet("half".into()), 295), wait(5, "half"));
    let late = Finding::Failed {
        message: "not within 5m: half".into(),
    };
    assert_eq!(after(Tried::NotYet("half".into()), 300), After::Found(late));
}

#[test]
fn trouble_is_tried_again_ever_later_and_when_the_other_side_says() {
    let task = webhook(&json!({"interval": "8s"}));
    let mut tries = Tries::default();
    let mut wait = |tried| match super::after(&task, &id(), &mut tries, tried, at(0)) {
        After::Wait { wait, .. } => wait,
        After::Found(found) => panic!("{found:?}"),
    };
    let refused = || Tried::trouble("refused");
    let waits: Vec<Duration> = (0..6).map(|_| wait(refused())).collect();
    for (wait, longest) in waits.iter().zip([1, 2, 4, 8, 8, 8]) {
        let longest = Duration::from_secs(longest);
        assert!(*wait <= longest && *wait >= longest / 2, "{waits:?}");
    }
    let asked = refused().asked_back(Some(Duration::from_secs(20)));
    assert_eq!(wait(asked), Duration::from_secs(20));
    // An answer ends the row.
    assert_eq!(wait(Tried::NotYet("half".into())), Duration::from_secs(8));
    assert!(wait(refused()) <= Duration::from_secs(1));
}
