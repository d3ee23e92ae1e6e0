//! Deletion budgets: deletions that add up are held, on every path by which objects are deleted.

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::conditions::{self, DELETION_HELD, MEMBERSHIP_HELD};
use starling_api::{APPROVE_DELETIONS, DeletionHold, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;
use starling_testkit::{Change, Fault, Fleet, FleetOptions, GitRepo, Match, program};

use crate::deletion_approvals::approve;
use crate::world::{MEMBERS, Scene, config_map, shared_scene, sync_ready};

/// Commits the first `kept` of `of` ConfigMaps, and removes the others.
fn commit(scene: &Scene, kept: usize, of: usize) -> Result<String> {
    let path = |number: usize| format!("app/o{number:03}.yaml");
    let texts: Vec<(String, String)> = (0..kept)
        .map(|number| {
            (
                path(number),
                config_map(&scene.own(&format!("o{number:03}")), "one"),
            )
        })
        .collect();
    let dropped: Vec<String> = (kept..of).map(path).collect();
    let writes = texts
        .iter()
        .map(|(path, text)| Change::Write(path, text.as_bytes()));
    let removed = dropped.iter().map(|path| Change::Remove(path));
    let readme = Change::Write("app/README.md", b"What runs here.\n");
    let changes: Vec<Change<'_>> = writes.chain(removed).chain([readme]).collect();
    Ok(scene.repo.commit_to("main", &changes, "change")?)
}

/// Counts the ConfigMaps of this scene on a member.
async fn count(scene: &Scene, member: &str) -> Result<usize> {
    let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
    let maps = api.list(&ListParams::default()).await?;
    let mark = scene.own("o");
    Ok(maps
        .iter()
        .filter(|map| map.name_any().starts_with(&mark))
        .count())
}

async fn total(scene: &Scene, members: &[&str]) -> Result<usize> {
    let mut sum = 0;
    for member in members {
        sum += count(scene, member).await?;
    }
    Ok(sum)
}

fn is_held(status: &SyncGroupStatus) -> bool {
    conditions::find(&status.conditions, DELETION_HELD).is_some()
}

fn is_at(status: &SyncGroupStatus, commit: &str) -> bool {
    let rollout = status.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.revisions[0].revision.ends_with(commit))
}

/// Each commit removes no more than half of what the one before left.
#[test]
fn commits_that_halve_an_application_again_and_again_are_held() -> Result<()> {
    shared_scene("halving", async |scene| {
        let members = &MEMBERS[..2];
        let first = commit(scene, 64, 0)?;
        scene.follow_main().await?;
        scene.select(members).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        let second = commit(scene, 32, 64)?;
        scene.succeeded(&second).await?;
        assert_eq!(total(scene, members).await?, 64, "half of an application may go");
        let third = commit(scene, 16, 32)?;
        let ended = |status: &SyncGroupStatus| {
            is_at(status, &third)
                && (status.clusters.updated == 2 || status.clusters.failed == 2 && is_held(status))
        };
        scene.status("held or done", ended).await?;
        assert_eq!(total(scene, members).await?, 64, "three quarters may not");
        let sync = scene.sync("m1", "held", |_| true).await?;
        let deletions = sync
            .status
            .and_then(|status| status.deletions)
            .context("deletions")?;
        assert_eq!(deletions.objects(), 32);
        Ok(())
    })
}

