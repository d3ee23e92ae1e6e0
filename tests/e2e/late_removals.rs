//! Removals that were held until they gave their slots back. One approval is for all clusters: what it lets go of goes
//! in a window, in the order of stages, and in slots.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Change, Fault, Match, wait};

use crate::operator_actions::say;
use crate::unnoticed_requests::message;
use crate::world::{Scene, all, config_map, shared_scene, sync_ready};

const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];
/// The `progressDeadline`: how long a removal keeps its slot.
const SLOT: Duration = Duration::from_secs(12);
/// How long each cluster takes to delete an object.
const SLOW: Duration = Duration::from_secs(4);

fn entries(scene: &Scene, with_tools: bool) -> Value {
    let entry = |name: &str| {
        json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
            "deletionPolicy": "Delete", "retryInterval": "1s"})
    };
    let mut entries = vec![entry("app")];
    entries.extend(with_tools.then(|| entry("tools")));
    json!(entries)
}

/// Rolls out the map `tool` of the entry `tools`, which asks for an approval before it is deleted. `m1` may be the
/// canary.
async fn roll_out(scene: &Scene, has_canary: bool) -> Result<()> {
    let tool = config_map(&scene.own("tool"), "one");
    let settings = config_map(&scene.own("settings"), "one");
    let files = [
        ("tools/tool.yaml", tool.as_str()),
        ("app/settings.yaml", settings.as_str()),
    ];
    let commit = scene.repo.commit(&files, "two entries")?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    scene.label("m1", &scene.own("stage"), Some("canary")).await?;
    let canary =
        json!({"name": "canary", "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}}});
    let stages: Vec<Value> = has_canary.then_some(canary).into_iter().collect();
    let spec = json!({"clusterSelector": scene.selector(), "syncs": entries(scene, true),
        "deletionPolicy": "Delete", "rolloutStrategy": {"maxConcurrency": 3, "stages": stages}});
    scene.fleet().put_group(scene.name, spec).await?;
    scene.succeeded(&commit).await?;
    assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
    let confirm = Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
    for member in CLUSTERS {
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
        maps.patch(&scene.own("tool"), &PatchParams::default(), &confirm)
            .await?;
        let delete = Match::method(Method::DELETE).path_ends_with(scene.own("tool"));
        scene.proxy(member)?.on(delete, Fault::Latency(SLOW));
    }
    Ok(())
}

fn tools(scene: &Scene, member: &str) -> String {
    format!("{}-tools-{member}", scene.name)
}

/// Waits until the removals of all clusters are held and have given their slots back. Returns the digest.
async fn all_late(scene: &Scene) -> Result<String> {
    let (mut begun, mut digest) = (Timestamp::MIN, String::new());
    for member in CLUSTERS {
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let sync: SyncResource = scene
            .fleet()
            .until(&tools(scene, member), "held", is_held)
            .await?;
        let deleted_at = sync
            .metadata
            .deletion_timestamp
            .as_ref()
            .context("being deleted")?;
        begun = begun.max(deleted_at.0);
        digest = sync
            .status
            .unwrap_or_default()
            .held_deletions
            .context("held")?
            .digest;
    }
    // Times of the API server are whole seconds.
    let late_at = begun + SignedDuration::try_from(SLOT)? + SignedDuration::from_secs(2);
    wait::until(TIMEOUT, "the slots are given back", async || {
        let now = Timestamp::now();
        (now >= late_at).then_some(()).ok_or_else(|| now.to_string())
    })
    .await?;
    Ok(digest)
}

async fn patch_strategy(scene: &Scene, strategy: Value) -> Result<()> {
    let patch = json!({"spec": {"rolloutStrategy": strategy}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    Ok(())
}

async fn approve(scene: &Scene, digest: &str) -> Result<()> {
    let arguments = ["--digest", digest, "--reason", "nobody needs it"];
    say(
        scene,
        &[&["approve-deletions", "group", scene.name], &arguments[..]].concat(),
    )
    .await?;
    Ok(())
}

/// Waits until the Syncs of all clusters say what they wait for.
async fn all_wait(scene: &Scene, what: &str) -> Result<()> {
    for member in CLUSTERS {
        let waits = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.reason == "GroupStopped" && ready.message.contains(what))
        };
        let _: SyncResource = scene.fleet().until(&tools(scene, member), what, waits).await?;
    }
    Ok(())
}

/// When each cluster was told to delete the map, in the order of the clusters.
fn deletions(scene: &Scene) -> Result<Vec<Timestamp>> {
    let path_end = scene.own("tool");
    let mut all = Vec::new();
    for member in CLUSTERS {
        let requests = scene.proxy(member)?.requests().into_iter();
        let deletes =
            requests.filter(|request| request.method == Method::DELETE && request.path.ends_with(&path_end));
        all.extend(deletes.map(|request| request.when).min());
    }
    Ok(all)
}

async fn gone_in_slots(scene: &Scene) -> Result<Vec<Timestamp>> {
    for member in CLUSTERS {
        scene.until_value(member, "tool", None).await?;
    }
    let times = deletions(scene)?;
    ensure!(times.len() == CLUSTERS.len(), "{times:?}");
    let mut sorted = times.clone();
    sorted.sort();
    for pair in sorted.windows(2) {
        let [first, second] = pair else { continue };
        let apart = first.duration_until(*second);
        ensure!(apart >= SignedDuration::try_from(SLOW)?, "at once: {times:?}");
    }
    Ok(times)
}

/// The plans that let the Syncs delete are recorded, and keep the rules.
async fn verified(scene: &Scene) -> Result<()> {
    let directory = scene.fleet().data_dir().to_string_lossy().into_owned();
    let arguments = ["verify", scene.name, "--data-dir", &directory, "-o", "json"];
    let verified: Value = serde_json::from_str(&say(scene, &arguments).await?)?;
    assert_eq!(verified["journals"][0]["violations"], json!([]), "{verified:#}");
    Ok(())
}

fn closed() -> Value {
    json!({"maxConcurrency": 1, "windows": [{"deny": "Mon-Sun 00:00-24:00"}]})
}

/// Guards against the deletion on all clusters at once, and in a closed window, that one approval caused.
#[test]
fn a_removed_entry_that_was_held_goes_in_a_window_and_in_slots() -> Result<()> {
    shared_scene("late-entry", async |scene| {
        roll_out(scene, false).await?;
        patch_strategy(scene, json!({"progressDeadline": format!("{}s", SLOT.as_secs())})).await?;
        let patch = json!({"spec": {"syncs": entries(scene, false)}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let digest = all_late(scene).await?;
        patch_strategy(scene, closed()).await?;
        approve(scene, &digest).await?;
        all_wait(scene, "no window of SyncGroup").await?;
        let waiting_at = Timestamp::now();
        assert_eq!(deletions(scene)?, []);
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        patch_strategy(scene, json!({"windows": null})).await?;
        gone_in_slots(scene).await?;
        verified(scene).await?;
        let (directory, at) = (scene.fleet().data_dir(), waiting_at.to_string());
        let directory = directory.to_string_lossy();
        let why = say(scene, &["why", scene.name, "--at", &at, "--data-dir", &directory]).await?;
        let reason = "objects of removed Syncs are not deleted: no window of the cluster is open";
        assert!(why.contains(reason), "{why}");
        Ok(())
    })
}

/// The same for a prune, whose approval is for all clusters as well.
#[test]
fn a_prune_that_was_held_goes_in_a_window_and_in_slots() -> Result<()> {
    shared_scene("late-prune", async |scene| {
        roll_out(scene, false).await?;
        let other = config_map(&scene.own("other"), "one");
        let changes = [
            Change::Remove("tools/tool.yaml"),
            Change::Write("tools/other.yaml", other.as_bytes()),
        ];
        scene.repo.commit_to("main", &changes, "another tool")?;
        let mut digest = String::new();
        for member in CLUSTERS {
            let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
            let sync: SyncResource = scene
                .fleet()
                .until(&tools(scene, member), "held", is_held)
                .await?;
            let status = sync.status.unwrap_or_default();
            digest = status.held_deletions.context("held")?.digest;
        }
        patch_strategy(scene, closed()).await?;
        approve(scene, &digest).await?;
        for member in CLUSTERS {
            let waits = |sync: &SyncResource| message(sync).contains("no window of");
            scene
                .fleet()
                .until::<SyncResource>(&tools(scene, member), "waits for a window", waits)
                .await?;
        }
        assert_eq!(deletions(scene)?, []);
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        patch_strategy(scene, json!({"windows": null})).await?;
        gone_in_slots(scene).await?;
        verified(scene).await
    })
}

#[test]
fn a_deleted_group_that_was_held_goes_in_a_window_in_the_order_of_stages_and_in_slots() -> Result<()> {
    shared_scene("late-group", async |scene| {
        roll_out(scene, true).await?;
        patch_strategy(scene, json!({"progressDeadline": format!("{}s", SLOT.as_secs())})).await?;
        let groups = scene.fleet().api::<SyncGroup>();
        groups.delete(scene.name, &DeleteParams::default()).await?;
        let digest = all_late(scene).await?;
        patch_strategy(scene, closed()).await?;
        approve(scene, &digest).await?;
        all_wait(scene, "SyncGroup").await?;
        assert_eq!(deletions(scene)?, []);
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        patch_strategy(scene, json!({"windows": null})).await?;
        let times = gone_in_slots(scene).await?;
        assert_eq!(times.iter().min(), times.first(), "the canary first: {times:?}");
        let gone = wait::until(TIMEOUT, "the group is gone", async || {
            let found = groups
                .get_opt(scene.name)
                .await
                .map_err(|error| error.to_string())?;
            found
                .is_none()
                .then_some(())
                .ok_or_else(|| "it is there".to_owned())
        });
        gone.await?;
        verified(scene).await
    })
}

/// The group is suspended after the approval, and before its slot comes.
#[test]
fn a_removal_that_was_held_waits_for_a_group_that_was_suspended_since() -> Result<()> {
    shared_scene("held-suspend", async |scene| {
        roll_out(scene, false).await?;
        patch_strategy(scene, json!({"progressDeadline": format!("{}s", SLOT.as_secs())})).await?;
        let patch = json!({"spec": {"syncs": entries(scene, false)}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let digest = all_late(scene).await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true))
            .await?;
        approve(scene, &digest).await?;
        all_wait(scene, "is suspended").await?;
        assert_eq!(deletions(scene)?, []);
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false))
            .await?;
        for member in CLUSTERS {
            scene.until_value(member, "tool", None).await?;
        }
        let done = |status: &SyncGroupStatus| status.clusters.updated == 3;
        scene.status("the entry is gone", done).await?;
        Ok(())
    })
}
