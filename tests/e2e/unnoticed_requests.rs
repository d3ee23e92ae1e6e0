//! What people suspend, keep or take back while a watch delivers nothing counts before anything is deleted.

use anyhow::{Context, Result};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use starling_api::{Cluster, DeletionApproval, FIRST_CREATED_AT, SyncGroup, SyncResource};
use starling_testkit::Change;
use starling_testkit::fleet::TIMEOUT;

use crate::operator_actions::say;
use crate::removals::{CLUSTERS, roll_out};
use crate::unnoticed::{SilentWatch, remove_the_entry_from_the_canary, tools_on};
use crate::world::{Scene, all, config_map, exclusive_scene, sync_ready};

/// The message of the condition Ready.
pub(crate) fn message(sync: &SyncResource) -> String {
    let status = sync.status.clone().unwrap_or_default();
    let ready = status.conditions.into_iter().find(|one| one.type_ == "Ready");
    ready.map(|ready| ready.message).unwrap_or_default()
}

#[test]
fn a_cluster_that_was_suspended_unnoticed_keeps_its_objects() -> Result<()> {
    exclusive_scene("quiet-cluster", async |scene| {
        roll_out(scene).await?;
        remove_the_entry_from_the_canary(scene).await?;
        let silent = SilentWatch::of(scene, "clusters").await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene.fleet().patch::<Cluster>("m2", suspend(true)).await?;
        say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
        scene.until_value("m3", "tool", None).await?;
        let waits = |sync: &SyncResource| message(sync).contains("the Cluster is suspended");
        let sync = tools_on(scene, "m2");
        scene
            .fleet()
            .until::<SyncResource>(&sync, "it waits", waits)
            .await?;
        assert_eq!(scene.values(&CLUSTERS[1..2], "tool").await?, all("one", 1));
        silent.end();
        scene.fleet().patch::<Cluster>("m2", suspend(false)).await?;
        scene.until_value("m2", "tool", None).await
    })
}

/// Rolls out two maps to one cluster, takes one out of git, and waits until its deletion is pending.
async fn pending(scene: &Scene) -> Result<()> {
    let first = scene.commit(&[("a", "one"), ("b", "one")])?;
    scene.follow_main().await?;
    scene.select(&["m1"]).await?;
    let fields = json!({"pruneGrace": "30s", "retryInterval": "1s"});
    scene.group(json!({}), fields).await?;
    scene.succeeded(&first).await?;
    let second = scene
        .repo
        .commit_to("main", &[Change::Remove("app/b.yaml")], "remove")?;
    // The response to a later write of the status of the group would show what a person changed.
    scene.succeeded(&second).await?;
    let is_pending = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        status.is_some_and(|status| status.pending_deletions.is_some())
    };
    scene.sync("m1", "its deletion is pending", is_pending).await?;
    Ok(())
}

/// Returns whether a Sync says that its prune waits for a reason. Ready may tell more by then: the response to a write
/// of its status shows what a person changed.
fn waits_for(sync: &SyncResource, why: &str) -> bool {
    let status = sync.status.as_ref();
    let pending = status.and_then(|status| status.pending_deletions.as_ref());
    message(sync).contains(why) || pending.is_some_and(|pending| pending.waiting_for.contains(why))
}

fn is_nothing_pending(sync: &SyncResource) -> bool {
    let status = sync.status.as_ref();
    status.is_some_and(|status| status.pending_deletions.is_none())
}

/// The Sync waits for a reason after the grace, and the object is the same.
async fn until_kept(scene: &Scene, why: &'static str) -> Result<()> {
    kept_until(scene, why, |sync| waits_for(sync, why)).await
}

