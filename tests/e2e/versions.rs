//! A rollout under way with a held release, while Starling is upgraded and downgraded: what another version has written
//! starts nothing, and what cannot be read is reported (ADR 44).

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use starling_api::{
    GROUP_ID_LABEL, RolloutAction, RolloutApproval, RolloutDirection, RolloutPhase, SyncGroup,
    SyncGroupStatus, SyncResource,
};
use starling_core::ids::{GroupId, RolloutNumber};
use starling_ledger::{Ledger, NewEntry};
use starling_testkit::fleet::{Kind, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, Process, program, wait};

use crate::hub_move::{GROUP, MEMBERS, act, commit, some, starling, until_marked, values, writes};
use crate::stages::stage_status;

/// Replaces the schema of a definition: with anything, as a newer version has more fields, or with the real one.
async fn define<K: CustomResourceExt>(fleet: &Fleet, is_lax: bool) -> Result<()> {
    let mut definition = K::crd();
    let name = definition.name_any();
    if is_lax {
        let anything =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        definition.spec.versions[0].schema = Some(serde_json::from_value(anything)?);
    }
    let api: Api<CustomResourceDefinition> = Api::all(fleet.hub().clone());
    let schema = json!([{"op": "replace", "path": "/spec/versions/0/schema",
        "value": definition.spec.versions[0].schema}]);
    let patch = Patch::Json::<()>(serde_json::from_value(schema)?);
    api.patch(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn untyped(fleet: &Fleet, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("starling.dev", "v1alpha1", kind));
    Api::namespaced_with(fleet.hub().clone(), NAMESPACE, &resource)
}

/// Merges a patch into a status, and waits until the server stores what `is_stored` looks for: definitions take effect
/// with a delay.
async fn write_status(
    fleet: &Fleet,
    (kind, name): (&str, &str),
    status: &Value,
    is_stored: impl Fn(&Value) -> bool,
) -> Result<()> {
    let api = untyped(fleet, kind);
    let patch = Patch::Merge(json!({"status": status}));
    wait::until(TIMEOUT, format!("the status of {kind} {name}"), async || {
        let written = api.patch_status(name, &PatchParams::default(), &patch).await;
        let status = written.map_err(|error| error.to_string())?.data["status"].take();
        is_stored(&status).then_some(()).ok_or_else(|| status.to_string())
    })
    .await?;
    Ok(())
}

/// A rollback that soaks on its first stage, with a held release: `m1` is back, `m2` is not yet, `m3` never left.
struct RollingBack {
    fleet: Fleet,
    status: SyncGroupStatus,
    _repo: GitRepo,
}

const HALF_BACK: [&str; 3] = ["one", "two", "one"];

impl RollingBack {
    async fn reach() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        let repo = GitRepo::init()?;
        let first = commit(&repo, "one")?;
        let controller = fleet.controller(program(), &[])?;
        for member in MEMBERS {
            fleet.add_cluster(member, &[("stage", member)]).await?;
        }
        fleet
            .put_source("shop", &repo.url(), json!({"branch": "main"}))
            .await?;
        let stage = |member: &str, tasks: Value| json!({"name": member, "clusterSelector": {"matchLabels": {"stage": member}}, "afterStageTasks": tasks});
        let stages = json!([stage("m1", json!([])), stage("m2", json!([{"type": "Approval"}]))]);
        let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app", "interval": "1h"});
        let strategy = json!({"maxConcurrency": "100%", "stages": stages});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        fleet.put_group(GROUP, spec).await?;
        awaits_approval(&fleet, &first).await?;
        act(&fleet, &["approve", GROUP]).await?;
        fleet.rollout(GROUP, &first, RolloutPhase::Succeeded).await?;
        let second = commit(&repo, "two")?;
        awaits_approval(&fleet, &second).await?;
        let soak = json!({"spec": {"rolloutStrategy": {"minSuccessTime": "1h"}}});
        fleet.patch::<SyncGroup>(GROUP, soak).await?;
        act(&fleet, &["rollback", GROUP]).await?;
        let status = fleet
            .group_status(GROUP, "soaking on the way back", |status| {
                let is_back = status.rollout.as_ref().is_some_and(|rollout| {
                    rollout.direction == RolloutDirection::Back && status.held_release.is_some()
                });
                is_back && stage_status(status, "m1").is_some_and(|stage| stage.phase == "Soaking")
            })
            .await?;
        until_marked(&fleet).await?;
        ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
        ensure!(values(&fleet).await? == some(HALF_BACK), "half back");
        Ok(Self {
            fleet,
            status,
            _repo: repo,
        })
    }

    /// Starts the controller, waits until it has probed the members and reported the group, and checks that nothing has
    /// started.
    async fn starts_nothing(&self) -> Result<Process> {
        let (fleet, since) = (&self.fleet, Timestamp::now());
        let controller = fleet.controller(program(), &[])?;
        let log = || controller.log_tail(60).unwrap_or_default();
        probed(fleet, since).await.with_context(log)?;
        let requested = since.to_string();
        let annotation = json!({"metadata": {"annotations": {"starling.dev/requested-at": requested}}});
        fleet.patch::<SyncGroup>(GROUP, annotation).await?;
        let is_handled = |status: &SyncGroupStatus| status.last_handled_reconcile_at == requested;
        let status = fleet.group_status(GROUP, "handled", is_handled).await;
        let status = status.with_context(log)?;
        for sync in fleet.syncs().await? {
            let is_handled = |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_handled_group_reconcile_at == requested)
            };
            let handled = fleet.until(&sync.name_any(), "handled", is_handled).await;
            handled.with_context(log)?;
        }
        assert_eq!(position(&status), position(&self.status), "{}", log());
        assert_eq!(writes(fleet, since)?, Vec::<String>::new(), "{}", log());
        assert_eq!(values(fleet).await?, some(HALF_BACK));
        Ok(controller)
    }
}

