//! Deletions of a Sync, of a cluster that leaves, and of a group: which objects are deleted and which stay.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::{
    ABANDON, Cluster, FINALIZER, OWNER_LABEL, SYSTEM_NAMESPACE, SyncGroup, SyncGroupStatus, SyncResource,
    SyncStatus,
};
use starling_testkit::fleet::{Kind, MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Change, Fault, Match, wait};

use crate::operator_actions::say;
use crate::read_commands::run;
use crate::world::{Scene, all, exclusive_scene, shared_scene, sync_ready};

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];

/// Creates a Sync without group for the folder `app` on a cluster, with additional fields, and waits until it is
/// applied.
pub(crate) async fn sync_on(scene: &Scene, name: &str, cluster: &str, fields: Value) -> Result<String> {
    let mut spec =
        json!({"clusterRef": {"name": cluster}, "sourceRef": {"name": scene.name}, "path": "./app"});
    if let (Some(spec), Value::Object(fields)) = (spec.as_object_mut(), fields) {
        spec.extend(fields);
    }
    let name = scene.own(name);
    scene
        .fleet()
        .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
        .await?;
    let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
    scene.fleet().until(&name, "Ready", done).await?;
    Ok(name)
}

pub(crate) async fn until_gone<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    wait::until(TIMEOUT, format!("{name} is gone"), async || {
        let found = scene
            .fleet()
            .api::<K>()
            .get_opt(name)
            .await
            .map_err(|e| e.to_string())?;
        found.map_or(Ok(()), |found| Err(format!("{found:#?}")))
    })
    .await?;
    Ok(())
}

/// Returns the reasons of the events about an object, with their notes.
async fn events(scene: &Scene, name: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<Event> = Api::namespaced(scene.fleet().hub().clone(), NAMESPACE);
    let events = api.list(&ListParams::default()).await?;
    Ok(events
        .into_iter()
        .filter(|event| {
            let object = event.regarding.as_ref();
            object.and_then(|object| object.name.as_deref()) == Some(name)
        })
        .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
        .collect())
}

pub(crate) async fn until_event(scene: &Scene, name: &str, reason: &str) -> Result<String> {
    let note = wait::until(TIMEOUT, format!("{reason} of {name}"), async || {
        let events = events(scene, name).await.map_err(|e| format!("{e:#}"))?;
        events.get(reason).cloned().ok_or(format!("{events:?}"))
    })
    .await?;
    Ok(note)
}

/// Returns the names of the inventories on a member that contain an object of this scene.
async fn inventories(scene: &Scene, member: &str) -> Result<Vec<String>> {
    let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "starling-system");
    let maps = api.list(&ListParams::default()).await?;
    let mark = format!("{}-", scene.name);
    let listed = |map: &ConfigMap| {
        let data = map.data.iter().flatten();
        data.into_iter().any(|(_, text)| text.contains(&mark))
    };
    Ok(maps
        .into_iter()
        .filter(listed)
        .map(|map| map.name_any())
        .collect())
}

/// Deletes of a ConfigMap of this scene that reached a member.
fn deletes_of(scene: &Scene, member: &str, name: &str) -> Result<usize> {
    let path_end = format!("/configmaps/{}", scene.own(name));
    Ok(scene.proxy(member)?.count(&Method::DELETE, &path_end))
}

