//! Objects that move between groups and Syncs without a group, claims with their data, and groups that are deleted
//! without their Syncs.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use starling_api::{Cluster, OWNER_LABEL, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource};
use starling_controlplane::Process;
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Change, Fleet, FleetOptions, GitRepo, program, wait};

use crate::deleting::until_gone;
use crate::moves::{put_group, rolled_out};
use crate::world::{Scene, config_map, is_ready, shared_scene, sync_ready};

fn claim(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: default}}\nspec: \
         {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

/// Waits until the owner of an object is another one than before, and checks that it is the same object.
async fn handed_over<K>(api: &Api<K>, before: &K) -> Result<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let name = before.name_any();
    let owner = |object: &K| object.labels().get(OWNER_LABEL).cloned();
    let after = wait::until(TIMEOUT, format!("{name} has another owner"), async || {
        let now = api.get_opt(&name).await.map_err(|error| error.to_string())?;
        let Some(now) = now else {
            return Ok(None);
        };
        let is_handed_over = owner(&now).is_some() && owner(&now) != owner(before);
        let is_lost = now.uid() != before.uid() || now.meta().deletion_timestamp.is_some();
        let metadata = format!("{:?}", now.meta());
        (is_handed_over || is_lost).then_some(Some(now)).ok_or(metadata)
    });
    let after = after.await?.with_context(|| format!("{name} was deleted"))?;
    assert_eq!(after.uid(), before.uid(), "{name} was created anew");
    assert_eq!(after.meta().deletion_timestamp, None, "{name} was deleted");
    Ok(after)
}

/// A claim that is deleted and created anew has lost its data: once with its cluster, and once with a commit.
#[test]
fn a_claim_that_moves_to_another_group_keeps_its_data() -> Result<()> {
    shared_scene("claims", async |scene| {
        let (from, to) = (scene.own("from"), scene.own("to"));
        let (data, more) = (claim(&scene.own("data")), claim(&scene.own("more")));
        let (map, other) = (
            config_map(&scene.own("map"), "one"),
            config_map(&scene.own("other"), "one"),
        );
        let files = [
            ("shared/data.yaml", data.as_str()),
            ("from/map.yaml", &map),
            ("from/more.yaml", &more),
            ("to/other.yaml", &other),
        ];
        let first = scene.repo.commit(&files, "two claims")?;
        scene.follow_main().await?;
        // No controller binds the claims here.
        let entry = |name: &str, path: &str| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": path, "retryInterval": "1s",
                "deletionPolicy": "Delete", "wait": false})
        };
        let entries = |own: &str| json!({"syncs": [entry("data", "./shared"), entry("own", own)]});
        scene.label("m1", &from, Some("yes")).await?;
        scene.label("m2", &from, Some("yes")).await?;
        put_group(scene, &from, "", entries("./from")).await?;
        rolled_out(scene, &from, &first, 2).await?;
        scene.label("m2", &to, Some("yes")).await?;
        put_group(scene, &to, "", json!({"syncs": [entry("own", "./to")]})).await?;
        rolled_out(scene, &to, &first, 1).await?;
        let claims = async |member: &str| -> Result<Api<PersistentVolumeClaim>> {
            Ok(Api::namespaced(scene.fleet().member(member).await?, "default"))
        };

        // A commit moves one of them.
        let before = claims("m2").await?.get(&scene.own("more")).await?;
        let moved = [
            Change::Remove("from/more.yaml"),
            Change::Write("to/more.yaml", more.as_bytes()),
        ];
        scene.repo.commit_to("main", &moved, "more moves")?;
        handed_over(&claims("m2").await?, &before).await?;

        // A cluster moves.
        put_group(scene, &to, "", entries("./to")).await?;
        let before = claims("m1").await?.get(&scene.own("data")).await?;
        let labels = json!({"metadata": {"labels": {&*from: null, &*to: "yes"}}});
        scene.fleet().patch::<Cluster>("m1", labels).await?;
        handed_over(&claims("m1").await?, &before).await?;
        until_gone::<SyncResource>(scene, &format!("{from}-data-m1")).await?;
        let left = claims("m1").await?.get(&scene.own("data")).await?;
        assert_eq!(
            (left.uid(), left.metadata.deletion_timestamp),
            (before.uid(), None)
        );
        Ok(())
    })
}

/// Creates a Sync without a group for a folder on `m1`.
async fn put_sync(scene: &Scene, name: &str, path: &str) -> Result<()> {
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": path,
        "deletionPolicy": "Delete", "retryInterval": "1s"});
    let sync = json!({"metadata": {"name": name}, "spec": spec});
    scene.fleet().put::<SyncResource>(sync).await
}