/// The object is the same when a decision about it shows.
async fn kept_until(
    scene: &Scene,
    what: &'static str,
    decided: impl Fn(&SyncResource) -> bool,
) -> Result<()> {
    let before = scene.map("m1", "b").await?.context("b")?;
    scene.sync("m1", what, decided).await?;
    let after = scene.map("m1", "b").await?.context("b was pruned")?;
    assert_eq!(
        (after.uid(), after.metadata.deletion_timestamp),
        (before.uid(), None)
    );
    Ok(())
}

#[test]
fn objects_that_a_person_keeps_unnoticed_are_not_pruned() -> Result<()> {
    exclusive_scene("quiet-undelete", async |scene| {
        pending(scene).await?;
        let silent = SilentWatch::of(scene, "syncgroups").await?;
        let told = say(scene, &["undelete", scene.name]).await?;
        assert!(told.contains("keeping 1 object"), "{told}");
        let why = "asked to keep objects";
        // A late write of a status may have shown what the person wants. Nothing is pending then, which is also the
        // case if the object was deleted.
        let is_decided = |sync: &SyncResource| waits_for(sync, why) || is_nothing_pending(sync);
        kept_until(scene, why, is_decided).await?;
        silent.end();
        scene.sync("m1", "nothing is pending", is_nothing_pending).await?;
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("one"));
        Ok(())
    })
}

#[test]
fn a_sync_that_was_suspended_unnoticed_prunes_nothing() -> Result<()> {
    exclusive_scene("quiet-suspend", async |scene| {
        pending(scene).await?;
        let silent = SilentWatch::of(scene, "syncs").await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        let name = scene.sync_name("m1");
        scene.fleet().patch::<SyncResource>(&name, suspend(true)).await?;
        until_kept(scene, "the Sync is suspended").await?;
        silent.end();
        scene.fleet().patch::<SyncResource>(&name, suspend(false)).await?;
        scene.until_value("m1", "b", None).await
    })
}

#[test]
fn an_approval_that_was_taken_back_unnoticed_deletes_nothing() -> Result<()> {
    exclusive_scene("quiet-approval", async |scene| {
        let asks = config_map(&scene.own("b"), "one").replace(
            "metadata:\n",
            "metadata:\n  annotations: {starling.dev/deletion: Confirm}\n",
        );
        let stays = config_map(&scene.own("a"), "one");
        let files = [("app/a.yaml", &*stays), ("app/b.yaml", &asks)];
        let first = scene.repo.commit(&files, "two")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"retryInterval": "1s"})).await?;
        scene.succeeded(&first).await?;
        scene
            .repo
            .commit_to("main", &[Change::Remove("app/b.yaml")], "remove")?;
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let sync: SyncResource = scene.sync("m1", "held", is_held).await?;
        let hold = sync.status.and_then(|status| status.held_deletions);
        let digest = hold.context("held")?.digest;
        // What is approved in a suspended group is not carried out yet.
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        let group = scene.name;
        scene.fleet().patch::<SyncGroup>(group, suspend(true)).await?;
        let words = ["--digest", &digest, "--reason", "nobody needs it"];
        say(
            scene,
            &[&["approve-deletions", "group", group][..], &words].concat(),
        )
        .await?;
        let approvals = scene.fleet().api::<DeletionApproval>();
        let mine = async || {
            let all = approvals.list(&Default::default()).await.ok()?.items;
            let mut mine = all.into_iter().filter(|one| one.spec.digest == digest);
            mine.find(|one| one.annotations().contains_key(FIRST_CREATED_AT))
        };
        starling_testkit::wait::until(TIMEOUT, "the approval is known", async || mine().await.is_some())
            .await?;
        let silent = SilentWatch::of(scene, "deletionapprovals").await?;
        let approval = mine().await.context("the approval")?;
        approvals
            .delete(&approval.name_any(), &DeleteParams::default())
            .await?;
        scene.fleet().patch::<SyncGroup>(group, suspend(false)).await?;
        until_kept(scene, "was taken back").await?;
        silent.end();
        scene.sync("m1", "held again", is_held).await?;
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("one"));
        Ok(())
    })
}
