//! Manual changes on a member are repaired.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::shared_scene;

#[test]
fn a_manual_edit_and_a_manual_deletion_are_repaired() -> Result<()> {
    shared_scene("drifting", async |scene| {
        let commit = scene.commit(&[("edited", "right"), ("deleted", "right")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({}), json!({"interval": "2s"})).await?;
        scene.succeeded(&commit).await?;
        let other = scene.map("m2", "edited").await?.context("the map on m2")?;

        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let edited = json!({"data": {"value": "wrong", "more": "mine"}});
        let edit = PatchParams {
            field_manager: Some("somebody".into()),
            ..PatchParams::default()
        };
        let edited = api
            .patch(&scene.own("edited"), &edit, &Patch::Merge(edited))
            .await?;
        assert_eq!(edited.data.context("data")?["value"], "wrong");
        api.delete(&scene.own("deleted"), &DeleteParams::default())
            .await?;
        scene.until_value("m1", "edited", Some("right")).await?;
        scene.until_value("m1", "deleted", Some("right")).await?;
        // Fields that are not in git are not changed.
        let repaired = scene.map("m1", "edited").await?.context("the map on m1")?;
        assert_eq!(
            repaired.data.unwrap_or_default().get("more").map(String::as_str),
            Some("mine")
        );
        let still = scene.map("m2", "edited").await?.context("the map on m2")?;
        assert_eq!(
            still.metadata.resource_version, other.metadata.resource_version,
            "m2 was in step"
        );
        Ok(())
    })
}
