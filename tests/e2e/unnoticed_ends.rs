//! What changes, or cannot be read, between two requests of one pass over a Sync that is being deleted.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use starling_api::conditions::{self, DELETION_HELD};
use starling_api::{
    Cluster, DeletionApproval, FIRST_CREATED_AT, REQUESTED_AT, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_controlplane::Process;
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

/// Approves a list in a suspended group, takes the approval back while its watch delivers nothing, and resumes the
/// group. Returns the watch once the controller has asked for the approval twice: what the first answer stopped was
/// tried again.
async fn take_an_approval_back(scene: &Scene, digest: &str) -> Result<SilentWatch> {
    // What is approved in a suspended group is not carried out yet.
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
    let group = scene.name;
    scene.fleet().patch::<SyncGroup>(group, suspend(true)).await?;
    approve(scene, digest).await?;
    let approval = seen_approval(scene, digest).await?;
    let silent = SilentWatch::of(scene, "deletionapprovals").await?;
    let approvals = scene.fleet().api::<DeletionApproval>();
    approvals.delete(&approval, &DeleteParams::default()).await?;
    let path = format!("/deletionapprovals/{approval}");
    let before = reads(scene, &path)?;
    scene.fleet().patch::<SyncGroup>(group, suspend(false)).await?;
    until_read(scene, &path, before + 1).await?;
    Ok(silent)
}

async fn approve(scene: &Scene, digest: &str) -> Result<()> {
    let words = ["--digest", digest, "--reason", "nobody needs it"];
    let command = [&["approve-deletions", "group", scene.name][..], &words].concat();
    say(scene, &command).await?;
    Ok(())
}

/// The approval of what an automatic rollback removes is taken back while its watch delivers nothing.
#[test]
fn a_removal_whose_approval_was_taken_back_unnoticed_does_not_begin() -> Result<()> {
    exclusive_scene("quiet-rollback", async |scene| {
        let digest = digest_in(&fail_with_an_added_entry(scene).await?)?;
        let silent = take_an_approval_back(scene, &digest).await?;
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
        approve(scene, &digest).await?;
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
        let silent = take_an_approval_back(scene, &digest).await?;
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

/// A management cluster with a Cluster `m1` that connected to `m1` first, and to `m2` since, and a Sync that was
/// applied to both.
struct Moved {
    fleet: Fleet,
    repo: GitRepo,
    _controller: Process,
    /// The ConfigMap on `m1`.
    before: ConfigMap,
}

impl Moved {
    async fn begin() -> Result<Self> {
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
        let controller = fleet.controller(program(), &[])?;
        fleet.add_cluster("m1", &[]).await?;
        fleet.until("m1", "Ready", is_ready).await?;
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "source"}, "path": "./app",
            "deletionPolicy": "Delete", "retryInterval": "1s"});
        fleet
            .put::<SyncResource>(json!({"metadata": {"name": "sync"}, "spec": spec}))
            .await?;
        let applied = |other_than: Option<String>| {
            let commit = commit.clone();
            move |sync: &SyncResource| {
                let status = sync.status.clone().unwrap_or_default();
                status.last_applied_revision.ends_with(&commit)
                    && other_than.as_ref() != Some(&status.last_applied_cluster_id)
            }
        };
        let first = fleet.until("sync", "applied", applied(None)).await?;
        let id = first.status.map(|status| status.last_applied_cluster_id);
        let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
        let before = maps.get("settings").await?;
        connect(&fleet, &fleet.kubeconfig("m2")?).await?;
        fleet
            .until("sync", "applied to the other one", applied(id))
            .await?;
        Ok(Self {
            fleet,
            repo,
            _controller: controller,
            before,
        })
    }

    async fn map(&self, member: &str) -> Result<ConfigMap> {
        let maps: Api<ConfigMap> = Api::namespaced(self.fleet.member(member).await?, "default");
        Ok(maps.get("settings").await?)
    }

    async fn until_released(&self) -> Result<()> {
        let gone = wait::until(TIMEOUT, "the Sync is gone", async || {
            let syncs = self.fleet.syncs().await.map_err(|error| format!("{error:#}"))?;
            if syncs.is_empty() {
                Ok(())
            } else {
                Err(format!("{syncs:?}"))
            }
        });
        gone.await?;
        let after = self.map("m1").await?;
        assert_eq!(
            (after.uid(), after.metadata.deletion_timestamp),
            (self.before.uid(), None)
        );
        Ok(())
    }
}

/// Gives the Cluster `m1` other credentials, and has it look at them.
async fn connect(fleet: &Fleet, kubeconfig: &str) -> Result<()> {
    let patch = json!({"stringData": {"value": kubeconfig}});
    fleet.patch::<Secret>("m1-kubeconfig", patch).await?;
    let now = jiff::Timestamp::now().to_string();
    let request = json!({"metadata": {"annotations": {REQUESTED_AT: now}}});
    fleet.patch::<Cluster>("m1", request).await?;
    Ok(())
}

/// Guards against deletions on a cluster that nobody meant: the Cluster was away when its Sync was deleted, and is
/// another one when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_sync_deletes_nothing_on_another_cluster() -> Result<()> {
    let moved = Moved::begin().await?;
    let fleet = &moved.fleet;
    connect(fleet, "not a kubeconfig").await?;
    let is_away = |cluster: &Cluster| !is_ready(cluster);
    fleet.until("m1", "away", is_away).await?;
    fleet.delete::<SyncResource>("sync").await?;
    let waits = |sync: &SyncResource| sync_ready(sync).1 == "ClusterNotReady";
    fleet.until("sync", "waits for the Cluster", waits).await?;
    connect(fleet, &fleet.kubeconfig("m1")?).await?;
    moved.until_released().await?;
    assert_eq!(moved.map("m2").await?.metadata.deletion_timestamp, None);
    Ok(())
}