/// Labels are removed one by one, each after the cluster before it has lost its objects.
#[test]
fn clusters_that_leave_one_after_another_are_held() -> Result<()> {
    shared_scene("trickle", async |scene| {
        let first = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&first).await?;
        scene.label("m1", scene.name, None).await?;
        scene.until_value("m1", "a", None).await?;
        let left = |status: &SyncGroupStatus| status.clusters.total == 4;
        scene.status("m1 has left", left).await?;
        scene.label("m2", scene.name, None).await?;
        let held = |status: &SyncGroupStatus| conditions::find(&status.conditions, MEMBERSHIP_HELD).is_some();
        wait::until(TIMEOUT, "m2 is held or gone", async || {
            let group: SyncGroup = scene
                .fleet()
                .get(scene.name)
                .await
                .map_err(|error| error.to_string())?;
            let gone = scene.value("m2", "a").await.is_ok_and(|value| value.is_none());
            let held = group.status.is_some_and(|status| held(&status));
            (held || gone).then_some(()).ok_or_else(|| "neither".to_owned())
        })
        .await?;
        assert_eq!(scene.value("m2", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// A group is deleted with all its objects.
#[test]
fn a_deleted_group_does_not_take_everything_at_once() -> Result<()> {
    shared_scene("sudden", async |scene| {
        let first = commit(scene, 30, 0)?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"deletionPolicy": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&first).await?;
        scene
            .status("the policy is observed", |status| {
                status.observed_generation == Some(2)
            })
            .await?;
        let groups = scene.fleet().api::<SyncGroup>();
        groups.delete(scene.name, &DeleteParams::default()).await?;
        wait::until(TIMEOUT, "a Sync is held, or all are gone", async || {
            let mut all_gone = true;
            for member in MEMBERS {
                let name = scene.sync_name(member);
                let sync = scene.fleet().api::<SyncResource>().get_opt(&name).await;
                let Some(sync) = sync.map_err(|error| error.to_string())? else {
                    continue;
                };
                all_gone = false;
                let status = sync.status.unwrap_or_default();
                if conditions::find(&status.conditions, DELETION_HELD).is_some() {
                    return Ok(());
                }
            }
            all_gone.then_some(()).ok_or_else(|| "neither".to_owned())
        })
        .await?;
        let left = total(scene, &MEMBERS).await?;
        assert!(
            left >= 50,
            "no more than 100 of 150 objects may go at once; {left} are left"
        );
        Ok(())
    })
}

/// The digest of the deletions that a Sync holds.
async fn held(scene: &Scene, member: &str) -> Result<DeletionHold> {
    let is_held = |sync: &SyncResource| {
        sync.status
            .as_ref()
            .is_some_and(|status| status.held_deletions.is_some())
    };
    let sync = scene.sync(member, "held", is_held).await?;
    sync.status
        .and_then(|status| status.held_deletions)
        .context("held")
}

/// A limit of clusters holds the second cluster, on every path, until the window is over or a person approves.
#[test]
fn a_budget_of_one_cluster_frees_with_its_window_and_with_an_approval() -> Result<()> {
    shared_scene("ration", async |scene| {
        let members = &MEMBERS[..2];
        let first = commit(scene, 6, 0)?;
        scene.follow_main().await?;
        scene.select(members).await?;
        scene.group(json!({"maxFailures": 2}), json!({})).await?;
        let budget = json!({"spec": {"deletionBudget": {"clusters": 1, "window": "12s"}}});
        scene.fleet().patch::<SyncGroup>(scene.name, budget).await?;
        scene.succeeded(&first).await?;
        let second = commit(scene, 5, 6)?;
        let status = scene
            .status("one cluster is held", |status| {
                is_at(status, &second) && is_held(status)
            })
            .await?;
        let condition = conditions::find(&status.conditions, DELETION_HELD).context("DeletionHeld")?;
        assert!(
            condition.message.contains("1 clusters within 12s"),
            "{}",
            condition.message
        );
        assert_eq!(total(scene, members).await?, 11);
        // Time frees it.
        scene.succeeded(&second).await?;
        assert_eq!(total(scene, members).await?, 10);

        let budget = json!({"spec": {"deletionBudget": {"objects": 1, "clusters": null, "window": "10h"}}});
        scene.fleet().patch::<SyncGroup>(scene.name, budget).await?;
        let third = commit(scene, 4, 5)?;
        scene
            .status("held again", |status| is_at(status, &third) && is_held(status))
            .await?;
        let group: SyncGroup = scene.fleet().get(scene.name).await?;
        let counted = group
            .status
            .and_then(|status| status.deletions)
            .context("deletions")?;
        assert_eq!(counted.objects(), 1, "{counted:?}");
        let hold = held(scene, "m1").await?;
        assert!(
            !hold.until.is_empty() && hold.budget.contains("the SyncGroup"),
            "{hold:?}"
        );
        assert_eq!(total(scene, members).await?, 10);
        approve(scene, APPROVE_DELETIONS, &hold.digest).await?;
        scene.succeeded(&third).await?;
        assert_eq!(total(scene, members).await?, 8);
        Ok(())
    })
}

/// A removed entry and a deleted Sync ask the same budget as a prune; what exceeds it alone waits for a person.
#[test]
fn a_removed_entry_and_a_deleted_sync_ask_the_budget() -> Result<()> {
    shared_scene("every-path", async |scene| {
        let first = commit(scene, 4, 0)?;
        scene.follow_main().await?;
        let name = scene.own("alone");
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app",
            "deletionPolicy": "Delete", "deletionBudget": {"objects": 3}});
        scene
            .fleet()
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        scene.fleet().until(&name, "Ready", done).await?;
        let syncs = scene.fleet().api::<SyncResource>();
        syncs.delete(&name, &DeleteParams::default()).await?;
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let sync: SyncResource = scene.fleet().until(&name, "held", is_held).await?;
        let hold = sync
            .status
            .and_then(|status| status.held_deletions)
            .context("held")?;
        assert_eq!((hold.deletions, hold.until.as_str()), (4, ""), "{hold:?}");
        assert_eq!(count(scene, "m1").await?, 4);
        let approval = json!({"metadata": {"annotations": {APPROVE_DELETIONS: hold.digest}}});
        scene.fleet().patch::<SyncResource>(&name, approval).await?;
        wait::until(TIMEOUT, "the Sync is gone", async || {
            let sync = syncs.get_opt(&name).await.map_err(|error| error.to_string())?;
            sync.is_none().then_some(()).ok_or_else(|| "there".to_owned())
        })
        .await?;
        assert_eq!(count(scene, "m1").await?, 0);

        let entry = |name: &str, path: &str| {
            json!({"name": name, "path": path, "deletionPolicy": "Delete",
            "sourceRef": {"name": scene.name}})
        };
        scene.repo.commit(
            &[("other/own.yaml", &config_map(&scene.own("own"), "one"))],
            "another entry",
        )?;
        scene.select(&MEMBERS[1..2]).await?;
        let spec = json!({"clusterSelector": scene.selector(), "deletionBudget": {"objects": 3},
            "syncs": [entry("app", "./app"), entry("other", "./other")]});
        scene.fleet().put_group(scene.name, spec).await?;
        scene
            .status("both entries", |status| status.clusters.updated == 1)
            .await?;
        assert_eq!(count(scene, "m2").await?, 5);
        let _ = first;
        let patch = json!({"spec": {"syncs": [entry("other", "./other")]}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let hold = held(scene, "m2").await?;
        assert_eq!((hold.deletions, hold.until.as_str()), (4, ""), "{hold:?}");
        assert_eq!(count(scene, "m2").await?, 5);
        Ok(())
    })
}

/// An object with the annotation on the member is confirmed on every path, also if git never had the annotation.
#[test]
fn an_object_that_asks_for_it_is_deleted_after_an_approval_only() -> Result<()> {
    shared_scene("asked", async |scene| {
        commit(scene, 3, 0)?;
        scene.follow_main().await?;
        let name = scene.own("alone");
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app",
            "deletionPolicy": "Delete"});
        let syncs = scene.fleet().api::<SyncResource>();
        scene
            .fleet()
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        scene.fleet().until(&name, "Ready", done).await?;
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let asks = Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
        for object in ["o001", "o002"] {
            maps.patch(&scene.own(object), &PatchParams::default(), &asks)
                .await?;
        }
        commit(scene, 2, 3)?;
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let gone_or_held = |sync: &SyncResource| {
            let changes = sync.status.as_ref().map(|status| status.changes.deleted);
            is_held(sync) || changes == Some(1)
        };
        let sync: SyncResource = scene.fleet().until(&name, "held or pruned", gone_or_held).await?;
        assert!(is_held(&sync), "{:?}", sync.status);
        assert_eq!(count(scene, "m1").await?, 3);
        let hold = sync
            .status
            .and_then(|status| status.held_deletions)
            .context("held")?;
        let approval = json!({"metadata": {"annotations": {APPROVE_DELETIONS: hold.digest}}});
        scene.fleet().patch::<SyncResource>(&name, approval).await?;
        scene.fleet().until(&name, "Ready again", done).await?;
        assert_eq!(count(scene, "m1").await?, 2);

        syncs.delete(&name, &DeleteParams::default()).await?;
        let sync: SyncResource = scene.fleet().until(&name, "held", is_held).await?;
        let hold = sync
            .status
            .and_then(|status| status.held_deletions)
            .context("held")?;
        assert_eq!((hold.deletions, count(scene, "m1").await?), (2, 2));
        assert!(
            hold.objects[0].contains("o001"),
            "what asks comes first: {:?}",
            hold.objects
        );
        Ok(())
    })
}

/// Clusters that leave together are judged together: the one that has to wait keeps its Syncs, so that its label can be
/// restored.
#[test]
fn clusters_that_exceed_the_budget_together_are_not_all_removed() -> Result<()> {
    shared_scene("together", async |scene| {
        let members = &MEMBERS[..3];
        let first = commit(scene, 12, 0)?;
        scene.follow_main().await?;
        scene.select(members).await?;
        scene.group(json!({"maxConcurrency": 5}), json!({})).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s", "maxUnselected": "100%",
            "deletionBudget": {"objects": 25}}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&first).await?;
        for member in members {
            scene.label(member, scene.name, None).await?;
        }
        let syncs = scene.fleet().api::<SyncResource>();
        wait::until(TIMEOUT, "two clusters have left", async || {
            let left = total(scene, members)
                .await
                .map_err(|error| format!("{error:#}"))?;
            (left <= 12)
                .then_some(())
                .ok_or_else(|| format!("{left} objects"))
        })
        .await?;
        // The name decides which of them waits.
        let sync = syncs.get(&scene.sync_name("m3")).await?;
        assert_eq!(sync.metadata.deletion_timestamp, None, "it was not deleted");
        assert_eq!(count(scene, "m3").await?, 12);
        scene.select(&["m3"]).await?;
        scene
            .status("m3 is back", |status| {
                status.unselected.is_empty() && status.clusters.updated == 1
            })
            .await?;
        assert_eq!(count(scene, "m3").await?, 12);
        Ok(())
    })
}

