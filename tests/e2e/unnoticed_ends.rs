//! What changes, or cannot be read, between two requests of one pass over a Sync that is being deleted.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use starling_api::conditions::{self, DELETION_HELD};
use starling_api::{Cluster, DeletionApproval, FIRST_CREATED_AT, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Change, Fault, Fleet, FleetOptions, GitRepo, Match, program, wait};

use crate::deleting::{sync_on, until_gone};
use crate::deletion_approvals::membership_held;
use crate::operator_actions::say;
use crate::removals::{CLUSTERS, roll_out};
use crate::unnoticed::{SilentWatch, reads, remove_the_entry_from_the_canary, tools_on, until_read};
use crate::unnoticed_requests::message;
use crate::used_approvals::{self, digest_in, fail_with_an_added_entry, message_of};
use crate::world::{Scene, all, config_map, exclusive_scene, is_ready, shared_scene, sync_ready};

/// Guards against an end that waits for a change of its Cluster because one read of it failed.
#[test]
fn an_end_goes_on_after_its_cluster_could_not_be_read() -> Result<()> {
    exclusive_scene("unread-cluster", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let sync = sync_on(scene, "sync", "m1", json!({"deletionPolicy": "Delete"})).await?;
        let read = Match::method(Method::GET).path_ends_with("/clusters/m1");
        let refused = scene
            .proxy(MANAGEMENT)?
            .on(read, Fault::status(StatusCode::INTERNAL_SERVER_ERROR));
        scene.fleet().delete::<SyncResource>(&sync).await?;
        let waits = |sync: &SyncResource| sync_ready(sync).0 != "True";
        scene.fleet().until(&sync, "it waits", waits).await?;
        assert!(refused.fired() > 0);
        scene.proxy(MANAGEMENT)?.remove(&refused);
        until_gone::<SyncResource>(scene, &sync).await?;
        assert_eq!(scene.value("m1", "a").await?, None);
        Ok(())
    })
}

