//! Refused objects with the messages. The embedded API server is tested with the same cases.

use serde_json::{Value, json};

/// A kind, the changes of a valid object, and the expected message.
pub(crate) type Case = (&'static str, Value, &'static str);

/// A valid object of a kind.
pub(crate) fn valid(kind: &str) -> Value {
    let spec = match kind {
        "Source" => json!({"url": "https://h/r.git", "ref": {"branch": "main"}}),
        "Cluster" => json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
        "Sync" => json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}}),
        "RolloutApproval" => {
            json!({"group": "g", "rollout": 1, "stage": "prod", "by": "ann", "reason": "why",
            "releaseDigest": format!("sha256:{}", "a".repeat(64))})
        }
        "RolloutAction" => {
            json!({"group": "g", "rollout": 1, "action": "Pause", "by": "ann", "reason": "why"})
        }
        "DeletionApproval" => {
            json!({"group": "g", "by": "ann", "reason": "why", "digest": format!("sha256:{}", "a".repeat(64))})
        }
        _ => json!({"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}}]}),
    };
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {"generateName": "x-"}, "spec": spec})
}

/// Merges `over` into `under`: mappings are merged, `null` removes a field.
pub(crate) fn lay(under: &mut Value, over: &Value) {
    let (Value::Object(under), Value::Object(over)) = (&mut *under, over) else {
        *under = over.clone();
        return;
    };
    for (key, value) in over {
        if value.is_null() {
            under.remove(key);
        } else {
            lay(under.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn source_cases() -> Vec<Case> {
    let one = "exactly one of branch, semver, tag and commit is required for ref";
    let url = "url must be https://";
    vec![
        ("Source", json!({"ref": {"tag": "v1"}}), one),
        ("Source", json!({"ref": {"branch": null}}), one),
        (
            "Source",
            json!({"ref": {"branch": null, "semver": "1.x", "commit": "0".repeat(40)}}),
            one,
        ),
        (
            "Source",
            json!({"ref": {"branch": ""}}),
            "should be at least 1 chars long",
        ),
        (
            "Source",
            json!({"ref": {"branch": null, "commit": "8d1e"}}),
            "spec.ref.commit in body should match",
        ),
        ("Source", json!({"ref": null}), "spec.ref: Required value"),
        ("Source", json!({"url": null}), "spec.url: Required value"),
        ("Source", json!({"url": ""}), url),
        ("Source", json!({"url": "ftp://h/r"}), url),
        ("Source", json!({"url": "git.example.com/r"}), url),
        ("Source", json!({"url": "https://h/r with spaces"}), url),
        (
            "Source",
            json!({"url": format!("https://h/{}", "r".repeat(2048))}),
            "may not be more than 2048",
        ),
        (
            "Source",
            json!({"interval": "banana"}),
            "spec.interval in body should match",
        ),
        (
            "Source",
            json!({"interval": "5"}),
            "spec.interval in body should match",
        ),
        (
            "Source",
            json!({"interval": "-1m"}),
            "spec.interval in body should match",
        ),
        (
            "Source",
            json!({"timeout": 60}),
            "spec.timeout in body must be of type string",
        ),
        (
            "Source",
            json!({"onRewrite": "Ignore"}),
            "supported values: \"Follow\", \"Hold\"",
        ),
        (
            "Source",
            json!({"verify": {"mode": "Commit"}}),
            "supported values: \"HEAD\", \"Tag\", \"TagAndHEAD\"",
        ),
        (
            "Source",
            json!({"branch": "main"}),
            "unknown field \"spec.branch\"",
        ),
    ]
}

fn sync_cases() -> Vec<Case> {
    vec![
        (
            "Cluster",
            json!({"kubeConfig": null}),
            "spec.kubeConfig: Required value",
        ),
        (
            "Cluster",
            json!({"kubeConfig": {"secretRef": null}}),
            "spec.kubeConfig.secretRef: Required value",
        ),
        (
            "Cluster",
            json!({"suspended": true}),
            "unknown field \"spec.suspended\"",
        ),
        (
            "Sync",
            json!({"deletionBudget": {"clusters": 3}}),
            "deletionBudget.clusters is allowed for a SyncGroup only",
        ),
        (
            "Sync",
            json!({"clusterRef": null}),
            "spec.clusterRef: Required value",
        ),
        (
            "Sync",
            json!({"sourceRef": null}),
            "spec.sourceRef: Required value",
        ),
        (
            "Sync",
            json!({"sourceRef": {"namespace": "other"}}),
            "unknown field \"spec.sourceRef.namespace\"",
        ),
        (
            "Sync",
            json!({"prune": "yes"}),
            "spec.prune in body must be of type boolean",
        ),
        (
            "Sync",
            json!({"retryInterval": "1 m"}),
            "spec.retryInterval in body should match",
        ),
        (
            "Sync",
            json!({"conflicts": "Ignore"}),
            "supported values: \"Report\", \"Override\"",
        ),
        (
            "Sync",
            json!({"deletionPolicy": "Keep"}),
            "supported values: \"Orphan\", \"Delete\"",
        ),
        (
            "Sync",
            json!({"substitute": {"N": 1}}),
            "spec.substitute.N in body must be of type string",
        ),
        (
            "Sync",
            json!({"path": "p".repeat(1025)}),
            "may not be more than 1024",
        ),
        (
            "Sync",
            json!({"targetNamespace": "n".repeat(64)}),
            "may not be more than 63",
        ),
    ]
}

fn group_cases() -> Vec<Case> {
    let named = |name: &str| json!({"syncs": [{"name": name, "sourceRef": {"name": "s"}}]});
    let strategy = |strategy: Value| json!({"rolloutStrategy": strategy});
    let label = "name must be a DNS label";
    let least = "maxConcurrency must be at least 1 or 1%";
    let twice = json!({"syncs": [{"name": "app", "sourceRef": {"name": "s"}}, {"name": "app", "sourceRef": {"name": "t"}}]});
    let many: Vec<Value> = (0..51)
        .map(|n| json!({"name": format!("e{n}"), "sourceRef": {"name": "s"}}))
        .collect();
    let stages = json!({"stages": [{"name": "canary"}, {"name": "canary"}]});
    let task = |task: Value| {
        let tasks: Vec<Value> = vec![json!({"type": "Approval"}), task];
        json!({"rolloutStrategy": {"stages": [{"name": "canary", "afterStageTasks": tasks}]}})
    };
    let hook = |url: &str| json!({"type": "Webhook", "webhook": {"url": url, "secretRef": {"name": "s"}}});
    let metric =
        |url: &str| json!({"type": "Metric", "metric": {"url": url, "query": "up", "test": "value > 0.0"}});
    let with = |mut whole: Value, field: &str, value: Value| {
        whole[field] = value;
        whole
    };
    vec![
        (
            "SyncGroup",
            json!({"clusterSelector": null}),
            "spec.clusterSelector: Required value",
        ),
        ("SyncGroup", named("App"), label),
        ("SyncGroup", named("-app"), label),
        ("SyncGroup", named("a_b"), label),
        ("SyncGroup", named("a.b"), label),
        ("SyncGroup", named(""), "should be at least 1 chars long"),
        (
            "SyncGroup",
            named("a2345678901234567890x"),
            "may not be more than 20",
        ),
        ("SyncGroup", twice, "Duplicate value: {\"name\":\"app\"}"),
        ("SyncGroup", json!({"syncs": many}), "must have at most 50 items"),
        // Without an entry, a group removes what all its entries applied.
        (
            "SyncGroup",
            json!({"syncs": []}),
            "spec.syncs: Invalid value: 0: spec.syncs in body should have at least 1 items",
        ),
        ("SyncGroup", json!({"syncs": null}), "spec.syncs: Required value"),
        (
            "SyncGroup",
            json!({"syncs": [{"name": "app"}]}),
            "spec.syncs[0].sourceRef: Required value",
        ),
        (
            "SyncGroup",
            json!({"syncs": [{"name": "app", "sourceRef": {"name": "s"}, "revision": "main"}]}),
            "unknown field \"spec.syncs[0].revision\"",
        ),
        (
            "SyncGroup",
            json!({"syncs": [{"name": "app", "sourceRef": {"name": "s"}, "clusterRef": {"name": "c"}}]}),
            "unknown field \"spec.syncs[0].clusterRef\"",
        ),
        (
            "SyncGroup",
            json!({"syncs": [{"name": "app", "sourceRef": {"name": "s"}, "timeout": "x"}]}),
            "spec.syncs[0].timeout in body should match",
        ),
        (
            "SyncGroup",
            task(json!({"type": "TimedWait"})),
            "waitTime is required for TimedWait and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Approval", "waitTime": "1h"})),
            "waitTime is required for TimedWait and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Webhook"})),
            "webhook is required for Webhook and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Metric"})),
            "metric is required for Metric and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Job"})),
            "job is required for Job and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(with(metric("http://p:9090"), "type", json!("Job"))),
            "metric is required for Metric and not allowed for other types",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Approval", "timeout": "1h"})),
            "timeout is allowed for Webhook, Metric and Job only",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Job", "job": {"template": {}}, "interval": "1m"})),
            "interval is allowed for Webhook and Metric only",
        ),
        (
            "SyncGroup",
            task(hook("ftp://gates.example.com")),
            "url must be http://… or https://…",
        ),
        (
            "SyncGroup",
            task(hook("https://user:hunter2@gates.example.com/x")),
            "without credentials",
        ),
        (
            "SyncGroup",
            task(metric("http://p:9090/?query=up")),
            "without credentials, query and fragment",
        ),
        (
            "SyncGroup",
            task(
                json!({"type": "Webhook", "webhook": {"url": "https://h", "secretRef": {"name": "s", "namespace": "other"}}}),
            ),
            "webhook.secretRef.namespace\"",
        ),
        (
            "SyncGroup",
            task(json!({"type": "Job", "job": {"template": "busybox"}})),
            "job.template in body must be of type object",
        ),
        (
            "SyncGroup",
            json!({"rolloutStrategy": {"stages": [{"name": "canary", "beforeStageTasks": vec![json!({"type": "Approval"}); 21]}]}}),
            "must have at most 20 items",
        ),
        ("SyncGroup", strategy(json!({"maxConcurrency": 0})), least),
        ("SyncGroup", strategy(json!({"maxConcurrency": "0%"})), least),
        (
            "SyncGroup",
            strategy(json!({"maxConcurrency": "00%"})),
            "spec.rolloutStrategy.maxConcurrency in body should match",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxConcurrency": "120%"})),
            "spec.rolloutStrategy.maxConcurrency in body should match",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxConcurrency": "5"})),
            "spec.rolloutStrategy.maxConcurrency in body should match",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxConcurrency": -1})),
            "should be greater than or equal to 0",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxFailures": "-1%"})),
            "spec.rolloutStrategy.maxFailures in body should match",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxFailures": true})),
            "must be of type",
        ),
        (
            "SyncGroup",
            strategy(json!({"progressDeadline": "15"})),
            "spec.rolloutStrategy.progressDeadline in body should match",
        ),
        (
            "SyncGroup",
            strategy(json!({"onFailure": "Stop"})),
            "supported values: \"Pause\", \"Rollback\", \"Continue\"",
        ),
        (
            "SyncGroup",
            strategy(json!({"stages": [{"clusterSelector": {}}]})),
            "spec.rolloutStrategy.stages[0].name: Required value",
        ),
        (
            "SyncGroup",
            strategy(stages),
            "Duplicate value: {\"name\":\"canary\"}",
        ),
        (
            "SyncGroup",
            strategy(json!({"maxParallel": 3})),
            "unknown field \"spec.rolloutStrategy.maxParallel\"",
        ),
    ]
}

