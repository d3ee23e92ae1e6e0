//! Objects with several owners: other managers, other Syncs, other installations.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_api::{OWNER_LABEL, REQUESTED_AT, SyncGroup, SyncResource};
use starling_testkit::fleet::NAMESPACE;

use crate::world::{Scene, shared_scene, sync_ready};

async fn maps(scene: &Scene) -> Result<Api<ConfigMap>> {
    Ok(Api::namespaced(scene.fleet().member("m1").await?, "default"))
}

/// Returns object, reason and message of the first problem of a Sync.
fn problem(sync: &SyncResource) -> (String, String, String) {
    let problems = sync.status.as_ref().map(|status| status.problems.as_slice());
    problems
        .and_then(|problems| problems.first().cloned())
        .map(|problem| (problem.object, problem.reason, problem.message))
        .unwrap_or_default()
}

/// Requests a reconcile of a Sync.
async fn reconcile(scene: &Scene, sync: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
    scene.fleet().patch::<SyncResource>(sync, patch).await?;
    Ok(())
}

/// T65: another manager owns a field of an object that Starling does not own.
#[test]
fn t65_a_conflict_is_reported_by_object_field_and_manager_and_overridden_only_on_request() -> Result<()> {
    shared_scene("conflicted", async |scene| {
        let foreign: ConfigMap = serde_json::from_value(
            json!({"metadata": {"name": scene.own("taken")}, "data": {"value": "theirs"}}),
        )?;
        let somebody = PostParams {
            field_manager: Some("somebody".into()),
            ..PostParams::default()
        };
        maps(scene).await?.create(&somebody, &foreign).await?;

        let commit = scene.commit(&[("taken", "ours"), ("free", "ours")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"retryInterval": "1s"})).await?;
        let conflicted = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "Conflict".into());
        let sync = scene.sync("m1", "in conflict", conflicted).await?;
        let (object, reason, message) = problem(&sync);
        assert_eq!(object, "ConfigMap default/conflicted-taken");
        assert_eq!(reason, "Conflict");
        assert!(message.contains(".data.value is owned by somebody"), "{message}");
        scene.until_value("m1", "free", Some("ours")).await?;
        assert_eq!(scene.value("m1", "taken").await?.as_deref(), Some("theirs"));

        scene
            .group(json!({}), json!({"retryInterval": "1s", "conflicts": "Override"}))
            .await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.value("m1", "taken").await?.as_deref(), Some("ours"));
        let sync = scene
            .sync("m1", "without problems", |sync| problem(sync).0.is_empty())
            .await?;
        assert_eq!(sync_ready(&sync).0, "True");
        Ok(())
    })
}