/// Waits until the controller has read from each member.
async fn probed(fleet: &Fleet, since: Timestamp) -> Result<()> {
    for member in MEMBERS {
        let proxy = fleet.proxy(member)?;
        wait::until(TIMEOUT, format!("a request to {member}"), async || {
            let requests = proxy.requests();
            let is_probed = requests.iter().any(|request| request.when > since);
            is_probed.then_some(()).ok_or("none")
        })
        .await?;
    }
    Ok(())
}

async fn awaits_approval(fleet: &Fleet, commit: &str) -> Result<()> {
    fleet
        .group_status(GROUP, "AwaitingApproval", |status| {
            let is_of = status.rollout.as_ref().is_some_and(|rollout| {
                rollout
                    .revisions
                    .iter()
                    .any(|entry| entry.revision.ends_with(commit))
                    && !rollout.release_digest.is_empty()
            });
            is_of && stage_status(status, "m2").is_some_and(|stage| stage.phase == "AwaitingApproval")
        })
        .await?;
    Ok(())
}

/// What must not move: the rollout, its direction and stages, and the held release.
fn position(status: &SyncGroupStatus) -> Value {
    let rollout = status.rollout.clone().unwrap_or_default();
    let stages: Vec<_> = rollout
        .stages
        .iter()
        .map(|stage| json!([stage.name, stage.phase, stage.updated, stage.start_time]))
        .collect();
    json!([
        rollout.id,
        rollout.release,
        rollout.direction,
        rollout.start_time,
        stages,
        status.held_release,
        status.last_known_good
    ])
}

async fn stop(controller: Process) -> Result<()> {
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    Ok(())
}

/// Returns the names of the Syncs. The server refuses lists for a moment after a change of the definition.
async fn sync_names(fleet: &Fleet) -> Result<Vec<String>> {
    let names = wait::until(TIMEOUT, "the Syncs", async || {
        let syncs = fleet.syncs().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(syncs.iter().map(ResourceExt::name_any).collect())
    })
    .await?;
    Ok(names)
}

async fn releases(fleet: &Fleet) -> Result<Vec<ControllerRevision>> {
    Ok(fleet
        .api::<ControllerRevision>()
        .list(&ListParams::default())
        .await?
        .items)
}

