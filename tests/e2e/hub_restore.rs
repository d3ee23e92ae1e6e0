//! The management cluster is put back to an earlier state, and the ledger is lost: members remember the hub (ADR 40).

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition};
use starling_api::{
    INSTALLATION, RolloutPhase, SYSTEM_NAMESPACE, Source, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_testkit::fleet::{Kind, MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, Process, program, wait};
use tokio::process::Command;

use crate::world::config_map;

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// The group that changed since the backup, the one that did not, and the Sync without a group.
const CHANGED: &str = "shop";
const QUIET: &str = "quiet";
const ALONE: &str = "alone";
const RESTORE_DETECTED: &str = "RestoreDetected";

/// The state of the management cluster at one time, as a backup has it.
struct Backup {
    sources: Vec<Value>,
    groups: Vec<Value>,
    syncs: Vec<Value>,
    installation: Option<ConfigMap>,
}

impl Backup {
    async fn of(fleet: &Fleet) -> Result<Self> {
        Ok(Self {
            sources: all::<Source>(fleet).await?,
            groups: all::<SyncGroup>(fleet).await?,
            syncs: all::<SyncResource>(fleet).await?,
            installation: installations(fleet).get_opt(INSTALLATION).await?,
        })
    }

    /// Restores the objects with their status. An etcd that is restored has the same content; here, only the versions
    /// are newer, which nothing may rely on.
    async fn restore(&self, fleet: &Fleet) -> Result<()> {
        restore::<Source>(fleet, &self.sources).await?;
        restore::<SyncGroup>(fleet, &self.groups).await?;
        restore::<SyncResource>(fleet, &self.syncs).await?;
        self.restore_numbers(fleet).await
    }

    /// Restores the numbers of writes alone.
    async fn restore_numbers(&self, fleet: &Fleet) -> Result<()> {
        let api = installations(fleet);
        let before = self.installation.clone().context("the installation")?;
        let mut now = api.get(INSTALLATION).await?;
        now.data = before.data;
        api.replace(INSTALLATION, &PostParams::default(), &now).await?;
        Ok(())
    }
}

fn installations(fleet: &Fleet) -> Api<ConfigMap> {
    Api::namespaced(fleet.hub().clone(), SYSTEM_NAMESPACE)
}

async fn all<K: Kind + serde::Serialize>(fleet: &Fleet) -> Result<Vec<Value>> {
    let list = fleet.api::<K>().list(&ListParams::default()).await?;
    Ok(list
        .items
        .iter()
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?)
}

async fn restore<K: Kind>(fleet: &Fleet, objects: &[Value]) -> Result<()> {
    let api = fleet.api::<K>();
    for object in objects {
        let name = object["metadata"]["name"].as_str().context("name")?;
        for part in ["spec", "status"] {
            let patch = match api.get_opt(name).await? {
                None => json!([]),
                Some(_) => json!([{"op": "add", "path": format!("/{part}"), "value": object[part]}]),
            };
            let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
            let params = PatchParams::default();
            if part == "spec" {
                api.patch(name, &params, &patch).await?;
            } else {
                api.patch_status(name, &params, &patch).await?;
            }
        }
    }
    Ok(())
}

/// Deletes the ledger of a controller that does not run.
pub(crate) fn delete_ledger(fleet: &Fleet) -> Result<()> {
    let mut deleted = 0;
    for entry in std::fs::read_dir(fleet.data_dir())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ledger.db") {
            std::fs::remove_file(&path)?;
            deleted += 1;
        }
    }
    ensure!(deleted > 0, "no ledger");
    Ok(())
}

