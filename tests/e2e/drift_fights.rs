//! Drift fights, ignored fields, and objects with disabled reconciliation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::conditions::{self, CONTESTED, STALLED};
use starling_api::{OWNER_LABEL, RECONCILE, SyncGroup, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{Scene, shared_scene, sync_ready};

async fn maps(scene: &Scene) -> Result<Api<ConfigMap>> {
    Ok(Api::namespaced(scene.fleet().member("m1").await?, "default"))
}

fn message(sync: &SyncResource, type_: &str) -> Option<String> {
    let conditions = &sync.status.as_ref()?.conditions;
    conditions::find(conditions, type_).map(|condition| condition.message.clone())
}

/// A controller that restores its value whenever it is changed.
async fn fight(api: Api<ConfigMap>, name: String, over: Arc<AtomicBool>) {
    let fighter = PatchParams {
        field_manager: Some("fighter".into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"data": {"value": "theirs"}}));
    while !over.load(Ordering::SeqCst) {
        let value = api
            .get(&name)
            .await
            .ok()
            .and_then(|map| map.data?.remove("value"));
        if value.as_deref() == Some("ours") {
            // A failed write is retried in the next iteration.
            drop(api.patch(&name, &fighter, &patch).await);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// T65: a controller that restores its value immediately. At most one write per drift check, then fewer; a condition
/// names object, field and manager, and is removed after the fight.
#[test]
fn t65_a_drift_fight_is_reported_and_writes_are_limited() -> Result<()> {
    shared_scene("fought", async |scene| {
        let commit = scene.commit(&[("fought", "ours"), ("quiet", "ours")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"interval": "1s"})).await?;
        scene.succeeded(&commit).await?;
        let api = maps(scene).await?;
        let name = scene.own("fought");
        let unchanged_map = scene.map("m1", "quiet").await?.context("the map")?;
        let owner = unchanged_map.metadata.labels.as_ref().context("labels")?[OWNER_LABEL].clone();

        let over = Arc::new(AtomicBool::new(false));
        let fighter = tokio::spawn(fight(api.clone(), name.clone(), over.clone()));
        let undone = |repairs: &'static str| {
            move |sync: &SyncResource| {
                message(sync, CONTESTED).is_some_and(|message| message.contains(repairs))
            }
        };
        let sync = scene
            .sync("m1", "contested", undone("each of 3 repairs in a row"))
            .await?;
        assert_eq!(
            sync_ready(&sync).0,
            "True",
            "the revision is applied; the drift fight is a separate condition"
        );
        scene
            .sync("m1", "still contested", undone("each of 5 repairs in a row"))
            .await?;
        let named = |sync: &SyncResource| {
            message(sync, CONTESTED).is_some_and(|message| {
                message.contains("ConfigMap default/fought-fought: .data.value owned by \"fighter\"")
            })
        };
        scene.sync("m1", "named", named).await?;
        over.store(true, Ordering::SeqCst);
        fighter.await?;

        // Each repair follows its own drift check.
        let path_end = format!("/configmaps/{name}");
        let mut reconciled = true;
        let mut repairs = 0;
        for request in scene.proxy("m1")?.requests() {
            if request.method == Method::GET && request.query.contains(&owner) {
                reconciled = true;
            } else if request.is_patch() && request.path.ends_with(&path_end) {
                assert!(reconciled, "two writes without a drift check between them");
                (reconciled, repairs) = (false, repairs + 1);
            }
        }
        assert!(repairs >= 6, "the first apply and five repairs: {repairs}");
        let after = scene.map("m1", "quiet").await?.context("the map")?;
        assert_eq!(
            after.metadata.resource_version,
            unchanged_map.metadata.resource_version
        );

        // The last repair is kept, and the next drift check ends the fight.
        scene.until_value("m1", "fought", Some("ours")).await?;
        let ended = |sync: &SyncResource| message(sync, CONTESTED).is_none();
        scene.sync("m1", "no longer contested", ended).await?;
        Ok(())
    })
}

fn deployment(scene: &Scene, replicas: u32, image: &str) -> String {
    let name = scene.own("web");
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec: {{containers: [{{name: main, image: \"{image}\"}}]}}\n"
    )
}

/// T65: an autoscaler. Its replicas are kept in drift checks and commits, while all other fields of the Deployment are
/// those of git.
#[test]
fn t65_replicas_of_an_autoscaler_stay_and_other_fields_are_those_of_git() -> Result<()> {
    shared_scene("scaled", async |scene| {
        let first = scene.repo.commit(
            &[("app/web.yaml", &deployment(scene, 3, "registry.example/web:1"))],
            "first",
        )?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let ignore = json!([{"paths": ["/spec/replicas"], "target": {"kind": "Deployment"}}]);
        scene
            .group(
                json!({}),
                json!({"interval": "1s", "wait": false, "ignore": ignore}),
            )
            .await?;
        scene.succeeded(&first).await?;
        let api: Api<Deployment> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let name = scene.own("web");
        let state = |deployment: Deployment| {
            let spec = deployment.spec.unwrap_or_default();
            let containers = spec.template.spec.map(|pod| pod.containers).unwrap_or_default();
            let image = containers.first().and_then(|container| container.image.clone());
            (spec.replicas, image.unwrap_or_default())
        };
        assert_eq!(state(api.get(&name).await?).0, Some(3));
        let autoscaler = PatchParams {
            field_manager: Some("kube-controller-manager".into()),
            ..PatchParams::default()
        };
        let scale = Patch::Merge(json!({"spec": {"replicas": 8}}));
        api.patch_scale(&name, &autoscaler, &scale).await?;
        let writes = || -> Result<usize> {
            let path_end = format!("/deployments/{name}");
            Ok(scene.proxy("m1")?.patches(&path_end))
        };
        let before = writes()?;

        // A manual edit is repaired, which also shows that a drift check has run since.
        let by_hand =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "theirs"}]}}}});
        api.patch(&name, &PatchParams::default(), &Patch::Strategic(by_hand))
            .await?;
        wait::until(TIMEOUT, "the image repaired", async || {
            let (_, image) = state(api.get(&name).await.map_err(|e| e.to_string())?);
            if image == "registry.example/web:1" {
                Ok(())
            } else {
                Err(image)
            }
        })
        .await?;
        assert_eq!(state(api.get(&name).await?).0, Some(8));
        assert_eq!(writes()? - before, 1, "one write, for the image");

        let second = scene.repo.commit(
            &[("app/web.yaml", &deployment(scene, 4, "registry.example/web:2"))],
            "second",
        )?;
        scene.succeeded(&second).await?;
        assert_eq!(
            state(api.get(&name).await?),
            (Some(8), "registry.example/web:2".to_owned())
        );
        Ok(())
    })
}