/// All clusters prune at once: none of them has reported its new inventory when the others ask.
#[test]
fn prunes_that_are_in_progress_count() -> Result<()> {
    shared_scene("at-once", async |scene| {
        let first = commit(scene, 24, 0)?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({"maxConcurrency": "100%", "maxFailures": 5}), json!({}))
            .await?;
        let budget = json!({"spec": {"deletionBudget": {"objects": 25}}});
        scene.fleet().patch::<SyncGroup>(scene.name, budget).await?;
        scene.succeeded(&first).await?;
        let second = commit(scene, 14, 24)?;
        scene
            .status("held or done", |status| {
                is_at(status, &second) && status.clusters.updated + status.clusters.failed == 5
            })
            .await?;
        assert_eq!(total(scene, &MEMBERS).await?, 100, "two clusters of five");
        Ok(())
    })
}

/// The budget of the installation adds up over Syncs that have nothing in common.
#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_the_installation_adds_up() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let folder = |folder: &str, number: usize| {
        let name = format!("{folder}-o{number}");
        (format!("{folder}/{name}.yaml"), config_map(&name, "one"))
    };
    let files: Vec<(String, String)> = (0..4)
        .flat_map(|app| (0..4).map(move |number| folder(&format!("app{app}"), number)))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    repo.commit(&files, "applications")?;
    let controller = fleet.controller(program(), &["--deletion-budget", "objects=10,window=1h"])?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source("apps", &repo.url(), json!({"branch": "main"}))
        .await?;
    let syncs = fleet.api::<SyncResource>();
    for app in 0..4 {
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "apps"},
            "path": format!("./app{app}"), "deletionPolicy": "Delete"});
        let name = format!("app{app}");
        fleet
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        fleet.until(&name, "Ready", done).await?;
    }
    for app in 0..2 {
        let name = format!("app{app}");
        syncs.delete(&name, &DeleteParams::default()).await?;
        wait::until(TIMEOUT, "the Sync is gone", async || {
            let sync = syncs.get_opt(&name).await.map_err(|error| error.to_string())?;
            sync.is_none().then_some(()).ok_or_else(|| "there".to_owned())
        })
        .await?;
    }
    syncs.delete("app2", &DeleteParams::default()).await?;
    let held_or_gone = async || {
        let sync = syncs.get_opt("app2").await.map_err(|error| error.to_string())?;
        let is_held = sync.is_none_or(|sync| sync_ready(&sync).1 == "DeletionHeld");
        is_held.then_some(()).ok_or_else(|| "neither".to_owned())
    };
    wait::until(TIMEOUT, "held or gone", held_or_gone).await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    let left = maps.list(&ListParams::default()).await?;
    let left = left
        .iter()
        .filter(|map| map.name_any().starts_with("app"))
        .count();
    let log = controller.log_tail(40).unwrap_or_default();
    assert_eq!(left, 8, "8 of 10 were deleted, and 4 more are too many\n{log}");
    Ok(())
}

