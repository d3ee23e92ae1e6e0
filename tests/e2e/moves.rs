//! Objects that move between groups keep their UIDs: they are handed over, and not deleted and created anew.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};
use starling_api::{Cluster, OWNER_LABEL, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::Change;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::deleting::until_gone;
use crate::world::{MEMBERS, Scene, config_map, merge, shared_scene, sync_ready};

/// Applies a group for the clusters with a label. Its clusters leave at once and lose their objects.
pub(crate) async fn put_group(scene: &Scene, group: &str, path: &str, more: Value) -> Result<()> {
    let entry = json!({"name": "app", "sourceRef": {"name": scene.name}, "path": path, "retryInterval": "1s",
        "deletionPolicy": "Delete"});
    let mut spec = json!({"clusterSelector": {"matchLabels": {group: "yes"}}, "syncs": [entry],
        "whenUnselected": "Delete", "deletionPolicy": "Delete", "maxUnselected": "100%"});
    merge(&mut spec, more);
    scene.fleet().put_group(group, spec).await
}

/// Waits until a group has rolled this commit out to this many clusters.
pub(crate) async fn rolled_out(scene: &Scene, group: &str, commit: &str, clusters: u32) -> Result<()> {
    let done = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        status.clusters.updated == clusters
            && rollout.is_some_and(|rollout| {
                rollout.phase == RolloutPhase::Succeeded && rollout.revisions[0].revision.ends_with(commit)
            })
    };
    scene.fleet().group_status(group, "rolled out", done).await?;
    Ok(())
}

async fn uids(scene: &Scene, members: &[&str], name: &str) -> Result<BTreeMap<String, Option<String>>> {
    let mut uids = BTreeMap::new();
    for member in members {
        let map = scene.map(member, name).await?;
        uids.insert((*member).to_owned(), map.and_then(|map| map.uid()));
    }
    Ok(uids)
}

/// Waits until the Sync of a group on a member owns the ConfigMap.
async fn owned_by(scene: &Scene, group: &str, member: &str, map: &str) -> Result<ConfigMap> {
    // An object of the group that never moves shows the label of the Sync.
    let label = |map: &ConfigMap| map.labels().get(OWNER_LABEL).cloned();
    let what = format!("{map} on {member} belongs to {group}");
    let found = wait::until(TIMEOUT, what, async || {
        let own = format!("stays-{group}");
        let found = tokio::try_join!(scene.map(member, &own), scene.map(member, map));
        let (stays, moved) = found.map_err(|error| format!("{error:#}"))?;
        match (stays, moved) {
            (Some(stays), Some(moved)) if label(&stays) == label(&moved) => Ok(moved),
            (_, moved) => Err(format!("{:?}", moved.map(|map| map.metadata))),
        }
    });
    Ok(found.await?)
}

/// Tried with eight clusters: on six of them the objects were deleted and created anew, and gone for half a minute.
#[test]
fn a_cluster_that_moves_to_another_group_keeps_its_objects() -> Result<()> {
    shared_scene("movers", async |scene| {
        let commit = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        let (from, to) = (scene.name, scene.own("to"));
        for member in MEMBERS {
            scene.label(member, from, Some("yes")).await?;
        }
        put_group(scene, from, "./app", json!({})).await?;
        // One after the other: the last cluster leaves its group long before it starts in the other one.
        let slow = json!({"rolloutStrategy": {"maxConcurrency": 1, "jitter": "1s"}});
        put_group(scene, &to, "./app", slow).await?;
        rolled_out(scene, from, &commit, 5).await?;
        let before = uids(scene, &MEMBERS, "a").await?;
        ensure!(before.values().all(Option::is_some), "{before:?}");

        for member in MEMBERS {
            let labels = json!({"metadata": {"labels": {from: null, &*to: "yes"}}});
            scene.fleet().patch::<Cluster>(member, labels).await?;
        }
        rolled_out(scene, &to, &commit, 5).await?;
        for member in MEMBERS {
            until_gone::<SyncResource>(scene, &scene.sync_name(member)).await?;
        }
        assert_eq!(uids(scene, &MEMBERS, "a").await?, before);
        let status = scene
            .fleet()
            .get::<SyncGroup>(&to)
            .await?
            .status
            .unwrap_or_default();
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        Ok(())
    })
}

