//! The management cluster is restored to another API server in the middle of a rollout: objects with their status, and
//! new UIDs, resource versions and creation times (ADR 44).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::{
    APPROVE_DELETIONS, Cluster, DeletionApproval, INSTALLATION, RolloutAction, RolloutApproval, RolloutPhase,
    SYSTEM_NAMESPACE, Source, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_testkit::fleet::{Kind, MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Change, Fleet, FleetOptions, GitRepo, program, wait};
use tokio::process::Command;

use crate::gates::{GateServer, put_secret, webhook};
use crate::stages::stage_status;
use crate::world::{blocked_by, config_map, sync_ready};

pub(crate) const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
pub(crate) const GROUP: &str = "shop";

/// What a restore of another tool than etcd does not restore.
const NOT_RESTORED: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
    "finalizers",
];

/// Creates the objects of one API on another one, with their status.
async fn copy<K>(from: &Api<K>, to: &Api<K>, has_status: bool) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug,
    K: serde::Serialize + serde::de::DeserializeOwned,
{
    let mut objects = from.list(&ListParams::default()).await?.items;
    // The newest first: no order of creation is kept.
    objects.sort_by_key(|object| std::cmp::Reverse((object.creation_timestamp(), object.name_any())));
    for object in objects {
        let mut json = serde_json::to_value(&object)?;
        let metadata = json["metadata"].as_object_mut().context("metadata")?;
        metadata.retain(|key, _| !NOT_RESTORED.contains(&key.as_str()));
        let status = json["status"].take();
        let object: K = serde_json::from_value(json)?;
        let made = to.create(&PostParams::default(), &object).await;
        let name = object.name_any();
        made.with_context(|| format!("{} {name}", K::kind(&())))?;
        if has_status && !status.is_null() {
            let patch = Patch::Merge(json!({"status": status}));
            to.patch_status(&name, &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}

async fn copy_kind<K: Kind + serde::Serialize>(from: &Fleet, to: &Fleet, has_status: bool) -> Result<()> {
    copy(&from.api::<K>(), &to.api::<K>(), has_status).await
}

/// Restores the namespaces of the fleet and of the controller, kind by kind in alphabetical order, as Velero does.
pub(crate) async fn restore(from: &Fleet, to: &Fleet) -> Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": SYSTEM_NAMESPACE}}))?;
    Api::all(to.hub().clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    copy_kind::<Cluster>(from, to, true).await?;
    let system = |fleet: &Fleet| Api::<ConfigMap>::namespaced(fleet.hub().clone(), SYSTEM_NAMESPACE);
    system(to)
        .delete("kube-root-ca.crt", &Default::default())
        .await
        .ok();
    copy(&system(from), &system(to), false).await?;
    system(to).get(INSTALLATION).await?;
    copy_kind::<ControllerRevision>(from, to, false).await?;
    copy_kind::<RolloutAction>(from, to, false).await?;
    copy_kind::<RolloutApproval>(from, to, false).await?;
    copy_kind::<DeletionApproval>(from, to, false).await?;
    // Creation times have seconds: the group is to be younger than the actions on it.
    let since = Timestamp::now().as_second();
    wait::until(TIMEOUT, "the next second", async || {
        let now = Timestamp::now().as_second();
        (now > since + 1).then_some(()).ok_or_else(|| now.to_string())
    })
    .await?;
    copy_kind::<Secret>(from, to, false).await?;
    copy_kind::<Source>(from, to, true).await?;
    copy_kind::<SyncGroup>(from, to, true).await?;
    copy_kind::<SyncResource>(from, to, true).await
}

/// Runs `starling` as a person at a management cluster.
pub(crate) async fn starling(fleet: &Fleet, arguments: &[&str]) -> Result<String> {
    let kubeconfig = fleet.directory().join("person.kubeconfig");
    std::fs::write(&kubeconfig, fleet.kubeconfig(MANAGEMENT)?)?;
    let output = Command::new(program())
        .args(arguments)
        .env("KUBECONFIG", &kubeconfig)
        .output()
        .await?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {text}");
    Ok(text)
}

pub(crate) async fn act(fleet: &Fleet, arguments: &[&str]) -> Result<()> {
    let more = ["-n", NAMESPACE, "--reason", "a test"];
    starling(fleet, &[arguments, &more].concat()).await?;
    Ok(())
}

/// The writes that the members have received since a time, except dry runs: the witness.
pub(crate) fn writes(fleet: &Fleet, since: Timestamp) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for member in MEMBERS {
        for request in fleet.proxy(member)?.requests() {
            let is_write = !matches!(request.method, http::Method::GET | http::Method::HEAD);
            if is_write && request.when > since && !request.query.contains("dryRun=All") {
                found.push(format!("{member}: {} {}", request.method, request.path));
            }
        }
    }
    Ok(found)
}

pub(crate) async fn values(fleet: &Fleet) -> Result<Vec<Option<String>>> {
    let mut found = Vec::new();
    for member in MEMBERS {
        let data = fleet.config_map(member, "default", "settings").await?;
        found.push(data.and_then(|mut data| data.remove("value")));
    }
    Ok(found)
}

pub(crate) fn some(values: [&str; 3]) -> Vec<Option<String>> {
    values.map(|value| Some(value.to_owned())).to_vec()
}

pub(crate) fn commit(repo: &GitRepo, value: &str) -> Result<String> {
    Ok(repo.commit(&[("app/settings.yaml", &config_map("settings", value))], value)?)
}

/// Waits until the rollout of a commit waits for its webhook.
async fn awaits_webhook(fleet: &Fleet, commit: &str) -> Result<SyncGroupStatus> {
    fleet
        .group_status(GROUP, "AwaitingWebhook", |status| {
            let rollout = status.rollout.as_ref();
            let is_of = rollout.is_some_and(|rollout| {
                rollout
                    .revisions
                    .iter()
                    .any(|entry| entry.revision.ends_with(commit))
                    && !rollout.release_digest.is_empty()
            });
            is_of && stage_status(status, "canary").is_some_and(|stage| stage.phase == "AwaitingWebhook")
        })
        .await
}

/// Waits until all actions and approvals carry the rollout that they count for.
pub(crate) async fn until_marked(fleet: &Fleet) -> Result<()> {
    wait::until(TIMEOUT, "marked actions", async || {
        let actions = fleet.api::<RolloutAction>().list(&ListParams::default()).await;
        let approvals = fleet.api::<RolloutApproval>().list(&ListParams::default()).await;
        let (actions, approvals) = (
            actions.map_err(|error| error.to_string())?,
            approvals.map_err(|error| error.to_string())?,
        );
        let mut annotations = actions.iter().map(ResourceExt::annotations).collect::<Vec<_>>();
        annotations.extend(approvals.iter().map(ResourceExt::annotations));
        let is_marked = annotations
            .iter()
            .all(|marks| marks.contains_key("starling.dev/counts-for"));
        is_marked.then_some(()).ok_or_else(|| format!("{annotations:?}"))
    })
    .await?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// A group in the middle of its second rollout: the canary `m1` is done, its webhook is open, and its approval is
/// given. The rollout is paused, for the second time.
struct Middle {
    fleet: Fleet,
    gate: GateServer,
    repo: GitRepo,
    commits: [String; 2],
    status: SyncGroupStatus,
}

impl Middle {
    async fn reach() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        let (gate, url) = GateServer::start(200, json!({"result": "Passed"})).await?;
        let repo = GitRepo::init()?;
        let first = commit(&repo, "one")?;
        let controller = fleet.controller(program(), &[])?;
        for member in MEMBERS {
            let stage = if member == "m1" { "canary" } else { "rest" };
            fleet.add_cluster(member, &[("stage", stage)]).await?;
        }
        put_secret(&fleet, "gates", json!({"token": "hunter2-hunter2"})).await?;
        fleet
            .put_source("shop", &repo.url(), json!({"branch": "main"}))
            .await?;
        let tasks = json!([webhook(&url, "gates"), {"type": "Approval"}]);
        let stages = json!([{"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}},
            "afterStageTasks": tasks}]);
        let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app", "interval": "1h"});
        let strategy = json!({"maxConcurrency": "100%", "stages": stages});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        fleet.put_group(GROUP, spec).await?;
        fleet
            .group_status(GROUP, "AwaitingApproval", |status| {
                let waits =
                    stage_status(status, "canary").is_some_and(|stage| stage.phase == "AwaitingApproval");
                let rollout = status.rollout.as_ref();
                waits && rollout.is_some_and(|rollout| !rollout.release_digest.is_empty())
            })
            .await?;
        act(&fleet, &["approve", GROUP]).await?;
        fleet.rollout(GROUP, &first, RolloutPhase::Succeeded).await?;
        ensure!(gate.keys()?.len() == 1, "the gate of the first rollout");

        gate.respond_with(200, json!({"result": "Pending"}));
        let second = commit(&repo, "two")?;
        awaits_webhook(&fleet, &second).await?;
        act(&fleet, &["pause", GROUP]).await?;
        act(&fleet, &["resume", GROUP]).await?;
        act(&fleet, &["pause", GROUP]).await?;
        act(&fleet, &["approve", GROUP, "--stage", "canary"]).await?;
        gate.until_requests_exceed(gate.requests().len()).await?;
        until_marked(&fleet).await?;
        let status = fleet
            .group_status(GROUP, "paused", |status| blocked_by(status).contains("Paused"))
            .await?;
        ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
        ensure!(
            values(&fleet).await? == some(["two", "one", "one"]),
            "in the middle"
        );
        Ok(Self {
            fleet,
            gate,
            repo,
            commits: [first, second],
            status,
        })
    }
}

async fn moved(with_ledger: bool) -> Result<()> {
    let Middle {
        fleet: old,
        gate,
        repo,
        commits: [first, second],
        status: before,
    } = Middle::reach().await?;
    let new = Fleet::start(FleetOptions::default()).await?;
    restore(&old, &new).await?;
    if with_ledger {
        copy_folder(&old.data_dir(), &new.data_dir())?;
    }
    let (keys, since) = (gate.keys()?, Timestamp::now());
    let sent = gate.requests().len();
    let controller = new.controller(program(), &[])?;
    let log = || controller.log_tail(60).unwrap_or_default();

    // The open gate is asked again, and it is the same gate.
    gate.until_requests_exceed(sent + 1).await.with_context(log)?;
    assert_eq!(gate.keys()?, keys, "{}", log());
    gate.respond_with(200, json!({"result": "Passed"}));
    let is_passed = |status: &SyncGroupStatus| {
        let stage = stage_status(status, "canary");
        stage.is_some_and(|stage| stage.after_stage_tasks.iter().any(|task| task.result.is_some()))
    };
    let after = new.group_status(GROUP, "the gate has passed", is_passed).await;
    let after = after.with_context(log)?;
    let (Some(before), Some(after_rollout)) = (&before.rollout, &after.rollout) else {
        anyhow::bail!("no rollout");
    };
    assert_eq!(
        (
            after_rollout.id,
            &after_rollout.release,
            &after_rollout.start_time
        ),
        (before.id, &before.release, &before.start_time)
    );
    // Each Cluster is probed, and each Sync reconciled.
    for member in MEMBERS {
        new.until::<Cluster>(member, "Ready", crate::world::is_ready)
            .await?;
    }
    let owners = async || -> Result<bool> {
        let group: SyncGroup = new.get(GROUP).await?;
        let syncs = new.syncs().await?;
        let uid = group.uid().context("a UID")?;
        Ok(syncs
            .iter()
            .all(|sync| sync.owner_references().iter().any(|owner| owner.uid == uid)))
    };
    wait::until(TIMEOUT, "owner references", async || {
        let owned = owners().await.map_err(|error| error.to_string())?;
        owned.then_some(()).ok_or_else(|| "missing".to_owned())
    })
    .await?;
    // The pause holds, and the approval waits behind it.
    let status = new
        .group_status(GROUP, "paused", |status| blocked_by(status).contains("Paused"))
        .await
        .with_context(log)?;
    assert!(!blocked_by(&status).contains("Approval"), "{status:#?}");
    assert_eq!(writes(&old, since)?, Vec::<String>::new(), "{}", log());
    assert_eq!(values(&old).await?, some(["two", "one", "one"]));

    act(&new, &["resume", GROUP]).await?;
    new.rollout(GROUP, &second, RolloutPhase::Succeeded)
        .await
        .with_context(log)?;
    assert_eq!(values(&old).await?, some(["two", "two", "two"]));
    assert_eq!(gate.keys()?, keys);
    // The release of the first rollout is still kept.
    act(&new, &["rollback", GROUP, "--revision", &first]).await?;
    let is_back = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|rollout| {
            rollout.id == before.id + 1
                && rollout
                    .revisions
                    .iter()
                    .any(|entry| entry.revision.ends_with(&first))
        })
    };
    new.group_status(GROUP, "rolled back", is_back)
        .await
        .with_context(log)?;
    if with_ledger {
        let folder = new.data_dir().to_string_lossy().into_owned();
        let arguments = [
            "verify",
            GROUP,
            "-n",
            NAMESPACE,
            "--data-dir",
            &folder,
            "-o",
            "json",
        ];
        let verified = starling(&new, &arguments).await?;
        let verified: Value = serde_json::from_str(&verified)?;
        let journals = &verified["journals"];
        assert_eq!(journals.as_array().map(Vec::len), Some(1), "{verified:#}");
        assert_eq!(journals[0]["violations"], json!([]), "{verified:#}");
    }
    drop(repo);
    Ok(())
}

