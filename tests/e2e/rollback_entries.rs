//! Rollbacks to releases with entries that the spec of the group lacks now.

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::{SyncGroup, SyncGroupStatus, SyncResource};

use crate::deleting::until_gone;
use crate::operator_actions::say;
use crate::world::{Scene, config_map, shared_scene, sync_ready};

const CLUSTERS: [&str; 2] = ["m1", "m2"];

fn entry(scene: &Scene, name: &str, path: &str) -> Value {
    json!({"name": name, "sourceRef": {"name": scene.name}, "path": path, "deletionPolicy": "Delete",
        "retryInterval": "1s"})
}

/// Two entries at the first commit. Returns it, and the UIDs of the map `tool`.
async fn roll_out(scene: &Scene) -> Result<(String, Vec<Option<String>>)> {
    let tool = config_map(&scene.own("tool"), "one");
    let settings = config_map(&scene.own("settings"), "one");
    let files = [
        ("tools/tool.yaml", tool.as_str()),
        ("app/settings.yaml", settings.as_str()),
        ("both/settings.yaml", settings.as_str()),
        ("both/tool.yaml", tool.as_str()),
    ];
    let first = scene.repo.commit(&files, "two entries")?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    let syncs = json!([entry(scene, "app", "./app"), entry(scene, "tools", "./tools")]);
    let strategy = json!({"maxConcurrency": "100%", "rollback": {"type": "Immediate"}});
    let spec = json!({"clusterSelector": scene.selector(), "syncs": syncs, "rolloutStrategy": strategy});
    scene.fleet().put_group(scene.name, spec).await?;
    scene.succeeded(&first).await?;
    let uids = uids(scene).await?;
    assert!(uids.iter().all(Option::is_some));
    Ok((first, uids))
}

async fn uids(scene: &Scene) -> Result<Vec<Option<String>>> {
    let mut all = Vec::new();
    for member in CLUSTERS {
        all.push(scene.map(member, "tool").await?.and_then(|map| map.uid()));
    }
    Ok(all)
}

/// Rolls out another commit, so that the first one names its release, and then the entry `app` alone.
async fn last_release(scene: &Scene, path: &str) -> Result<()> {
    let note = config_map(&scene.own("note"), "two");
    let files = [("app/note.yaml", &*note), ("both/note.yaml", &*note)];
    let second = scene.repo.commit(&files, "a note")?;
    scene.succeeded(&second).await?;
    let patch = json!({"spec": {"syncs": [entry(scene, "app", path)]}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    Ok(())
}

async fn roll_back(scene: &Scene, first: &str) -> Result<SyncGroupStatus> {
    let arguments = ["--revision", &first[..10], "--reason", "the tool is missed"];
    say(scene, &[&["rollback", scene.name], &arguments[..]].concat()).await?;
    scene.succeeded(first).await
}

/// Guards against a removal that a person takes back by a rollback, and that goes on all the same.
#[test]
fn a_rollback_takes_the_removal_of_an_entry_back() -> Result<()> {
    shared_scene("entry-restored", async |scene| {
        let (first, before) = roll_out(scene).await?;
        let confirm =
            Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
        for member in CLUSTERS {
            let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
            maps.patch(&scene.own("tool"), &PatchParams::default(), &confirm)
                .await?;
        }
        last_release(scene, "./app").await?;
        for member in CLUSTERS {
            let name = format!("{}-tools-{member}", scene.name);
            let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
            let _: SyncResource = scene.fleet().until(&name, "held", is_held).await?;
        }
        roll_back(scene, &first).await?;
        for member in CLUSTERS {
            let name = format!("{}-tools-{member}", scene.name);
            let is_back = |sync: &SyncResource| {
                sync.metadata.deletion_timestamp.is_none() && sync_ready(sync).0 == "True"
            };
            let _: SyncResource = scene.fleet().until(&name, "it is back", is_back).await?;
        }
        assert_eq!(uids(scene).await?, before, "the map stays");
        Ok(())
    })
}

/// A release merged an entry into another one, and a rollback splits them again: each time the object is handed over.
#[test]
fn a_rollback_hands_objects_over_to_an_entry_that_the_spec_lacks() -> Result<()> {
    shared_scene("split-again", async |scene| {
        let (first, before) = roll_out(scene).await?;
        last_release(scene, "./both").await?;
        let gone = |member: &str| format!("{}-tools-{member}", scene.name);
        for member in CLUSTERS {
            until_gone::<SyncResource>(scene, &gone(member)).await?;
        }
        assert_eq!(uids(scene).await?, before, "merged");
        roll_back(scene, &first).await?;
        for member in CLUSTERS {
            scene.until_value(member, "note", None).await?;
            let owned = |sync: &SyncResource| sync_ready(sync).0 == "True";
            let _: SyncResource = scene.fleet().until(&gone(member), "it is back", owned).await?;
        }
        assert_eq!(uids(scene).await?, before, "split");
        Ok(())
    })
}
