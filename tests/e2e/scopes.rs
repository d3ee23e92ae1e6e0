//! Objects of cluster-scoped kinds that git has with a namespace: in the manifest, by the transformer of a
//! kustomization, or by `targetNamespace`.

use anyhow::{Context, Result, ensure};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use starling_api::{OWNER_LABEL, SyncResource};
use starling_testkit::Change;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{Scene, config_map, shared_scene};

const GROUP: &str = "scoped.example.test";
/// The entries of the group, which are also the directories.
const ENTRIES: [&str; 3] = ["manifest", "kustomized", "target"];

/// A cluster-scoped kind of the test.
fn definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Cluster",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

async fn define(member: &Client) -> Result<()> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(member.clone(), &ApiResource::from_gvk(&kind));
    let definition = serde_json::from_value(definition())?;
    api.create(&PostParams::default(), &definition).await?;
    let gadgets = of_kind(member, GROUP, "Gadget");
    wait::until(TIMEOUT, "Gadgets are served", async || {
        let listed = gadgets.list(&kube::api::ListParams::default()).await;
        listed.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

/// The objects of a cluster-scoped kind.
fn of_kind(member: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, "v1", kind);
    Api::all_with(member.clone(), &ApiResource::from_gvk(&kind))
}

/// A ClusterRole and a Gadget of this name.
async fn both(member: &Client, name: &str) -> Result<[Option<DynamicObject>; 2]> {
    let role = of_kind(member, "rbac.authorization.k8s.io", "ClusterRole")
        .get_opt(name)
        .await?;
    let gadget = of_kind(member, GROUP, "Gadget").get_opt(name).await?;
    Ok([role, gadget])
}

/// The UID and the resource version of both.
async fn state(member: &Client, name: &str) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for object in both(member, name).await? {
        let object = object.with_context(|| format!("{name} is missing"))?;
        ensure!(object.namespace().is_none(), "{:?}", object.metadata);
        all.push((
            object.uid().context("a UID")?,
            object.resource_version().context("a version")?,
        ));
    }
    Ok(all)
}