async fn until_ready(scene: &Scene, sync: &str) -> Result<()> {
    let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
    scene.fleet().until(sync, "Ready", done).await?;
    Ok(())
}

/// In both directions: by a commit, and with the end of the one and the beginning of the other.
#[test]
fn an_object_that_moves_between_a_group_and_a_sync_keeps_its_uid() -> Result<()> {
    shared_scene("crossing", async |scene| {
        let (group, sync) = (scene.own("group"), scene.own("sync"));
        let map = |name: &str| config_map(&scene.own(name), "one");
        let (of_group, of_sync, moves) = (map("of-group"), map("of-sync"), map("moves"));
        let files = [
            ("g/own.yaml", of_group.as_str()),
            ("s/own.yaml", &of_sync),
            ("g/moves.yaml", &moves),
        ];
        let first = scene.repo.commit(&files, "in the group")?;
        scene.follow_main().await?;
        scene.label("m1", &group, Some("yes")).await?;
        put_group(scene, &group, "./g", json!({})).await?;
        rolled_out(scene, &group, &first, 1).await?;
        put_sync(scene, &sync, "./s").await?;
        until_ready(scene, &sync).await?;
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let before = maps.get(&scene.own("moves")).await?;

        let move_file = |from: &str, to: &str| {
            let (from, to) = (format!("{from}/moves.yaml"), format!("{to}/moves.yaml"));
            let changes = [Change::Remove(&from), Change::Write(&to, moves.as_bytes())];
            scene.repo.commit_to("main", &changes, "it moves")
        };
        let commit = move_file("g", "s")?;
        let in_sync = handed_over(&maps, &before).await?;
        rolled_out(scene, &group, &commit, 1).await?;
        let commit = move_file("s", "g")?;
        let in_group = handed_over(&maps, &in_sync).await?;
        rolled_out(scene, &group, &commit, 1).await?;
        until_ready(scene, &sync).await?;

        // The group ends, and a Sync has the folder from now on.
        let heir = scene.own("heir");
        put_sync(scene, &heir, "./g").await?;
        scene.fleet().delete::<SyncGroup>(&group).await?;
        let in_heir = handed_over(&maps, &in_group).await?;
        until_gone::<SyncGroup>(scene, &group).await?;
        until_ready(scene, &heir).await?;

        // And the other way round. The group begins after the Sync has ended.
        put_group(scene, &group, "./g", json!({"suspend": true})).await?;
        let is_known = |status: &SyncGroupStatus| status.clusters.total == 1;
        scene.fleet().group_status(&group, "selects m1", is_known).await?;
        scene.fleet().delete::<SyncResource>(&heir).await?;
        until_gone::<SyncResource>(scene, &heir).await?;
        let resume = json!({"spec": {"suspend": false}});
        scene.fleet().patch::<SyncGroup>(&group, resume).await?;
        handed_over(&maps, &in_heir).await?;
        rolled_out(scene, &group, &commit, 1).await
    })
}

/// A group that deletes its objects, on a management cluster with a garbage collector.
async fn group_that_deletes(fleet: &Fleet, repo: &GitRepo, name: &str) -> Result<()> {
    let commit = repo.commit(&[(&format!("{name}/map.yaml"), &config_map(name, "one"))], name)?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": format!("./{name}"),
        "deletionPolicy": "Delete", "interval": "2s"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry], "deletionPolicy": "Delete"});
    fleet.put_group(name, spec).await?;
    fleet.rollout(name, &commit, RolloutPhase::Succeeded).await?;
    Ok(())
}

/// Deletes a group as `kubectl delete --cascade=orphan` does.
async fn delete_alone(fleet: &Fleet, group: &str) -> Result<()> {
    let groups = fleet.api::<SyncGroup>();
    groups.delete(group, &DeleteParams::orphan()).await?;
    Ok(())
}

/// Waits until the group is gone, and checks that its Sync and the object are not.
async fn until_alone(fleet: &Fleet, controller: &Process, name: &str, uid: Option<String>) -> Result<()> {
    let groups = fleet.api::<SyncGroup>();
    wait::until(TIMEOUT, format!("{name} is gone"), async || {
        let found = groups.get_opt(name).await.map_err(|error| error.to_string())?;
        found.map_or(Ok(()), |found| Err(format!("{found:?}")))
    })
    .await?;
    let log = || controller.log_tail(40).unwrap_or_default();
    let syncs = fleet.api::<SyncResource>();
    let sync = syncs.get_opt(&format!("{name}-app-m1")).await?;
    let sync = sync.with_context(|| format!("the Sync is gone\n{}", log()))?;
    assert_eq!(sync.metadata.deletion_timestamp, None, "{}", log());
    assert_eq!(sync.owner_references(), [], "an owner that is gone");
    let map = map(&fleet.member("m1").await?, name).await?;
    assert_eq!(map.context("the object")?.uid(), uid);
    Ok(())
}