/// Actions, and approvals of rollouts and deletions.
fn action_cases() -> Vec<Case> {
    let (approval, action, deletions) = ("RolloutApproval", "RolloutAction", "DeletionApproval");
    let one = "exactly one of group and sync is required";
    let whole = "cluster and stage are allowed for Promote, Skip and Retry only";
    vec![
        (
            approval,
            json!({"releaseDigest": ""}),
            "should be at least 1 chars long",
        ),
        (approval, json!({"stage": null}), "spec.stage: Required value"),
        (
            approval,
            json!({"rollout": 0}),
            "should be greater than or equal to 1",
        ),
        (action, json!({"action": "Stop"}), "supported values: \"Pause\""),
        (action, json!({"stage": "prod"}), whole),
        (action, json!({"cluster": "eu"}), whole),
        (
            action,
            json!({"action": "Promote"}),
            "stage is required and cluster is not allowed for Promote",
        ),
        (
            action,
            json!({"action": "Skip"}),
            "exactly one of cluster and stage is required for Skip",
        ),
        (
            action,
            json!({"action": "Skip", "cluster": "eu", "stage": "prod"}),
            "exactly one of cluster and stage is required for Skip",
        ),
        (
            action,
            json!({"action": "Retry", "revision": "v1"}),
            "revision is allowed for Rollback only",
        ),
        (action, json!({"by": null}), "spec.by: Required value"),
        (deletions, json!({"group": null}), one),
        (deletions, json!({"sync": "s"}), one),
        (
            deletions,
            json!({"group": null, "sync": ""}),
            "should be at least 1 chars long",
        ),
        (deletions, json!({"digest": null}), "spec.digest: Required value"),
        (
            deletions,
            json!({"digest": ""}),
            "should be at least 1 chars long",
        ),
        (deletions, json!({"by": null}), "spec.by: Required value"),
        (
            deletions,
            json!({"cluster": "eu"}),
            "unknown field \"spec.cluster\"",
        ),
    ]
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    [
        source_cases(),
        sync_cases(),
        group_cases(),
        action_cases(),
        duration_cases(),
    ]
    .concat()
}