/// Guards against gates that run again, a pause that is forgotten, and kept releases that are lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_to_another_api_server_continues_a_rollout_where_it_was() -> Result<()> {
    moved(false).await
}

/// The ledger moves with the management cluster, and its journal goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_moves_with_the_management_cluster_goes_on() -> Result<()> {
    moved(true).await
}

async fn identity(fleet: &Fleet) -> Result<String> {
    let status = fleet
        .group_status(GROUP, "an identity", |status| status.identity.is_some())
        .await?;
    Ok(status.identity.context("an identity")?.id)
}

/// Guards against a group that inherits what was said about, decided for or kept of a former one of its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_created_again_inherits_nothing() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let (gate, url) = GateServer::start(200, json!({"result": "Passed"})).await?;
    let repo = GitRepo::init()?;
    let first = commit(&repo, "one")?;
    let controller = fleet.controller(program(), &[])?;
    fleet.add_cluster("m1", &[]).await?;
    put_secret(&fleet, "gates", json!({"token": "hunter2-hunter2"})).await?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    let tasks = json!([webhook(&url, "gates")]);
    let stages = json!([{"name": "all", "clusterSelector": {}, "afterStageTasks": tasks}]);
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": {"stages": stages}});
    fleet.put_group(GROUP, spec.clone()).await?;
    fleet.rollout(GROUP, &first, RolloutPhase::Succeeded).await?;
    let before = identity(&fleet).await?;
    // Without an owner reference nothing deletes it with the group.
    let pause = json!({"group": GROUP, "rollout": 1, "action": "Pause", "by": "jane", "reason": "a test"});
    fleet
        .put::<RolloutAction>(json!({"metadata": {"name": "pause"}, "spec": pause}))
        .await?;
    until_marked(&fleet).await?;

    fleet.delete::<SyncGroup>(GROUP).await?;
    fleet.put_group(GROUP, spec).await?;
    let log = || controller.log_tail(60).unwrap_or_default();
    gate.until_requests_exceed(1).await.with_context(log)?;
    let status = fleet.rollout(GROUP, &first, RolloutPhase::Succeeded).await;
    let status = status.with_context(log)?;
    assert_eq!(status.rollout.map(|rollout| rollout.id), Some(1));
    assert_eq!(gate.keys()?.len(), 2, "each group has its own gate");
    let after = identity(&fleet).await?;
    assert_ne!(before, after);
    let kept = fleet
        .api::<ControllerRevision>()
        .list(&ListParams::default())
        .await?;
    let ids: Vec<_> = kept
        .iter()
        .map(|kept| kept.labels().get("starling.dev/group-id"))
        .collect();
    assert_eq!(ids, [Some(&after)]);
    Ok(())
}