async fn map(member: &Client, name: &str) -> Result<Option<ConfigMap>> {
    let maps: Api<ConfigMap> = Api::namespaced(member.clone(), "default");
    Ok(maps.get_opt(name).await?)
}

/// Waits until the garbage collector knows of Syncs, which takes it some time after their definition: it deletes one
/// whose owner does not exist.
async fn garbage_collector_knows_syncs(fleet: &Fleet) -> Result<()> {
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none",
        "uid": "00000000-0000-0000-0000-000000000001"});
    let sync = json!({"metadata": {"name": "probe", "ownerReferences": [owner]},
        "spec": {"clusterRef": {"name": "none"}, "sourceRef": {"name": "none"}}});
    fleet.put::<SyncResource>(sync).await?;
    wait::until(TIMEOUT, "the garbage collector deletes a Sync", async || {
        let found = fleet.api::<SyncResource>().get_opt("probe").await;
        let found = found.map_err(|error| error.to_string())?;
        found
            .is_none()
            .then_some(())
            .ok_or_else(|| "it is there".to_owned())
    })
    .await?;
    Ok(())
}

/// Its Syncs stay and keep their objects in step, whether the controller or the garbage collector is the first to see
/// the deletion. A person who deletes such a Sync keeps its objects.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_deleted_without_its_syncs_leaves_them() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        managers: vec![MANAGEMENT.to_owned()],
        ..FleetOptions::default()
    })
    .await?;
    garbage_collector_knows_syncs(&fleet).await?;
    let repo = GitRepo::init()?;
    repo.commit(&[("README.md", "What runs here.\n")], "first")?;
    fleet.add_cluster("m1", &[]).await?;
    let branch = json!({"branch": "main"});
    fleet.put_source("shop", &repo.url(), branch).await?;
    let mut controller = fleet.controller(program(), &[])?;
    fleet.until("m1", "Ready", is_ready).await?;
    let member = fleet.member("m1").await?;
    let uid = async |name: &str| -> Result<Option<String>> {
        Ok(map(&member, name).await?.context("the object")?.uid())
    };

    group_that_deletes(&fleet, &repo, "watched").await?;
    let watched = uid("watched").await?;
    delete_alone(&fleet, "watched").await?;
    until_alone(&fleet, &controller, "watched", watched.clone()).await?;

    // The garbage collector is done before the controller starts.
    group_that_deletes(&fleet, &repo, "later").await?;
    let later = uid("later").await?;
    controller.stop(TIMEOUT).await?;
    delete_alone(&fleet, "later").await?;
    let is_orphaned = |group: &SyncGroup| !group.finalizers().contains(&"orphan".to_owned());
    fleet
        .until("later", "its Syncs have no owner", is_orphaned)
        .await?;
    controller = fleet.controller(program(), &[])?;
    until_alone(&fleet, &controller, "later", later.clone()).await?;

    for (name, uid) in [("watched", watched), ("later", later)] {
        let maps: Api<ConfigMap> = Api::namespaced(member.clone(), "default");
        let change: Value = json!({"data": {"value": "by hand"}});
        let patch = kube::api::Patch::Merge(change);
        maps.patch(name, &Default::default(), &patch).await?;
        wait::until(TIMEOUT, format!("the drift of {name} is repaired"), async || {
            let found = map(&member, name).await.map_err(|error| format!("{error:#}"))?;
            let value = found.and_then(|map| map.data.unwrap_or_default().remove("value"));
            (value.as_deref() == Some("one"))
                .then_some(())
                .ok_or_else(|| format!("{value:?}"))
        })
        .await?;
        let sync = format!("{name}-app-m1");
        fleet.delete::<SyncResource>(&sync).await?;
        wait::until(TIMEOUT, format!("{sync} is gone"), async || {
            let found = fleet.api::<SyncResource>().get_opt(&sync).await;
            let found = found.map_err(|error| error.to_string())?;
            found.map_or(Ok(()), |found| Err(format!("{:?}", found.status)))
        })
        .await?;
        assert_eq!(map(&member, name).await?.context("the object")?.uid(), uid);
    }
    Ok(())
}
