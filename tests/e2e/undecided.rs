//! Syncs of a group that others delete, before the group has decided to remove them.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{ABANDON, Source, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::{Change, Fault, Match, wait};

use crate::deleting::{until_event, until_gone};
use crate::unnoticed_requests::message;
use crate::world::{Scene, all, config_map, shared_scene};

const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];

fn waits_for_group(sync: &SyncResource) -> bool {
    let status = sync.status.clone().unwrap_or_default();
    let ready = conditions::find(&status.conditions, READY);
    ready.is_some_and(|ready| ready.reason == "GroupStopped" && ready.message.contains("has not decided"))
}

/// Rolls out the map `settings` of one entry to three clusters, which lose it if they leave.
async fn roll_out(scene: &Scene, strategy: Value) -> Result<()> {
    let commit = scene.commit(&[("settings", "one")])?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    scene.label("m1", &scene.own("stage"), Some("canary")).await?;
    let fields = json!({"deletionPolicy": "Delete", "retryInterval": "1s"});
    scene.group(strategy, fields).await?;
    let patch =
        json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "10m", "maxUnselected": "100%"}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    scene.succeeded(&commit).await?;
    assert_eq!(scene.values(&CLUSTERS, "settings").await?, all("one", 3));
    Ok(())
}

/// `kubectl delete syncgroup --cascade=foreground`: the garbage collector deletes the Syncs at once, before the group.
#[test]
fn a_group_that_is_deleted_with_all_its_syncs_at_once_keeps_the_order_of_its_stages() -> Result<()> {
    shared_scene("foreground", async |scene| {
        let canary = json!({"name": "canary",
            "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}}});
        roll_out(scene, json!({"maxConcurrency": 3, "stages": [canary]})).await?;
        let patch = json!({"spec": {"deletionPolicy": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let canary = scene.proxy("m1")?;
        let stuck = canary.on(
            Match::method(Method::DELETE),
            Fault::status(StatusCode::SERVICE_UNAVAILABLE),
        );
        let groups = scene.fleet().api::<SyncGroup>();
        groups.delete(scene.name, &DeleteParams::default()).await?;
        for cluster in CLUSTERS {
            scene
                .fleet()
                .delete::<SyncResource>(&scene.sync_name(cluster))
                .await?;
        }
        let waits_for_canary = |status: &SyncGroupStatus| {
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.message.contains("wait for the stages"))
        };
        scene.status("the canary goes first", waits_for_canary).await?;
        for cluster in &CLUSTERS[1..] {
            scene
                .sync(cluster, "waits for its group", waits_for_group)
                .await?;
        }
        assert_eq!(scene.values(&CLUSTERS[1..], "settings").await?, all("one", 2));
        canary.remove(&stuck);
        until_gone::<SyncGroup>(scene, scene.name).await?;
        assert_eq!(scene.values(&CLUSTERS, "settings").await?, vec![None; 3]);
        Ok(())
    })
}

#[test]
fn a_sync_of_a_cluster_that_left_keeps_its_objects_for_the_grace_whoever_deletes_it() -> Result<()> {
    shared_scene("manual-grace", async |scene| {
        roll_out(scene, json!({})).await?;
        let before = scene.map("m1", "settings").await?.context("settings")?;
        let sync = scene.sync_name("m1");
        let first: SyncResource = scene.fleet().get(&sync).await?;
        scene.label("m1", scene.name, None).await?;
        scene.fleet().delete::<SyncResource>(&sync).await?;
        scene.sync("m1", "waits for its group", waits_for_group).await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));
        // The label returns within the grace.
        scene.label("m1", scene.name, Some("yes")).await?;
        let is_new =
            |sync: &SyncResource| sync.uid() != first.uid() && crate::world::sync_ready(sync).0 == "True";
        scene.sync("m1", "is created anew", is_new).await?;
        let after = scene.map("m1", "settings").await?.context("settings")?;
        assert_eq!(after.uid(), before.uid());

        // The policy is set while the removal waits.
        scene.label("m2", scene.name, None).await?;
        scene
            .fleet()
            .delete::<SyncResource>(&scene.sync_name("m2"))
            .await?;
        scene.sync("m2", "waits for its group", waits_for_group).await?;
        let patch = json!({"spec": {"whenUnselected": "Orphan"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m2")).await?;
        assert_eq!(scene.value("m2", "settings").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// The policy is set, and the entry taken out, while the removal of a cluster that left is under way.
#[test]
fn a_cluster_that_left_keeps_its_objects_although_its_entry_leaves_too() -> Result<()> {
    shared_scene("leave-both", async |scene| {
        roll_out(scene, json!({})).await?;
        let patch = json!({"spec": {"unselectedGrace": "0s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let before = scene.map("m1", "settings").await?.context("settings")?;
        let delete = Match::method(Method::DELETE).path_ends_with(scene.own("settings"));
        let stuck = scene
            .proxy("m1")?
            .on(delete, Fault::status(StatusCode::SERVICE_UNAVAILABLE));
        scene.label("m1", scene.name, None).await?;
        wait::until(Duration::from_secs(60), "the deletion fails", async || {
            stuck.fired() > 0
        })
        .await?;
        let other = json!({"name": "other", "sourceRef": {"name": scene.name}, "path": "./app"});
        let patch = json!({"spec": {"whenUnselected": "Orphan", "syncs": [other]}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.proxy("m1")?.remove(&stuck);
        until_gone::<SyncResource>(scene, &scene.sync_name("m1")).await?;
        let after = scene.map("m1", "settings").await?.context("settings")?;
        assert_eq!(
            (after.uid(), after.meta().deletion_timestamp.clone()),
            (before.uid(), None)
        );
        Ok(())
    })
}

/// It is not known which clusters the group wants. The Sync says so, and a person can give its objects up.
#[test]
fn a_sync_of_a_group_with_an_invalid_selector_waits_and_can_be_abandoned() -> Result<()> {
    shared_scene("odd-selector", async |scene| {
        roll_out(scene, json!({})).await?;
        let expression = json!({"key": "tier", "operator": "In", "values": []});
        let patch = json!({"spec": {"clusterSelector": {"matchExpressions": [expression]}}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let sync = scene.sync_name("m1");
        scene.fleet().delete::<SyncResource>(&sync).await?;
        let told = |sync: &SyncResource| {
            let (status, reason) = crate::world::sync_ready(sync);
            let why = format!("the clusterSelector of SyncGroup {} is invalid", scene.name);
            status == "False" && reason == "GroupStopped" && message(sync).contains(&why)
        };
        scene.sync("m1", "names the selector", told).await?;
        let abandon = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene.fleet().patch::<SyncResource>(&sync, abandon).await?;
        until_gone::<SyncResource>(scene, &sync).await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));
        let patch = json!({"spec": {"clusterSelector": {"matchExpressions": null}}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        Ok(())
    })
}

/// A person gave up a cluster that has returned since.
#[test]
fn an_abandoned_sync_leaves_its_objects_on_a_cluster_that_is_ready() -> Result<()> {
    shared_scene("given-up", async |scene| {
        roll_out(scene, json!({})).await?;
        let sync = scene.sync_name("m3");
        let patch = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene.fleet().patch::<SyncResource>(&sync, patch).await?;
        let patch = json!({"spec": {"unselectedGrace": "0s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.label("m3", scene.name, None).await?;
        until_gone::<SyncResource>(scene, &sync).await?;
        let note = until_event(scene, &sync, "ObjectsOrphaned").await?;
        assert!(note.contains("abandoned"), "{note}");
        assert_eq!(scene.value("m3", "settings").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// The policy was set to Orphan in a suspended group, so that no release brought it to the Syncs before the entry was
/// taken out.
#[test]
fn an_entry_that_was_set_to_orphan_while_its_group_was_suspended_keeps_its_objects() -> Result<()> {
    shared_scene("last-word", async |scene| {
        let tool = config_map(&scene.own("tool"), "one");
        scene
            .repo
            .commit(&[("tools/tool.yaml", tool.as_str())], "tools")?;
        let commit = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        let entry = |name: &str, policy: &str| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
                "deletionPolicy": policy})
        };
        let put = async |entries: Value, suspend: bool| {
            let spec = json!({"clusterSelector": scene.selector(), "syncs": entries, "suspend": suspend});
            scene.fleet().put_group(scene.name, spec).await
        };
        let (app, tools) = (entry("app", "Delete"), entry("tools", "Delete"));
        put(json!([app, tools]), false).await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));

        put(json!([app, entry("tools", "Orphan")]), true).await?;
        let is_kept = |status: &SyncGroupStatus| status.kept_entries == ["tools"];
        scene.status("the entry is kept", is_kept).await?;
        put(json!([app]), true).await?;
        put(json!([app]), false).await?;
        for cluster in CLUSTERS {
            let sync = format!("{}-tools-{cluster}", scene.name);
            until_gone::<SyncResource>(scene, &sync).await?;
        }
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        scene
            .status("nothing is kept any more", |status| {
                status.kept_entries.is_empty()
            })
            .await?;
        Ok(())
    })
}

/// One release takes the objects of two entries away, and the dependency between them.
#[test]
fn an_operator_is_pruned_after_its_instances_although_the_release_drops_the_dependency() -> Result<()> {
    shared_scene("undepended", async |scene| {
        let map = |name: &str| config_map(&scene.own(name), "one");
        let (operator, base, instance, top) = (map("operator"), map("base"), map("instance"), map("top"));
        let files = [
            ("base/operator.yaml", operator.as_str()),
            ("base/base.yaml", base.as_str()),
            ("top/instance.yaml", instance.as_str()),
            ("top/top.yaml", top.as_str()),
        ];
        let commit = scene.repo.commit(&files, "an operator and its instance")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str, on: Value| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"), "dependsOn": on,
                "retryInterval": "1s"})
        };
        let put = async |on: Value, suspend: bool| {
            let entries = [entry("base", json!([])), entry("top", on)];
            let spec = json!({"clusterSelector": scene.selector(), "syncs": entries, "suspend": suspend});
            scene.fleet().put_group(scene.name, spec).await
        };
        let depends = || json!([{"name": "base"}]);
        put(depends(), false).await?;
        scene.succeeded(&commit).await?;
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let instance = scene.own("instance");
        let hold = async |finalizers: Value| {
            let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
            maps.patch(&instance, &PatchParams::default(), &patch).await
        };
        hold(json!(["example.test/hold"])).await?;

        put(depends(), true).await?;
        let gone = [
            Change::Remove("base/operator.yaml"),
            Change::Remove("top/instance.yaml"),
        ];
        let commit = scene.repo.commit_to("main", &gone, "both go")?;
        // With a change of the group before the commit is known, they would be two releases.
        let is_fetched = |source: &Source| {
            let status = source.status.as_ref();
            status.is_some_and(|status| status.revision.ends_with(&commit))
        };
        scene
            .fleet()
            .until::<Source>(scene.name, "the commit", is_fetched)
            .await?;
        put(json!([]), true).await?;
        put(json!([]), false).await?;
        wait::until(
            Duration::from_secs(60),
            "the instance is being deleted",
            async || {
                let found = maps.get_opt(&instance).await.map_err(|error| error.to_string())?;
                let found = found.ok_or("it is gone")?;
                let is_deleted = found.meta().deletion_timestamp.is_some();
                is_deleted.then_some(()).ok_or_else(|| "not yet".to_owned())
            },
        )
        .await?;
        let (base, top) = (
            format!("{}-base-m1", scene.name),
            format!("{}-top-m1", scene.name),
        );
        let waits = |sync: &SyncResource| {
            let pending = sync
                .status
                .as_ref()
                .and_then(|status| status.pending_deletions.as_ref());
            pending.is_some_and(|pending| pending.waiting_for.contains(&top))
        };
        scene
            .fleet()
            .until(&base, "waits for its former dependent", waits)
            .await?;
        assert_eq!(scene.value("m1", "operator").await?.as_deref(), Some("one"));
        hold(json!(null)).await?;
        scene.until_value("m1", "operator", None).await?;
        assert_eq!(scene.value("m1", "instance").await?, None);
        assert_eq!(scene.value("m1", "base").await?.as_deref(), Some("one"));
        Ok(())
    })
}
