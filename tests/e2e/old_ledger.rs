//! The ledger is put back to an earlier state, as by the snapshot of a volume: what it remembers of an earlier release
//! is no knowledge about the clusters now.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_api::{
    REQUESTED_AT, ReleaseStatus, RolloutDirection, RolloutPhase, Source, SyncGroupStatus, SyncResource,
};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Change, Fault, Fleet, FleetOptions, GitRepo, Match, Process, program, wait};

use crate::hub_move::{GROUP, act, commit};
use crate::hub_restore::delete_ledger;
use crate::world::{config_map, is_ready, merge, sync_ready};

const MEMBERS: [&str; 2] = ["m1", "m2"];
const SOAK: i64 = 12;

/// Copies the files of the ledger of a controller that does not run.
fn copy_ledger(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let mut copied = 0;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_owned();
        if name.to_string_lossy().starts_with("ledger.db") {
            std::fs::copy(&path, to.join(name))?;
            copied += 1;
        }
    }
    ensure!(copied > 0, "no ledger in {}", from.display());
    Ok(())
}

fn is_of(release: Option<&ReleaseStatus>, commit: &str) -> bool {
    release.is_some_and(|release| release.revisions.iter().any(|one| one.revision.ends_with(commit)))
}

/// Patches of the ConfigMap with a value that a member has received since a time.
fn patches(fleet: &Fleet, member: &str, value: &str, since: Timestamp) -> Result<usize> {
    let text = format!("\"value\":\"{value}\"");
    let requests = fleet.proxy(member)?.requests();
    let is_patch = |request: &&starling_testkit::RequestInfo| {
        request.when > since
            && request.method == Method::PATCH
            && request.path.ends_with("/configmaps/settings")
            && String::from_utf8_lossy(&request.body).contains(&text)
    };
    Ok(requests.iter().filter(is_patch).count())
}

/// The ledger says of the first release that each cluster has it, healthy and soaked. Guards against a rollback that is
/// "applied" without a request, soaked at once, and the last known good.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_under_an_old_ledger_is_applied_and_soaks() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS.len(),
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let first = commit(&repo, "one")?;
    let branch = json!({"branch": "main"});
    fleet.put_source(GROUP, &repo.url(), branch).await?;
    let mut controller = fleet.controller(program(), &[])?;
    for member in MEMBERS {
        fleet.add_cluster(member, &[]).await?;
        fleet.until(member, "Ready", is_ready).await?;
    }
    let entry = json!({"name": "app", "sourceRef": {"name": GROUP}, "path": "./app"});
    let strategy = json!({"maxConcurrency": "100%", "minSuccessTime": format!("{SOAK}s")});
    let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
    fleet.put_group(GROUP, spec).await?;
    fleet.rollout(GROUP, &first, RolloutPhase::Succeeded).await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    let snapshot = fleet.directory().join("snapshot");
    copy_ledger(&fleet.data_dir(), &snapshot)?;

    controller = fleet.controller(program(), &[])?;
    let second = commit(&repo, "two")?;
    let status = fleet.rollout(GROUP, &second, RolloutPhase::Succeeded).await?;
    ensure!(is_of(status.last_known_good.as_ref(), &second), "{status:#?}");
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    delete_ledger(&fleet)?;
    copy_ledger(&snapshot, &fleet.data_dir())?;

    let began = Timestamp::now();
    controller = fleet.controller(program(), &[])?;
    act(&fleet, &["rollback", GROUP, "--revision", &first]).await?;
    let applied = applied_everywhere(&fleet, &first)
        .await
        .with_context(|| controller.log_tail(60).unwrap_or_default())?;
    for member in MEMBERS {
        assert!(
            patches(&fleet, member, "one", began)? > 0,
            "{member} was not written"
        );
    }
    let status = fleet.group_status(GROUP, "soaks", |_| true).await?;
    assert!(is_of(status.last_known_good.as_ref(), &second), "{status:#?}");
    let is_back = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|rollout| {
            rollout.direction == RolloutDirection::Back && rollout.phase == RolloutPhase::Succeeded
        })
    };
    let status = fleet.group_status(GROUP, "rolled back", is_back).await?;
    let soaked = Timestamp::now().duration_since(applied);
    // The times in a status have seconds.
    assert!(
        soaked >= SignedDuration::from_secs(SOAK - 1),
        "succeeded {soaked:?} after the apply"
    );
    assert!(is_of(status.last_known_good.as_ref(), &first), "{status:#?}");
    Ok(())
}