/// Guards against objects that nobody keeps for an interval: their label is that of the Sync that is gone.
#[test]
fn a_cluster_that_was_in_another_group_for_a_while_gets_its_objects_back_at_once() -> Result<()> {
    shared_scene("returner", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let (from, to) = (scene.name, scene.own("to"));
        scene.label("m1", from, Some("yes")).await?;
        put_group(scene, from, "./app", json!({"unselectedGrace": "1h"})).await?;
        put_group(scene, &to, "./app", json!({})).await?;
        rolled_out(scene, from, &commit, 1).await?;
        let owner = async || -> Result<Option<String>> {
            let map = scene.map("m1", "a").await?;
            Ok(map.and_then(|map| map.labels().get(OWNER_LABEL).cloned()))
        };
        let before = owner().await?;
        ensure!(before.is_some(), "no object");
        let until_is = async |is: &dyn Fn(&Option<String>) -> bool, what: &str| {
            wait::until(TIMEOUT, what, async || {
                let now = owner().await.map_err(|error| format!("{error:#}"))?;
                if is(&now) { Ok(()) } else { Err(format!("{now:?}")) }
            })
            .await
        };

        let moves = |leaves: &str, joins: &str| json!({"metadata": {"labels": {leaves: null, joins: "yes"}}});
        scene.fleet().patch::<Cluster>("m1", moves(from, &to)).await?;
        rolled_out(scene, &to, &commit, 1).await?;
        until_is(
            &|now| now.is_some() && *now != before,
            "the object is handed over",
        )
        .await?;
        scene.fleet().patch::<Cluster>("m1", moves(&to, from)).await?;
        until_gone::<SyncResource>(scene, &format!("{to}-app-m1")).await?;
        until_is(&|now| *now == before, "the object is handed back").await?;
        Ok(())
    })
}

/// One commit moves an object from the folder of one group to that of another. Each of the groups may be the first to
/// roll it out.
#[test]
fn an_object_that_moves_to_another_group_is_handed_over() -> Result<()> {
    shared_scene("handed", async |scene| {
        let (from, to) = (scene.own("from"), scene.own("to"));
        let text = |name: &str, value| config_map(&scene.own(name), value);
        let (stays_from, stays_to) = (format!("stays-{from}"), format!("stays-{to}"));
        let (own_from, own_to) = (text(&stays_from, "one"), text(&stays_to, "one"));
        let (early, late) = (text("early", "one"), text("late", "one"));
        let first = scene.repo.commit_to(
            "main",
            &[
                Change::Write("from/own.yaml", own_from.as_bytes()),
                Change::Write("to/own.yaml", own_to.as_bytes()),
                Change::Write("from/early.yaml", early.as_bytes()),
                Change::Write("from/late.yaml", late.as_bytes()),
            ],
            "all in one",
        )?;
        scene.follow_main().await?;
        for label in [&from, &to] {
            scene.label("m1", label, Some("yes")).await?;
        }
        put_group(scene, &from, "./from", json!({})).await?;
        put_group(scene, &to, "./to", json!({})).await?;
        rolled_out(scene, &from, &first, 1).await?;
        rolled_out(scene, &to, &first, 1).await?;
        let before = (scene.map("m1", "early").await?, scene.map("m1", "late").await?);
        let uid = |map: &Option<ConfigMap>| map.as_ref().and_then(ResourceExt::uid);

        // The group that has the object rolls out first.
        let suspended = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene.fleet().patch::<SyncGroup>(&to, suspended(true)).await?;
        let moved = [
            Change::Remove("from/early.yaml"),
            Change::Write("to/early.yaml", early.as_bytes()),
        ];
        let second = scene.repo.commit_to("main", &moved, "early moves")?;
        rolled_out(scene, &from, &second, 1).await?;
        assert_eq!(
            uid(&scene.map("m1", "early").await?),
            uid(&before.0),
            "not pruned"
        );
        scene.fleet().patch::<SyncGroup>(&to, suspended(false)).await?;
        rolled_out(scene, &to, &second, 1).await?;
        let early = owned_by(scene, &to, "m1", "early").await?;
        assert_eq!(early.uid(), uid(&before.0));

        // The group that gets the object rolls out first.
        scene.fleet().patch::<SyncGroup>(&from, suspended(true)).await?;
        let moved = [
            Change::Remove("from/late.yaml"),
            Change::Write("to/late.yaml", late.as_bytes()),
        ];
        let third = scene.repo.commit_to("main", &moved, "late moves")?;
        rolled_out(scene, &to, &third, 1).await?;
        owned_by(scene, &to, "m1", "late").await?;
        scene.fleet().patch::<SyncGroup>(&from, suspended(false)).await?;
        rolled_out(scene, &from, &third, 1).await?;
        let late = owned_by(scene, &to, "m1", "late").await?;
        assert_eq!(late.uid(), uid(&before.1));
        Ok(())
    })
}

