//! The conditions of the definitions on a server, and the output of `kubectl` for the kinds.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use starling_testkit::wait;

use crate::server::{DEFINITIONS, Server};

const GROUP: &str = r"
apiVersion: starling.dev/v1alpha1
kind: SyncGroup
metadata: {name: shop}
spec: {clusterSelector: {}, syncs: [{name: app, sourceRef: {name: shop}}]}
";

fn conditions(definition: &Value) -> Vec<(String, String)> {
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    definition["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| (text(condition, "type"), text(condition, "status")))
        .collect()
}

#[tokio::test]
async fn definitions_are_established_and_structural() -> Result<()> {
    let server = Server::start("established").await?;
    for name in DEFINITIONS {
        let definition = server.kubectl.json(&["get", "crd", name]).await?;
        let mut found = conditions(&definition);
        found.sort();
        // A schema that is not structural, or whose names conflict, has a third condition or one of these False.
        let wanted = [("Established", "True"), ("NamesAccepted", "True")];
        assert_eq!(found, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())), "{name}");
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["subresources"], json!({"status": {}}), "{name}");
        assert_ne!(definition["spec"]["preserveUnknownFields"], json!(true), "{name}");
        let mut open = Vec::new();
        open_fields(&version["schema"]["openAPIV3Schema"], "", &mut open);
        // The template of a Job is a type of Kubernetes: the API server checks it when the Job is created.
        open.retain(|path| !path.ends_with("StageTasks.job.template"));
        assert!(open.is_empty(), "{name} lets anything in at {open:?}");
    }
    Ok(())
}

/// Collects the paths at which a schema allows unknown fields.
fn open_fields(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        open_fields(property, &format!("{path}.{name}"), found);
    }
    let inner = [&schema["items"], &schema["additionalProperties"]];
    for inner in inner.into_iter().filter(|inner| inner.is_object()) {
        open_fields(inner, path, found);
    }
}

/// Paths of the properties of a schema.
fn properties(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let below = format!("{path}.{name}");
        found.push(below.clone());
        properties(property, &below, found);
    }
    let inner = [&schema["items"], &schema["additionalProperties"]];
    for inner in inner.into_iter().filter(|inner| inner.is_object()) {
        properties(inner, path, found);
    }
}

/// T51: objects in another namespace cannot be referenced, so their existence does not leak.
#[test]
fn t51_no_reference_has_a_namespace_field() -> Result<()> {
    let mut references = 0;
    for definition in starling_api::definitions() {
        let definition = serde_json::to_value(&definition)?;
        let kind = definition["spec"]["names"]["kind"].as_str().context("kind")?;
        let mut found = Vec::new();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        properties(schema, kind, &mut found);
        references += found.iter().filter(|path| path.ends_with("Ref.name")).count();
        let namespaces: Vec<_> = found
            .iter()
            .filter(|path| path.to_lowercase().ends_with("namespace"))
            .collect();
        // Namespaces of the member: the target namespace, and the selector of an ignore rule.
        let of_members = |path: &&&String| {
            path.ends_with(".targetNamespace") || path.ends_with(".ignore.target.namespace")
        };
        assert_eq!(
            namespaces.iter().filter(of_members).count(),
            namespaces.len(),
            "{namespaces:?}"
        );
    }
    assert!(references >= 8, "{references} references were checked");
    Ok(())
}

/// Returns the columns of a header line.
fn columns(table: &str) -> Vec<&str> {
    table
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect()
}

