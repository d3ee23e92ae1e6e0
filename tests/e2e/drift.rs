//! Manual changes on a member are repaired.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use starling_api::{Cluster, OWNER_LABEL, REQUESTED_AT, SYSTEM_NAMESPACE, SyncGroup, SyncResource};
use starling_testkit::fleet::{Kind, TIMEOUT};
use starling_testkit::{Fault, Match, wait};

use crate::deleting::{sync_on, until_event};
use crate::world::{Scene, exclusive_scene, shared_scene, sync_ready};

#[test]
fn a_manual_edit_and_a_manual_deletion_are_repaired() -> Result<()> {
    shared_scene("drifting", async |scene| {
        let commit = scene.commit(&[("edited", "right"), ("deleted", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({}), json!({"interval": "2s"})).await?;
        scene.succeeded(&commit).await?;
        let other = scene.map("m2", "edited").await?.context("the map on m2")?;

        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let edited = json!({"data": {"value": "wrong", "more": "mine"}});
        let edit = PatchParams {
            field_manager: Some("somebody".into()),
            ..PatchParams::default()
        };
        let edited = api
            .patch(&scene.own("edited"), &edit, &Patch::Merge(edited))
            .await?;
        assert_eq!(edited.data.context("data")?["value"], "wrong");
        api.delete(&scene.own("deleted"), &DeleteParams::default())
            .await?;
        scene.until_value("m1", "edited", Some("right")).await?;
        scene.until_value("m1", "deleted", Some("right")).await?;
        // Fields that are not in git are not changed.
        let repaired = scene.map("m1", "edited").await?.context("the map on m1")?;
        assert_eq!(
            repaired.data.unwrap_or_default().get("more").map(String::as_str),
            Some("mine")
        );
        let still = scene.map("m2", "edited").await?.context("the map on m2")?;
        assert_eq!(
            still.metadata.resource_version, other.metadata.resource_version,
            "m2 was in step"
        );
        Ok(())
    })
}

/// The metadata of the objects does not show that the inventory lacks some of them, and what it lacks is never pruned.
#[test]
fn an_inventory_that_another_writer_changed_is_noticed_and_mended() -> Result<()> {
    shared_scene("listed", async |scene| {
        let commit = scene.commit(&[("a", "right"), ("b", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"interval": "2s"})).await?;
        scene.succeeded(&commit).await?;
        let map = scene.map("m1", "a").await?.context("the map")?;
        let owner = map.labels().get(OWNER_LABEL).cloned().context("an owner")?;
        let name = format!("starling-inventory-{owner}");
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, SYSTEM_NAMESPACE);
        api.delete(&name, &DeleteParams::default()).await?;
        wait::until(TIMEOUT, "the inventory is back", async || {
            let found = api.get_opt(&name).await.map_err(|error| error.to_string())?;
            found.map(|_| ()).ok_or_else(|| "no inventory".to_owned())
        })
        .await?;
        let note = until_event(scene, &scene.sync_name("m1"), "InventoryChanged").await?;
        ensure!(note.contains("lists 0 objects, and 2 before"), "{note}");
        let still = scene.map("m1", "a").await?.context("the map")?;
        assert_eq!(still.metadata.resource_version, map.metadata.resource_version);
        let second = scene.repo.remove(&["app/b.yaml"], "without b")?;
        scene.succeeded(&second).await?;
        scene.until_value("m1", "b", None).await?;
        Ok(())
    })
}

/// No drift check comes between: the attempt itself notices that nothing is listed any more.
#[test]
fn tenant_an_inventory_that_is_gone_before_the_next_commit_is_reported() -> Result<()> {
    shared_scene("unlisted", async |scene| {
        let commit = scene.commit(&[("a", "right"), ("b", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"interval": "1h"})).await?;
        scene.succeeded(&commit).await?;
        let map = scene.map("m1", "a").await?.context("the map")?;
        let owner = map.labels().get(OWNER_LABEL).cloned().context("an owner")?;
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, SYSTEM_NAMESPACE);
        api.delete(&format!("starling-inventory-{owner}"), &DeleteParams::default())
            .await?;
        let second = scene.repo.remove(&["app/b.yaml"], "without b")?;
        scene.succeeded(&second).await?;
        let note = until_event(scene, &scene.sync_name("m1"), "InventoryChanged").await?;
        ensure!(note.contains("lists 0 objects, and 2 before"), "{note}");
        Ok(())
    })
}