#[test]
fn the_deletion_policy_of_a_sync_applies_to_its_objects() -> Result<()> {
    shared_scene("ending", async |scene| {
        scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        let orphans = sync_on(scene, "orphans", "m1", json!({})).await?;
        let deletes = sync_on(scene, "deletes", "m2", json!({"deletionPolicy": "Delete"})).await?;
        let finalizers = async |name: &str| -> Result<Vec<String>> {
            let sync: SyncResource = scene.fleet().get(name).await?;
            Ok(sync.finalizers().to_vec())
        };
        assert!(finalizers(&orphans).await?.is_empty());
        assert_eq!(finalizers(&deletes).await?, [FINALIZER]);
        assert_eq!(inventories(scene, "m2").await?.len(), 1);

        for name in [&orphans, &deletes] {
            scene.fleet().delete::<SyncResource>(name).await?;
            until_gone::<SyncResource>(scene, name).await?;
        }
        for name in ["a", "b"] {
            assert_eq!(scene.value("m1", name).await?.as_deref(), Some("one"));
            assert_eq!(scene.value("m2", name).await?, None);
        }
        assert_eq!(inventories(scene, "m1").await?.len(), 1);
        assert!(inventories(scene, "m2").await?.is_empty());
        let note = until_event(scene, &deletes, "ObjectsDeleted").await?;
        assert!(note.contains("cluster m2"), "{note}");
        assert!(events(scene, &orphans).await?.is_empty());
        for request in scene.proxy("m2")?.requests() {
            let is_of_scene = request.path.contains(&scene.own("")) && request.method == Method::DELETE;
            let body = String::from_utf8_lossy(&request.body).into_owned();
            assert!(
                !is_of_scene || body.contains("\"uid\""),
                "without precondition: {request:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn a_changed_policy_adds_and_removes_the_finalizer() -> Result<()> {
    shared_scene("wavering", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let sync = sync_on(scene, "sync", "m1", json!({})).await?;
        for (policy, expected) in [("Delete", 1), ("Orphan", 0), ("Delete", 1)] {
            let patch = json!({"spec": {"deletionPolicy": policy}});
            scene.fleet().patch::<SyncResource>(&sync, patch).await?;
            let follows = |sync: &SyncResource| sync.finalizers().len() == expected;
            scene.fleet().until(&sync, policy, follows).await?;
        }
        scene.fleet().delete::<SyncResource>(&sync).await?;
        until_gone::<SyncResource>(scene, &sync).await?;
        assert_eq!(scene.value("m1", "a").await?, None);
        Ok(())
    })
}

#[test]
fn a_group_with_policy_delete_deletes_all_objects() -> Result<()> {
    shared_scene("closing", async |scene| {
        let commit = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        let patch = json!({"spec": {"deletionPolicy": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        let has = |group: &SyncGroup| group.finalizers().len() == 1;
        scene
            .fleet()
            .until::<SyncGroup>(scene.name, "the finalizer", has)
            .await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        for member in MEMBERS {
            until_gone::<SyncResource>(scene, &scene.sync_name(member)).await?;
            assert_eq!(scene.value(member, "a").await?, None);
            assert_eq!(scene.value(member, "b").await?, None);
            assert!(inventories(scene, member).await?.is_empty());
        }
        Ok(())
    })
}

#[test]
fn orphan_of_the_group_overrides_delete_of_its_entries() -> Result<()> {
    shared_scene("sparing", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete"}))
            .await?;
        scene.succeeded(&commit).await?;
        let sync: SyncResource = scene.fleet().get(&scene.sync_name("m1")).await?;
        assert_eq!(sync.finalizers(), [FINALIZER]);
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        for member in MEMBERS {
            until_gone::<SyncResource>(scene, &scene.sync_name(member)).await?;
        }
        assert_eq!(scene.values(&MEMBERS, "a").await?, all("one", 3));
        Ok(())
    })
}

/// The group wants the Sync: it is recreated, and its objects stay, whatever the policy.
#[test]
fn a_manually_deleted_sync_of_a_group_is_recreated_and_its_objects_stay() -> Result<()> {
    shared_scene("remaking", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..1]).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete"}))
            .await?;
        scene.succeeded(&commit).await?;
        let before = scene.sync("m1", "there", |_| true).await?;
        let uid = scene.map("m1", "a").await?.context("a")?.uid();
        scene.fleet().delete::<SyncResource>(&before.name_any()).await?;
        let recreated = |sync: &SyncResource| sync.uid() != before.uid() && sync_ready(sync).0 == "True";
        scene.sync("m1", "recreated", recreated).await?;
        assert_eq!(scene.map("m1", "a").await?.context("a")?.uid(), uid);

        // The same in a suspended group, which waits with it.
        let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true))
            .await?;
        scene.fleet().delete::<SyncResource>(&before.name_any()).await?;
        let waits = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "GroupStopped".into());
        let waiting = scene.sync("m1", "waits for its group", waits).await?;
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false))
            .await?;
        let recreated = |sync: &SyncResource| sync.uid() != waiting.uid() && sync_ready(sync).0 == "True";
        scene.sync("m1", "recreated", recreated).await?;
        assert_eq!(scene.map("m1", "a").await?.context("a")?.uid(), uid);
        Ok(())
    })
}

