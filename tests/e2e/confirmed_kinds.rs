//! Kinds whose deletion an operator wants to be approved (`--confirm-deletion-of`), on every path by which objects are
//! deleted.

use anyhow::{Context, Result};
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, DELETION_HELD};
use starling_api::{
    APPROVE_DELETIONS, DeletionHold, OWNER_LABEL, Source, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_controlplane::Process;
use starling_testkit::fleet::{Kind, MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};
use tokio::process::Command;

use crate::world::{config_map, is_ready, merge, sync_ready};

const API_GROUP: &str = "rigs.example.test";
const FLAG: [&str; 2] = ["--confirm-deletion-of", "rigs.example.test/Rig"];
const SOURCE: &str = "rigs";

/// A fleet with one member that serves the kind, and a controller with the flag. Each folder of the repository has one
/// object of the kind and one ConfigMap, both with the name of the folder.
struct Rigs {
    /// The first field, so that it stops before its clusters.
    _controller: Process,
    fleet: Fleet,
    repo: GitRepo,
    rigs: Api<DynamicObject>,
}

impl Rigs {
    async fn start(folders: &[&str]) -> Result<Self> {
        let options = FleetOptions {
            members: 1,
            proxied: true,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(options).await?;
        let rigs = define(fleet.member("m1").await?).await?;
        let repo = GitRepo::init()?;
        let mut files = Vec::new();
        for name in folders {
            files.push((format!("{name}/map.yaml"), config_map(name, "one")));
            files.push((format!("{name}/rig.yaml"), rig(name).to_string()));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        repo.commit(&files, "rigs")?;
        fleet.add_cluster("m1", &[("rigs", "yes")]).await?;
        let branch = json!({"branch": "main"});
        fleet.put_source(SOURCE, &repo.url(), branch).await?;
        let controller = fleet.controller(program(), &FLAG)?;
        fleet.until("m1", "Ready", is_ready).await?;
        Ok(Self {
            _controller: controller,
            fleet,
            repo,
            rigs,
        })
    }

    async fn rig(&self, name: &str) -> Result<Option<DynamicObject>> {
        Ok(self.rigs.get_opt(name).await?)
    }

    async fn has_map(&self, name: &str) -> Result<bool> {
        Ok(self.fleet.config_map("m1", "default", name).await?.is_some())
    }

    async fn ready(&self, sync: &str) -> Result<()> {
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        self.fleet.until(sync, "Ready", done).await?;
        Ok(())
    }

    /// Waits until a Sync holds its deletions or the object of its folder goes, and returns what is held.
    async fn held(&self, sync: &str, folder: &str) -> Result<DeletionHold> {
        let uid = self.rig(folder).await?.context("the rig")?.uid();
        let held = wait::until(TIMEOUT, format!("{sync} is held, or {folder} goes"), async || {
            let found = self.rig(folder).await.map_err(|error| format!("{error:#}"))?;
            let stays = |rig: &DynamicObject| rig.uid() == uid && rig.metadata.deletion_timestamp.is_none();
            if !found.is_some_and(|rig| stays(&rig)) {
                return Ok(None);
            }
            let found: Option<SyncResource> = self.fleet.get(sync).await.ok();
            let status = found.and_then(|sync| sync.status);
            let held = status.as_ref().and_then(|status| status.held_deletions.clone());
            held.map(Some).ok_or_else(|| format!("{status:#?}"))
        });
        let held = held
            .await?
            .with_context(|| format!("{folder} was deleted without an approval"))?;
        assert!(held.objects[0].contains("Rig"), "the kind comes first: {held:?}");
        Ok(held)
    }

    async fn approve<K: Kind>(&self, name: &str, digest: &str) -> Result<()> {
        let approval = json!({"metadata": {"annotations": {APPROVE_DELETIONS: digest}}});
        self.fleet.patch::<K>(name, approval).await?;
        Ok(())
    }

    /// Waits until the object of a folder is gone.
    async fn until_gone(&self, folder: &str) -> Result<()> {
        wait::until(TIMEOUT, format!("{folder} is gone"), async || {
            let found = self.rig(folder).await.map_err(|error| format!("{error:#}"))?;
            found.map_or(Ok(()), |found| Err(format!("{:?}", found.metadata)))
        })
        .await?;
        Ok(())
    }

    async fn group(&self, name: &str, more: Value) -> Result<()> {
        let mut spec = json!({"clusterSelector": {"matchLabels": {"rigs": "yes"}}, "syncs": [entry(name)]});
        merge(&mut spec, more);
        self.fleet.put_group(name, spec).await
    }

    /// Waits until the Source has a commit.
    async fn fetched(&self, commit: &str) -> Result<()> {
        let has = |source: &Source| {
            let status = source.status.as_ref();
            status.is_some_and(|status| status.revision.ends_with(commit))
        };
        self.fleet.until(SOURCE, "the commit", has).await?;
        Ok(())
    }

    /// The output of `starling plan` for a group.
    async fn plan(&self, group: &str) -> Result<String> {
        let kubeconfig = self.fleet.directory().join("user.kubeconfig");
        std::fs::write(&kubeconfig, self.fleet.kubeconfig(MANAGEMENT)?)?;
        let mut command = Command::new(program());
        command.args([
            "plan",
            group,
            "--allow-insecure-sources",
            "--revision",
            "main",
            "-n",
            NAMESPACE,
        ]);
        let output = command.arg("--kubeconfig").arg(&kubeconfig).output().await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }
}

fn entry(folder: &str) -> Value {
    json!({"name": folder, "sourceRef": {"name": SOURCE}, "path": format!("./{folder}"), "retryInterval": "1s",
        "deletionPolicy": "Delete"})
}

fn rig(name: &str) -> Value {
    json!({"apiVersion": format!("{API_GROUP}/v1"), "kind": "Rig",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"size": 3}})
}

/// Defines the kind on a member, as an operator's own installation does.
async fn define(member: Client) -> Result<Api<DynamicObject>> {
    let name = format!("rigs.{API_GROUP}");
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": {"group": API_GROUP, "scope": "Namespaced",
            "names": {"kind": "Rig", "plural": "rigs"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    let definitions: Api<CustomResourceDefinition> = Api::all(member.clone());
    let params = PatchParams::apply("an-operator").force();
    definitions
        .patch(&name, &params, &Patch::Apply(&definition))
        .await?;
    let kind = GroupVersionKind::gvk(API_GROUP, "v1", "Rig");
    let rigs = Api::namespaced_with(
        member,
        "default",
        &ApiResource::from_gvk_with_plural(&kind, "rigs"),
    );
    wait::until(TIMEOUT, "the kind is served", async || {
        let listed = rigs.list(&Default::default()).await;
        listed.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    Ok(rigs)
}

/// Guards against a flag that no path of a deletion asks.
#[tokio::test(flavor = "multi_thread")]
async fn an_added_kind_is_deleted_after_an_approval_only() -> Result<()> {
    let world = Rigs::start(&["pruned", "kept", "removed", "ended", "alone"]).await?;
    let fleet = &world.fleet;
    world.group("pruned", json!({})).await?;
    world
        .group("entries", json!({"syncs": [entry("kept"), entry("removed")]}))
        .await?;
    world.group("ended", json!({"deletionPolicy": "Delete"})).await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": SOURCE}, "path": "./alone",
        "deletionPolicy": "Delete"});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "alone"}, "spec": spec}))
        .await?;
    let syncs = [
        "pruned-pruned-m1",
        "entries-kept-m1",
        "entries-removed-m1",
        "ended-ended-m1",
        "alone",
    ];
    for sync in syncs {
        world.ready(sync).await?;
    }

    // A prune, which the plan announces.
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
    fleet.patch::<SyncGroup>("pruned", suspend(true)).await?;
    let commit = world.repo.remove(&["pruned/rig.yaml"], "without its rig")?;
    world.fetched(&commit).await?;
    let plan = world.plan("pruned").await?;
    assert!(
        plan.contains("DeletionHeld") && plan.contains("Rig default/pruned"),
        "{plan}"
    );
    fleet.patch::<SyncGroup>("pruned", suspend(false)).await?;
    let hold = world.held("pruned-pruned-m1", "pruned").await?;
    assert!(plan.contains(&hold.digest), "{plan}\n{hold:?}");
    let names = |status: &SyncGroupStatus| {
        let held = conditions::find(&status.conditions, DELETION_HELD);
        held.is_some_and(|held| held.message.contains(&hold.digest))
    };
    fleet.group_status("pruned", "DeletionHeld", names).await?;
    world.approve::<SyncGroup>("pruned", &hold.digest).await?;
    world.until_gone("pruned").await?;
    assert!(world.has_map("pruned").await?);

    // An entry that is taken out of its group.
    let patch = json!({"spec": {"syncs": [entry("kept")]}});
    fleet.patch::<SyncGroup>("entries", patch).await?;
    let hold = world.held("entries-removed-m1", "removed").await?;
    assert!(world.has_map("removed").await?, "a list is held as a whole");
    world.approve::<SyncGroup>("entries", &hold.digest).await?;
    world.until_gone("removed").await?;

    // A group that is deleted, and a Sync without a group.
    fleet.delete::<SyncGroup>("ended").await?;
    let hold = world.held("ended-ended-m1", "ended").await?;
    assert!(world.has_map("ended").await?);
    world.approve::<SyncGroup>("ended", &hold.digest).await?;
    world.until_gone("ended").await?;
    fleet.delete::<SyncResource>("alone").await?;
    let hold = world.held("alone", "alone").await?;
    assert!(world.has_map("alone").await?);
    world.approve::<SyncResource>("alone", &hold.digest).await?;
    world.until_gone("alone").await?;

    assert!(world.rig("kept").await?.is_some());
    Ok(())
}

