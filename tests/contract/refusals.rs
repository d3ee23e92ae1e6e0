//! What the server refuses, and with which words.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::server::Server;

/// A kind, what is laid over a valid object of it, and the words of the refusal.
type Case = (&'static str, Value, &'static str);

fn valid(kind: &str) -> Value {
    let spec = match kind {
        "Source" => json!({"url": "https://h/r.git", "ref": {"branch": "main"}}),
        "Cluster" => json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
        "Sync" => json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}}),
        _ => json!({"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}}]}),
    };
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {"generateName": "x-"}, "spec": spec})
}

/// Lays `over` over `under`: mappings are merged, `null` takes away.
fn lay(under: &mut Value, over: &Value) {
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

/// Makes an object in a request of its own: kube's create has no parameter for strict validation.
async fn create(server: &Server, kind: &str, body: &Value) -> Result<kube::Result<Value>> {
    let uri = format!(
        "/apis/starling.dev/v1alpha1/namespaces/{}/{}s?fieldValidation=Strict",
        server.namespace,
        kind.to_lowercase()
    );
    let request = http::Request::post(uri)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())?;
    Ok(server.client().await?.request::<Value>(request).await)
}

fn source_cases() -> Vec<Case> {
    let one = "ref must have exactly one of branch, semver, tag, commit";
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

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_words_that_help() -> Result<()> {
    let server = Server::start("refusals").await?;
    for kind in ["Source", "Cluster", "Sync", "SyncGroup"] {
        create(&server, kind, &valid(kind))
            .await?
            .with_context(|| format!("a valid {kind}"))?;
    }
    let mut wrong = Vec::new();
    for (kind, over, words) in [source_cases(), sync_cases(), group_cases()].concat() {
        let mut body = valid(kind);
        lay(&mut body["spec"], &over);
        match create(&server, kind, &body).await? {
            Ok(_) => wrong.push(format!("{kind} {over} is accepted")),
            Err(error) if error.to_string().contains(words) => {}
            Err(error) => wrong.push(format!(
                "{kind} {over} is refused with: {error}\n  and not with {words:?}"
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Every way to change whose a Sync is.
#[tokio::test]
async fn a_sync_belongs_to_its_group_for_life() -> Result<()> {
    let server = Server::start("groupref").await?;
    let mine = json!({"name": "shop", "entry": "app"});
    for (what, before, after) in [
        ("changed", mine.clone(), json!({"name": "shop", "entry": "db"})),
        ("moved", mine.clone(), json!({"name": "other", "entry": "app"})),
        ("removed", mine.clone(), Value::Null),
        ("added", Value::Null, mine.clone()),
    ] {
        let mut body = valid("Sync");
        lay(&mut body["spec"], &json!({"groupRef": before}));
        let made = create(&server, "Sync", &body).await??;
        let name = made["metadata"]["name"].as_str().context("a name")?;
        let patch = json!({"spec": {"groupRef": after}}).to_string();
        let arguments = [
            "-n",
            &server.namespace,
            "patch",
            "sync",
            name,
            "--type=merge",
            "-p",
            &patch,
        ];
        let answer = server.kubectl.call(&arguments, "").await?;
        assert!(!answer.ok, "groupRef was {what}");
        assert!(
            answer.err.contains("groupRef is immutable"),
            "{what}: {}",
            answer.err
        );
        // The rest of the spec is not bound by that rule.
        let patch = json!({"spec": {"suspend": true}}).to_string();
        let arguments = [
            "-n",
            &server.namespace,
            "patch",
            "sync",
            name,
            "--type=merge",
            "-p",
            &patch,
        ];
        server.kubectl.run(&arguments).await?;
    }
    Ok(())
}

/// An explicit null means what absence means; kept as null it could not be read by the controller.
#[tokio::test]
async fn null_is_the_default() -> Result<()> {
    let server = Server::start("nulls").await?;
    for (kind, field, wanted) in [
        ("SyncGroup", "/spec/rolloutStrategy/maxFailures", json!("100%")),
        ("SyncGroup", "/spec/rolloutStrategy/maxConcurrency", json!("25%")),
        ("SyncGroup", "/spec/rolloutStrategy/maxUnavailable", json!("100%")),
        ("SyncGroup", "/spec/rolloutStrategy/jitter", json!("0s")),
        ("Source", "/spec/interval", json!("1m")),
        ("Sync", "/spec/prune", json!(true)),
    ] {
        let mut body = valid(kind);
        let mut at = &mut body;
        for part in field.split('/').skip(1) {
            at = &mut at[part];
        }
        *at = Value::Null;
        let made = create(&server, kind, &body)
            .await?
            .with_context(|| field.to_owned())?;
        assert_eq!(made.pointer(field), Some(&wanted), "{field}");
    }
    Ok(())
}