/// The manifests of a ClusterRole and a Gadget, with a namespace if one is given.
fn manifests(name: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map_or_else(String::new, |name| format!(", namespace: {name}"));
    let metadata = format!("metadata: {{name: {name}{namespace}}}");
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n{metadata}\n\
         rules: [{{apiGroups: [\"\"], resources: [pods], verbs: [get]}}]\n---\n\
         apiVersion: {GROUP}/v1\nkind: Gadget\n{metadata}\nspec: {{size: 1}}\n"
    )
}

/// The group, with one entry for each directory.
async fn put_group(scene: &Scene) -> Result<()> {
    let entries: Vec<Value> = ENTRIES
        .iter()
        .map(|name| {
            let mut entry = json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
                "interval": "2s", "retryInterval": "1s"});
            if *name == "target" {
                entry["targetNamespace"] = json!("default");
            }
            entry
        })
        .collect();
    let spec = json!({"clusterSelector": scene.selector(), "syncs": entries});
    scene.fleet().put_group(scene.name, spec).await
}

/// Changes the ConfigMap of each entry, and waits for its repair: a check for drift has then compared every object.
async fn checked_for_drift(scene: &Scene) -> Result<()> {
    let member = scene.fleet().member("m1").await?;
    let maps: Api<DynamicObject> = Api::namespaced_with(
        member,
        "default",
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")),
    );
    for entry in ENTRIES {
        let edit = PatchParams {
            field_manager: Some("somebody".into()),
            ..PatchParams::default()
        };
        let wrong = json!({"data": {"value": "wrong"}});
        maps.patch(&scene.own(&format!("map-{entry}")), &edit, &Patch::Merge(wrong))
            .await?;
    }
    for entry in ENTRIES {
        scene
            .until_value("m1", &format!("map-{entry}"), Some("right"))
            .await?;
    }
    Ok(())
}

/// The Sync that owns the objects of a name.
async fn owners(member: &Client, name: &str) -> Result<Vec<Option<String>>> {
    let found = both(member, name).await?;
    let owner = |object: Option<DynamicObject>| object?.labels().get(OWNER_LABEL).cloned();
    Ok(found.into_iter().map(owner).collect())
}

#[test]
fn cluster_scoped_objects_with_a_namespace_are_applied_repaired_handed_over_and_pruned() -> Result<()> {
    shared_scene("scoped", async |scene| {
        let member = scene.fleet().member("m1").await?;
        define(&member).await?;
        let name = |of: &str| scene.own(of);
        let map = |entry: &str| config_map(&scene.own(&format!("map-{entry}")), "right");
        let (manifest, kustomized) = (
            manifests(&name("manifest"), Some("default")),
            manifests(&name("kustomized"), None),
        );
        let (target, moved) = (
            manifests(&name("target"), None),
            manifests(&name("moved"), Some("default")),
        );
        let kustomization = "namespace: default\nresources: [map.yaml, objects.yaml]\n";
        let maps = ENTRIES.map(map);
        let first = scene.repo.commit_to(
            "main",
            &[
                Change::Write("manifest/map.yaml", maps[0].as_bytes()),
                Change::Write("manifest/objects.yaml", manifest.as_bytes()),
                Change::Write("manifest/moved.yaml", moved.as_bytes()),
                Change::Write("kustomized/kustomization.yaml", kustomization.as_bytes()),
                Change::Write("kustomized/map.yaml", maps[1].as_bytes()),
                Change::Write("kustomized/objects.yaml", kustomized.as_bytes()),
                Change::Write("target/map.yaml", maps[2].as_bytes()),
                Change::Write("target/objects.yaml", target.as_bytes()),
            ],
            "three ways to a namespace",
        )?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        put_group(scene).await?;
        scene.succeeded(&first).await?;
        let mut before = Vec::new();
        for of in ["manifest", "kustomized", "target", "moved"] {
            before.push(state(&member, &name(of)).await?);
        }

        // What the member has is what git has: nothing is written again.
        checked_for_drift(scene).await?;
        for (place, of) in ["manifest", "kustomized", "target", "moved"].iter().enumerate() {
            assert_eq!(state(&member, &name(of)).await?, before[place], "{of} is in step");
        }
        let edit = Patch::Merge(json!({"spec": {"size": 2}}));
        let gadgets = of_kind(&member, GROUP, "Gadget");
        for entry in ENTRIES {
            gadgets
                .patch(&name(entry), &PatchParams::default(), &edit)
                .await?;
        }
        for entry in ENTRIES {
            wait::until(
                TIMEOUT,
                format!("the Gadget of {entry} is repaired"),
                async || {
                    let found = gadgets
                        .get(&name(entry))
                        .await
                        .map_err(|error| error.to_string())?;
                    let size = found.data["spec"]["size"].clone();
                    (size == 1).then_some(()).ok_or_else(|| size.to_string())
                },
            )
            .await?;
        }

        // The objects move from the entry whose manifests have the namespace to the one whose kustomization sets it.
        let owner_before = owners(&member, &name("moved")).await?;
        let resources = "namespace: default\nresources: [map.yaml, objects.yaml, moved.yaml]\n";
        let plain = manifests(&name("moved"), None);
        let second = scene.repo.commit_to(
            "main",
            &[
                Change::Remove("manifest/moved.yaml"),
                Change::Write("kustomized/kustomization.yaml", resources.as_bytes()),
                Change::Write("kustomized/moved.yaml", plain.as_bytes()),
            ],
            "moved to another entry",
        )?;
        scene.succeeded(&second).await?;
        let kustomized = owners(&member, &name("kustomized")).await?;
        wait::until(TIMEOUT, "the objects belong to the other entry", async || {
            let now = owners(&member, &name("moved"))
                .await
                .map_err(|error| format!("{error:#}"))?;
            (now == kustomized)
                .then_some(())
                .ok_or_else(|| format!("{now:?}"))
        })
        .await?;
        assert_ne!(owner_before, kustomized);
        let uids = |state: &[(String, String)]| state.iter().map(|(uid, _)| uid.clone()).collect::<Vec<_>>();
        assert_eq!(
            uids(&state(&member, &name("moved")).await?),
            uids(&before[3]),
            "handed over"
        );

        // Each of them leaves git, and is pruned.
        let third = scene.repo.commit_to(
            "main",
            &[
                Change::Remove("manifest/objects.yaml"),
                Change::Remove("target/objects.yaml"),
                Change::Write(
                    "kustomized/kustomization.yaml",
                    b"namespace: default\nresources: [map.yaml]\n",
                ),
            ],
            "only the maps",
        )?;
        scene.succeeded(&third).await?;
        for of in ["manifest", "kustomized", "target", "moved"] {
            wait::until(TIMEOUT, format!("{of} is pruned"), async || {
                let left = both(&member, &name(of))
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                left.iter()
                    .all(Option::is_none)
                    .then_some(())
                    .ok_or_else(|| format!("{left:?}"))
            })
            .await?;
        }
        for entry in ENTRIES {
            let sync = format!("{}-{entry}-m1", scene.name);
            let sync = scene.fleet().get::<SyncResource>(&sync).await?;
            let status = sync.status.with_context(|| format!("the status of {entry}"))?;
            assert!(
                status.pending_deletions.is_none(),
                "{:?}",
                status.pending_deletions
            );
        }
        Ok(())
    })
}