/// The writes that the members have received since a time, except dry runs: the witness.
fn writes(fleet: &Fleet, since: Timestamp) -> Result<Vec<String>> {
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

/// Commits the values of the maps of the two groups and of the Sync without a group.
fn commit(repo: &GitRepo, shop: &[(&str, &str)], others: &str) -> Result<String> {
    let mut files: Vec<(String, String)> = shop
        .iter()
        .map(|(name, value)| (format!("shop/{name}.yaml"), config_map(name, value)))
        .collect();
    for name in [QUIET, ALONE] {
        files.push((format!("{name}/{name}.yaml"), config_map(name, others)));
    }
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    Ok(repo.commit(&files, "change")?)
}

async fn follow(fleet: &Fleet, repo: &GitRepo, commit: &str) -> Result<()> {
    fleet
        .put_source(CHANGED, &repo.url(), json!({"commit": commit}))
        .await
}

/// The objects of day 1: two groups on all members, and a Sync without a group.
async fn day_1(fleet: &Fleet, repo: &GitRepo, commit: &str) -> Result<()> {
    for member in MEMBERS {
        fleet.add_cluster(member, &[("tier", "all")]).await?;
    }
    follow(fleet, repo, commit).await?;
    fleet
        .put_source("fixed", &repo.url(), json!({"commit": commit}))
        .await?;
    for (group, source) in [(CHANGED, CHANGED), (QUIET, "fixed")] {
        let entry = json!({"name": "app", "sourceRef": {"name": source}, "path": format!("./{group}"),
            "interval": "5s"});
        let spec = json!({"clusterSelector": {"matchLabels": {"tier": "all"}}, "syncs": [entry],
            "deletionPolicy": "Delete", "rolloutStrategy": {"maxConcurrency": 20}});
        fleet.put_group(group, spec).await?;
    }
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "fixed"}, "path": "./alone",
        "interval": "5s"});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": ALONE}, "spec": spec}))
        .await?;
    for group in [CHANGED, QUIET] {
        fleet.rollout(group, commit, RolloutPhase::Succeeded).await?;
    }
    fleet
        .until::<SyncResource>(ALONE, "applied", |sync| {
            let revision = sync.status.as_ref().map(|status| &status.last_applied_revision);
            revision.is_some_and(|revision| revision.ends_with(commit))
        })
        .await?;
    Ok(())
}

fn is_detected(conditions: &[Condition]) -> bool {
    let found = conditions::find(conditions, RESTORE_DETECTED);
    found.is_some_and(|condition| condition.status == "True")
}

async fn group_conditions(fleet: &Fleet, name: &str) -> Result<Vec<Condition>> {
    let group = fleet.get::<SyncGroup>(name).await?;
    Ok(group.status.unwrap_or_default().conditions)
}

async fn alone_conditions(fleet: &Fleet) -> Result<Vec<Condition>> {
    let sync = fleet.get::<SyncResource>(ALONE).await?;
    Ok(sync.status.unwrap_or_default().conditions)
}

/// Waits until each group and the Sync without a group say `RestoreDetected`.
async fn detected(fleet: &Fleet, since: Timestamp) -> Result<()> {
    wait::until(TIMEOUT, "RestoreDetected", async || {
        // A write that is not allowed shows at once what is wrong.
        let writes = writes(fleet, since).map_err(|error| error.to_string())?;
        assert!(writes.is_empty(), "written before the release: {writes:#?}");
        let mut found = Vec::new();
        for group in [CHANGED, QUIET] {
            let conditions = group_conditions(fleet, group).await;
            found.push(conditions.map_err(|error| error.to_string())?);
        }
        found.push(alone_conditions(fleet).await.map_err(|error| error.to_string())?);
        if found.iter().all(|conditions| is_detected(conditions)) {
            Ok(())
        } else {
            Err(format!("{found:#?}"))
        }
    })
    .await?;
    Ok(())
}

async fn value(fleet: &Fleet, member: &str, name: &str) -> Result<Option<String>> {
    let data = fleet.config_map(member, "default", name).await?;
    Ok(data.and_then(|mut data| data.remove("value")))
}

async fn values(fleet: &Fleet, name: &str) -> Result<BTreeSet<Option<String>>> {
    let mut found = BTreeSet::new();
    for member in MEMBERS {
        found.insert(value(fleet, member, name).await?);
    }
    Ok(found)
}

fn only(value: Option<&str>) -> BTreeSet<Option<String>> {
    BTreeSet::from([value.map(str::to_owned)])
}