/// A duration that nobody outlives is a mistake, and a long timeout holds a worker.
fn duration_cases() -> Vec<Case> {
    let (year, hour) = ("must be at most 8760h", "must be at most 1h");
    let entry = |field: &str, value: &str| {
        let mut entry = json!({"name": "app", "sourceRef": {"name": "s"}});
        entry[field] = json!(value);
        json!({"syncs": [entry]})
    };
    let task = |type_: Value| json!({"rolloutStrategy": {"stages": [{"name": "canary", "afterStageTasks": [type_]}]}});
    vec![
        ("Source", json!({"interval": "8761h"}), year),
        ("Source", json!({"timeout": "61m"}), hour),
        ("Sync", json!({"interval": "525601m"}), year),
        ("Sync", json!({"retryInterval": "8761h"}), year),
        ("Sync", json!({"pruneGrace": "8761h"}), year),
        ("Sync", json!({"timeout": "1h1ms"}), hour),
        ("Sync", json!({"deletionBudget": {"window": "8761h"}}), year),
        (
            "Sync",
            json!({"deletionBudget": {"window": "0s"}}),
            "must be at least 1s",
        ),
        ("SyncGroup", entry("interval", "8761h"), year),
        ("SyncGroup", entry("pruneGrace", "8761h"), year),
        ("SyncGroup", entry("timeout", "2h"), hour),
        ("SyncGroup", json!({"unselectedGrace": "8761h"}), year),
        ("SyncGroup", json!({"deletionBudget": {"window": "8761h"}}), year),
        (
            "SyncGroup",
            json!({"deletionBudget": {"window": "999ms"}}),
            "must be at least 1s",
        ),
        (
            "SyncGroup",
            json!({"rolloutStrategy": {"progressDeadline": "8761h"}}),
            year,
        ),
        ("SyncGroup", json!({"rolloutStrategy": {"jitter": "8761h"}}), year),
        (
            "SyncGroup",
            json!({"rolloutStrategy": {"minSuccessTime": "8761h"}}),
            year,
        ),
        (
            "SyncGroup",
            task(json!({"type": "TimedWait", "waitTime": "8761h"})),
            year,
        ),
        // More nanoseconds than a number has.
        ("Source", json!({"interval": "999999999h"}), "spec.interval"),
        (
            "Source",
            json!({"interval": "1ms".repeat(22)}),
            "spec.interval: Too long",
        ),
    ]
}
