//! Every field of the contract exists, keeps its value, and has the documented default.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};

use crate::server::Server;

const ALL_FIELDS: &str = include_str!("all-fields.yaml");
/// The fleet of the documentation: one repository, two clusters, one group, and a Sync as the group creates it.
const GIT_TO_CLUSTERS: &str = include_str!("git-to-clusters.yaml");
/// A release train: stages, windows, gates.
const STAGED_ROLLOUT: &str = include_str!("staged-rollout.yaml");

fn documents(yaml: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(yaml)?)
}

/// Collects the paths at which `kept` lacks or changes a value of `given`. Values that the server adds do not count.
fn dropped(given: &Value, kept: &Value, path: &str, found: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                dropped(
                    value,
                    kept.get(key).unwrap_or(&Value::Null),
                    &format!("{path}.{key}"),
                    found,
                );
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (n, (given, kept)) in given.iter().zip(kept).enumerate() {
                dropped(given, kept, &format!("{path}[{n}]"), found);
            }
        }
        (given, kept) if given == kept => {}
        (given, kept) => found.push(format!("{path}: {given} became {kept}")),
    }
}

/// Returns the object after a round trip through the type of the program.
fn through_types(object: &Value) -> Result<Value> {
    let kind = object["kind"].as_str().context("kind")?;
    let object = object.clone();
    Ok(match kind {
        "Source" => serde_json::to_value(serde_json::from_value::<Source>(object)?)?,
        "Cluster" => serde_json::to_value(serde_json::from_value::<Cluster>(object)?)?,
        "Sync" => serde_json::to_value(serde_json::from_value::<SyncResource>(object)?)?,
        "SyncGroup" => serde_json::to_value(serde_json::from_value::<SyncGroup>(object)?)?,
        "RolloutApproval" => serde_json::to_value(serde_json::from_value::<RolloutApproval>(object)?)?,
        "RolloutAction" => serde_json::to_value(serde_json::from_value::<RolloutAction>(object)?)?,
        "DeletionApproval" => serde_json::to_value(serde_json::from_value::<DeletionApproval>(object)?)?,
        other => anyhow::bail!("{other} is no kind of the contract"),
    })
}

/// Writes an object and its status under strict validation, and reads it back.
async fn round_trip(server: &Server, given: &Value) -> Result<Value> {
    let namespace = ["-n", server.namespace.as_str()];
    let text = given.to_string();
    let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
    server
        .kubectl
        .feed(&[&namespace[..], &apply].concat(), &text)
        .await?;
    // Actions and approvals have no status.
    if given.get("status").is_some() {
        let status = [&apply[..], &["--subresource=status", "--force-conflicts"]].concat();
        server
            .kubectl
            .feed(&[&namespace[..], &status].concat(), &text)
            .await?;
    }
    let kind = given["kind"].as_str().context("kind")?;
    let name = given["metadata"]["name"].as_str().context("name")?;
    server
        .kubectl
        .json(&[&namespace[..], &["get", kind, name]].concat())
        .await
}