/// Runs `starling` as a person at the management cluster.
async fn starling(fleet: &Fleet, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let kubeconfig = fleet.directory().join("person.kubeconfig");
    std::fs::write(&kubeconfig, fleet.kubeconfig(MANAGEMENT)?)?;
    let output = Command::new(program())
        .args(arguments)
        .args(["-n", NAMESPACE])
        .env("KUBECONFIG", &kubeconfig)
        .output()
        .await?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

/// The management cluster at day 1, the members at day 7, and no ledger.
struct SetBack {
    fleet: Fleet,
    /// The controller that was started after the restore.
    controller: Process,
    since: Timestamp,
    /// The commits of day 1 and day 7.
    commits: [String; 2],
    repo: GitRepo,
}

impl SetBack {
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        let repo = GitRepo::init()?;
        let first = commit(&repo, &[("a", "one")], "kept")?;
        let controller = fleet.controller(program(), &[])?;
        day_1(&fleet, &repo, &first).await?;
        let backup = Backup::of(&fleet).await?;

        let second = commit(&repo, &[("a", "two"), ("b", "two")], "kept")?;
        follow(&fleet, &repo, &second).await?;
        fleet.rollout(CHANGED, &second, RolloutPhase::Succeeded).await?;
        ensure!(values(&fleet, "b").await? == only(Some("two")), "rolled out");
        ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");

        backup.restore(&fleet).await?;
        delete_ledger(&fleet)?;
        let since = Timestamp::now();
        Ok(Self {
            controller: fleet.controller(program(), &[])?,
            fleet,
            since,
            commits: [first, second],
            repo,
        })
    }
}

/// Runs `release-restore`, and returns its text and the digest of the plan.
async fn restore_plan(fleet: &Fleet) -> Result<(String, String)> {
    let (code, plan) = starling(fleet, &["release-restore", "--allow-insecure-sources"]).await?;
    ensure!(code == Some(1), "{code:?}: {plan}");
    let digest = plan.lines().find_map(|line| line.strip_prefix("plan digest: "));
    let digest = digest.context("a digest")?.to_owned();
    Ok((plan, digest))
}

async fn release(fleet: &Fleet, digest: &str) -> Result<(Option<i32>, String)> {
    let arguments = ["release-restore", "--allow-insecure-sources", "--plan", digest];
    starling(fleet, &arguments).await
}

/// Guards against a hub at day 1 that forces the members of day 7 back, and prunes what came since.
#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_was_set_back_writes_nothing_until_a_person_releases_it() -> Result<()> {
    let SetBack {
        fleet,
        controller,
        since,
        ..
    } = &SetBack::start().await?;
    let since = *since;
    detected(fleet, since)
        .await
        .with_context(|| controller.log_tail(40).unwrap_or_default())?;

    // The finding survives a restart.
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    let controller = fleet.controller(program(), &[])?;
    for member in MEMBERS {
        fleet
            .until::<starling_api::Cluster>(member, "Ready", crate::world::is_ready)
            .await?;
    }
    detected(fleet, since).await?;
    assert_eq!(values(fleet, "a").await?, only(Some("two")));
    assert_eq!(values(fleet, "b").await?, only(Some("two")));

    // What a person does meanwhile waits too: a group is deleted, and its objects stay.
    fleet
        .api::<SyncGroup>()
        .delete(QUIET, &DeleteParams::default())
        .await?;
    let explained = starling(fleet, &["why", CHANGED]).await?.1;
    assert!(explained.contains(RESTORE_DETECTED), "{explained}");

    let (plan, digest) = restore_plan(fleet).await?;
    let texts = ["ConfigMap default/a", "ConfigMap default/b", "m1", "m2", "m3"];
    for text in texts {
        assert!(plan.contains(text), "{text} in {plan}");
    }
    let (code, stale) = release(fleet, "sha256:0").await?;
    assert_eq!(code, Some(2), "{stale}");
    assert!(stale.contains(&digest), "{stale}");
    let none: Vec<String> = Vec::new();
    assert_eq!(
        writes(fleet, since)?,
        none,
        "nothing was written before the release"
    );

    let (code, text) = release(fleet, &digest).await?;
    assert_eq!(code, Some(0), "{text}");
    wait::until(TIMEOUT, "the restored state is applied", async || {
        let found = (
            values(fleet, "a").await.map_err(|error| error.to_string())?,
            values(fleet, "b").await.map_err(|error| error.to_string())?,
            values(fleet, QUIET).await.map_err(|error| error.to_string())?,
        );
        (found == (only(Some("one")), only(None), only(None)))
            .then_some(())
            .ok_or(format!("{found:?}"))
    })
    .await
    .with_context(|| controller.log_tail(40).unwrap_or_default())?;
    let conditions = group_conditions(fleet, CHANGED).await?;
    assert!(!is_detected(&conditions), "{conditions:#?}");
    Ok(())
}