/// A person suspends the group while the pass that is about to delete asks the member what is there.
#[test]
fn an_end_stops_if_the_group_is_suspended_during_its_pass() -> Result<()> {
    shared_scene("mid-pass", async |scene| {
        roll_out(scene).await?;
        remove_the_entry_from_the_canary(scene).await?;
        let read = Match::method(Method::GET).path_ends_with(scene.own("tool"));
        let slow = scene
            .proxy("m2")?
            .on(read, Fault::Latency(Duration::from_secs(5)));
        say(scene, &["approve", scene.name, "--reason", "nobody misses it"]).await?;
        let sync = tools_on(scene, "m2");
        let begun = wait::until(TIMEOUT, "the end on m2 reads its object", async || {
            let now: Result<SyncResource> = scene.fleet().get(&sync).await;
            let is_going = now.is_ok_and(|now| now.metadata.deletion_timestamp.is_some());
            is_going && slow.fired() > 0
        });
        begun.await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true))
            .await?;
        let stopped = |sync: &SyncResource| message(sync).contains("is suspended");
        scene.fleet().until(&sync, "it stops", stopped).await?;
        assert_eq!(scene.value("m2", "tool").await?.as_deref(), Some("one"));
        assert_eq!(scene.proxy("m2")?.count(&Method::DELETE, &scene.own("tool")), 0);
        scene.proxy("m2")?.remove(&slow);
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

/// Returns the approval of a digest once the controller has seen it.
async fn seen_approval(scene: &Scene, digest: &str) -> Result<String> {
    let approvals = scene.fleet().api::<DeletionApproval>();
    let seen = wait::until(TIMEOUT, "the approval is known", async || {
        let all = approvals.list(&Default::default()).await;
        let all = all.map_err(|error| error.to_string())?.items;
        let mut mine = all.into_iter().filter(|one| one.spec.digest == digest);
        let seen = mine.find(|one| one.annotations().contains_key(FIRST_CREATED_AT));
        seen.map(|one| one.name_any()).ok_or("none".to_owned())
    });
    Ok(seen.await?)
}

/// The approval of what an automatic rollback removes is taken back while its watch delivers nothing.
#[test]
fn a_removal_whose_approval_was_taken_back_unnoticed_does_not_begin() -> Result<()> {
    exclusive_scene("quiet-rollback", async |scene| {
        let digest = digest_in(&fail_with_an_added_entry(scene).await?)?;
        // What is approved in a suspended group is not carried out yet.
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        let group = scene.name;
        scene.fleet().patch::<SyncGroup>(group, suspend(true)).await?;
        let words = ["--digest", &digest, "--reason", "nobody needs it"];
        let approve = [&["approve-deletions", "group", group][..], &words].concat();
        say(scene, &approve).await?;
        let approval = seen_approval(scene, &digest).await?;
        let silent = SilentWatch::of(scene, "deletionapprovals").await?;
        let approvals = scene.fleet().api::<DeletionApproval>();
        approvals.delete(&approval, &DeleteParams::default()).await?;
        let path = format!("/deletionapprovals/{approval}");
        let before = reads(scene, &path)?;
        scene.fleet().patch::<SyncGroup>(group, suspend(false)).await?;
        until_read(scene, &path, before + 1).await?;
        for member in used_approvals::CLUSTERS {
            let sync: SyncResource = scene.fleet().get(&tools_on(scene, member)).await?;
            assert_eq!(sync.metadata.deletion_timestamp, None, "{member}");
        }
        silent.end();
        message_of(scene, DELETION_HELD, "lacks entries that 2 clusters have").await?;
        assert_eq!(
            scene.values(&used_approvals::CLUSTERS, "tool").await?,
            all("one", 2)
        );
        say(scene, &approve).await?;
        for member in used_approvals::CLUSTERS {
            scene.until_value(member, "tool", None).await?;
        }
        let released =
            |status: &SyncGroupStatus| conditions::find(&status.conditions, DELETION_HELD).is_none();
        scene.status("nothing is held", released).await?;
        Ok(())
    })
}

/// The approval of clusters that leave is taken back while its watch delivers nothing.
#[test]
fn clusters_whose_approval_was_taken_back_unnoticed_do_not_leave() -> Result<()> {
    exclusive_scene("quiet-leaving", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete"}))
            .await?;
        let group = scene.name;
        let leaves =
            json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s", "maxUnselected": 1}});
        scene.fleet().patch::<SyncGroup>(group, leaves).await?;
        scene.succeeded(&commit).await?;
        for cluster in &CLUSTERS[1..] {
            scene.label(cluster, group, None).await?;
        }
        let digest = membership_held(scene).await?;
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene.fleet().patch::<SyncGroup>(group, suspend(true)).await?;
        let words = ["--digest", &digest, "--reason", "they are gone"];
        say(
            scene,
            &[&["approve-deletions", "group", group][..], &words].concat(),
        )
        .await?;
        let approval = seen_approval(scene, &digest).await?;
        let silent = SilentWatch::of(scene, "deletionapprovals").await?;
        let approvals = scene.fleet().api::<DeletionApproval>();
        approvals.delete(&approval, &DeleteParams::default()).await?;
        let path = format!("/deletionapprovals/{approval}");
        let before = reads(scene, &path)?;
        scene.fleet().patch::<SyncGroup>(group, suspend(false)).await?;
        until_read(scene, &path, before + 1).await?;
        for cluster in CLUSTERS {
            let sync: SyncResource = scene.fleet().get(&scene.sync_name(cluster)).await?;
            assert_eq!(sync.metadata.deletion_timestamp, None, "{cluster}");
        }
        silent.end();
        assert_eq!(membership_held(scene).await?, digest);
        assert_eq!(scene.values(&CLUSTERS, "a").await?, all("one", 3));
        Ok(())
    })
}

