//! A revision that cannot be built changes nothing on any member.

use anyhow::Result;
use serde_json::json;
use starling_api::conditions::{self, SUBMODULES_IGNORED};
use starling_api::{RolloutPhase, SyncResource};
use starling_testkit::Change;

use crate::world::{Scene, problems, shared_scene, sync_ready};

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];

/// Waits until the build of a commit has failed for every cluster, and asserts that nothing has changed.
async fn until_failed_without_change(scene: &Scene, commit: &str) -> Result<String> {
    let failed = |status: &starling_api::SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|r| r.phase == RolloutPhase::Failed && r.revisions[0].revision.ends_with(commit))
    };
    let status = scene.status("failed everywhere", failed).await?;
    assert_eq!(status.clusters.failed, 3);
    let mut message = String::new();
    for member in MEMBERS {
        assert_eq!(problems(&status)[member], "BuildFailed");
        let sync = scene.sync(member, "failed", |_| true).await?;
        assert_eq!(
            sync_ready(&sync),
            ("False".into(), "BuildFailed".into()),
            "{member}"
        );
        let status = sync.status.unwrap_or_default();
        assert!(status.last_attempted_revision.ends_with(commit), "{status:?}");
        assert!(!status.last_applied_revision.ends_with(commit), "{status:?}");
        message = status
            .conditions
            .first()
            .map(|c| c.message.clone())
            .unwrap_or_default();
    }
    Ok(message)
}

#[test]
fn t30_a_kustomize_that_fails_halfway_applies_and_prunes_nothing() -> Result<()> {
    shared_scene("halfway", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one"), ("c", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        let before = state(scene).await?;

        scene.break_kustomize(true)?;
        let second = scene.commit(&[("a", "two"), ("b", "two"), ("c", "two")])?;
        let message = until_failed_without_change(scene, &second).await?;
        assert!(message.contains("the disk is full"), "{message}");
        assert_eq!(state(scene).await?, before);

        // An error in the repository: a kustomization with a missing file.
        scene.break_kustomize(false)?;
        let broken = "resources: [a.yaml, missing.yaml]\n";
        let third = scene
            .repo
            .commit(&[("app/kustomization.yaml", broken)], "broken")?;
        let message = until_failed_without_change(scene, &third).await?;
        assert!(message.contains("missing.yaml"), "{message}");
        assert_eq!(state(scene).await?, before);

        let whole = "resources: [a.yaml, b.yaml, c.yaml]\n";
        let fourth = scene
            .repo
            .commit(&[("app/kustomization.yaml", whole)], "mended")?;
        scene.succeeded(&fourth).await?;
        for name in ["a", "b", "c"] {
            for member in MEMBERS {
                assert_eq!(
                    scene.value(member, name).await?.as_deref(),
                    Some("two"),
                    "{name} on {member}"
                );
            }
        }
        Ok(())
    })
}

#[test]
fn a_submodule_is_reported_until_it_is_removed() -> Result<()> {
    shared_scene("submodule", async |scene| {
        let message = |sync: &SyncResource| {
            let status = sync.status.as_ref()?;
            Some(
                conditions::find(&status.conditions, SUBMODULES_IGNORED)?
                    .message
                    .clone(),
            )
        };
        scene.commit(&[("a", "one")])?;
        let submodules = [
            Change::Submodule("vendor/one", &"ab".repeat(20)),
            Change::Submodule("vendor/two", &"cd".repeat(20)),
        ];
        let with = scene.repo.commit_to("main", &submodules, "add submodules")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..1]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&with).await?;
        let sync = scene
            .sync("m1", "reported", |sync| message(sync).is_some())
            .await?;
        assert_eq!(
            message(&sync).as_deref(),
            Some("submodule vendor/one (and 1 more): files of submodules are not read")
        );

        let without = scene.repo.remove(&["vendor"], "remove submodules")?;
        scene.succeeded(&without).await?;
        scene
            .sync("m1", "no longer reported", |sync| message(sync).is_none())
            .await?;
        Ok(())
    })
}

/// Returns the version of every object on every member, which any write changes.
async fn state(scene: &Scene) -> Result<Vec<Option<String>>> {
    let mut versions = Vec::new();
    for member in MEMBERS {
        for name in ["a", "b", "c"] {
            let map = scene.map(member, name).await?;
            versions.push(map.and_then(|map| map.metadata.resource_version));
        }
    }
    assert!(versions.iter().all(Option::is_some), "{versions:?}");
    Ok(versions)
}