/// A group is renamed: the new one is created, and the old one is deleted with its objects.
#[test]
fn a_renamed_group_keeps_its_objects() -> Result<()> {
    shared_scene("renamed", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let to = scene.own("to");
        for label in [scene.name, &*to] {
            scene.label("m1", label, Some("yes")).await?;
        }
        put_group(scene, scene.name, "./app", json!({})).await?;
        rolled_out(scene, scene.name, &commit, 1).await?;
        let before = scene.map("m1", "a").await?.context("a")?;
        // The old group is deleted before the new one has started.
        put_group(scene, &to, "./app", json!({"suspend": true})).await?;
        let is_known = |status: &SyncGroupStatus| status.clusters.total == 1;
        scene.fleet().group_status(&to, "selects m1", is_known).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        let suspend = json!({"spec": {"suspend": false}});
        scene.fleet().patch::<SyncGroup>(&to, suspend).await?;
        rolled_out(scene, &to, &commit, 1).await?;
        let after = scene.map("m1", "a").await?.context("a")?;
        assert_eq!(after.uid(), before.uid());
        assert_ne!(after.labels().get(OWNER_LABEL), before.labels().get(OWNER_LABEL));
        Ok(())
    })
}

fn waits_for_siblings(sync: &SyncResource) -> bool {
    sync_ready(sync) == ("False".into(), "HandOverUnknown".into())
}

/// The other group selects the cluster, and what it will render there is not known yet: a label for its parameter is
/// missing, its Source does not exist, or its selector cannot be read. Counting it as a group that renders nothing
/// deletes the objects and their data.
#[test]
fn a_cluster_that_moves_to_a_group_that_is_not_ready_keeps_its_objects() -> Result<()> {
    shared_scene("unready", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        for (case, member) in [("label", "m1"), ("source", "m2"), ("selector", "m3")] {
            let (from, to) = (
                scene.own(&format!("from-{case}")),
                scene.own(&format!("to-{case}")),
            );
            let (tier, later) = (scene.own("tier"), scene.own("later"));
            scene.label(member, &from, Some("yes")).await?;
            put_group(scene, &from, "./app", json!({})).await?;
            let mut entry = json!({"name": "app", "sourceRef": {"name": scene.name}, "path": "./app",
                "retryInterval": "1s", "deletionPolicy": "Delete"});
            let selector = |values: &[&str]| {
                let expression = json!({"key": to, "operator": "In", "values": values});
                json!({"clusterSelector": {"matchExpressions": [expression]}})
            };
            match case {
                "label" => entry["substitute"] = json!({"TIER": format!("$(cluster.labels.{tier})")}),
                "source" => entry["sourceRef"]["name"] = json!(later),
                _ => {}
            }
            let mut more = json!({"syncs": [entry]});
            if case == "selector" {
                merge(&mut more, selector(&[]));
            }
            put_group(scene, &to, "./app", more).await?;
            rolled_out(scene, &from, &commit, 1).await?;
            let before = scene.map(member, "a").await?.context("a")?;

            let labels = json!({"metadata": {"labels": {&*from: null, &*to: "yes"}}});
            scene.fleet().patch::<Cluster>(member, labels).await?;
            let sync = format!("{from}-app-{member}");
            let fleet = scene.fleet();
            fleet
                .until::<SyncResource>(&sync, "waits", waits_for_siblings)
                .await?;
            let kept = scene.map(member, "a").await?.context("a")?;
            assert_eq!(kept.uid(), before.uid(), "{case}");
            assert!(kept.metadata.deletion_timestamp.is_none(), "{case}");

            match case {
                "label" => scene.label(member, &tier, Some("gold")).await?,
                "source" => {
                    let url = scene.repo.url();
                    fleet.put_source(&later, &url, json!({"branch": "main"})).await?;
                }
                _ => {
                    let spec = json!({"spec": selector(&["yes"])});
                    fleet.patch::<SyncGroup>(&to, spec).await?;
                }
            }
            rolled_out(scene, &to, &commit, 1).await?;
            until_gone::<SyncResource>(scene, &sync).await?;
            let after = scene.map(member, "a").await?.context("a")?;
            assert_eq!(after.uid(), before.uid(), "{case}");
            assert_ne!(after.labels().get(OWNER_LABEL), before.labels().get(OWNER_LABEL));
        }
        Ok(())
    })
}
