//! What was deleted within the window of a budget is remembered by the management cluster: a controller that starts
//! again without its ledger does not begin to count from zero.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use starling_api::{DeletionHold, RolloutPhase, SyncResource};
use starling_controlplane::Process;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Change, Fleet, FleetOptions, GitRepo, program, wait};

use crate::hub_restore::delete_ledger;
use crate::world::{config_map, is_ready, sync_ready};

const SOURCE: &str = "apps";

struct World {
    controller: Process,
    fleet: Fleet,
    repo: GitRepo,
}

impl World {
    /// Starts a fleet and a controller with flags. Each folder has this many ConfigMaps `FOLDER-0`, `FOLDER-1`, ….
    async fn start(members: usize, flags: &[&str], folders: &[(&str, usize)]) -> Result<Self> {
        let options = FleetOptions {
            members,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(options).await?;
        let repo = GitRepo::init()?;
        let mut files = Vec::new();
        for (folder, count) in folders {
            for number in 0..*count {
                let name = format!("{folder}-{number}");
                files.push((format!("{folder}/{name}.yaml"), config_map(&name, "one")));
            }
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        repo.commit(&files, "applications")?;
        let controller = fleet.controller(program(), flags)?;
        for number in 1..=members {
            let name = format!("m{number}");
            fleet.add_cluster(&name, &[(&*name, "yes")]).await?;
            fleet.until(&name, "Ready", is_ready).await?;
        }
        let branch = json!({"branch": "main"});
        fleet.put_source(SOURCE, &repo.url(), branch).await?;
        Ok(Self {
            controller,
            fleet,
            repo,
        })
    }

    /// Stops the controller, deletes its ledger, and starts it with flags.
    async fn lose_the_ledger(&mut self, flags: &[&str]) -> Result<()> {
        ensure!(self.controller.stop(TIMEOUT).await?.success(), "a clean stop");
        delete_ledger(&self.fleet)?;
        self.controller = self.fleet.controller(program(), flags)?;
        Ok(())
    }

    async fn exists(&self, member: &str, name: &str) -> Result<bool> {
        Ok(self.fleet.config_map(member, "default", name).await?.is_some())
    }

    async fn until_gone(&self, member: &str, name: &str) -> Result<()> {
        wait::until(TIMEOUT, format!("{name} is gone from {member}"), async || {
            let exists = self.exists(member, name).await;
            let exists = exists.map_err(|error| format!("{error:#}"))?;
            (!exists).then_some(()).ok_or_else(|| "there".to_owned())
        })
        .await
        .with_context(|| self.controller.log_tail(40).unwrap_or_default())?;
        Ok(())
    }

    /// Waits until a Sync holds its deletions or has deleted the ConfigMap, and returns what is held.
    async fn held(&self, sync: &str, (member, map): (&str, &str)) -> Result<DeletionHold> {
        let held = wait::until(TIMEOUT, format!("{sync} is held, or {map} goes"), async || {
            if !self
                .exists(member, map)
                .await
                .map_err(|error| format!("{error:#}"))?
            {
                return Ok(None);
            }
            let found: Result<SyncResource> = self.fleet.get(sync).await;
            let status = found.map_err(|error| format!("{error:#}"))?.status;
            let hold = status.as_ref().and_then(|status| status.held_deletions.clone());
            hold.map(Some).ok_or_else(|| format!("{status:#?}"))
        });
        let held = held.await?;
        held.with_context(|| {
            let log = self.controller.log_tail(40).unwrap_or_default();
            format!("{map} was deleted from {member}\n{log}")
        })
    }

    /// Creates a Sync without a group, and waits until it is applied.
    async fn put_sync(&self, name: &str, member: &str) -> Result<()> {
        let spec = json!({"clusterRef": {"name": member}, "sourceRef": {"name": SOURCE},
            "path": format!("./{name}"), "deletionPolicy": "Delete"});
        let sync = json!({"metadata": {"name": name}, "spec": spec});
        self.fleet.put::<SyncResource>(sync).await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        self.fleet.until(name, "Ready", done).await?;
        Ok(())
    }
}

async fn prune(world: &World, group: &str, maps: &[&str]) -> Result<String> {
    let paths: Vec<String> = maps.iter().map(|map| format!("{group}/{map}.yaml")).collect();
    let changes: Vec<Change<'_>> = paths.iter().map(|path| Change::Remove(path)).collect();
    Ok(world.repo.commit_to("main", &changes, "fewer")?)
}

/// A group that may lose four objects within an hour loses two, then the controller its ledger.
#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_a_group_survives_a_lost_ledger() -> Result<()> {
    let mut world = World::start(1, &[], &[("shop", 8)]).await?;
    let entry =
        json!({"name": "app", "sourceRef": {"name": SOURCE}, "path": "./shop", "retryInterval": "1s"});
    let spec = json!({"clusterSelector": {"matchLabels": {"m1": "yes"}}, "syncs": [entry],
        "deletionBudget": {"objects": 4, "window": "1h"}});
    world.fleet.put_group("shop", spec).await?;
    let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
    world.fleet.until("shop-app-m1", "Ready", done).await?;
    let half = prune(&world, "shop", &["shop-0", "shop-1"]).await?;
    world
        .fleet
        .rollout("shop", &half, RolloutPhase::Succeeded)
        .await?;
    world.until_gone("m1", "shop-1").await?;

    world.lose_the_ledger(&[]).await?;
    let other_half = prune(&world, "shop", &["shop-2", "shop-3"]).await?;
    world
        .fleet
        .rollout("shop", &other_half, RolloutPhase::Succeeded)
        .await?;
    world.until_gone("m1", "shop-3").await?;

    world.lose_the_ledger(&[]).await?;
    prune(&world, "shop", &["shop-4"]).await?;
    let hold = world.held("shop-app-m1", ("m1", "shop-4")).await?;
    assert!(
        hold.budget.contains("the SyncGroup") && !hold.until.is_empty(),
        "{hold:?}"
    );
    for number in 4..8 {
        assert!(world.exists("m1", &format!("shop-{number}")).await?);
    }
    Ok(())
}

/// The same for the budget of the installation, which has no object of its own that a person would restore.
#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_the_installation_survives_a_lost_ledger() -> Result<()> {
    let objects = ["--deletion-budget", "objects=4,window=1h"];
    let folders = [("first", 2), ("second", 2), ("third", 1), ("fourth", 1)];
    let mut world = World::start(3, &objects, &folders).await?;
    for (sync, member) in [
        ("first", "m1"),
        ("second", "m2"),
        ("third", "m1"),
        ("fourth", "m3"),
    ] {
        world.put_sync(sync, member).await?;
    }
    world.fleet.delete::<SyncResource>("first").await?;
    world.until_gone("m1", "first-1").await?;

    world.lose_the_ledger(&objects).await?;
    world.fleet.delete::<SyncResource>("second").await?;
    world.until_gone("m2", "second-1").await?;

    world.lose_the_ledger(&objects).await?;
    world.fleet.delete::<SyncResource>("third").await?;
    let hold = world.held("third", ("m1", "third-0")).await?;
    assert!(
        hold.budget.contains("4 objects") && !hold.until.is_empty(),
        "{hold:?}"
    );

    // A limit of clusters, of which two have lost something already.
    world
        .lose_the_ledger(&["--deletion-budget", "clusters=2,window=1h"])
        .await?;
    world.fleet.delete::<SyncResource>("fourth").await?;
    let hold = world.held("fourth", ("m3", "fourth-0")).await?;
    assert!(
        hold.budget.contains("2 clusters") && !hold.until.is_empty(),
        "{hold:?}"
    );
    Ok(())
}