/// A person switches pruning off while the watch of Syncs delivers nothing.
#[test]
fn a_sync_that_was_changed_unnoticed_prunes_nothing() -> Result<()> {
    exclusive_scene("quiet-change", async |scene| {
        scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        let fields = json!({"pruneGrace": "30s", "retryInterval": "1s"});
        let sync = sync_on(scene, "sync", "m1", fields).await?;
        scene.until_value("m1", "b", Some("one")).await?;
        scene
            .repo
            .commit_to("main", &[Change::Remove("app/b.yaml")], "remove")?;
        let pending = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            status.and_then(|status| status.pending_deletions.clone())
        };
        let is_pending = |sync: &SyncResource| pending(sync).is_some();
        scene.fleet().until(&sync, "it is pending", is_pending).await?;
        let before = scene.map("m1", "b").await?.context("b")?;
        let silent = SilentWatch::of(scene, "syncs").await?;
        let off = json!({"spec": {"prune": false}});
        scene.fleet().patch::<SyncResource>(&sync, off).await?;
        // A late write of the status may have shown the change. Nothing is pending then, which is also the case if the
        // object was deleted.
        let is_decided = |sync: &SyncResource| {
            let waits_for = pending(sync).map(|pending| pending.waiting_for);
            waits_for.is_none_or(|why| why.contains("was changed"))
        };
        scene.fleet().until(&sync, "it is decided", is_decided).await?;
        let after = scene.map("m1", "b").await?.context("b was pruned")?;
        assert_eq!(
            (after.uid(), after.metadata.deletion_timestamp),
            (before.uid(), None)
        );
        silent.end();
        Ok(())
    })
}

async fn connect(fleet: &Fleet, cluster: &str, kubeconfig: &str) -> Result<()> {
    let patch = json!({"stringData": {"value": kubeconfig}});
    fleet
        .patch::<Secret>(&format!("{cluster}-kubeconfig"), patch)
        .await?;
    Ok(())
}

/// Guards against deletions on a cluster that nobody meant: the Cluster is another one than when its Sync was applied.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_sync_deletes_nothing_on_another_cluster() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let commit = repo.commit(&[("app/map.yaml", &config_map("settings", "one"))], "one")?;
    fleet
        .put_source("source", &repo.url(), json!({"branch": "main"}))
        .await?;
    let _controller = fleet.controller(program(), &[])?;
    fleet.add_cluster("m1", &[]).await?;
    fleet.until("m1", "Ready", is_ready).await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "source"}, "path": "./app",
        "deletionPolicy": "Delete", "retryInterval": "1s"});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "sync"}, "spec": spec}))
        .await?;
    let applied = |id: Option<String>| {
        let commit = commit.clone();
        move |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            status.last_applied_revision.ends_with(&commit)
                && id.as_ref() != Some(&status.last_applied_cluster_id)
        }
    };
    let first = fleet.until("sync", "applied", applied(None)).await?;
    let id = first.status.map(|status| status.last_applied_cluster_id);
    let map = async |member: &str| -> Result<Option<ConfigMap>> {
        let api: Api<ConfigMap> = Api::namespaced(fleet.member(member).await?, "default");
        Ok(api.get_opt("settings").await?)
    };
    let before = map("m1").await?.context("the map on m1")?;

    connect(&fleet, "m1", &fleet.kubeconfig("m2")?).await?;
    fleet
        .until("sync", "applied to the other one", applied(id))
        .await?;
    // Away when the Sync is deleted, and the first one when it is back.
    connect(&fleet, "m1", "not a kubeconfig").await?;
    let is_away = |cluster: &Cluster| !is_ready(cluster);
    fleet.until("m1", "away", is_away).await?;
    fleet.delete::<SyncResource>("sync").await?;
    let waits = |sync: &SyncResource| sync_ready(sync).1 == "ClusterNotReady";
    fleet.until("sync", "waits for the Cluster", waits).await?;
    connect(&fleet, "m1", &fleet.kubeconfig("m1")?).await?;
    wait::until(TIMEOUT, "the Sync is gone", async || {
        let syncs = fleet.syncs().await.map_err(|error| format!("{error:#}"))?;
        if syncs.is_empty() {
            Ok(())
        } else {
            Err(format!("{syncs:?}"))
        }
    })
    .await?;
    for member in ["m1", "m2"] {
        let after = map(member).await?.context(member.to_owned())?;
        assert_eq!(after.metadata.deletion_timestamp, None, "{member}");
        if member == "m1" {
            assert_eq!(after.uid(), before.uid());
        }
    }
    Ok(())
}
