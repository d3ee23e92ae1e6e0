//! What people change while a watch delivers nothing, or while a request of Starling is under way, counts before
//! anything is deleted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{REQUESTED_AT, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Change, Fault, FaultProxy, Match, RuleHandle, wait};

use crate::deleting::until_gone;
use crate::operator_actions::say;
use crate::removals::{CLUSTERS, entries, is_waiting, roll_out};
use crate::world::{Scene, all, exclusive_scene, shared_scene};

/// A watch of the controller that is open and delivers nothing.
pub(crate) struct SilentWatch {
    hub: Arc<FaultProxy>,
    rule: RuleHandle,
}

impl SilentWatch {
    /// Silences the watches of a kind. Lists and reads are answered.
    pub(crate) async fn of(scene: &Scene, plural: &str) -> Result<Self> {
        let hub = scene.proxy(MANAGEMENT)?;
        let watches = Match::method(Method::GET)
            .path_ends_with(format!("/{plural}"))
            .query_contains("watch=");
        let rule = hub.on(watches, Fault::Latency(Duration::from_secs(600)));
        hub.cut_connections();
        wait::until(TIMEOUT, format!("the watch of {plural} is silent"), async || {
            rule.fired() > 0
        })
        .await?;
        Ok(Self { hub, rule })
    }

    pub(crate) fn end(self) {
        self.hub.remove(&self.rule);
        self.hub.cut_connections();
    }
}

/// Counts the reads of a path that are no watches.
pub(crate) fn reads(scene: &Scene, path_end: &str) -> Result<usize> {
    let requests = scene.proxy(MANAGEMENT)?.requests();
    let is_read = |request: &starling_testkit::RequestInfo| {
        request.method == Method::GET && request.path.ends_with(path_end) && !request.query.contains("watch=")
    };
    Ok(requests.iter().filter(|request| is_read(request)).count())
}

/// Waits until the controller has read a path once more than `before`.
pub(crate) async fn until_read(scene: &Scene, path_end: &str, before: usize) -> Result<()> {
    wait::until(TIMEOUT, format!("{path_end} is read"), async || {
        reads(scene, path_end).is_ok_and(|now| now > before)
    })
    .await?;
    Ok(())
}

pub(crate) fn tools_on(scene: &Scene, cluster: &str) -> String {
    format!("{}-tools-{cluster}", scene.name)
}