/// Writes fields that this version does not know: in status, in the kept releases, and an entry of the journal in a
/// later format.
async fn upgrade(fleet: &Fleet, status: &SyncGroupStatus) -> Result<()> {
    define::<SyncGroup>(fleet, true).await?;
    define::<SyncResource>(fleet, true).await?;
    let future = json!({"ofALaterVersion": {"a": [1, 2]}});
    let is_stored = |status: &Value| status["future"] == future;
    let of_group = json!({"future": future, "rollout": {"future": future}, "heldRelease": {"future": future},
        "identity": {"future": future}});
    write_status(fleet, ("SyncGroup", GROUP), &of_group, is_stored).await?;
    for name in sync_names(fleet).await? {
        write_status(fleet, ("Sync", &name), &json!({"future": future}), is_stored).await?;
    }
    let api = fleet.api::<ControllerRevision>();
    for mut kept in releases(fleet).await? {
        let name = kept.name_any();
        let mut data = kept.data.take().context("data")?.0;
        data["future"] = future.clone();
        kept.data = Some(k8s_openapi::apimachinery::pkg::runtime::RawExtension(data));
        kept.metadata.uid = None;
        kept.metadata.resource_version = None;
        api.delete(&name, &Default::default()).await?;
        api.create(&PostParams::default(), &kept).await?;
    }
    let (ledger, _) = Ledger::open(&fleet.data_dir()).await?;
    let identity = status.identity.clone().context("an identity")?;
    let entry = NewEntry {
        group_id: GroupId::new(identity.id),
        namespace: NAMESPACE.into(),
        name: GROUP.into(),
        rollout: RolloutNumber::of(status.rollout.as_ref().context("a rollout")?),
        at: Timestamp::now(),
        body: json!({"version": 9, "body": {"compressed": "AAAA"}}).to_string(),
        is_whole: true,
    };
    ledger.append_journal(&entry).await?;
    ledger.close().await;
    Ok(())
}

/// Removes what an earlier version does not write, and its ledger: an earlier version moves a later one aside.
async fn downgrade(fleet: &Fleet) -> Result<()> {
    define::<SyncGroup>(fleet, false).await?;
    define::<SyncResource>(fleet, false).await?;
    let nothing = json!({"identity": null, "future": null});
    write_status(fleet, ("SyncGroup", GROUP), &nothing, |status| {
        status["identity"].is_null() && status["rollout"]["future"].is_null()
    })
    .await?;
    for name in sync_names(fleet).await? {
        let status = json!({"lastAttemptTime": null, "lastHandledGroupReconcileAt": null, "future": null});
        let is_stored = |status: &Value| status["lastAttemptTime"].is_null() && status["future"].is_null();
        write_status(fleet, ("Sync", &name), &status, is_stored).await?;
    }
    let label = json!({"metadata": {"labels": {GROUP_ID_LABEL: null}}});
    for kept in releases(fleet).await? {
        fleet
            .patch::<ControllerRevision>(&kept.name_any(), label.clone())
            .await?;
    }
    unmark::<RolloutAction>(fleet).await?;
    unmark::<RolloutApproval>(fleet).await?;
    std::fs::remove_dir_all(fleet.data_dir())?;
    Ok(())
}

async fn unmark<K: Kind>(fleet: &Fleet) -> Result<()> {
    for object in fleet.api::<K>().list(&ListParams::default()).await?.items {
        fleet
            .patch::<K>(&object.name_any(), json!({"metadata": {"annotations": null}}))
            .await?;
    }
    Ok(())
}

