//! Objects that an earlier, laxer definition allowed do not affect other objects.

use anyhow::Result;
use kube::api::{DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Resource};
use serde_json::{Value, json};
use starling_api::{RolloutPhase, Source, SyncGroup, SyncResource};
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};

use crate::kubectl::Kubectl;
use crate::running::config_map;
use crate::server::{DEFINITIONS, install};

/// Removes every validation rule from a definition.
async fn remove_validation(kubectl: &Kubectl, name: &str) -> Result<()> {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let patch =
        json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": anything}]);
    kubectl
        .run(&["patch", "crd", name, "--type=json", "-p", &patch.to_string()])
        .await?;
    Ok(())
}

/// Stores an object that the real definition refuses, once the server uses the lax one.
async fn store(fleet: &Fleet, kind: &str, spec: &Value) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("starling.dev", "v1alpha1", kind));
    let api: Api<DynamicObject> = Api::namespaced_with(fleet.hub().clone(), NAMESPACE, &resource);
    let body = json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {"name": "unreadable"}, "spec": spec,
    });
    let params = PatchParams::apply("tests").force();
    wait::until(
        TIMEOUT,
        &format!("a {kind} that makes no sense is stored"),
        async || {
            let stored = api.patch("unreadable", &params, &Patch::Apply(&body)).await;
            stored.map(|_| ()).map_err(|error| error.to_string())
        },
    )
    .await?;
    let kept = api.get("unreadable").await?;
    anyhow::ensure!(
        kept.data["spec"] == *spec,
        "{kind} was changed on the way: {}",
        kept.data
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_objects_do_not_affect_others() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let kubectl = Kubectl::new(fleet.planes().assets(), &*fleet.plane(MANAGEMENT)?);
    for name in DEFINITIONS {
        remove_validation(&kubectl, name).await?;
    }
    let git = json!({"url": "https://h/r", "ref": {"branch": "main"}, "interval": "banana"});
    store(&fleet, "Source", &git).await?;
    store(&fleet, "Cluster", &json!({"kubeConfig": "none"})).await?;
    store(
        &fleet,
        "Sync",
        &json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "shop"}, "prune": "maybe"}),
    )
    .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}});
    let limit = json!({"maxConcurrency": [1]});
    store(
        &fleet,
        "SyncGroup",
        &json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": limit}),
    )
    .await?;
    install(&kubectl).await?;

    let repo = GitRepo::init()?;
    let files = [
        ("app/a.yaml", config_map("settings", "one")),
        ("lost/b.yaml", config_map("found", "one")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let first = repo.commit(&files, "one")?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
    fleet
        .put_group("shop", json!({"clusterSelector": {}, "syncs": [entry]}))
        .await?;
    let unaffected = json!({"name": "app", "sourceRef": {"name": "unreadable"}, "path": "./lost"});
    fleet
        .put_group("lost", json!({"clusterSelector": {}, "syncs": [unaffected]}))
        .await?;
    let controller = fleet.controller(program(), &[])?;

    let status = fleet.rollout("shop", &first, RolloutPhase::Succeeded).await?;
    assert_eq!(
        (status.clusters.total, status.clusters.updated),
        (1, 1),
        "an unreadable Cluster is not selected"
    );
    let second = repo.commit(&[("app/a.yaml", &config_map("settings", "two"))], "two")?;
    fleet.rollout("shop", &second, RolloutPhase::Succeeded).await?;
    // A group that needs an unreadable object reports it.
    fleet
        .until("lost", "not Ready", |group: &SyncGroup| {
            let conditions = group
                .status
                .as_ref()
                .map(|status| status.conditions.as_slice())
                .unwrap_or_default();
            conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "False" && c.message.contains("unreadable"))
        })
        .await?;
    assert!(controller.exit_status()?.is_none(), "the program has ended");
    let log = std::fs::read_to_string(fleet.log())?;
    let unreadable_lines = log.lines().filter(|line| line.contains("object not readable"));
    assert!(
        unreadable_lines
            .filter(|line| line.contains("fleet/unreadable"))
            .count()
            >= 4,
        "one line for each: {log}"
    );

    // After a correction, the object is used without a restart.
    let good = json!({"spec": {"url": repo.url(), "interval": "1s"}});
    let patch = [
        "-n",
        NAMESPACE,
        "patch",
        "source",
        "unreadable",
        "--type=merge",
        "-p",
        &good.to_string(),
    ];
    kubectl.run(&patch).await?;
    fleet.rollout("lost", &second, RolloutPhase::Succeeded).await?;
    let sync: SyncResource = fleet.get("lost-app-m1").await?;
    assert_eq!(sync.spec.template.source_ref.name, "unreadable");
    let source: Source = fleet.get("unreadable").await?;
    assert!(source.meta().generation >= Some(2));
    Ok(())
}
