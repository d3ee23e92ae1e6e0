//! Removals as parts of a rollout: entries that left a group, and clusters that left its selection.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{APPROVE_MEMBERSHIP, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fault, Match, wait};

use crate::deletion_approvals::{approve, membership_held};
use crate::operator_actions::say;
use crate::read_commands::run;
use crate::world::{Scene, all, blocked_by, config_map, exclusive_scene, shared_scene};

pub(crate) const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];

/// The entries `app` and, if wanted, `tools`, whose objects are deleted with it.
pub(crate) fn entries(scene: &Scene, with_tools: bool) -> Value {
    let entry = |name: &str| {
        json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
            "deletionPolicy": "Delete", "retryInterval": "1s"})
    };
    let mut entries = vec![entry("app")];
    entries.extend(with_tools.then(|| entry("tools")));
    json!(entries)
}

/// Rolls out the map `settings` of the entry `app` and the map `tool` of the entry `tools`, with `m1` as the canary,
/// whose stage waits for an approval.
pub(crate) async fn roll_out(scene: &Scene) -> Result<()> {
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
    let canary = json!({"name": "canary", "afterStageTasks": [{"type": "Approval"}],
        "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}}});
    let spec = json!({"clusterSelector": scene.selector(), "syncs": entries(scene, true),
        "rolloutStrategy": {"maxConcurrency": 1, "stages": [canary]}});
    scene.fleet().put_group(scene.name, spec).await?;
    scene.status("the canary waits", is_waiting).await?;
    say(scene, &["approve", scene.name, "--reason", "the first release"]).await?;
    scene.succeeded(&commit).await?;
    assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
    Ok(())
}

pub(crate) fn is_waiting(status: &SyncGroupStatus) -> bool {
    blocked_by(status).contains("AwaitingApproval")
}

async fn generation(scene: &Scene) -> Result<Option<i64>> {
    let group: SyncGroup = scene.fleet().get(scene.name).await?;
    Ok(group.metadata.generation)
}

#[test]
fn a_removed_entry_is_rolled_out_like_a_commit() -> Result<()> {
    shared_scene("unentered", async |scene| {
        roll_out(scene).await?;
        let patch = json!({"spec": {"suspend": true, "syncs": entries(scene, false)}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let generation = generation(scene).await?;
        let held = |status: &SyncGroupStatus| {
            status.observed_generation == generation && blocked_by(status).contains("Suspended")
        };
        scene.status("the group is suspended", held).await?;
        let removal = json!([{"cause": "EntryRemoved", "entry": "tools", "policy": "Delete", "objects": 3,
            "clusters": CLUSTERS}]);
        all_commands_tell(scene, &removal).await?;
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));

        let resume = json!({"spec": {"suspend": false}});
        scene.fleet().patch::<SyncGroup>(scene.name, resume).await?;
        scene.until_value("m1", "tool", None).await?;
        let status = scene.status("the canary waits", is_waiting).await?;
        assert_eq!(
            (status.clusters.updated, status.clusters.pending),
            (1, 2),
            "{status:#?}"
        );
        assert_eq!(scene.values(&CLUSTERS[1..], "tool").await?, all("one", 2));

        say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
        let succeeded = |status: &SyncGroupStatus| {
            let phase = status.rollout.as_ref().map(|rollout| rollout.phase);
            phase == Some(RolloutPhase::Succeeded) && status.clusters.updated == 3
        };
        scene.status("the entry is gone", succeeded).await?;
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, vec![None; 3]);
        assert_eq!(scene.values(&CLUSTERS, "settings").await?, all("one", 3));
        Ok(())
    })
}

/// `why`, `plan` and `simulate` show the same removals.
async fn all_commands_tell(scene: &Scene, expected: &Value) -> Result<()> {
    for command in [&["why"][..], &["plan", "--allow-insecure-sources"], &["simulate"]] {
        let (_, out, error) = run(scene, &[command, &[scene.name, "-o", "json"]].concat()).await?;
        let value: Value =
            serde_json::from_str(&out).with_context(|| format!("{command:?}: {out}\n{error}"))?;
        // `why` explains several subjects.
        let of_group = value.get(0).unwrap_or(&value);
        // The inventories of Syncs and the deletes of a dry run are told apart.
        let told = of_group["removals"].as_array().into_iter().flatten();
        let told: Vec<&Value> = told
            .filter(|removal| removal["cause"] != "ObjectsRemoved")
            .collect();
        assert_eq!(json!(told), *expected, "{command:?}");
    }
    Ok(())
}

/// Waits until `starling why` says so of the Sync of `m3`.
async fn why_names(scene: &Scene, reason: &str) -> Result<()> {
    let sync = scene.sync_name("m3");
    wait::until(TIMEOUT, format!("why names {sync}: {reason}"), async || {
        let text = say(scene, &["why", scene.name]).await;
        let text = text.map_err(|error| format!("{error:#}"))?;
        let mut lines = text.lines();
        let found = lines.any(|line| line.contains(reason) && line.contains(&sync));
        found.then_some(()).ok_or(text)
    })
    .await?;
    Ok(())
}

/// A cluster that leaves loses its Syncs in its turn: not while the rollout is paused, and not before its stage.
#[test]
fn a_cluster_that_leaves_waits_for_its_stage_and_for_a_paused_rollout() -> Result<()> {
    shared_scene("unpaused", async |scene| {
        roll_out(scene).await?;
        let settings = config_map(&scene.own("settings"), "two");
        scene
            .repo
            .commit(&[("app/settings.yaml", &settings)], "a change")?;
        scene.status("the canary waits", is_waiting).await?;
        say(scene, &["pause", scene.name, "--reason", "maintenance"]).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.label("m3", scene.name, None).await?;
        why_names(scene, "the rollout is paused").await?;
        let removal =
            json!([{"cause": "ClusterUnselected", "policy": "Delete", "objects": 2, "clusters": ["m3"]}]);
        all_commands_tell(scene, &removal).await?;
        let text = say(scene, &["why", "cluster/m3"]).await?;
        assert!(
            text.contains("left the group; its Syncs are not removed yet"),
            "{text}"
        );
        assert!(text.contains("the rollout is paused"), "{text}");
        say(scene, &["resume", scene.name, "--reason", "done"]).await?;
        why_names(scene, "wait for the stage").await?;
        let sync: SyncResource = scene.fleet().get(&scene.sync_name("m3")).await?;
        assert_eq!(sync.metadata.deletion_timestamp, None);
        assert_eq!(scene.value("m3", "tool").await?.as_deref(), Some("one"));
        say(scene, &["approve", scene.name, "--reason", "fine"]).await?;
        scene.until_value("m3", "tool", None).await?;
        scene.until_value("m3", "settings", None).await
    })
}

/// A person deletes the Sync of a cluster that left, instead of waiting for the plan. Guards against a deletion in a
/// closed window, and on more clusters at once than there are slots.
#[test]
fn a_sync_that_a_person_deletes_waits_for_a_window_and_a_slot() -> Result<()> {
    shared_scene("by-hand", async |scene| {
        let settings = config_map(&scene.own("settings"), "one");
        let commit = scene
            .repo
            .commit(&[("app/settings.yaml", &settings)], "one entry")?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        let spec = json!({"clusterSelector": scene.selector(), "syncs": entries(scene, false),
            "whenUnselected": "Delete", "unselectedGrace": "0s", "maxUnselected": "100%",
            "rolloutStrategy": {"maxConcurrency": 3}});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.values(&CLUSTERS, "settings").await?, all("one", 3));
        let closed = json!([{"deny": "Mon-Sun 00:00-24:00"}]);
        let strategy =
            |windows: &Value| json!({"spec": {"rolloutStrategy": {"maxConcurrency": 1, "windows": windows}}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, strategy(&closed))
            .await?;
        for cluster in &CLUSTERS[1..] {
            scene.label(cluster, scene.name, None).await?;
        }
        why_names(scene, "wait for a window").await?;
        for cluster in &CLUSTERS[1..] {
            // One of them is slow, so that the other one waits for its slot.
            let delete = Match::method(Method::DELETE).path_ends_with(scene.own("settings"));
            scene
                .proxy(cluster)?
                .on(delete, Fault::Latency(Duration::from_secs(4)));
            scene
                .fleet()
                .delete::<SyncResource>(&scene.sync_name(cluster))
                .await?;
        }
        let says = |what: &'static str| {
            move |sync: &SyncResource| {
                let status = sync.status.clone().unwrap_or_default();
                let ready = conditions::find(&status.conditions, READY);
                ready.is_some_and(|ready| ready.reason == "GroupStopped" && ready.message.contains(what))
            }
        };
        for cluster in &CLUSTERS[1..] {
            scene
                .sync(cluster, "waits for its group", says("has not decided"))
                .await?;
        }
        why_names(scene, "wait for a window").await?;
        assert_eq!(scene.values(&CLUSTERS, "settings").await?, all("one", 3));
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, strategy(&json!([])))
            .await?;
        wait::until(TIMEOUT, "one waits for a slot", async || {
            let text = say(scene, &["why", scene.name]).await;
            let text = text.map_err(|error| format!("{error:#}"))?;
            text.contains("NoSlot").then_some(()).ok_or(text)
        })
        .await?;
        for cluster in &CLUSTERS[1..] {
            scene.until_value(cluster, "settings", None).await?;
        }
        Ok(())
    })
}