/// A deletion that was counted is stuck, and somebody protects its object: the rest of it is not deleted either.
#[test]
fn an_object_that_is_protected_while_its_deletion_is_stuck_stays() -> Result<()> {
    shared_scene("late-confirm", async |scene| {
        commit(scene, 4, 0)?;
        scene.follow_main().await?;
        let name = scene.own("alone");
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app",
            "retryInterval": "1s"});
        scene
            .fleet()
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        scene.fleet().until(&name, "Ready", done).await?;
        let last = Match::method(Method::DELETE).path_ends_with(format!("/configmaps/{}", scene.own("o003")));
        let member = scene.proxy("m1")?;
        let stuck = member.on(last, Fault::status(StatusCode::SERVICE_UNAVAILABLE));
        commit(scene, 2, 4)?;
        wait::until(TIMEOUT, "the last deletion fails", async || stuck.fired() > 0).await?;
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let asks = Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
        maps.patch(&scene.own("o003"), &PatchParams::default(), &asks)
            .await?;
        member.remove(&stuck);
        let ends = |sync: &SyncResource| {
            let objects = sync.status.as_ref().map(|status| status.inventory.objects);
            sync_ready(sync).1 == "DeletionHeld" || objects == Some(2)
        };
        let sync: SyncResource = scene.fleet().until(&name, "held or done", ends).await?;
        assert_eq!(sync_ready(&sync).1, "DeletionHeld");
        assert_eq!(count(scene, "m1").await?, 3);
        Ok(())
    })
}