const APPROVED_SYNCS: [&str; 2] = ["by-object", "by-annotation"];

/// Commits this many ConfigMaps, of twelve, to the folder of each Sync.
fn commit_maps(repo: &GitRepo, kept: usize) -> Result<()> {
    let file = |sync: &str, number: usize| format!("{sync}/o{number:02}.yaml");
    let numbers = || {
        APPROVED_SYNCS
            .iter()
            .flat_map(|sync| (0..12).map(move |number| (*sync, number)))
    };
    let written: Vec<(String, String)> = numbers()
        .filter(|(_, number)| *number < kept)
        .map(|(sync, number)| {
            let map = config_map(&format!("{sync}-o{number:02}"), "one");
            (file(sync, number), map)
        })
        .collect();
    let removed: Vec<String> = numbers()
        .filter(|(_, number)| *number >= kept)
        .map(|(sync, number)| file(sync, number))
        .collect();
    let writes = written
        .iter()
        .map(|(path, text)| Change::Write(path, text.as_bytes()));
    let removes = removed.iter().map(|path| Change::Remove(path));
    let changes: Vec<Change<'_>> = writes.chain(removes).collect();
    repo.commit_to("main", &changes, &format!("{kept} objects"))?;
    Ok(())
}

async fn until_objects(fleet: &Fleet, objects: u32) -> Result<()> {
    for sync in APPROVED_SYNCS {
        let has = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            sync_ready(sync).0 == "True" && status.is_some_and(|status| status.inventory.objects == objects)
        };
        fleet.until::<SyncResource>(sync, "its objects", has).await?;
    }
    Ok(())
}