/// A suspended group that is deleted waits, and its clusters then go in the order of its stages.
#[test]
fn a_suspended_group_that_is_deleted_deletes_nothing_until_it_is_resumed() -> Result<()> {
    shared_scene("suspended-end", async |scene| {
        roll_out(scene).await?;
        let patch = json!({"spec": {"suspend": true, "deletionPolicy": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let groups = scene.fleet().api::<SyncGroup>();
        groups.delete(scene.name, &DeleteParams::default()).await?;
        let is_held = |status: &SyncGroupStatus| {
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.message.contains("the group is suspended"))
        };
        scene.status("the deletion waits", is_held).await?;
        let removal =
            json!([{"cause": "GroupDeleted", "policy": "Delete", "objects": 6, "clusters": CLUSTERS}]);
        all_commands_tell(scene, &removal).await?;
        let text = say(scene, &["why", scene.name]).await?;
        assert!(
            text.contains("is being deleted") && text.contains("the group is suspended"),
            "{text}"
        );
        assert!(text.contains("removes 6 objects on 3 clusters"), "{text}");
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        // The canary does not go, and the clusters behind it stay.
        let canary = scene.proxy("m1")?;
        let stuck = canary.on(
            Match::method(Method::DELETE),
            Fault::status(StatusCode::SERVICE_UNAVAILABLE),
        );
        let resume = json!({"spec": {"suspend": false}});
        scene.fleet().patch::<SyncGroup>(scene.name, resume).await?;
        let waits_for_canary = |status: &SyncGroupStatus| {
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.message.contains("wait for the stages"))
        };
        scene.status("the canary goes first", waits_for_canary).await?;
        assert_eq!(scene.values(&CLUSTERS[1..], "tool").await?, all("one", 2));
        canary.remove(&stuck);
        for cluster in CLUSTERS {
            scene.until_value(cluster, "tool", None).await?;
            scene.until_value(cluster, "settings", None).await?;
        }
        the_journal_has_the_deletion(scene).await
    })
}

/// Two Syncs on each of three clusters were removed, by decisions that `verify` accepts.
async fn the_journal_has_the_deletion(scene: &Scene) -> Result<()> {
    let directory = scene.fleet().data_dir().to_string_lossy().into_owned();
    let from = |command| [command, scene.name, "--data-dir", &directory, "-o", "json"];
    let verified: Value = serde_json::from_str(&say(scene, &from("verify")).await?)?;
    assert_eq!(verified["journals"][0]["violations"], json!([]), "{verified:#}");
    let history: Value = serde_json::from_str(&say(scene, &from("history")).await?)?;
    let removed = history[0]["groupDeletion"]["removed"].as_object();
    let times: Vec<(&String, Timestamp)> = { removed.context("a deletion")?.iter() }
        .map(|(sync, at)| Ok((sync, at.as_str().unwrap_or_default().parse()?)))
        .collect::<Result<_>>()?;
    assert_eq!(times.len(), 6, "{history:#}");
    let of = |cluster: &str| -> Vec<Timestamp> {
        let suffix = format!("-{cluster}");
        let on_cluster = times.iter().filter(|(sync, _)| sync.ends_with(&suffix));
        on_cluster.map(|(_, at)| *at).collect()
    };
    let last_of_canary = of("m1").into_iter().max();
    for cluster in &CLUSTERS[1..] {
        let times = of(cluster);
        assert_eq!(times.len(), 2, "{history:#}");
        assert!(
            times.into_iter().all(|at| Some(at) > last_of_canary),
            "{history:#}"
        );
    }
    Ok(())
}

/// Labels are taken off and put back while the watch of Clusters delivers nothing: the cache still lacks them when
/// the deletion is approved, and the management cluster has them.
#[test]
fn clusters_that_returned_unnoticed_keep_their_objects() -> Result<()> {
    exclusive_scene("half-open", async |scene| {
        roll_out(scene).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete", "maxUnselected": 0}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        for cluster in &CLUSTERS[1..] {
            scene.label(cluster, scene.name, None).await?;
        }
        let digest = membership_held(scene).await?;
        let hub = scene.proxy(MANAGEMENT)?;
        let watches = Match::method(Method::GET)
            .path_ends_with("/clusters")
            .query_contains("watch=");
        let silent = hub.on(watches, Fault::Latency(Duration::from_secs(600)));
        hub.cut_connections();
        wait::until(TIMEOUT, "the watch of Clusters is silent", async || {
            silent.fired() > 0
        })
        .await?;
        scene.select(&CLUSTERS[1..]).await?;
        let reads = || hub.count(&Method::GET, "/clusters/m2");
        let before = reads();
        approve(scene, APPROVE_MEMBERSHIP, &digest).await?;
        wait::until(TIMEOUT, "the Cluster is read", async || reads() > before).await?;
        let sync: SyncResource = scene.fleet().get(&scene.sync_name("m2")).await?;
        hub.remove(&silent);
        hub.cut_connections();
        let is_back = |status: &SyncGroupStatus| status.clusters.total == 3 && status.clusters.updated == 3;
        scene.status("the clusters are back", is_back).await?;
        let now: SyncResource = scene.fleet().get(&scene.sync_name("m2")).await?;
        assert_eq!(now.metadata.uid, sync.metadata.uid);
        assert_eq!(now.metadata.deletion_timestamp, None);
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        Ok(())
    })
}
