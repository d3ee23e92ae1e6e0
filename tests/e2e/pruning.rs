//! Objects that left the repository are pruned, but only if that is certain.

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};
use starling_api::SyncGroupStatus;
use starling_testkit::{Change, RequestInfo};

use crate::world::{all, config_map, problems, shared_scene, sync_ready};

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

/// One release takes the operator from one entry and its instances from another, which depends on it: the instances go
/// first, although the operator's entry is applied first.
#[test]
fn what_dependents_delete_goes_before_what_they_depend_on() -> Result<()> {
    shared_scene("dependents-first", async |scene| {
        let map = |name: &str| config_map(&scene.own(name), "one");
        let maps = ["base", "operator", "top", "instance"].map(map);
        let paths = [
            "base/a.yaml",
            "base/operator.yaml",
            "top/a.yaml",
            "top/instance.yaml",
        ];
        let files: Vec<(&str, &str)> = paths.into_iter().zip(maps.iter().map(String::as_str)).collect();
        let commit = scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str, on: Value| json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"), "dependsOn": on});
        let entries = [entry("base", json!([])), entry("top", json!([{"name": "base"}]))];
        let spec = json!({"clusterSelector": scene.selector(), "syncs": entries});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&commit).await?;

        let removed = [
            Change::Remove("base/operator.yaml"),
            Change::Remove("top/instance.yaml"),
        ];
        scene.repo.commit_to("main", &removed, "without the operator")?;
        scene.until_value("m1", "operator", None).await?;
        scene.until_value("m1", "instance", None).await?;
        let requests = scene.proxy("m1")?.requests();
        let deleted = |name: &str| {
            let end = format!("/configmaps/{}", scene.own(name));
            let is = |request: &RequestInfo| request.method == Method::DELETE && request.path.ends_with(&end);
            requests
                .iter()
                .position(is)
                .context(format!("{name} was not deleted"))
        };
        assert!(deleted("instance")? < deleted("operator")?);
        Ok(())
    })
}
