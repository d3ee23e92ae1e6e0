//! Starling's own definitions, as the controller and its users use them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::world::{World, until};

#[tokio::test]
async fn starlings_definitions_are_accepted_and_a_sync_is_created() {
    let world = World::new().await;
    let (_cluster, client) = world.cluster("management").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let definition: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let name = definition["metadata"]["name"].as_str().unwrap();
        definitions
            .patch(name, &PatchParams::apply("test"), &Patch::Apply(&definition))
            .await
            .unwrap();
        until("an established definition", || async {
            let conditions = definitions.get(name).await.unwrap().status?.conditions?;
            conditions
                .iter()
                .any(|one| one.type_ == "Established" && one.status == "True")
                .then_some(())
        })
        .await;
        count += 1;
    }
    // Source, Cluster, Sync, SyncGroup, RolloutApproval, RolloutAction and DeletionApproval.
    assert_eq!(count, 7);
    let syncs = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("starling.dev", "v1alpha1", "Sync"),
        "syncs",
    );
    let syncs: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &syncs);
    let sync: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": {"name": "web"},
        "spec": {"sourceRef": {"name": "web"}, "clusterRef": {"name": "a"}, "path": "./deploy"},
    }))
    .unwrap();
    let made = syncs.create(&PostParams::default(), &sync).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    // `status` is a subresource, and applies to it do not change the generation.
    let status = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": {"name": "web"},
        "status": {"observedGeneration": 1}});
    let reported = syncs
        .patch_status(
            "web",
            &PatchParams::apply("controller").force(),
            &Patch::Apply(status),
        )
        .await
        .unwrap();
    assert_eq!(reported.data["status"]["observedGeneration"], 1);
    assert_eq!(reported.metadata.generation, Some(1));
    assert_eq!(reported.managed_fields().len(), 2);
    let mut wrong = sync;
    wrong.metadata.name = Some("wrong".to_owned());
    wrong.data["spec"]["clusterRef"] = json!({"name": 1});
    let refused = syncs.create(&PostParams::default(), &wrong).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 422));
}
