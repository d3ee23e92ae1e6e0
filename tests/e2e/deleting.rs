//! What goes with a Sync, a cluster that leaves, or a group; and what stays.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::{ABANDON, Cluster, FINALIZER, SyncGroup, SyncResource, SyncStatus};
use starling_testkit::fleet::{Kind, NAMESPACE, PATIENCE};
use starling_testkit::{Change, wait};

use crate::world::{Scene, all, alone, along, sync_ready};

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];

/// A Sync alone of the folder `app` on a cluster, with these fields more; applied.
async fn alone_on(scene: &Scene, name: &str, cluster: &str, fields: Value) -> Result<String> {
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

async fn until_gone<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    wait::until(PATIENCE, format!("{name} is gone"), async || {
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

/// Reasons of the events about an object, with their notes.
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
    let note = wait::until(PATIENCE, format!("{reason} of {name}"), async || {
        let events = events(scene, name).await.map_err(|e| format!("{e:#}"))?;
        events.get(reason).cloned().ok_or(format!("{events:?}"))
    })
    .await?;
    Ok(note)
}

/// Names of the inventories on a member that list an object of this scene.
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
fn the_deletion_policy_of_a_sync_decides_over_its_objects() -> Result<()> {
    along("ending", async |scene| {
        scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        let orphans = alone_on(scene, "orphans", "m1", json!({})).await?;
        let deletes = alone_on(scene, "deletes", "m2", json!({"deletionPolicy": "Delete"})).await?;
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
            let ours = request.path.contains(&scene.own("")) && request.method == Method::DELETE;
            let body = String::from_utf8_lossy(&request.body).into_owned();
            assert!(
                !ours || body.contains("\"uid\""),
                "without precondition: {request:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn a_policy_that_changes_puts_the_finalizer_on_and_takes_it_off() -> Result<()> {
    along("wavering", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let sync = alone_on(scene, "sync", "m1", json!({})).await?;
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
fn a_group_that_says_delete_takes_all_objects_along() -> Result<()> {
    along("closing", async |scene| {
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
fn a_group_that_says_orphan_wins_over_entries_that_say_delete() -> Result<()> {
    along("sparing", async |scene| {
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

/// A Sync of a group that somebody deletes by hand goes as its own spec says, and the group makes it anew.
#[test]
fn a_groups_sync_that_is_deleted_by_hand_is_cleaned_up_and_made_anew() -> Result<()> {
    along("remaking", async |scene| {
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
        let anew = |sync: &SyncResource| sync.uid() != before.uid() && sync_ready(sync).0 == "True";
        scene.sync("m1", "made anew", anew).await?;
        let after = scene.map("m1", "a").await?.context("a")?.uid();
        assert_ne!(after, uid, "it was deleted and made anew");
        Ok(())
    })
}

#[test]
fn when_unselected_decides_over_a_cluster_that_leaves() -> Result<()> {
    along("leavers", async |scene| {
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

#[test]
fn a_protected_object_survives_the_prune_and_the_deletion() -> Result<()> {
    along("guarded", async |scene| {
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
        let sync = alone_on(scene, "sync", "m1", json!({"deletionPolicy": "Delete"})).await?;
        // An annotation that somebody sets on the member counts as well.
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
fn what_depends_on_a_sync_goes_before_it() -> Result<()> {
    along("reversed", async |scene| {
        let maps = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (base, top) = (maps("base"), maps("top"));
        let files = [("base/a.yaml", base.as_str()), ("top/a.yaml", top.as_str())];
        scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        let fields = |path: &str| json!({"path": path, "deletionPolicy": "Delete"});
        let base = alone_on(scene, "base", "m1", fields("./base")).await?;
        let top = alone_on(scene, "top", "m1", fields("./top")).await?;
        // The object of the dependent holds its own deletion up.
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

/// The same within a group, whose entries name each other.
#[test]
fn the_entries_of_a_group_go_in_the_reverse_of_dependson() -> Result<()> {
    along("receding", async |scene| {
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
    alone("stranded", async |scene| {
        scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        let fields = || json!({"deletionPolicy": "Delete"});
        let given_up = alone_on(scene, "given-up", "m4", fields()).await?;
        let waited_for = alone_on(scene, "waited-for", "m5", fields()).await?;
        for member in ["m4", "m5"] {
            scene.proxy(member)?.refuse(true).await?;
            scene.world.look_at(member).await?;
            let away = |cluster: &Cluster| !crate::world::is_ready(cluster);
            scene.fleet().until(member, "away", away).await?;
        }
        for name in [&given_up, &waited_for] {
            scene.fleet().delete::<SyncResource>(name).await?;
            let waits =
                |sync: &SyncResource| sync_ready(sync) == ("Unknown".into(), "ClusterNotReady".into());
            let sync = scene.fleet().until(name, "waits for its cluster", waits).await?;
            let status: SyncStatus = sync.status.clone().unwrap_or_default();
            let message = &status.conditions[0].message;
            // It may still be what the Sync said before it was deleted.
            if !message.contains(ABANDON) {
                let names = |sync: &SyncResource| status_message(sync).contains(ABANDON) && waits(sync);
                scene.fleet().until(name, "names the way out", names).await?;
            }
            assert_eq!(sync.finalizers(), [FINALIZER]);
        }

        let patch = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene.fleet().patch::<SyncResource>(&given_up, patch).await?;
        until_gone::<SyncResource>(scene, &given_up).await?;
        let note = until_event(scene, &given_up, "ObjectsOrphaned").await?;
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

fn status_message(sync: &SyncResource) -> String {
    let status = sync.status.clone().unwrap_or_default();
    let ready = starling_api::conditions::find(&status.conditions, "Ready");
    ready.map(|ready| ready.message.clone()).unwrap_or_default()
}

#[test]
fn a_group_takes_away_what_it_can_reach_and_waits_for_the_rest() -> Result<()> {
    alone("dispersing", async |scene| {
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
        let stranded = scene.sync_name("m5");
        let waits = |group: &SyncGroup| {
            let status = group.status.clone().unwrap_or_default();
            let ready = starling_api::conditions::find(&status.conditions, "Ready");
            ready.is_some_and(|ready| {
                ready.reason == "Deleting"
                    && ready.message.starts_with("1 Syncs")
                    && ready.message.contains(&stranded)
                    && ready.message.contains(ABANDON)
            })
        };
        let group = scene
            .fleet()
            .until(scene.name, "names the Sync that is left", waits)
            .await?;
        assert_eq!(group.finalizers(), [FINALIZER]);

        let patch = json!({"metadata": {"annotations": {ABANDON: "true"}}});
        scene.fleet().patch::<SyncResource>(&stranded, patch).await?;
        until_gone::<SyncResource>(scene, &stranded).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        scene.proxy("m5")?.refuse(false).await?;
        assert_eq!(scene.value("m5", "a").await?.as_deref(), Some("one"));
        Ok(())
    })
}

#[test]
fn objects_on_a_cluster_whose_cluster_object_is_gone_stay() -> Result<()> {
    alone("struck", async |scene| {
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
        assert!(note.contains("its Cluster is gone"), "{note}");
        assert_eq!(scene.values(&MEMBERS, "a").await?, all("one", 3));
        scene.fleet().add_cluster("m3", &[]).await?;
        scene
            .fleet()
            .until::<Cluster>("m3", "back", crate::world::is_ready)
            .await?;
        Ok(())
    })
}

/// An entry that gets another name: the objects are the same ones, before, during and after.
#[test]
fn a_renamed_entry_hands_its_objects_over() -> Result<()> {
    along("renaming", async |scene| {
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

/// The file `m.yaml` goes from the folder `x` to `y`, in one commit.
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
    along("swapping", async |scene| {
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
        let before = uids(scene, &["moves", "x", "y"]).await?;
        // The one that takes over is slow: the one that hands over must not be faster with a delete.
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
        // It belongs to y now: what y no longer renders goes.
        let third = scene.repo.remove(&["y/m.yaml"], "nowhere")?;
        scene.succeeded(&third).await?;
        assert_eq!(scene.values(&MEMBERS[..2], "moves").await?, [None, None]);
        Ok(())
    })
}

/// The same between two Syncs that have no group.
#[test]
fn an_object_that_moves_between_syncs_alone_is_handed_over() -> Result<()> {
    along("trading", async |scene| {
        let map = |name: &str| crate::world::config_map(&scene.own(name), "one");
        let (x, y, moves) = (map("x"), map("y"), map("moves"));
        let files = [
            ("x/x.yaml", x.as_str()),
            ("y/y.yaml", y.as_str()),
            ("x/m.yaml", moves.as_str()),
        ];
        scene.repo.commit(&files, "in x")?;
        scene.follow_main().await?;
        let from = alone_on(scene, "x", "m1", json!({"path": "./x"})).await?;
        let to = alone_on(scene, "y", "m1", json!({"path": "./y"})).await?;
        let uid = scene.map("m1", "moves").await?.context("moves")?.uid();
        let suspend = |yes: bool| json!({"spec": {"suspend": yes}});
        // Suspended it takes nothing over yet; it is about to all the same.
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