/// The same while the end waits for a finalizer on the cluster that was meant: the Cluster stays Ready, and nobody
/// knows where its new credentials lead to before the probe.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_has_begun_deletes_nothing_on_another_cluster() -> Result<()> {
    let moved = Moved::begin().await?;
    let fleet = &moved.fleet;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m2").await?, "default");
    let hold = |finalizers: serde_json::Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let merge = PatchParams::default();
    maps.patch("settings", &merge, &hold(json!(["example.test/hold"])))
        .await?;
    fleet.delete::<SyncResource>("sync").await?;
    let deletes = |sync: &SyncResource| sync_ready(sync).1 == "Deleting";
    fleet.until("sync", "deletes", deletes).await?;
    // The probe takes a while.
    let probe = Match::method(Method::GET).path_ends_with("/version");
    let slow = fleet
        .proxy("m1")?
        .on(probe, Fault::Latency(Duration::from_secs(4)));
    connect(fleet, &fleet.kubeconfig("m1")?).await?;
    wait::until(TIMEOUT, "the probe is sent", async || slow.fired() > 0).await?;
    moved.until_released().await?;
    maps.patch("settings", &merge, &hold(json!(null))).await?;
    Ok(())
}

/// What the last attempt wrote is deleted, although none has succeeded on the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_sync_deletes_what_was_applied_in_part() -> Result<()> {
    let moved = Moved::begin().await?;
    let fleet = &moved.fleet;
    let broken = config_map("broken", "one").replace("  value:", "  \"no key\":");
    moved.repo.commit(&[("app/broken.yaml", &broken)], "broken")?;
    let failed = |sync: &SyncResource| sync.status.as_ref().is_some_and(|status| status.attempts > 0);
    fleet.until("sync", "failed on m2", failed).await?;
    let id_of = |cluster: &Cluster| cluster.status.clone().unwrap_or_default().cluster_id;
    let id = id_of(&fleet.get("m1").await?);
    connect(fleet, &fleet.kubeconfig("m1")?).await?;
    fleet
        .until("m1", "connects to m1", |cluster: &Cluster| id_of(cluster) != id)
        .await?;
    // Attempts that failed have a long pause by now.
    let request = json!({"metadata": {"annotations": {REQUESTED_AT: "now"}}});
    fleet.patch::<SyncResource>("sync", request).await?;
    let tried = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        status.is_some_and(|status| status.last_attempted_cluster_id != id)
    };
    fleet.until("sync", "failed on m1", tried).await?;
    fleet.delete::<SyncResource>("sync").await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    wait::until(TIMEOUT, "the map is gone", async || {
        let found = maps
            .get_opt("settings")
            .await
            .map_err(|error| error.to_string())?;
        found.map_or(Ok(()), |found| Err(format!("{found:?}")))
    })
    .await?;
    Ok(())
}