/// The canary has lost the entry `tools`, and the others wait for the approval of its stage.
pub(crate) async fn remove_the_entry_from_the_canary(scene: &Scene) -> Result<()> {
    let patch = json!({"spec": {"syncs": entries(scene, false)}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    scene.until_value("m1", "tool", None).await?;
    scene.status("the canary waits", is_waiting).await?;
    Ok(())
}

async fn uids_of_tools(scene: &Scene) -> Result<Vec<Option<String>>> {
    let mut uids = Vec::new();
    for cluster in &CLUSTERS[1..] {
        let sync: SyncResource = scene.fleet().get(&tools_on(scene, cluster)).await?;
        assert_eq!(sync.metadata.deletion_timestamp, None, "{cluster}");
        uids.push(sync.uid());
    }
    Ok(uids)
}

/// The entry is put back while the watch of SyncGroups delivers nothing, and the stage is approved then.
#[test]
fn an_entry_that_returned_unnoticed_keeps_its_objects() -> Result<()> {
    exclusive_scene("entry-back", async |scene| {
        roll_out(scene).await?;
        remove_the_entry_from_the_canary(scene).await?;
        let before = uids_of_tools(scene).await?;
        let silent = SilentWatch::of(scene, "syncgroups").await?;
        let patch = json!({"spec": {"syncs": entries(scene, true)}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let path = format!("/syncgroups/{}", scene.name);
        // The command reads the group too.
        say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
        let then = reads(scene, &path)?;
        until_read(scene, &path, then).await?;
        assert_eq!(uids_of_tools(scene).await?, before);
        silent.end();
        scene.until_value("m1", "tool", Some("one")).await?;
        // It is another rollout, for the canary.
        scene.status("the canary waits", is_waiting).await?;
        say(scene, &["approve", scene.name, "--reason", "it is back"]).await?;
        let is_back = |status: &SyncGroupStatus| {
            let phase = status.rollout.as_ref().map(|rollout| rollout.phase);
            phase == Some(RolloutPhase::Succeeded) && status.clusters.updated == 3
        };
        scene.status("the entry is back", is_back).await?;
        assert_eq!(uids_of_tools(scene).await?, before);
        assert_eq!(scene.values(&CLUSTERS, "tool").await?, all("one", 3));
        Ok(())
    })
}

fn is_paused(status: &SyncGroupStatus) -> bool {
    let rollout = status.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Paused)
}

/// A person pauses the rollout while the watch of RolloutActions delivers nothing, before the removal of an entry.
#[test]
fn a_removal_that_was_paused_unnoticed_does_not_begin() -> Result<()> {
    exclusive_scene("quiet-pause", async |scene| {
        roll_out(scene).await?;
        remove_the_entry_from_the_canary(scene).await?;
        let before = uids_of_tools(scene).await?;
        let silent = SilentWatch::of(scene, "rolloutactions").await?;
        say(scene, &["pause", scene.name, "--reason", "something is wrong"]).await?;
        say(scene, &["approve", scene.name, "--reason", "it was fine before"]).await?;
        let then = reads(scene, "/rolloutactions")?;
        until_read(scene, "/rolloutactions", then).await?;
        assert_eq!(uids_of_tools(scene).await?, before);
        silent.end();
        scene.status("the pause is known", is_paused).await?;
        assert_eq!(uids_of_tools(scene).await?, before);
        assert_eq!(scene.values(&CLUSTERS[1..], "tool").await?, all("one", 2));
        say(scene, &["resume", scene.name, "--reason", "all is well"]).await?;
        for cluster in CLUSTERS {
            scene.until_value(cluster, "tool", None).await?;
        }
        Ok(())
    })
}

/// Rolls out a release, and another one that has lost the map `b` and waits for an approval after the canary `m1`,
/// where the deletion of the map is pending.
pub(crate) async fn wait_with_a_pending_prune(scene: &Scene) -> Result<()> {
    let first = scene.commit(&[("a", "one"), ("b", "one")])?;
    scene.follow_main().await?;
    scene.select(&["m1", "m2"]).await?;
    scene.label("m1", &scene.own("stage"), Some("canary")).await?;
    // A rollout that waits can be paused.
    let canary = json!({"name": "canary", "afterStageTasks": [{"type": "Approval"}],
        "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}}});
    let fields = json!({"pruneGrace": "15s", "retryInterval": "1s"});
    scene.group(json!({"stages": [canary]}), fields).await?;
    scene.status("the canary waits", is_waiting).await?;
    say(scene, &["approve", scene.name, "--reason", "the first release"]).await?;
    scene.succeeded(&first).await?;
    scene
        .repo
        .commit_to("main", &[Change::Remove("app/b.yaml")], "remove")?;
    scene.status("the canary waits", is_waiting).await?;
    let is_pending = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        status.is_some_and(|status| status.pending_deletions.is_some())
    };
    scene.sync("m1", "its deletion is pending", is_pending).await?;
    Ok(())
}

/// A prune at the end of its grace is stopped by an action that the watch does not deliver. `why`: as the Sync says it.
async fn stop_a_prune_unnoticed(scene: &Scene, action: &str, why: &str) -> Result<()> {
    wait_with_a_pending_prune(scene).await?;
    let before = scene.map("m1", "b").await?.context("b")?;
    let silent = SilentWatch::of(scene, "rolloutactions").await?;
    say(scene, &[action, scene.name, "--reason", "something is wrong"]).await?;
    let then = reads(scene, "/rolloutactions")?;
    // Nothing else reads the actions of this scene: this is the end of the grace.
    until_read(scene, "/rolloutactions", then).await?;
    let stopped = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        let ready = conditions::find(&status.conditions, READY);
        ready.is_some_and(|ready| ready.message.contains(why))
    };
    scene.sync("m1", "names the reason", stopped).await?;
    let after = scene.map("m1", "b").await?.context("b was pruned")?;
    assert_eq!(
        (after.uid(), after.metadata.deletion_timestamp),
        (before.uid(), None)
    );
    silent.end();
    Ok(())
}

/// The same before a prune at the end of its grace.
#[test]
fn a_prune_that_was_paused_unnoticed_does_not_begin() -> Result<()> {
    exclusive_scene("quiet-prune", async |scene| {
        stop_a_prune_unnoticed(scene, "pause", "is paused").await?;
        say(scene, &["resume", scene.name, "--reason", "all is well"]).await?;
        scene.until_value("m1", "b", None).await
    })
}

#[test]
fn a_prune_whose_rollout_was_aborted_unnoticed_does_not_begin() -> Result<()> {
    exclusive_scene("quiet-abort", async |scene| {
        stop_a_prune_unnoticed(scene, "abort", "was aborted").await?;
        scene.commit(&[("a", "two")])?;
        scene.until_value("m1", "b", None).await
    })
}

/// Begins the removal of the entry everywhere, and makes it fail at the object of `m2` until the rule is removed.
async fn begin_a_removal(scene: &Scene) -> Result<RuleHandle> {
    remove_the_entry_from_the_canary(scene).await?;
    let delete = Match::method(Method::DELETE).path_ends_with(scene.own("tool"));
    let stuck = scene
        .proxy("m2")?
        .on(delete, Fault::status(StatusCode::SERVICE_UNAVAILABLE));
    say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
    wait::until(TIMEOUT, "the deletion on m2 fails", async || stuck.fired() > 0).await?;
    let sync: SyncResource = scene.fleet().get(&tools_on(scene, "m2")).await?;
    assert!(sync.metadata.deletion_timestamp.is_some(), "{sync:?}");
    Ok(stuck)
}

/// Deletions of the object of the entry that were sent to `m2`.
fn deletions(scene: &Scene) -> Result<usize> {
    Ok(scene.proxy("m2")?.count(&Method::DELETE, &scene.own("tool")))
}

/// Waits until the Sync of the entry on `m2` says that its group is stopped.
async fn until_stopped(scene: &Scene, why: &str) -> Result<()> {
    let stopped = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        let ready = conditions::find(&status.conditions, READY);
        ready.is_some_and(|ready| ready.reason == "GroupStopped" && ready.message.contains(why))
    };
    let sync = tools_on(scene, "m2");
    scene.fleet().until(&sync, why, stopped).await?;
    Ok(())
}

/// Makes the controller look at the Sync of the entry on `m2`, and waits until it has read the path, and the Sync has
/// been judged by what it read.
async fn look_again(scene: &Scene, path_end: &str) -> Result<()> {
    for number in 0..2 {
        let before = reads(scene, path_end)?;
        let requested = json!({"metadata": {"annotations": {REQUESTED_AT: format!("look {number}")}}});
        let sync = tools_on(scene, "m2");
        scene.fleet().patch::<SyncResource>(&sync, requested).await?;
        until_read(scene, path_end, before).await?;
    }
    Ok(())
}

/// The same after the removal has begun: the finalizer of the Sync is about to delete the objects.
#[test]
fn an_end_that_was_paused_unnoticed_stops() -> Result<()> {
    exclusive_scene("quiet-end", async |scene| {
        roll_out(scene).await?;
        let stuck = begin_a_removal(scene).await?;
        let silent = SilentWatch::of(scene, "rolloutactions").await?;
        say(scene, &["pause", scene.name, "--reason", "something is wrong"]).await?;
        until_stopped(scene, "is paused").await?;
        let before = deletions(scene)?;
        scene.proxy("m2")?.remove(&stuck);
        look_again(scene, "/rolloutactions").await?;
        assert_eq!(deletions(scene)?, before);
        assert_eq!(scene.value("m2", "tool").await?.as_deref(), Some("one"));
        silent.end();
        say(scene, &["resume", scene.name, "--reason", "all is well"]).await?;
        for cluster in CLUSTERS {
            scene.until_value(cluster, "tool", None).await?;
        }
        Ok(())
    })
}

/// A removal was admitted, and has deleted nothing yet when a person suspends the group.
#[test]
fn a_removal_that_has_begun_stops_in_a_suspended_group() -> Result<()> {
    shared_scene("late-suspend", async |scene| {
        roll_out(scene).await?;
        let stuck = begin_a_removal(scene).await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true))
            .await?;
        until_stopped(scene, "is suspended").await?;
        let before = deletions(scene)?;
        scene.proxy("m2")?.remove(&stuck);
        look_again(scene, &format!("/syncgroups/{}", scene.name)).await?;
        assert_eq!(deletions(scene)?, before);
        assert_eq!(scene.values(&CLUSTERS[1..], "tool").await?, all("one", 2));
        uids_of_tools_that_stay(scene, "m3").await?;
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false))
            .await?;
        for cluster in CLUSTERS {
            scene.until_value(cluster, "tool", None).await?;
        }
        Ok(())
    })
}

