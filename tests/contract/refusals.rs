//! Objects that the server refuses, with the messages.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::refusal_cases::{cases, lay, valid};
use crate::server::Server;

/// Creates an object with a raw request: kube's create has no parameter for strict validation.
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

#[tokio::test]
async fn invalid_objects_are_refused_with_a_helpful_message() -> Result<()> {
    let server = Server::start("refusals").await?;
    for kind in [
        "Source",
        "Cluster",
        "Sync",
        "SyncGroup",
        "RolloutApproval",
        "RolloutAction",
        "DeletionApproval",
    ] {
        create(&server, kind, &valid(kind))
            .await?
            .with_context(|| format!("a valid {kind}"))?;
    }
    let mut failures = Vec::new();
    for (kind, over, expected) in cases() {
        let mut body = valid(kind);
        lay(&mut body["spec"], &over);
        match create(&server, kind, &body).await? {
            Ok(_) => failures.push(format!("{kind} {over} is accepted")),
            Err(error) if error.to_string().contains(expected) => {}
            Err(error) => failures.push(format!(
                "{kind} {over} is refused with: {error}\n  and not with {expected:?}"
            )),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Every change of the group of a Sync is refused.
#[tokio::test]
async fn the_group_of_a_sync_is_immutable() -> Result<()> {
    let server = Server::start("groupref").await?;
    let group_ref = json!({"name": "shop", "entry": "app"});
    for (what, before, after) in [
        (
            "changed",
            group_ref.clone(),
            json!({"name": "shop", "entry": "db"}),
        ),
        (
            "moved",
            group_ref.clone(),
            json!({"name": "other", "entry": "app"}),
        ),
        ("removed", group_ref.clone(), Value::Null),
        ("added", Value::Null, group_ref.clone()),
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
        // Other fields of the spec are mutable.
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

/// The inventory is on the cluster, so a Sync with another cluster would forget its objects.
#[tokio::test]
async fn the_cluster_of_a_sync_is_immutable() -> Result<()> {
    let server = Server::start("clusterref").await?;
    let made = create(&server, "Sync", &valid("Sync")).await??;
    let name = made["metadata"]["name"].as_str().context("a name")?;
    let patch = |spec: Value| json!({"spec": spec}).to_string();
    let arguments = |patch: &str| {
        [
            "-n",
            &server.namespace,
            "patch",
            "sync",
            name,
            "--type=merge",
            "-p",
            patch,
        ]
        .map(str::to_owned)
    };
    let changed = arguments(&patch(json!({"clusterRef": {"name": "other"}})));
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    let answer = server.kubectl.call(&changed, "").await?;
    assert!(
        !answer.ok && answer.err.contains("clusterRef is immutable"),
        "{}",
        answer.err
    );
    let suspended = arguments(&patch(json!({"clusterRef": {"name": "c"}, "suspend": true})));
    let suspended: Vec<&str> = suspended.iter().map(String::as_str).collect();
    server.kubectl.run(&suspended).await?;
    Ok(())
}

/// An explicit null is the same as a missing field; the controller could not read a stored null.
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