#[tokio::test]
async fn every_field_survives_the_server_and_the_program() -> Result<()> {
    let server = Server::start("all-fields").await?;
    let mut found = Vec::new();
    let documents = documents(ALL_FIELDS)?;
    assert_eq!(documents.len(), 10);
    for given in &documents {
        let kind = given["kind"].as_str().unwrap_or_default();
        let kept = round_trip(&server, given)
            .await
            .with_context(|| kind.to_owned())?;
        dropped(given, &kept, kind, &mut found);
        let read = through_types(&kept)?;
        // The program must not drop a field either, status included.
        dropped(
            &given["spec"],
            &read["spec"],
            &format!("{kind} in the program: spec"),
            &mut found,
        );
        dropped(
            &given["status"],
            &read["status"],
            &format!("{kind} in the program: status"),
            &mut found,
        );
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// The other direction: every property of the schema must be set in the file, or it would not be tested.
#[tokio::test]
async fn no_field_of_the_specs_is_missing_in_the_file() -> Result<()> {
    let documents = documents(ALL_FIELDS)?;
    for definition in starling_api::definitions() {
        let kind = definition.spec.names.kind.clone();
        let schema = serde_json::to_value(&definition.spec.versions[0].schema)?;
        let schema = &schema["openAPIV3Schema"]["properties"]["spec"]["properties"];
        // There are several objects for fields that exclude each other.
        let objects = documents.iter().filter(|object| object["kind"] == kind.as_str());
        let mut missing = objects
            .map(|object| {
                let mut missing = Vec::new();
                unset(schema, &object["spec"], "spec", &mut missing);
                missing
            })
            .reduce(|one, other| one.into_iter().filter(|path| other.contains(path)).collect())
            .context("a document")?;
        // Only one policy is set here: the others are in the table of refusals and in staged-rollout.yaml.
        // A Sync has no clusters to limit, which is in the table of refusals too.
        let elsewhere = [
            "spec.ref.semver",
            "spec.ref.tag",
            "spec.ref.commit",
            "spec.deletionBudget.clusters",
        ];
        missing.retain(|path| !elsewhere.contains(&path.as_str()));
        assert!(missing.is_empty(), "{kind}: {missing:?} not in all-fields.yaml");
    }
    Ok(())
}

/// Properties of a schema that a value does not have.
fn unset(properties: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    for (name, schema) in properties.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match &value[name] {
            Value::Null => found.push(path),
            // Label selectors are types of Kubernetes.
            Value::Object(_) if name.ends_with("Selector") => {}
            inner @ Value::Object(_) => unset(&schema["properties"], inner, &path, found),
            Value::Array(items) => {
                let inner = schema["items"]["properties"].as_object();
                for name in inner.into_iter().flat_map(|properties| properties.keys()) {
                    if !items.iter().any(|item| item.get(name).is_some()) {
                        found.push(format!("{path}[].{name}"));
                    }
                }
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[tokio::test]
async fn the_examples_of_the_documentation_are_accepted() -> Result<()> {
    let server = Server::start("examples").await?;
    for (name, yaml) in [
        ("git-to-clusters", GIT_TO_CLUSTERS),
        ("staged-rollout", STAGED_ROLLOUT),
    ] {
        let arguments = [
            "-n",
            server.namespace.as_str(),
            "apply",
            "--validate=strict",
            "-f",
            "-",
        ];
        server
            .kubectl
            .feed(&arguments, yaml)
            .await
            .with_context(|| name.to_owned())?;
        for given in documents(yaml)? {
            let (kind, object) = (given["kind"].as_str(), given["metadata"]["name"].as_str());
            let (kind, object) = (kind.context("kind")?, object.context("name")?);
            let kept = server
                .kubectl
                .json(&["-n", server.namespace.as_str(), "get", kind, object])
                .await?;
            let mut found = Vec::new();
            if kind != "Secret" {
                dropped(
                    &given["spec"],
                    &kept["spec"],
                    &format!("{kind} {object}"),
                    &mut found,
                );
            }
            assert!(found.is_empty(), "{name}: {}", found.join("\n"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn missing_fields_have_their_documented_defaults() -> Result<()> {
    let server = Server::start("defaults").await?;
    let template = json!({
        "path": "./", "prune": true, "allowEmpty": false, "wait": true, "timeout": "5m", "interval": "10m",
        "retryInterval": "30s", "force": false, "conflicts": "Report", "deletionPolicy": "Orphan", "suspend": false,
    });
    let with = |mut given: Value, more: &Value| {
        for (key, value) in more.as_object().into_iter().flatten() {
            given[key] = value.clone();
        }
        given
    };
    let source = json!({"url": "https://h/r", "ref": {"branch": "main"}});
    let cluster = json!({"kubeConfig": {"secretRef": {"name": "s"}}});
    let sync = json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}});
    let entry = json!({"name": "app", "sourceRef": {"name": "s"}});
    let group = json!({"clusterSelector": {}, "syncs": [entry]});
    let strategy = json!({
        "maxConcurrency": "25%", "maxFailures": "100%", "progressDeadline": "15m", "jitter": "0s",
        "minSuccessTime": "0s", "maxUnavailable": "100%", "onNewRevision": "Replace", "onFailure": "Pause",
        "onUnreachable": "Skip", "rollback": {"type": "Staged"},
    });
    let source_defaults =
        json!({"interval": "1m", "timeout": "60s", "suspend": false, "allowDowngrade": false});
    let group_defaults = json!({
        "syncs": [with(entry, &template)], "whenUnselected": "Orphan", "deletionPolicy": "Orphan", "maxUnselected": "20%",
        "unselectedGrace": "5m",
        "rolloutStrategy": strategy, "suspend": false,
    });
    for (kind, given, wanted) in [
        ("Source", &source, with(source.clone(), &source_defaults)),
        (
            "Cluster",
            &cluster,
            with(cluster.clone(), &json!({"suspend": false})),
        ),
        ("Sync", &sync, with(sync.clone(), &template)),
        ("SyncGroup", &group, with(group.clone(), &group_defaults)),
    ] {
        let object = json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {"name": "almost-empty"}, "spec": given,
        });
        let arguments = ["-n", server.namespace.as_str(), "create", "-f", "-"];
        server.kubectl.feed(&arguments, &object.to_string()).await?;
        let kept = server
            .kubectl
            .json(&["-n", server.namespace.as_str(), "get", kind, "almost-empty"])
            .await?;
        assert_eq!(same(&kept["spec"]), same(&wanted), "{kind}");
        // Without defaulting by a server, the defaults of the program are the same.
        let read = through_types(&object)?;
        assert_eq!(
            same(&read["spec"]),
            same(&through_types(&kept)?["spec"]),
            "{kind} in the program"
        );
    }
    Ok(())
}

/// `1m` and `60s` are the same duration: the server keeps the written form, and both are documented.
fn same(spec: &Value) -> Value {
    match spec {
        Value::String(text) => match text.parse::<starling_api::Duration>() {
            Ok(duration) => json!(duration.to_string()),
            Err(_) => json!(text),
        },
        Value::Array(items) => items.iter().map(same).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), same(value)))
            .collect(),
        other => other.clone(),
    }
}