/// An invalid pointer is refused before any rollout.
#[test]
fn an_invalid_ignore_rule_stalls_the_group_and_names_the_field() -> Result<()> {
    shared_scene("pointless", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene
            .group(
                json!({}),
                json!({"ignore": [{"paths": ["/data", "spec.replicas"]}]}),
            )
            .await?;
        let stalled = |group: &SyncGroup| {
            let conditions = group.status.as_ref().map(|status| status.conditions.as_slice());
            conditions::find(conditions.unwrap_or_default(), STALLED)
                .is_some_and(|stalled| stalled.reason == "InvalidSpec")
        };
        let group = scene.fleet().until(scene.name, "stalled", stalled).await?;
        let status = group.status.context("a status")?;
        let stalled = conditions::find(&status.conditions, STALLED).context("Stalled")?;
        let words = "spec.syncs[app].ignore[0].paths[1]: \"spec.replicas\" is not a JSON pointer";
        assert!(stalled.message.starts_with(words), "{}", stalled.message);
        assert_eq!(scene.value("m1", "a").await?, None);

        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app",
            "ignore": [{"paths": ["/metadata"]}]});
        let hand = scene.own("hand");
        scene
            .fleet()
            .put::<SyncResource>(json!({"metadata": {"name": hand}, "spec": spec}))
            .await?;
        let stalled = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "InvalidSpec".into());
        let sync: SyncResource = scene.fleet().until(&hand, "stalled", stalled).await?;
        let message = message(&sync, STALLED).unwrap_or_default();
        assert!(
            message.starts_with("spec.ignore[0].paths[0]: \"/metadata\""),
            "{message}"
        );
        Ok(())
    })
}

async fn annotate(scene: &Scene, name: &str, patch: Value) -> Result<()> {
    maps(scene)
        .await?
        .patch(&scene.own(name), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[test]
fn an_annotated_object_is_not_reconciled_and_reported_until_the_annotation_is_removed() -> Result<()> {
    shared_scene("marked", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"interval": "1s"})).await?;
        scene.succeeded(&first).await?;
        let disabled =
            json!({"metadata": {"annotations": {RECONCILE: "disabled"}}, "data": {"value": "mine"}});
        annotate(scene, "a", disabled).await?;
        let reported = |sync: &SyncResource| {
            message(sync, "Ready").is_some_and(|message| {
                message.ends_with("reconcile disabled (1): ConfigMap default/marked-a")
            })
        };
        let sync = scene.sync("m1", "said to be left alone", reported).await?;
        assert_eq!(sync_ready(&sync).0, "True", "nothing has failed");

        let second = scene.commit(&[("a", "two"), ("b", "two")])?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("two"));
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("mine"));
        let sync = scene.sync("m1", "still said", reported).await?;
        let status = sync.status.context("a status")?;
        assert_eq!(
            (
                status.changes.configured,
                status.changes.unchanged,
                status.inventory.objects
            ),
            (1, 1, 2)
        );

        annotate(
            scene,
            "a",
            json!({"metadata": {"annotations": {RECONCILE: null}}}),
        )
        .await?;
        scene.until_value("m1", "a", Some("two")).await?;
        let unchanged_map = |sync: &SyncResource| {
            message(sync, "Ready").is_some_and(|message| !message.contains("reconcile disabled"))
        };
        scene.sync("m1", "no longer said", unchanged_map).await?;
        Ok(())
    })
}