/// Guards against a release that goes back first where a person has brought the management cluster up to date.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_has_brought_up_to_date_is_not_written() -> Result<()> {
    let set_back = SetBack::start().await?;
    let (fleet, since) = (&set_back.fleet, set_back.since);
    let [first, second] = &set_back.commits;
    detected(fleet, since).await?;
    follow(fleet, &set_back.repo, second).await?;
    let is_fetched = |source: &Source| {
        let status = source.status.as_ref();
        status.is_some_and(|status| status.revision.ends_with(second.as_str()))
    };
    fleet
        .until::<Source>(CHANGED, "the newer commit", is_fetched)
        .await?;
    for sync in fleet.syncs().await? {
        let of = sync.spec.group_ref.as_ref();
        if of.is_some_and(|of| of.name == CHANGED) {
            let revision = sync.spec.revision.replace(first, second);
            let patch = json!({"spec": {"revision": revision}});
            fleet.patch::<SyncResource>(&sync.name_any(), patch).await?;
        }
    }
    let (plan, digest) = restore_plan(fleet).await?;
    assert!(plan.contains("3 clusters: no changes"), "{plan}");
    let (code, text) = release(fleet, &digest).await?;
    assert_eq!(code, Some(0), "{text}");
    fleet.rollout(CHANGED, second, RolloutPhase::Succeeded).await?;
    for group in [CHANGED, QUIET] {
        let is_released = |status: &SyncGroupStatus| !is_detected(&status.conditions);
        fleet.group_status(group, "released", is_released).await?;
    }
    let none: Vec<String> = Vec::new();
    assert_eq!(writes(fleet, since)?, none);
    Ok(())
}

/// Guards against gates and admissions before the first write: a management cluster that has nothing to write noticed
/// nothing, because only an attempt that wrote compared the numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_is_noticed_at_the_start_where_everything_is_in_step() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS.len(),
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let first = commit(&repo, &[("a", "one")], "kept")?;
    let controller = fleet.controller(program(), &[])?;
    day_1(&fleet, &repo, &first).await?;
    let backup = Backup::of(&fleet).await?;
    let second = commit(&repo, &[("a", "two")], "kept")?;
    follow(&fleet, &repo, &second).await?;
    fleet.rollout(CHANGED, &second, RolloutPhase::Succeeded).await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");

    backup.restore_numbers(&fleet).await?;
    let since = Timestamp::now();
    let controller = fleet.controller(program(), &[])?;
    detected(&fleet, since)
        .await
        .with_context(|| controller.log_tail(40).unwrap_or_default())
}

/// Guards against a plan that shows what leaves a group as if it were applied.
#[tokio::test(flavor = "multi_thread")]
async fn the_plan_names_what_removed_entries_and_unselected_clusters_lose() -> Result<()> {
    let set_back = SetBack::start().await?;
    let (fleet, since) = (&set_back.fleet, set_back.since);
    detected(fleet, since).await?;
    let (_, before) = restore_plan(fleet).await?;
    let spec = json!({"spec": {"whenUnselected": "Delete"}});
    fleet.patch::<SyncGroup>(QUIET, spec).await?;
    let labels = json!({"metadata": {"labels": {"tier": "none"}}});
    fleet.patch::<starling_api::Cluster>("m3", labels).await?;
    let (plan, after) = restore_plan(fleet).await?;
    assert!(plan.contains("- ConfigMap default/quiet (quiet/app)"), "{plan}");
    assert!(
        plan.contains("shop/app: the SyncGroup does not select the cluster"),
        "{plan}"
    );
    assert_ne!(before, after);

    let entry = json!({"name": "other", "sourceRef": {"name": "fixed"}, "path": "./quiet"});
    fleet
        .patch::<SyncGroup>(QUIET, json!({"spec": {"syncs": [entry]}}))
        .await?;
    let (plan, last) = restore_plan(fleet).await?;
    assert!(
        plan.contains("quiet/app: the SyncGroup has no such entry"),
        "{plan}"
    );
    assert_ne!(after, last);
    Ok(())
}