/// An unknown phase: the group cannot be read, and so nothing is done for it.
async fn unknown_phase(of: &RollingBack) -> Result<()> {
    let (fleet, since) = (&of.fleet, Timestamp::now());
    let phase = |phase: &str| json!({"rollout": {"phase": phase}});
    write_status(fleet, ("SyncGroup", GROUP), &phase("Baking"), |status| {
        status["rollout"]["phase"] == "Baking"
    })
    .await?;
    let controller = fleet.controller(program(), &[])?;
    wait::until(TIMEOUT, "the group is reported as not readable", async || {
        let log = controller.log_tail(200).map_err(|error| error.to_string())?;
        let is_told = log
            .lines()
            .any(|line| line.contains("not readable") && line.contains("Baking"));
        is_told.then_some(()).ok_or(log)
    })
    .await?;
    probed(fleet, since).await?;
    stop(controller).await?;
    assert_eq!(writes(fleet, since)?, Vec::<String>::new());
    assert_eq!(values(fleet).await?, some(HALF_BACK));
    let before = of.status.rollout.as_ref().context("a rollout")?.phase;
    let before = serde_json::to_value(before)?;
    let text = before.as_str().context("a phase")?;
    write_status(fleet, ("SyncGroup", GROUP), &phase(text), |status| {
        status["rollout"]["phase"] == before
    })
    .await
}

/// An unknown value in the Sync of a cluster that is done: the Sync cannot be read, and is not written anew.
async fn unknown_value(of: &RollingBack) -> Result<()> {
    let (fleet, name) = (&of.fleet, "shop-app-m1");
    let syncs = untyped(fleet, "Sync");
    let conflicts = |value: &str| Patch::Merge(json!({"spec": {"conflicts": value}}));
    let params = PatchParams::default();
    let before = syncs.patch(name, &params, &conflicts("Merge")).await?;
    let since = Timestamp::now();
    let controller = fleet.controller(program(), &[])?;
    let log = || controller.log_tail(60).unwrap_or_default();
    let is_told = |status: &SyncGroupStatus| {
        let mut problems = status.problems.iter();
        problems.any(|problem| problem.cluster == "m1" && problem.reason == "SyncUnreadable")
    };
    let status = fleet
        .group_status(GROUP, "told", is_told)
        .await
        .with_context(log)?;
    assert_eq!(status.held_release, of.status.held_release);
    probed(fleet, since).await?;
    stop(controller).await?;
    let after = syncs.get(name).await?;
    assert_eq!(
        after.metadata.generation, before.metadata.generation,
        "the Sync was written"
    );
    assert_eq!(after.data["spec"]["conflicts"], "Merge");
    assert_eq!(writes(fleet, since)?, Vec::<String>::new());
    assert_eq!(values(fleet).await?, some(HALF_BACK));
    syncs.patch(name, &params, &conflicts("Report")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_and_a_downgrade_in_a_rollback_start_nothing() -> Result<()> {
    let of = RollingBack::reach().await?;
    let fleet = &of.fleet;
    upgrade(fleet, &of.status).await?;
    let controller = of.starts_nothing().await?;
    let log = controller.log_tail(200)?;
    assert!(
        log.contains("journal not readable") && log.contains("version 9"),
        "{log}"
    );
    // A person is told, too.
    let folder = fleet.data_dir().to_string_lossy().into_owned();
    let verified = starling(fleet, &["verify", GROUP, "-n", NAMESPACE, "--data-dir", &folder]).await;
    let verified = format!("{verified:?}");
    assert!(verified.contains("version 9"), "{verified}");
    stop(controller).await?;

    unknown_phase(&of).await?;
    unknown_value(&of).await?;
    downgrade(fleet).await?;
    let controller = of.starts_nothing().await?;
    let log = || controller.log_tail(60).unwrap_or_default();

    // The rollback goes on from where it was, and the release stays held.
    let soak = json!({"spec": {"rolloutStrategy": {"minSuccessTime": "0s"}}});
    fleet.patch::<SyncGroup>(GROUP, soak).await?;
    let is_over = |status: &SyncGroupStatus| {
        status
            .rollout
            .as_ref()
            .is_some_and(|rollout| rollout.phase == RolloutPhase::Succeeded)
    };
    let status = fleet
        .group_status(GROUP, "rolled back", is_over)
        .await
        .with_context(log)?;
    assert_eq!(status.held_release, of.status.held_release);
    assert_eq!(values(fleet).await?, some(["one", "one", "one"]));
    Ok(())
}