async fn until_held(fleet: &Fleet, sync: &str) -> Result<String> {
    let ends = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        sync_ready(sync).1 == "DeletionHeld" || status.is_some_and(|status| status.inventory.objects == 1)
    };
    let sync: SyncResource = fleet.until(sync, "held or pruned", ends).await?;
    let status = sync.status.context("a status")?;
    Ok(status.held_deletions.context("held deletions")?.digest)
}

/// What was approved once is held after the restore: records named UIDs, which a restore changes.
#[tokio::test(flavor = "multi_thread")]
async fn used_approvals_stay_used_up_after_a_restore() -> Result<()> {
    let old = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    repo.commit(&[("README.md", "what runs here")], "begin")?;
    commit_maps(&repo, 12)?;
    let controller = old.controller(program(), &[])?;
    old.add_cluster("m1", &[]).await?;
    old.put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    for name in APPROVED_SYNCS {
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "shop"},
            "path": format!("./{name}"), "retryInterval": "5s"});
        old.put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
    }
    until_objects(&old, 12).await?;
    commit_maps(&repo, 1)?;
    let [object, annotation] = APPROVED_SYNCS;
    let digest = until_held(&old, object).await?;
    act(&old, &["approve-deletions", "sync", object, "--digest", &digest]).await?;
    let digest = until_held(&old, annotation).await?;
    let patch = json!({"metadata": {"annotations": {APPROVE_DELETIONS: digest}}});
    old.patch::<SyncResource>(annotation, patch).await?;
    until_objects(&old, 1).await?;
    commit_maps(&repo, 12)?;
    until_objects(&old, 12).await?;
    wait::until(TIMEOUT, "a marked approval", async || {
        let approvals = old.api::<DeletionApproval>().list(&ListParams::default()).await;
        let approvals = approvals.map_err(|error| error.to_string())?;
        let is_marked = approvals.iter().all(|approval| {
            approval
                .annotations()
                .contains_key("starling.dev/first-created-at")
        });
        is_marked.then_some(()).ok_or_else(|| "no mark".to_owned())
    })
    .await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");

    let new = Fleet::start(FleetOptions::default()).await?;
    restore(&old, &new).await?;
    commit_maps(&repo, 1)?;
    let controller = new.controller(program(), &[])?;
    for sync in APPROVED_SYNCS {
        let held = until_held(&new, sync).await;
        held.with_context(|| controller.log_tail(60).unwrap_or_default())?;
    }
    Ok(())
}