/// Waits until each Sync has applied a commit since the rollback, and returns the last of these times.
async fn applied_everywhere(fleet: &Fleet, commit: &str) -> Result<Timestamp> {
    let mut last = Timestamp::MIN;
    for member in MEMBERS {
        let is_applied = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            status.is_some_and(|status| status.last_applied_revision.ends_with(commit))
        };
        let sync = fleet
            .until(&format!("{GROUP}-app-{member}"), "applied", is_applied)
            .await?;
        let at: Timestamp = sync.status.unwrap_or_default().last_applied_time.parse()?;
        last = last.max(at);
    }
    wait::until(TIMEOUT, "the values", async || {
        for member in MEMBERS {
            let data = fleet.config_map(member, "default", "settings").await;
            let value = data.map_err(|error| format!("{error:#}"))?;
            let value = value.and_then(|mut data| data.remove("value"));
            if value.as_deref() != Some("one") {
                return Err(format!("{value:?} on {member}"));
            }
        }
        Ok(())
    })
    .await?;
    Ok(last)
}

/// The value of a ConfigMap on the only member; `None` if there is none.
async fn value(fleet: &Fleet, name: &str) -> Result<Option<String>> {
    let data = fleet.config_map("m1", "default", name).await?;
    Ok(data.and_then(|mut data| data.remove("value")))
}

fn is_done(sync: &SyncResource) -> bool {
    sync_ready(sync).0 == "True"
}

/// Starts the controller, and applies the Sync `app` without a group to the only member.
async fn applied_alone(fleet: &Fleet, repo: &GitRepo, fields: Value) -> Result<(Process, SyncResource)> {
    let branch = json!({"branch": "main"});
    fleet.put_source(GROUP, &repo.url(), branch).await?;
    let controller = fleet.controller(program(), &[])?;
    fleet.add_cluster("m1", &[]).await?;
    let mut spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": GROUP}, "path": "./app"});
    merge(&mut spec, fields);
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "app"}, "spec": spec}))
        .await?;
    let sync = fleet.until::<SyncResource>("app", "Ready", is_done).await?;
    Ok((controller, sync))
}

/// A backup of a Sync from before its deletion is restored while the deletion is in progress. Guards against records of
/// objects that are deleted by then: the next revision would be "applied" without them.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_end_of_a_sync_deleted_is_created_again() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let files = ["plain", "stuck"].map(|name| (format!("app/{name}.yaml"), config_map(name, "one")));
    let files = files
        .each_ref()
        .map(|(path, content)| (path.as_str(), content.as_str()));
    repo.commit(&files, "objects")?;
    commit(&repo, "one")?;
    let fields = json!({"deletionPolicy": "Delete", "interval": "1h"});
    let (mut controller, backup) = applied_alone(&fleet, &repo, fields).await?;

    let stuck = Match::method(Method::DELETE).path_ends_with("/configmaps/stuck");
    fleet.proxy("m1")?.on(stuck, Fault::BlackHole);
    fleet.delete::<SyncResource>("app").await?;
    wait::until(TIMEOUT, "its objects are deleted", async || {
        match value(&fleet, "plain").await {
            Ok(None) => Ok(()),
            there => Err(format!("{there:?}")),
        }
    })
    .await?;
    controller.kill9()?;
    fleet.proxy("m1")?.clear();
    let release = json!({"metadata": {"finalizers": null}});
    fleet.patch::<SyncResource>("app", release).await?;
    let mut restored = backup.clone();
    restored.metadata = ObjectMeta {
        name: Some("app".into()),
        ..ObjectMeta::default()
    };
    restored
        .metadata
        .finalizers
        .clone_from(&backup.metadata.finalizers);
    restored
        .metadata
        .annotations
        .clone_from(&backup.metadata.annotations);
    restored.spec.template.suspend = true;
    fleet.api().create(&PostParams::default(), &restored).await?;
    let status = Patch::Merge(json!({"status": backup.status}));
    fleet
        .api::<SyncResource>()
        .patch_status("app", &PatchParams::default(), &status)
        .await?;

    // Without a pause, the Sync would be checked for drift before the Source has the next revision.
    controller = fleet.controller(program(), &[])?;
    let second = commit(&repo, "two")?;
    let has_second = |source: &Source| {
        let status = source.status.as_ref();
        status.is_some_and(|status| status.revision.ends_with(&second))
    };
    fleet.until(GROUP, "the second revision", has_second).await?;
    let resume = json!({"spec": {"suspend": false}});
    fleet.patch::<SyncResource>("app", resume).await?;
    let is_applied = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        is_done(sync) && status.last_applied_revision.ends_with(&second)
    };
    fleet.until("app", "applied", is_applied).await?;
    assert_eq!(value(&fleet, "settings").await?.as_deref(), Some("two"));
    for name in ["plain", "stuck"] {
        assert_eq!(value(&fleet, name).await?.as_deref(), Some("one"), "{name}");
    }
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    Ok(())
}

