//! Definitions, whose deletion deletes the objects of their kind.

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;
use starling_api::{SyncGroup, SyncResource};

use crate::deleting::{until_event, until_gone};
use crate::world::{Scene, shared_scene, sync_ready};

/// The API group of the definition of a scene.
fn group_of(scene: &Scene) -> String {
    format!("{}.example.test", scene.name)
}

/// Commits a definition as `base/`, and an instance of it as `top/`.
fn commit(scene: &Scene) -> Result<String> {
    let group = group_of(scene);
    let definition = format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: gizmos.{group}}}\nspec:\n  \
         group: {group}\n  scope: Namespaced\n  names: {{plural: gizmos, singular: gizmo, kind: Gizmo, listKind: GizmoList}}\n  \
         versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}]\n"
    );
    let instance =
        format!("apiVersion: {group}/v1\nkind: Gizmo\nmetadata: {{name: one, namespace: default}}\n");
    let files = [
        ("base/definition.yaml", definition.as_str()),
        ("top/gizmo.yaml", instance.as_str()),
    ];
    Ok(scene.repo.commit(&files, "a definition and an instance")?)
}

async fn definition(scene: &Scene) -> Result<Option<CustomResourceDefinition>> {
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.fleet().member("m1").await?);
    Ok(definitions
        .get_opt(&format!("gizmos.{}", group_of(scene)))
        .await?)
}

async fn instances(scene: &Scene) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::gvk(&group_of(scene), "v1", "Gizmo");
    let kind = ApiResource::from_gvk_with_plural(&kind, "gizmos");
    Ok(Api::namespaced_with(
        scene.fleet().member("m1").await?,
        "default",
        &kind,
    ))
}

#[test]
fn a_definition_stays_with_the_instances_of_another_sync() -> Result<()> {
    shared_scene("box-defined", async |scene| {
        commit(scene)?;
        scene.follow_main().await?;
        let put = async |name: &str| {
            let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name},
                "path": format!("./{name}"), "deletionPolicy": "Delete"});
            let name = scene.own(name);
            let sync = json!({"metadata": {"name": name}, "spec": spec});
            scene.fleet().put::<SyncResource>(sync).await?;
            let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
            scene.fleet().until(&name, "Ready", done).await?;
            anyhow::Ok(name)
        };
        let base = put("base").await?;
        let top = put("top").await?;
        let before = instances(scene).await?.get("one").await?;
        scene.fleet().delete::<SyncResource>(&base).await?;
        until_gone::<SyncResource>(scene, &base).await?;
        let note = until_event(scene, &base, "ObjectsRelinquished").await?;
        assert!(note.contains("objects in them stay"), "{note}");
        let left = definition(scene).await?.context("the definition")?;
        assert!(left.metadata.deletion_timestamp.is_none());
        let after = instances(scene).await?.get("one").await?;
        assert_eq!(after.metadata.uid, before.metadata.uid);
        // The other Sync still deletes its own.
        scene.fleet().delete::<SyncResource>(&top).await?;
        until_gone::<SyncResource>(scene, &top).await?;
        assert!(instances(scene).await?.get_opt("one").await?.is_none());
        Ok(())
    })
}

/// Its entries do not depend on each other, and are removed at the same time.
#[test]
fn a_deleted_group_deletes_a_definition_after_the_instances_of_its_other_entry() -> Result<()> {
    shared_scene("redefined", async |scene| {
        let commit = commit(scene)?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
                "retryInterval": "1s"})
        };
        let spec = json!({"clusterSelector": scene.selector(), "syncs": [entry("base"), entry("top")],
            "deletionPolicy": "Delete"});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&commit).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        assert!(definition(scene).await?.is_none());
        Ok(())
    })
}