/// What was there before Starling is given up, in a prune and at the end of a Sync, and nobody has to approve that.
#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_object_of_an_added_kind_is_given_up() -> Result<()> {
    let world = Rigs::start(&["pruned", "ended"]).await?;
    let fleet = &world.fleet;
    let mut uids = Vec::new();
    for name in ["pruned", "ended"] {
        let mut made = rig(name);
        made["spec"] = json!({"size": 1});
        let made: DynamicObject = serde_json::from_value(made)?;
        let made = world.rigs.create(&PostParams::default(), &made).await?;
        uids.push(made.uid());
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": SOURCE}, "path": format!("./{name}"),
            "deletionPolicy": "Delete", "conflicts": "Override"});
        fleet
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        world.ready(name).await?;
        let adopted = world.rig(name).await?.context("the rig")?;
        assert!(adopted.labels().contains_key(OWNER_LABEL), "{adopted:?}");
    }

    world.repo.remove(&["pruned/rig.yaml"], "without its rig")?;
    fleet.delete::<SyncResource>("ended").await?;
    let is_free = |rig: &DynamicObject| !rig.labels().contains_key(OWNER_LABEL);
    for (name, uid) in ["pruned", "ended"].into_iter().zip(&uids) {
        wait::until(TIMEOUT, format!("{name} is given up"), async || {
            let found = world.rig(name).await.map_err(|error| format!("{error:#}"))?;
            // One that is gone is found below.
            let free = found.as_ref().is_none_or(is_free);
            free.then_some(()).ok_or_else(|| format!("{found:?}"))
        })
        .await?;
        let left = world
            .rig(name)
            .await?
            .with_context(|| format!("{name} was deleted"))?;
        assert_eq!(
            (left.uid(), left.metadata.deletion_timestamp.clone()),
            (uid.clone(), None)
        );
    }
    wait::until(TIMEOUT, "the Sync is gone", async || {
        let found = fleet.api::<SyncResource>().get_opt("ended").await;
        found
            .map_err(|error| error.to_string())?
            .map_or(Ok(()), |sync| Err(format!("{:?}", sync.status)))
    })
    .await?;
    assert!(!world.has_map("ended").await?, "what Starling created is deleted");
    let deletes = Api::<DynamicObject>::resource_url(&world.rigs);
    let requests = fleet.proxy("m1")?.requests();
    let deleted = requests
        .iter()
        .filter(|request| request.method == Method::DELETE && request.path.starts_with(deletes));
    assert_eq!(deleted.count(), 0, "DELETE of an adopted object");
    let pruned: SyncResource = fleet.get("pruned").await?;
    assert_eq!(sync_ready(&pruned).0, "True", "{:#?}", pruned.status);
    Ok(())
}