/// Two groups render the same object: the first keeps it, and the second reports it. Once the first is deleted, the
/// second adopts it.
#[test]
fn t65_an_object_of_another_sync_is_not_adopted_while_that_sync_renders_it() -> Result<()> {
    shared_scene("disputed", async |scene| {
        let commit = scene.commit(&[("shared", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        let first = scene.map("m1", "shared").await?.context("the map")?;

        let second = scene.own("two");
        let entry =
            json!({"name": "app", "sourceRef": {"name": scene.name}, "path": "./app", "retryInterval": "1s"});
        scene
            .fleet()
            .put_group(
                &second,
                json!({"clusterSelector": scene.selector(), "syncs": [entry]}),
            )
            .await?;
        let second_sync = format!("{second}-app-m1");
        let refused = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "OwnedByOther".into());
        let sync = scene
            .fleet()
            .until::<SyncResource>(&second_sync, "refused", refused)
            .await?;
        let (object, reason, message) = problem(&sync);
        assert_eq!(
            (object.as_str(), reason.as_str()),
            ("ConfigMap default/disputed-shared", "OwnedByOther")
        );
        let expected = format!("it belongs to Sync {NAMESPACE}/{}", scene.sync_name("m1"));
        assert!(message.ends_with(&expected), "{message}");
        let now = scene.map("m1", "shared").await?.context("the map")?;
        assert_eq!(now.metadata.resource_version, first.metadata.resource_version);

        // The first is deleted; its objects stay without an owner.
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        scene
            .fleet()
            .delete::<SyncResource>(&scene.sync_name("m1"))
            .await?;
        reconcile(scene, &second_sync).await?;
        let took = |sync: &SyncResource| sync_ready(sync).0 == "True";
        scene
            .fleet()
            .until::<SyncResource>(&second_sync, "it has it", took)
            .await?;
        let after = scene.map("m1", "shared").await?.context("the map")?;
        assert_eq!(after.metadata.uid, first.metadata.uid);
        assert_ne!(owner(&after), owner(&first));
        Ok(())
    })
}

fn owner(map: &ConfigMap) -> Option<&String> {
    map.metadata.labels.as_ref()?.get(OWNER_LABEL)
}

/// An object that moves from one folder to another is handed over: afterwards only one Sync renders it.
#[test]
fn an_object_that_moves_to_another_entry_is_handed_over() -> Result<()> {
    shared_scene("moving", async |scene| {
        let text = |name: &str, value| crate::world::config_map(&scene.own(name), value);
        let files = [
            ("a/keeps.yaml", text("keeps-a", "one")),
            ("b/keeps.yaml", text("keeps-b", "one")),
            ("a/moves.yaml", text("moves", "one")),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        let first = scene.repo.commit(&files, "in a")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str| json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"), "retryInterval": "1s"});
        let spec = json!({"clusterSelector": scene.selector(), "syncs": [entry("a"), entry("b")]});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&first).await?;
        let before = scene.map("m1", "moves").await?.context("the map")?;

        scene.repo.remove(&["a/moves.yaml"], "from a")?;
        let second = scene
            .repo
            .commit(&[("b/moves.yaml", &text("moves", "two"))], "to b")?;
        scene.succeeded(&second).await?;
        scene.until_value("m1", "moves", Some("two")).await?;
        let after = scene.map("m1", "moves").await?.context("the map")?;
        assert_ne!(owner(&after), owner(&before));
        let keeps = scene.map("m1", "keeps-b").await?.context("the map")?;
        assert_eq!(owner(&after), owner(&keeps));
        Ok(())
    })
}

/// The label of an unknown owner: another installation of Starling has taken the object.
#[test]
fn t65_an_object_of_another_installation_is_reported_and_not_written() -> Result<()> {
    shared_scene("abroad", async |scene| {
        let commit = scene.commit(&[("a", "ours"), ("b", "ours")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene
            .group(json!({}), json!({"interval": "1s", "retryInterval": "1s"}))
            .await?;
        scene.succeeded(&commit).await?;
        let other_installation = "0123456789abcdef0123456789abcdef";
        let label = |owner: Option<&str>| json!({"metadata": {"labels": {OWNER_LABEL: owner}}, "data": {"value": "theirs"}});
        edit(scene, "a", label(Some(other_installation))).await?;
        let refused = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "OwnedByOther".into());
        let sync = scene.sync("m1", "reported", refused).await?;
        let (object, _, message) = problem(&sync);
        assert_eq!(object, "ConfigMap default/abroad-a");
        assert!(message.contains(other_installation), "{message}");
        // The other object is still reconciled.
        edit(scene, "b", json!({"data": {"value": "wrong"}})).await?;
        reconcile(scene, &scene.sync_name("m1")).await?;
        scene.until_value("m1", "b", Some("ours")).await?;
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("theirs"));

        edit(scene, "a", label(None)).await?;
        reconcile(scene, &scene.sync_name("m1")).await?;
        scene.until_value("m1", "a", Some("ours")).await?;
        let healed = |sync: &SyncResource| sync_ready(sync).0 == "True" && problem(sync).0.is_empty();
        scene.sync("m1", "healed", healed).await?;
        Ok(())
    })
}

async fn edit(scene: &Scene, name: &str, patch: Value) -> Result<()> {
    let somebody = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    maps(scene)
        .await?
        .patch(&scene.own(name), &somebody, &Patch::Merge(patch))
        .await?;
    Ok(())
}