#[test]
fn when_unselected_applies_to_a_cluster_that_leaves() -> Result<()> {
    shared_scene("leavers", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        scene.label("m1", scene.name, None).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m1")).await?;
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("one"));
        let note = until_event(scene, scene.name, "ClusterLeft").await?;
        assert!(note.contains("cluster m1"), "{note}");

        let patch = json!({"spec": {"whenUnselected": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.label("m2", scene.name, None).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m2")).await?;
        assert_eq!(scene.value("m2", "a").await?, None);
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("one"));
        assert_eq!(scene.value("m3", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// Without the grace, a label that was removed by mistake deleted the objects after three seconds.
#[test]
fn a_cluster_that_returns_within_the_grace_keeps_its_objects() -> Result<()> {
    shared_scene("graced", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {
            "whenUnselected": "Delete", "unselectedGrace": "10m", "maxUnselected": "100%",
        }});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&commit).await?;
        let before = scene.map("m1", "a").await?.context("a")?;

        let names = |status: &SyncGroupStatus| -> Vec<String> {
            let groups = status.unselected.iter();
            groups.flat_map(|group| group.clusters.clone()).collect()
        };
        scene.label("m1", scene.name, None).await?;
        let recorded = scene.status("m1 left", |status| names(status) == ["m1"]).await?;
        // A later pass of the group: the time of m1 stays, and m1 as well.
        scene.label("m2", scene.name, None).await?;
        let later = scene
            .status("m2 left", |status| names(status) == ["m1", "m2"])
            .await?;
        assert_eq!(later.unselected[0], recorded.unselected[0]);
        let why = say(scene, &["why", scene.name]).await?;
        assert!(
            why.contains("Settling") && why.contains("unselectedGrace"),
            "{why}"
        );
        scene.label("m1", scene.name, Some("yes")).await?;
        scene
            .status("m1 is back", |status| names(status) == ["m2"])
            .await?;
        let after = scene.map("m1", "a").await?.context("a")?;
        assert_eq!(
            (after.uid(), after.resource_version()),
            (before.uid(), before.resource_version())
        );

        // A grace that has ended.
        let patch = json!({"spec": {"unselectedGrace": "1s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m2")).await?;
        assert_eq!(scene.value("m2", "a").await?, None);
        scene
            .status("nothing leaves", |status| status.unselected.is_empty())
            .await?;
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

#[test]
fn a_protected_object_is_neither_pruned_nor_deleted() -> Result<()> {
    shared_scene("guarded", async |scene| {
        let annotated = |name: &str| {
            crate::world::config_map(&scene.own(name), "one").replace(
                "metadata:\n",
                "metadata:\n  annotations: {starling.dev/prune: disabled}\n",
            )
        };
        let (pruned, deleted) = (annotated("pruned"), annotated("deleted"));
        let files = [
            ("app/pruned.yaml", pruned.as_str()),
            ("app/deleted.yaml", deleted.as_str()),
        ];
        scene.repo.commit(&files, "two that stay")?;
        scene.commit(&[("goes", "one"), ("byhand", "one")])?;
        scene.follow_main().await?;
        let sync = sync_on(scene, "sync", "m1", json!({"deletionPolicy": "Delete"})).await?;
        // An annotation on the member counts as well.
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let patch = json!({"metadata": {"annotations": {"starling.dev/prune": "disabled"}}});
        api.patch(
            &scene.own("byhand"),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;

        let second = scene.repo.remove(&["app/pruned.yaml"], "remove")?;
        let applied = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            status.last_applied_revision.ends_with(&second)
        };
        scene
            .fleet()
            .until(&sync, "at the second commit", applied)
            .await?;
        assert_eq!(scene.value("m1", "pruned").await?.as_deref(), Some("one"));

        scene.fleet().delete::<SyncResource>(&sync).await?;
        until_gone::<SyncResource>(scene, &sync).await?;
        for name in ["pruned", "deleted", "byhand"] {
            assert_eq!(scene.value("m1", name).await?.as_deref(), Some("one"), "{name}");
        }
        assert_eq!(scene.value("m1", "goes").await?, None);
        Ok(())
    })
}

#[test]
fn dependents_of_a_sync_are_deleted_first() -> Result<()> {
    shared_scene("reversed", async |scene| {
        let maps = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (base, top) = (maps("base"), maps("top"));
        let files = [("base/a.yaml", base.as_str()), ("top/a.yaml", top.as_str())];
        scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        let fields = |path: &str| json!({"path": path, "deletionPolicy": "Delete"});
        let base = sync_on(scene, "base", "m1", fields("./base")).await?;
        let top = sync_on(scene, "top", "m1", fields("./top")).await?;
        // A finalizer blocks the deletion of the dependent's object.
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let params = PatchParams::default();
        api.patch(&scene.own("top"), &params, &hold(json!(["example.test/hold"])))
            .await?;
        let patch = json!({"spec": {"dependsOn": [{"name": base}]}});
        scene.fleet().patch::<SyncResource>(&top, patch).await?;
        scene.fleet().delete::<SyncResource>(&top).await?;
        scene.fleet().delete::<SyncResource>(&base).await?;

        let waits = |sync: &SyncResource| sync_ready(sync).1 == "AwaitingDependents";
        scene
            .fleet()
            .until(&base, "waits for its dependent", waits)
            .await?;
        let deleting = |sync: &SyncResource| sync_ready(sync).1 == "Deleting";
        scene
            .fleet()
            .until(&top, "waits for its object", deleting)
            .await?;
        assert_eq!(scene.value("m1", "base").await?.as_deref(), Some("one"));
        api.patch(&scene.own("top"), &params, &hold(Value::Null)).await?;
        for name in [&top, &base] {
            until_gone::<SyncResource>(scene, name).await?;
        }
        assert_eq!(scene.value("m1", "base").await?, None);
        Ok(())
    })
}

/// The same within a group, between its entries.
#[test]
fn entries_of_a_group_are_deleted_in_reverse_order_of_depends_on() -> Result<()> {
    shared_scene("receding", async |scene| {
        let map = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (base, top) = (map("base"), map("top"));
        let files = [("base/a.yaml", base.as_str()), ("top/a.yaml", top.as_str())];
        let commit = scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..2]).await?;
        let entry = |name: &str, on: Value| json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"), "dependsOn": on});
        let entries = [entry("base", json!([])), entry("top", json!([{"name": "base"}]))];
        let spec = json!({"clusterSelector": scene.selector(), "syncs": entries, "deletionPolicy": "Delete"});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&commit).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        for member in &MEMBERS[..2] {
            let requests = scene.proxy(member)?.requests();
            let deleted = |name: &str| {
                let end = format!("/configmaps/{}", scene.own(name));
                let found = requests
                    .iter()
                    .position(|request| request.method == Method::DELETE && request.path.ends_with(&end));
                found.context(format!("{name} of {member} was not deleted"))
            };
            assert!(deleted("top")? < deleted("base")?, "on {member}");
            assert_eq!(scene.value(member, "base").await?, None);
        }
        Ok(())
    })
}

#[test]
fn an_unreachable_cluster_keeps_the_finalizer_until_it_is_abandoned() -> Result<()> {
    exclusive_scene("stranded", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let fields = || json!({"deletionPolicy": "Delete"});
        let abandoned = sync_on(scene, "given-up", "m4", fields()).await?;
        let waited_for = sync_on(scene, "waited-for", "m5", fields()).await?;
        for member in ["m4", "m5"] {
            scene.proxy(member)?.refuse(true).await?;
            scene.world.look_at(member).await?;
            let away = |cluster: &Cluster| !crate::world::is_ready(cluster);
            scene.fleet().until(member, "away", away).await?;
        }
        for name in [&abandoned, &waited_for] {
            scene.fleet().delete::<SyncResource>(name).await?;
            let waits =
                |sync: &SyncResource| sync_ready(sync) == ("Unknown".into(), "ClusterNotReady".into());
            let sync = scene.fleet().until(name, "waits for its cluster", waits).await?;
            let status: SyncStatus = sync.status.clone().unwrap_or_default();
            let message = &status.conditions[0].message;
            // The message may still be from before the deletion.
            if !message.contains(ABANDON) {
                let names = |sync: &SyncResource| status_message(sync).contains(ABANDON) && waits(sync);
                scene.fleet().until(name, "names the way out", names).await?;
            }
            assert_eq!(sync.finalizers(), [FINALIZER]);
        }

        let patch = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene.fleet().patch::<SyncResource>(&abandoned, patch).await?;
        until_gone::<SyncResource>(scene, &abandoned).await?;
        let note = until_event(scene, &abandoned, "ObjectsOrphaned").await?;
        assert!(note.contains("m4") && note.contains("abandoned"), "{note}");
        let sync: SyncResource = scene.fleet().get(&waited_for).await?;
        assert_eq!(sync.finalizers(), [FINALIZER]);

        for member in ["m4", "m5"] {
            scene.proxy(member)?.refuse(false).await?;
            scene.world.look_at(member).await?;
        }
        until_gone::<SyncResource>(scene, &waited_for).await?;
        assert_eq!(scene.value("m4", "a").await?.as_deref(), Some("one"));
        assert_eq!(scene.value("m5", "a").await?, None);
        Ok(())
    })
}

/// The objects of a cluster that leaves stay, and people may change them from then on. Guards against a release that
/// leaves no number on the member, so that a management cluster that is set back later takes the objects for its own.
#[test]
fn a_cluster_that_leaves_with_its_objects_keeps_the_number_of_the_release() -> Result<()> {
    shared_scene("numbered", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"unselectedGrace": "0s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&commit).await?;
        let owner = scene.map("m2", "a").await?.context("a")?;
        let owner = owner.labels().get(OWNER_LABEL).cloned().context("an owner")?;
        let inventory = async || {
            let name = format!("starling-inventory-{owner}");
            let data = scene.fleet().config_map("m2", SYSTEM_NAMESPACE, &name).await?;
            data.context("an inventory")
        };
        let before = inventory().await?;
        scene.label("m2", scene.name, None).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m2")).await?;
        assert_ne!(inventory().await?, before);
        assert_eq!(scene.value("m2", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

/// Clusters that leave while they are unreachable: one returns to the group before it can be reached, the other does
/// not. Guards against a removal that begins on a cluster that nobody reaches.
#[test]
fn a_cluster_that_leaves_while_it_is_unreachable_loses_nothing_before_it_returns() -> Result<()> {
    exclusive_scene("taken-back", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m3", "m4", "m5"]).await?;
        scene
            .group(json!({"maxConcurrency": 1}), json!({"deletionPolicy": "Delete"}))
            .await?;
        let patch =
            json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s", "maxUnselected": "100%"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&commit).await?;
        let before = scene.map("m5", "a").await?.context("a")?.uid();
        for member in ["m4", "m5"] {
            scene.proxy(member)?.refuse(true).await?;
            scene.world.look_at(member).await?;
            let away = |cluster: &Cluster| !crate::world::is_ready(cluster);
            scene.fleet().until(member, "away", away).await?;
            scene.label(member, scene.name, None).await?;
        }
        // It waits for no slot of theirs.
        scene.label("m3", scene.name, None).await?;
        until_gone::<SyncResource>(scene, &scene.sync_name("m3")).await?;
        let is_held = |status: &SyncGroupStatus| {
            let held = status
                .problems
                .iter()
                .filter(|problem| problem.reason == "ClusterNotReady");
            held.map(|problem| &*problem.cluster).eq(["m4", "m5"])
        };
        scene.status("both are held", is_held).await?;
        let (_, why, error) = run(scene, &["why", scene.name]).await?;
        assert!(
            why.contains("the clusters are not ready") && why.contains(ABANDON),
            "{why}{error}"
        );
        for member in ["m4", "m5"] {
            let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
            assert_eq!(sync.metadata.deletion_timestamp, None, "{member}");
        }

        scene.label("m5", scene.name, Some("yes")).await?;
        for member in ["m4", "m5"] {
            scene.proxy(member)?.refuse(false).await?;
            scene.world.look_at(member).await?;
        }
        until_gone::<SyncResource>(scene, &scene.sync_name("m4")).await?;
        assert_eq!(scene.value("m4", "a").await?, None);
        scene
            .sync("m5", "ready", |sync| sync_ready(sync).0 == "True")
            .await?;
        assert_eq!(scene.map("m5", "a").await?.context("a")?.uid(), before);
        Ok(())
    })
}

/// A person suspends a Sync that is being deleted while the watch of Syncs delivers nothing.
#[test]
fn a_sync_that_was_suspended_unnoticed_keeps_its_objects() -> Result<()> {
    exclusive_scene("unnoticed", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let name = sync_on(scene, "unnoticed", "m4", json!({"deletionPolicy": "Delete"})).await?;
        scene.proxy("m4")?.refuse(true).await?;
        scene.world.look_at("m4").await?;
        let away = |cluster: &Cluster| !crate::world::is_ready(cluster);
        scene.fleet().until("m4", "away", away).await?;
        scene.fleet().delete::<SyncResource>(&name).await?;
        let waits = |sync: &SyncResource| status_message(sync).contains(ABANDON);
        scene.fleet().until(&name, "waits for its cluster", waits).await?;
        let hub = scene.proxy(MANAGEMENT)?;
        let watches = Match::method(Method::GET)
            .path_ends_with("/syncs")
            .query_contains("watch=");
        let silent = hub.on(watches, Fault::Latency(Duration::from_secs(600)));
        hub.cut_connections();
        wait::until(TIMEOUT, "the watch of Syncs is silent", async || {
            silent.fired() > 0
        })
        .await?;

        let patch = json!({"spec": {"suspend": true}});
        scene.fleet().patch::<SyncResource>(&name, patch).await?;
        scene.proxy("m4")?.refuse(false).await?;
        scene.world.look_at("m4").await?;
        until_gone::<SyncResource>(scene, &name).await?;
        hub.remove(&silent);
        hub.cut_connections();
        assert_eq!(scene.value("m4", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

fn status_message(sync: &SyncResource) -> String {
    let status = sync.status.clone().unwrap_or_default();
    let ready = starling_api::conditions::find(&status.conditions, "Ready");
    ready.map(|ready| ready.message.clone()).unwrap_or_default()
}

#[test]
fn a_deleted_group_deletes_reachable_syncs_and_waits_for_the_others() -> Result<()> {
    exclusive_scene("dispersing", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m4", "m5"]).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"deletionPolicy": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&commit).await?;
        scene.proxy("m5")?.refuse(true).await?;
        scene.world.look_at("m5").await?;
        let away = |cluster: &Cluster| !crate::world::is_ready(cluster);
        scene.fleet().until("m5", "away", away).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;

        until_gone::<SyncResource>(scene, &scene.sync_name("m4")).await?;
        assert_eq!(scene.value("m4", "a").await?, None);
        let unreachable_sync = scene.sync_name("m5");
        let waits = |group: &SyncGroup| {
            let status = group.status.clone().unwrap_or_default();
            let ready = starling_api::conditions::find(&status.conditions, "Ready");
            ready.is_some_and(|ready| {
                ready.reason == "Deleting"
                    && ready.message.starts_with("waiting for 1 Sync to be deleted")
                    && ready.message.contains(&unreachable_sync)
                    && ready.message.contains(ABANDON)
            })
        };
        let group = scene
            .fleet()
            .until(scene.name, "names the Sync that is left", waits)
            .await?;
        assert_eq!(group.finalizers(), [FINALIZER]);

        let patch = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene
            .fleet()
            .patch::<SyncResource>(&unreachable_sync, patch)
            .await?;
        until_gone::<SyncResource>(scene, &unreachable_sync).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        scene.proxy("m5")?.refuse(false).await?;
        assert_eq!(scene.value("m5", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

#[test]
fn objects_of_a_deleted_cluster_object_stay() -> Result<()> {
    exclusive_scene("struck", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete"}))
            .await?;
        scene.succeeded(&commit).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.fleet().delete::<Cluster>("m3").await?;
        let sync = scene.sync_name("m3");
        until_gone::<SyncResource>(scene, &sync).await?;
        let note = until_event(scene, &sync, "ObjectsOrphaned").await?;
        assert!(note.contains("the Cluster was deleted"), "{note}");
        assert_eq!(scene.values(&MEMBERS, "a").await?, all("one", 3));
        scene.fleet().add_cluster("m3", &[]).await?;
        scene
            .fleet()
            .until::<Cluster>("m3", "back", crate::world::is_ready)
            .await?;
        Ok(())
    })
}

/// A renamed entry: its objects are never recreated.
#[test]
fn a_renamed_entry_hands_over_its_objects() -> Result<()> {
    shared_scene("renaming", async |scene| {
        let commit = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..2]).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete"}))
            .await?;
        scene.succeeded(&commit).await?;
        let before = uids(scene, &["a", "b"]).await?;
        scene
            .group(json!({}), json!({"deletionPolicy": "Delete", "name": "main"}))
            .await?;
        for member in &MEMBERS[..2] {
            until_gone::<SyncResource>(scene, &scene.sync_name(member)).await?;
            let renamed = format!("{}-main-{member}", scene.name);
            let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
            scene.fleet().until(&renamed, "Ready", done).await?;
            for name in ["a", "b"] {
                assert_eq!(deletes_of(scene, member, name)?, 0);
            }
        }
        assert_eq!(uids(scene, &["a", "b"]).await?, before);
        Ok(())
    })
}

async fn uids(scene: &Scene, names: &[&str]) -> Result<Vec<Option<String>>> {
    let mut uids = Vec::new();
    for member in &MEMBERS[..2] {
        for name in names {
            uids.push(scene.map(member, name).await?.and_then(|map| map.uid()));
        }
    }
    assert!(uids.iter().all(Option::is_some), "{uids:?}");
    Ok(uids)
}

/// Moves the file `m.yaml` from the folder `x` to `y`, in one commit.
fn move_file(scene: &Scene, text: &str) -> Result<String> {
    let changes = [
        Change::Remove("x/m.yaml"),
        Change::Write("y/m.yaml", text.as_bytes()),
    ];
    Ok(scene.repo.commit_to("main", &changes, "in y")?)
}

/// One commit moves a file from the folder of one entry to that of another.
#[test]
fn an_object_that_moves_between_entries_is_handed_over() -> Result<()> {
    shared_scene("swapping", async |scene| {
        let map = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (x, y, moves) = (map("x"), map("y"), map("moves"));
        let files = [
            ("x/x.yaml", x.as_str()),
            ("y/y.yaml", y.as_str()),
            ("x/m.yaml", moves.as_str()),
        ];
        let first = scene.repo.commit(&files, "in x")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..2]).await?;
        let entry = |name: &str| json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}")});
        let spec = json!({"clusterSelector": scene.selector(), "syncs": [entry("x"), entry("y")]});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&first).await?;
        // The labels of the clusters may arrive after the group, which is done with no cluster then.
        for (member, name) in MEMBERS[..2]
            .iter()
            .flat_map(|member| ["moves", "x", "y"].map(|name| (member, name)))
        {
            scene.until_value(member, name, Some("one")).await?;
        }
        let before = uids(scene, &["moves", "x", "y"]).await?;
        // The Sync that takes over is slow: the other Sync must not delete the object meanwhile.
        let body = format!("\"name\":\"{}\"", scene.own("moves"));
        for member in &MEMBERS[..2] {
            let slow = scene.writes_of("moves").body_contains(body.clone());
            let fault = starling_testkit::Fault::Latency(std::time::Duration::from_secs(2));
            scene.proxy(member)?.on(slow, fault);
        }
        let second = move_file(scene, &moves)?;
        scene.succeeded(&second).await?;
        assert_eq!(uids(scene, &["moves", "x", "y"]).await?, before);
        for member in &MEMBERS[..2] {
            assert_eq!(deletes_of(scene, member, "moves")?, 0);
        }
        // y owns the object now: when y no longer renders it, it is pruned.
        let third = scene.repo.remove(&["y/m.yaml"], "nowhere")?;
        scene.succeeded(&third).await?;
        assert_eq!(scene.values(&MEMBERS[..2], "moves").await?, [None, None]);
        Ok(())
    })
}

/// The same between two Syncs without a group.
#[test]
fn an_object_that_moves_between_syncs_without_group_is_handed_over() -> Result<()> {
    shared_scene("trading", async |scene| {
        let map = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (x, y, moves) = (map("x"), map("y"), map("moves"));
        let files = [
            ("x/x.yaml", x.as_str()),
            ("y/y.yaml", y.as_str()),
            ("x/m.yaml", moves.as_str()),
        ];
        scene.repo.commit(&files, "in x")?;
        scene.follow_main().await?;
        let from = sync_on(scene, "x", "m1", json!({"path": "./x"})).await?;
        let to = sync_on(scene, "y", "m1", json!({"path": "./y"})).await?;
        let uid = scene.map("m1", "moves").await?.context("moves")?.uid();
        let suspend = |yes: bool| json!({"spec": {"suspend": yes}});
        // While suspended, the Sync takes over nothing yet, but still counts as a sibling that is about to.
        scene.fleet().patch::<SyncResource>(&to, suspend(true)).await?;
        let second = move_file(scene, &moves)?;
        let at = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            status.last_applied_revision.ends_with(&second) && sync_ready(sync).0 == "True"
        };
        scene.fleet().until(&from, "at the second commit", at).await?;
        assert_eq!(scene.map("m1", "moves").await?.context("moves")?.uid(), uid);
        scene.fleet().patch::<SyncResource>(&to, suspend(false)).await?;
        scene.fleet().until(&to, "at the second commit", at).await?;
        assert_eq!(scene.map("m1", "moves").await?.context("moves")?.uid(), uid);
        assert_eq!(deletes_of(scene, "m1", "moves")?, 0);
        Ok(())
    })
}

/// The receiver lacks a label for a parameter when the object moves, so what it renders is not known.
#[test]
fn an_object_that_moves_to_a_sync_that_cannot_be_resolved_stays() -> Result<()> {
    shared_scene("unresolved", async |scene| {
        let map = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (x, y, moves) = (map("x"), map("y"), map("moves"));
        let files = [
            ("x/x.yaml", x.as_str()),
            ("y/y.yaml", y.as_str()),
            ("x/m.yaml", moves.as_str()),
        ];
        scene.repo.commit(&files, "in x")?;
        scene.follow_main().await?;
        let side = scene.own("side");
        scene.label("m1", &side, Some("y")).await?;
        let path = format!("./$(cluster.labels.{side})");
        let from = sync_on(scene, "x", "m1", json!({"path": "./x", "retryInterval": "1s"})).await?;
        let to = sync_on(scene, "y", "m1", json!({"path": path, "retryInterval": "1s"})).await?;
        let uid = scene.map("m1", "moves").await?.context("moves")?.uid();
        scene.label("m1", &side, None).await?;
        let is_unresolved = |sync: &SyncResource| sync_ready(sync).0 == "False";
        scene.fleet().until(&to, "not resolved", is_unresolved).await?;
        let second = move_file(scene, &moves)?;
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "HandOverUnknown";
        let sync = scene.fleet().until(&from, "the prune waits", is_held).await?;
        let conditions = sync.status.unwrap_or_default().conditions;
        let ready = starling_api::conditions::find(&conditions, starling_api::conditions::READY);
        let message = ready.context("Ready")?.message.clone();
        assert!(
            message.contains(&format!("Sync {to}")) && message.contains(&side),
            "{message}"
        );
        assert_eq!(scene.map("m1", "moves").await?.context("moves")?.uid(), uid);
        scene.label("m1", &side, Some("y")).await?;
        let at = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            status.last_applied_revision.ends_with(&second) && sync_ready(sync).0 == "True"
        };
        scene.fleet().until(&to, "at the second commit", at).await?;
        scene.fleet().until(&from, "at the second commit", at).await?;
        assert_eq!(scene.map("m1", "moves").await?.context("moves")?.uid(), uid);
        assert_eq!(deletes_of(scene, "m1", "moves")?, 0);
        Ok(())
    })
}
