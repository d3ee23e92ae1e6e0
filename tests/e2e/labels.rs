//! Labels select the clusters of a group and their parameters; they may change during a rollout.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use starling_api::{RolloutPhase, SyncResource};
use starling_testkit::{Fault, wait};

use crate::world::{Scene, all, problems, ready, shared_scene};

#[test]
fn clusters_join_and_leave_while_a_rollout_runs() -> Result<()> {
    shared_scene("label-move", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2", "m3", "m4"]).await?;
        scene.group(json!({"maxConcurrency": 1}), json!({})).await?;
        scene.succeeded(&first).await?;

        let proxy = scene.proxy("m1")?;
        let delay = proxy.on(
            scene.writes_of("settings"),
            Fault::Latency(Duration::from_secs(3)),
        );
        let second = scene.commit(&[("settings", "two")])?;
        wait::until(Duration::from_secs(30), "m1 is written to", async || {
            delay.fired() > 0
        })
        .await?;
        scene.label("m3", scene.name, None).await?;
        scene.label("m5", scene.name, Some("yes")).await?;
        let status = scene
            .status("the second commit on those that are in the group now", |status| {
                let rollout = status.rollout.as_ref();
                rollout.is_some_and(|r| {
                    r.phase == RolloutPhase::Succeeded && r.revisions[0].revision.ends_with(&second)
                })
            })
            .await?;
        assert_eq!((status.clusters.total, status.clusters.updated), (4, 4));
        assert_eq!(
            scene.values(&["m1", "m2", "m4", "m5"], "settings").await?,
            all("two", 4)
        );

        // m3 left before it was admitted: it keeps its objects, which are no longer reconciled.
        assert_eq!(scene.value("m3", "settings").await?.as_deref(), Some("one"));
        wait::until(Duration::from_secs(30), "its Sync is gone", async || {
            let syncs = scene.fleet().api::<SyncResource>();
            let found = syncs.get_opt(&scene.sync_name("m3")).await;
            found.is_ok_and(|sync| sync.is_none())
        })
        .await?;
        assert_eq!(scene.value("m3", "settings").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// The folder `app` with one ConfigMap whose value is `${PLACE}`.
fn commit_place(scene: &Scene) -> Result<String> {
    scene.commit(&[("place", "${PLACE}")])
}

async fn versions(scene: &Scene, members: &[&str]) -> Result<Vec<Option<String>>> {
    let mut versions = Vec::new();
    for member in members {
        let map = scene.map(member, "place").await?;
        versions.push(map.and_then(|map| map.metadata.resource_version));
    }
    Ok(versions)
}

#[test]
fn a_changed_label_rolls_out_only_where_its_value_is_used() -> Result<()> {
    shared_scene("zones", async |scene| {
        let members = ["m1", "m2", "m3"];
        let commit = commit_place(scene)?;
        scene.follow_main().await?;
        scene.select(&members).await?;
        for member in members {
            scene.label(member, "zone", Some("north")).await?;
        }
        let substitute = json!({"substitute": {"PLACE": "$(cluster.name) in $(cluster.labels.zone)"}});
        scene.group(json!({}), substitute).await?;
        let before = scene.succeeded(&commit).await?;
        scene.until_value("m2", "place", Some("m2 in north")).await?;
        let versions_before = versions(scene, &["m1", "m3"]).await?;

        scene.label("m2", "zone", Some("south")).await?;
        scene.until_value("m2", "place", Some("m2 in south")).await?;
        let after = scene
            .status("all updated", |status| status.clusters.updated == 3)
            .await?;
        assert_eq!(
            after.rollout.map(|r| r.id),
            before.rollout.map(|r| r.id),
            "the release is the same"
        );
        assert_eq!(versions(scene, &["m1", "m3"]).await?, versions_before);
        Ok(())
    })
}

#[test]
fn a_cluster_without_a_parameter_is_on_hold_and_the_others_are_done() -> Result<()> {
    shared_scene("lacking", async |scene| {
        let commit = commit_place(scene)?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2", "m3"]).await?;
        for member in ["m1", "m3"] {
            scene.label(member, "region", Some("eu")).await?;
        }
        let substitute = json!({"substitute": {"PLACE": "$(cluster.labels.region)"}});
        scene.group(json!({"maxFailures": 0}), substitute).await?;
        let status = scene
            .status("two updated, one held", |status| {
                (status.clusters.updated, status.clusters.held) == (2, 1)
            })
            .await?;
        assert_eq!((status.clusters.failed, status.clusters.pending), (0, 0));
        assert_eq!(ready(&status.conditions).0, "False");
        assert_eq!(problems(&status)["m2"], "InvalidParameters");
        let message = &status.problems[0].message;
        assert!(
            message.contains("substitute.PLACE") && message.contains("\"region\""),
            "{message}"
        );
        assert_eq!(scene.values(&["m1", "m3"], "place").await?, all("eu", 2));
        assert_eq!(scene.value("m2", "place").await?, None);

        scene.label("m2", "region", Some("us")).await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.value("m2", "place").await?.as_deref(), Some("us"));
        Ok(())
    })
}
