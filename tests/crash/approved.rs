//! The program is killed while it carries out an approved prune: the next process completes it without another
//! approval, and the approval is used up once.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use starling_api::conditions::{READY, find};
use starling_api::{DeletionApproval, SyncResource};
use starling_testkit::fleet::MANAGEMENT;
use starling_testkit::{Change, Fault, Fleet, FleetOptions, GitRepo, Match, Stage};

use crate::ONE_AT_A_TIME;
use crate::supervisor::Supervisor;

const SYNC: &str = "approved";
const OBJECTS: usize = 30;
/// The number of objects that stay.
const KEPT: usize = 5;

fn path(number: usize) -> String {
    format!("app/o{number:02}.yaml")
}

fn map(number: usize) -> String {
    let name = format!("o{number:02}");
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
        .to_string()
}

/// Commits the first objects, and removes the others. Returns the end of the revision.
fn commit(repo: &GitRepo, count: usize) -> Result<String> {
    let texts: Vec<(String, String)> = (0..count).map(|number| (path(number), map(number))).collect();
    let removed: Vec<String> = (count..OBJECTS).map(path).collect();
    let writes = texts
        .iter()
        .map(|(path, text)| Change::Write(path, text.as_bytes()));
    let changes: Vec<Change<'_>> = writes
        .chain(removed.iter().map(|path| Change::Remove(path)))
        .collect();
    Ok(repo.commit_to("main", &changes, "change")?)
}

/// When the program is killed: description, server and request.
fn moments() -> [(&'static str, &'static str, Match); 3] {
    let delete = || Match::method(Method::DELETE).path_contains("/namespaces/default/configmaps/o");
    let record = Match::method(Method::PATCH)
        .path_ends_with(format!("/syncs/{SYNC}/status"))
        .body_contains("\"used\":[{");
    [
        ("the record of the approval", MANAGEMENT, record),
        ("the first delete", "m1", delete().nth(1)),
        ("the tenth delete", "m1", delete().nth(10)),
    ]
}

fn reason(sync: &SyncResource) -> String {
    let status = sync.status.clone().unwrap_or_default();
    find(&status.conditions, READY).map_or_else(String::new, |ready| ready.reason.clone())
}

async fn until_applied(fleet: &Fleet, commit: &str, what: &str) -> Result<SyncResource> {
    let applied = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        reason(sync) == "Succeeded" && status.last_applied_revision.ends_with(commit)
    };
    fleet.until(SYNC, what, applied).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_prune_is_completed_after_a_kill_at_any_time() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    commit(&repo, OBJECTS)?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source(SYNC, &repo.url(), json!({"branch": "main"}))
        .await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": SYNC}, "path": "./app",
        "wait": false, "retryInterval": "1s"});
    let program = Supervisor::default();
    program.start(&fleet)?;
    for (what, server, request) in moments() {
        for stage in [Stage::Before, Stage::After] {
            let what = format!("{stage:?} {what}");
            // Each round has a Sync of its own, so that the share counts from now.
            fleet
                .put::<SyncResource>(json!({"metadata": {"name": SYNC}, "spec": spec}))
                .await?;
            kill_and_continue(&fleet, &program, &repo, (server, request.clone(), stage), &what)
                .await
                .with_context(|| what.clone())?;
            fleet.delete::<SyncResource>(SYNC).await?;
        }
    }
    Ok(())
}

async fn kill_and_continue(
    fleet: &Fleet,
    program: &Supervisor,
    repo: &GitRepo,
    (server, request, stage): (&str, Match, Stage),
    what: &str,
) -> Result<()> {
    let all = repo.head("main")?;
    until_applied(fleet, &all, "all objects").await?;
    let few = commit(repo, KEPT)?;
    let held = |sync: &SyncResource| reason(sync) == "DeletionHeld";
    let sync: SyncResource = fleet.until(SYNC, "held", held).await?;
    let hold = sync.status.and_then(|status| status.held_deletions);
    let digest = hold.context("held")?.digest;
    let proxy = fleet.proxy(server)?;
    let supervisor = program.clone();
    let hook = Fault::hook(move |now, _| {
        if now == stage {
            // The wait for the process determines whether this kill ended it.
            drop(supervisor.kill());
        }
    });
    let kill = proxy.on(request.clone(), hook);
    if stage == Stage::Before {
        // Rules apply in order: the program is already dead, and its pending requests are not delivered.
        proxy.on(request, Fault::CutBefore);
    }
    let name = format!("{SYNC}-{}", &few[..10]);
    let approval = json!({"sync": SYNC, "digest": digest, "by": "jane", "reason": "nobody needs them"});
    fleet
        .put::<DeletionApproval>(json!({"metadata": {"name": name}, "spec": approval}))
        .await?;
    program.ended(what).await?;
    ensure!(kill.fired() > 0, "{what}: the prune ended before the kill");
    proxy.clear();
    program.start(fleet)?;
    until_applied(fleet, &few, "pruned").await?;
    // The grant ends after the status with the new inventory.
    let deletions = |sync: &SyncResource| sync.status.as_ref().and_then(|status| status.deletions.clone());
    let is_over = |sync: &SyncResource| deletions(sync).is_some_and(|deletions| deletions.grant.is_none());
    let sync: SyncResource = fleet.until(SYNC, "without a grant", is_over).await?;
    let deletions = deletions(&sync).context("deletions")?;
    ensure!(
        deletions.used.iter().filter(|used| used.name == name).count() == 1,
        "{what}: {deletions:?}"
    );
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    let maps = maps.list(&ListParams::default()).await?;
    let left = maps
        .iter()
        .filter(|map| {
            map.metadata
                .name
                .as_ref()
                .is_some_and(|name| name.starts_with('o'))
        })
        .count();
    ensure!(left == KEPT, "{what}: {left} objects are left");
    commit(repo, OBJECTS)?;
    Ok(())
}