/// Changes a value and puts `managedFields` back, so that no check of metadata finds it. A member that is restored to
/// the second of an apply has such values.
async fn change_unnoticeably(scene: &Scene, member: &str, name: &str) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
    let name = scene.own(name);
    let entries = api.get(&name).await?.metadata.managed_fields;
    let somebody = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    for patch in [
        json!({"data": {"value": "wrong"}}),
        json!({"metadata": {"managedFields": entries}}),
    ] {
        api.patch(&name, &somebody, &Patch::Merge(patch)).await?;
    }
    let changed = api.get(&name).await?;
    ensure!(changed.metadata.managed_fields == entries, "{changed:?}");
    ensure!(changed.data.unwrap_or_default()["value"] == "wrong");
    Ok(())
}

async fn request<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
    scene.fleet().patch::<K>(name, patch).await?;
    Ok(())
}

/// A requested reconcile believes no record: it reads every object, and writes those that differ.
#[test]
fn a_request_on_a_sync_a_cluster_or_a_group_compares_every_object() -> Result<()> {
    exclusive_scene("compared", async |scene| {
        let commit = scene.commit(&[("changed", "right"), ("quiet", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        let quiet = scene.map("m1", "quiet").await?.context("the map")?;

        change_unnoticeably(scene, "m1", "changed").await?;
        request::<SyncResource>(scene, &scene.sync_name("m1")).await?;
        scene.until_value("m1", "changed", Some("right")).await?;

        for member in ["m1", "m2"] {
            change_unnoticeably(scene, member, "changed").await?;
        }
        request::<Cluster>(scene, "m1").await?;
        scene.until_value("m1", "changed", Some("right")).await?;
        assert_eq!(
            scene.value("m2", "changed").await?.as_deref(),
            Some("wrong"),
            "only m1 was requested"
        );

        request::<SyncGroup>(scene, scene.name).await?;
        scene.until_value("m2", "changed", Some("right")).await?;

        let path_end = format!("/configmaps/{}", scene.own("quiet"));
        let requests = scene.proxy("m1")?.requests();
        let applies = requests
            .iter()
            .filter(|request| request.is_patch() && request.path.ends_with(&path_end));
        assert_eq!(applies.count(), 1, "an object in step is applied once");
        let still = scene.map("m1", "quiet").await?.context("the map")?;
        assert_eq!(still.metadata.resource_version, quiet.metadata.resource_version);
        Ok(())
    })
}

/// Waits until a Sync has handled its request.
async fn until_handled(scene: &Scene, name: &str) -> Result<()> {
    let handled = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        status.is_some_and(|status| !status.last_handled_reconcile_at.is_empty())
    };
    scene.fleet().until(name, "handled", handled).await?;
    Ok(())
}

/// Guards against a request that is handled without a comparison: the list that comes first was not answered in time.
#[test]
fn a_request_whose_first_list_times_out_compares_every_object_later() -> Result<()> {
    exclusive_scene("late-list", async |scene| {
        let commit = scene.commit(&[("changed", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"timeout": "3s", "interval": "1h", "retryInterval": "2s"});
        scene.group(json!({}), fields).await?;
        scene.succeeded(&commit).await?;
        change_unnoticeably(scene, "m1", "changed").await?;
        let list = Match::method(Method::GET).path_ends_with("/api/v1/configmaps");
        let silent = scene.proxy("m1")?.on(list, Fault::BlackHole);
        let name = scene.sync_name("m1");
        request::<SyncResource>(scene, &name).await?;
        until_handled(scene, &name).await?;
        scene.proxy("m1")?.remove(&silent);
        scene.until_value("m1", "changed", Some("right")).await
    })
}

/// The same while the Sync waits for another one.
#[test]
fn a_request_that_comes_during_a_wait_compares_every_object_after_it() -> Result<()> {
    shared_scene("wait-asked", async |scene| {
        scene.commit(&[("changed", "right"), ("other", "one")])?;
        scene.follow_main().await?;
        let fields = json!({"interval": "1h", "retryInterval": "2s"});
        let name = sync_on(scene, "sync", "m1", fields).await?;
        change_unnoticeably(scene, "m1", "changed").await?;
        let depends = |on: Value| json!({"spec": {"dependsOn": on}});
        let on = json!([{"name": scene.own("missing")}]);
        scene.fleet().patch::<SyncResource>(&name, depends(on)).await?;
        scene.commit(&[("changed", "right"), ("other", "two")])?;
        let waits = |sync: &SyncResource| sync_ready(sync).1 == "DependencyNotReady";
        scene.fleet().until(&name, "waits", waits).await?;
        request::<SyncResource>(scene, &name).await?;
        until_handled(scene, &name).await?;
        scene
            .fleet()
            .patch::<SyncResource>(&name, depends(json!(null)))
            .await?;
        scene.until_value("m1", "other", Some("two")).await?;
        scene.until_value("m1", "changed", Some("right")).await
    })
}
