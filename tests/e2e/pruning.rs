//! Objects that left the repository are pruned, but only if that is certain.

use anyhow::Result;
use serde_json::json;
use starling_api::SyncGroupStatus;

use crate::world::{all, problems, shared_scene, sync_ready};

const MEMBERS: [&str; 2] = ["m1", "m2"];

#[test]
fn an_object_that_left_the_repository_is_pruned() -> Result<()> {
    shared_scene("leaving", async |scene| {
        let first = scene.commit(&[("stays", "one"), ("goes", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        assert_eq!(scene.values(&MEMBERS, "goes").await?, all("one", 2));
        let second = scene.repo.remove(&["app/goes.yaml"], "remove")?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "goes").await?, [None, None]);
        assert_eq!(scene.values(&MEMBERS, "stays").await?, all("one", 2));
        let sync = scene.sync("m1", "applied", |_| true).await?;
        let status = sync.status.unwrap_or_default();
        assert_eq!((status.changes.deleted, status.inventory.objects), (1, 1));
        Ok(())
    })
}

#[test]
fn with_prune_off_an_object_that_left_the_repository_stays() -> Result<()> {
    shared_scene("keeping", async |scene| {
        let first = scene.commit(&[("stays", "one"), ("goes", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({"prune": false})).await?;
        scene.succeeded(&first).await?;
        let second = scene.repo.remove(&["app/goes.yaml"], "remove")?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "goes").await?, all("one", 2));
        Ok(())
    })
}

#[test]
fn an_empty_folder_prunes_nothing_and_is_reported() -> Result<()> {
    shared_scene("emptied", async |scene| {
        scene
            .repo
            .commit(&[("app/README.md", "What runs here.\n")], "text")?;
        let first = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        scene.repo.remove(&["app/a.yaml", "app/b.yaml"], "empty")?;
        let failed = |status: &SyncGroupStatus| status.clusters.failed == 2;
        let status = scene.status("held everywhere", failed).await?;
        for member in MEMBERS {
            assert_eq!(problems(&status)[member], "EmptyRender", "{:?}", status.problems);
            let sync = scene.sync(member, "held", |_| true).await?;
            assert_eq!(sync_ready(&sync), ("False".into(), "EmptyRender".into()));
        }
        for name in ["a", "b"] {
            assert_eq!(scene.values(&MEMBERS, name).await?, all("one", 2), "{name}");
        }

        // A user allows it.
        scene.group(json!({}), json!({"allowEmpty": true})).await?;
        scene
            .status("all updated", |status| status.clusters.updated == 2)
            .await?;
        for name in ["a", "b"] {
            assert_eq!(scene.values(&MEMBERS, name).await?, [None, None], "{name}");
        }
        Ok(())
    })
}
