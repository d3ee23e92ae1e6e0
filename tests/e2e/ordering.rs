//! Definitions and their objects in one commit; immutable fields.

use anyhow::{Context, Result};
use serde_json::json;
use starling_api::SyncResource;

use crate::world::{shared_scene, sync_ready};

/// T35: a definition and an object of its kind in one commit: one attempt, one write of the object.
#[test]
fn t35_a_definition_and_its_object_in_one_commit() -> Result<()> {
    shared_scene("defined", async |scene| {
        let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gears.defined.example.test}\nspec:\n  group: defined.example.test\n  scope: Namespaced\n  names: {plural: gears, singular: gear, kind: Gear, listKind: GearList}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}\n";
        let gear = "apiVersion: defined.example.test/v1\nkind: Gear\nmetadata: {name: one, namespace: default}\nspec: {size: 1}\n";
        let commit = scene.repo.commit(
            &[("app/a-gear.yaml", gear), ("app/definition.yaml", definition)],
            "both",
        )?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        for member in ["m1", "m2"] {
            let sync = scene
                .sync(member, "Ready", |sync| sync_ready(sync).0 == "True")
                .await?;
            let status = sync.status.context("a status")?;
            assert_eq!(
                (status.attempts, status.problems.len(), status.changes.created),
                (0, 0, 2)
            );
            let writes = scene.proxy(member)?.patches("/gears/one");
            assert_eq!(writes, 1, "{member}: not sent before its kind was served");
        }
        Ok(())
    })
}

/// T64: an immutable ConfigMap is named without `force`, and recreated with it.
#[test]
fn t64_an_immutable_object_is_named_and_recreated_with_force() -> Result<()> {
    shared_scene("fixed", async |scene| {
        let text = |value: &str| {
            let map = crate::world::config_map(&scene.own("fixed"), value);
            format!("{map}immutable: true\n")
        };
        let first = scene.repo.commit(&[("app/fixed.yaml", &text("one"))], "one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"retryInterval": "1s"})).await?;
        scene.succeeded(&first).await?;
        let before = scene.map("m1", "fixed").await?.context("the map")?;

        let other = crate::world::config_map(&scene.own("free"), "two");
        let second = scene.repo.commit(
            &[("app/fixed.yaml", &text("two")), ("app/free.yaml", &other)],
            "two",
        )?;
        let refused = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "Immutable".into());
        let sync = scene.sync("m1", "refused", refused).await?;
        let problem = sync.status.context("a status")?.problems.remove(0);
        assert_eq!(problem.object, "ConfigMap default/fixed-fixed");
        assert!(
            problem.message.contains("data: Forbidden: field is immutable")
                && problem.message.contains("force: true"),
            "{}",
            problem.message
        );
        scene.until_value("m1", "free", Some("two")).await?;
        let kept = scene.map("m1", "fixed").await?.context("the map")?;
        assert_eq!(kept.metadata.uid, before.metadata.uid);

        scene
            .group(json!({}), json!({"retryInterval": "1s", "force": true}))
            .await?;
        scene.succeeded(&second).await?;
        scene.until_value("m1", "fixed", Some("two")).await?;
        let recreated = scene.map("m1", "fixed").await?.context("the map")?;
        assert_ne!(recreated.metadata.uid, before.metadata.uid);
        Ok(())
    })
}