#[tokio::test]
async fn kubectl_finds_the_kinds_and_shows_their_columns() -> Result<()> {
    let server = Server::start("columns").await?;
    let objects = [
        GROUP,
        r"
apiVersion: starling.dev/v1alpha1
kind: Source
metadata: {name: shop}
spec: {url: 'https://git.example.com/shop.git', ref: {branch: main}}
",
        r"
apiVersion: starling.dev/v1alpha1
kind: Cluster
metadata: {name: eu-1}
spec: {kubeConfig: {secretRef: {name: eu-1-kubeconfig}}}
",
        r"
apiVersion: starling.dev/v1alpha1
kind: Sync
metadata: {name: alone}
spec: {clusterRef: {name: eu-1}, sourceRef: {name: shop}}
",
    ];
    let namespace = ["-n", server.namespace.as_str()];
    server
        .kubectl
        .feed(
            &[&namespace[..], &["apply", "-f", "-"]].concat(),
            &objects.join("---"),
        )
        .await?;
    let status = json!({"status": {
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "Progressing", "message": "1 of 3",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        }],
        "clusters": {"total": 3, "updated": 1, "progressing": 2, "failed": 0},
        "rollout": {"id": 7, "revisions": [{"sync": "app", "revision": "main@sha1:8d1e"}]},
    }});
    let patch = [
        "patch",
        "syncgroup",
        "shop",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ];
    server.kubectl.run(&[&namespace[..], &patch].concat()).await?;

    for (kind, short, wanted) in [
        (
            "syncgroup",
            "sg",
            "NAME READY REVISION CLUSTERS UPDATED PROGRESSING FAILED AGE",
        ),
        ("source", "src", "NAME READY REVISION STATUS AGE"),
        ("cluster", "scl", "NAME READY VERSION STATUS AGE"),
        ("sync", "sy", "NAME CLUSTER READY REVISION STATUS AGE"),
    ] {
        let by_kind = server
            .kubectl
            .run(&[&namespace[..], &["get", kind]].concat())
            .await?;
        let by_short = server
            .kubectl
            .run(&[&namespace[..], &["get", short]].concat())
            .await?;
        assert_eq!(columns(&by_kind).join(" "), wanted);
        assert_eq!(columns(&by_short).join(" "), wanted);
    }
    let groups = server
        .kubectl
        .run(&[&namespace[..], &["get", "syncgroup"]].concat())
        .await?;
    let row: Vec<&str> = groups
        .lines()
        .nth(1)
        .context("a row")?
        .split_whitespace()
        .collect();
    assert_eq!(row[..7], ["shop", "False", "main@sha1:8d1e", "3", "1", "2", "0"]);

    let all = server.kubectl.run(&["get", "starling", "-A"]).await?;
    for name in [
        "source.starling.dev/shop",
        "cluster.starling.dev/eu-1",
        "sync.starling.dev/alone",
        "syncgroup.starling.dev/shop",
    ] {
        let listed = all.lines().any(|line| {
            line.split_whitespace().take(2).collect::<Vec<_>>() == [server.namespace.as_str(), name]
        });
        assert!(listed, "{name} is not in:\n{all}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_the_fields() -> Result<()> {
    let server = Server::start("explained").await?;
    for (field, expected) in [
        (
            "source.spec.ref",
            "Exactly one of branch, semver, tag and commit must be set",
        ),
        ("cluster.spec.kubeConfig", "kubeconfig"),
        ("sync.spec.substitute", "$(cluster.labels.KEY)"),
        (
            "syncgroup.spec.rolloutStrategy.maxFailures",
            "Maximum number of failed clusters",
        ),
        (
            "syncgroup.status.rollout.blockedBy",
            "Reasons why no more clusters start",
        ),
    ] {
        // The server publishes its OpenAPI document a moment after the definition is established.
        let text = wait::until(std::time::Duration::from_secs(30), field, async || {
            let answer = server
                .kubectl
                .call(&["explain", field], "")
                .await
                .map_err(|e| e.to_string())?;
            if answer.ok {
                Ok(answer.out)
            } else {
                Err(answer.err)
            }
        })
        .await?;
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(expected), "{field}: {text}");
    }
    Ok(())
}

#[tokio::test]
async fn spec_and_status_are_written_apart() -> Result<()> {
    let server = Server::start("subresource").await?;
    let namespace = ["-n", server.namespace.as_str()];
    server
        .kubectl
        .feed(&[&namespace[..], &["apply", "-f", "-"]].concat(), GROUP)
        .await?;
    let both = json!({"spec": {"suspend": true}, "status": {"clusters": {"total": 9}}}).to_string();
    let get = || async {
        server
            .kubectl
            .json(&[&namespace[..], &["get", "syncgroup", "shop"]].concat())
            .await
    };
    let patch = ["patch", "syncgroup", "shop", "--type=merge", "-p", both.as_str()];

    server
        .kubectl
        .run(&[&namespace[..], &patch, &["--subresource=status"]].concat())
        .await?;
    let group = get().await?;
    assert_eq!(group["spec"]["suspend"], json!(false));
    assert_eq!(group["status"]["clusters"]["total"], json!(9));
    assert_eq!(group["metadata"]["generation"], json!(1));

    let both = both.replace('9', "4");
    let patch = ["patch", "syncgroup", "shop", "--type=merge", "-p", both.as_str()];
    server.kubectl.run(&[&namespace[..], &patch].concat()).await?;
    let group = get().await?;
    assert_eq!(group["spec"]["suspend"], json!(true));
    assert_eq!(group["status"]["clusters"]["total"], json!(9));
    assert_eq!(group["metadata"]["generation"], json!(2));
    Ok(())
}