async fn uids_of_tools_that_stay(scene: &Scene, cluster: &str) -> Result<()> {
    let sync: SyncResource = scene.fleet().get(&tools_on(scene, cluster)).await?;
    assert_eq!(sync.metadata.deletion_timestamp, None, "{cluster}");
    Ok(())
}

/// What the group deletes is the Sync that its plan has seen: its UID and its version are in the request.
#[test]
fn a_sync_that_changed_after_the_plan_is_not_deleted() -> Result<()> {
    exclusive_scene("changed-since", async |scene| {
        roll_out(scene).await?;
        let hub = scene.proxy(MANAGEMENT)?;
        let sync = tools_on(scene, "m2");
        let delete =
            || Match::method(Method::DELETE).path_ends_with(format!("/syncs/{}", tools_on(scene, "m2")));
        // The first request is under way while a person edits the Sync. What follows is not let through.
        let slow = hub.on(delete().times(1), Fault::Latency(Duration::from_secs(6)));
        remove_the_entry_from_the_canary(scene).await?;
        say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
        wait::until(TIMEOUT, "the Sync is about to be deleted", async || {
            slow.fired() > 0
        })
        .await?;
        let later = hub.on(delete(), Fault::status(StatusCode::SERVICE_UNAVAILABLE));
        let edit = json!({"metadata": {"annotations": {"example.test/note": "do not lose this"}}});
        let edited: SyncResource = scene.fleet().patch(&sync, edit).await?;
        assert_eq!(edited.metadata.deletion_timestamp, None, "the edit came too late");
        wait::until(TIMEOUT, "the request was answered", async || {
            let now: Result<SyncResource> = scene.fleet().get(&sync).await;
            let is_deleted = now.map_or(true, |now| now.metadata.deletion_timestamp.is_some());
            later.fired() > 0 || is_deleted
        })
        .await?;
        let now: SyncResource = scene.fleet().get(&sync).await?;
        assert_eq!(
            (now.uid(), now.metadata.deletion_timestamp.clone()),
            (edited.uid(), None)
        );
        hub.remove(&later);
        until_gone::<SyncResource>(scene, &sync).await?;
        scene.until_value("m2", "tool", None).await?;
        every_deletion_names_the_sync(scene, &hub, edited.uid().as_deref())
    })
}

/// The requests that delete Syncs of the scene name what they delete.
fn every_deletion_names_the_sync(scene: &Scene, hub: &FaultProxy, uid_on_m2: Option<&str>) -> Result<()> {
    let mark = format!("/syncs/{}-", scene.name);
    let requests = hub.requests().into_iter();
    let deletions = requests.filter(|one| one.method == Method::DELETE && one.path.contains(&mark));
    let (mut versions, mut clusters) = (Vec::new(), 0);
    for request in deletions {
        let body: Value = serde_json::from_slice(&request.body)?;
        let conditions = &body["preconditions"];
        let has = |field: &str| conditions[field].as_str().is_some_and(|value| !value.is_empty());
        assert!(has("uid") && has("resourceVersion"), "{}: {body}", request.path);
        clusters += 1;
        if request.path.ends_with("-m2") {
            assert_eq!(conditions["uid"].as_str(), uid_on_m2);
            versions.push(conditions["resourceVersion"].clone());
        }
    }
    assert!(clusters >= 3, "{clusters} deletions");
    assert_ne!(
        versions.first(),
        versions.last(),
        "the second request names what a plan has seen since"
    );
    Ok(())
}
