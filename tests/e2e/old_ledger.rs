//! The ledger is put back to an earlier state, as by the snapshot of a volume: what it remembers of an earlier release
//! is no knowledge about the clusters now.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use starling_api::{ReleaseStatus, RolloutDirection, RolloutPhase, SyncGroupStatus, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};

use crate::hub_move::{GROUP, act, commit};
use crate::hub_restore::delete_ledger;
use crate::world::is_ready;

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