/// The ledger is lost while an object waits for the end of its grace: nothing reads that object, so it gets no record.
/// Guards against checks for drift that end with it, for days.
#[tokio::test(flavor = "multi_thread")]
async fn drift_is_repaired_while_an_object_without_a_record_waits_to_be_pruned() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let plain = config_map("plain", "one");
    repo.commit(&[("app/plain.yaml", plain.as_str())], "an object")?;
    commit(&repo, "one")?;
    let fields = json!({"pruneGrace": "24h", "interval": "10s"});
    let (controller, _) = applied_alone(&fleet, &repo, fields).await?;
    repo.commit_to("main", &[Change::Remove("app/plain.yaml")], "without it")?;
    let waits = |sync: &SyncResource| {
        let pending = sync
            .status
            .as_ref()
            .and_then(|status| status.pending_deletions.as_ref());
        pending.is_some_and(|pending| pending.count == 1)
    };
    fleet
        .until::<SyncResource>("app", "an object that waits", waits)
        .await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    delete_ledger(&fleet)?;

    let restarted = Timestamp::now();
    let controller = fleet.controller(program(), &[])?;
    let has_attempted = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        let at = status.and_then(|status| status.last_attempt_time.parse::<Timestamp>().ok());
        at.is_some_and(|at| at > restarted)
    };
    fleet
        .until::<SyncResource>("app", "an attempt", has_attempted)
        .await?;
    let member: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    let edit = Patch::Merge(json!({"data": {"value": "edited"}}));
    member.patch("settings", &PatchParams::default(), &edit).await?;
    wait::until(TIMEOUT, "the edit is undone", async || {
        match value(&fleet, "settings").await {
            Ok(Some(value)) if value == "one" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    assert_eq!(value(&fleet, "plain").await?.as_deref(), Some("one"));
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    Ok(())
}

/// Guards against an object that stays for ever with a Sync that handed it over: the ledger was set back, and the Sync
/// is suspended, so that nothing corrects its records.
#[tokio::test(flavor = "multi_thread")]
async fn old_records_of_another_sync_keep_no_object() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let (own, other, moves) = (
        config_map("own", "one"),
        config_map("other", "one"),
        config_map("moves", "one"),
    );
    let files = [
        ("from/own.yaml", own.as_str()),
        ("from/moves.yaml", &moves),
        ("to/other.yaml", &other),
    ];
    repo.commit(&files, "first")?;
    fleet
        .put_source(GROUP, &repo.url(), json!({"branch": "main"}))
        .await?;
    let mut controller = fleet.controller(program(), &[])?;
    fleet.add_cluster("m1", &[]).await?;
    for name in ["from", "to"] {
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": GROUP},
            "path": format!("./{name}"), "interval": "1h", "retryInterval": "1s"});
        fleet
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        fleet.until(name, "Ready", is_done).await?;
    }
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    let snapshot = fleet.directory().join("snapshot");
    copy_ledger(&fleet.data_dir(), &snapshot)?;

    controller = fleet.controller(program(), &[])?;
    let changes = [
        Change::Remove("from/moves.yaml"),
        Change::Write("to/moves.yaml", moves.as_bytes()),
    ];
    let second = repo.commit_to("main", &changes, "it moves")?;
    for name in ["from", "to"] {
        let is_applied = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            is_done(sync) && status.last_applied_revision.ends_with(&second)
        };
        fleet.until(name, "the second commit", is_applied).await?;
    }
    let suspend = json!({"spec": {"suspend": true}});
    fleet.patch::<SyncResource>("from", suspend).await?;
    let is_suspended = |sync: &SyncResource| sync_ready(sync).1 == "Suspended";
    fleet.until("from", "suspended", is_suspended).await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    delete_ledger(&fleet)?;
    copy_ledger(&snapshot, &fleet.data_dir())?;

    let _controller = fleet.controller(program(), &[])?;
    let request = Timestamp::now().to_string();
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: request}}});
    fleet.patch::<SyncResource>("to", patch).await?;
    let is_handled = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        status.last_handled_reconcile_at == request
    };
    let to = fleet.until("to", "handled", is_handled).await?;
    ensure!(is_done(&to), "{:?}", sync_ready(&to));
    Ok(())
}
