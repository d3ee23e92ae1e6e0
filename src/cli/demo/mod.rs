//! `starling demo`: a fleet on this machine, a repository, and two commits that roll through it.

mod display;
mod fleet;
mod folder;
mod ground;
mod repository;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use futures::TryStreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use starling_api::{RolloutPhase, SyncGroup};

use super::hub;
use super::stop::Stop;
use crate::controller::{Controller, Settings};
use display::Display;
use fleet::{GROUP, NAMESPACE};
use folder::Folder;
use ground::Ground;
use repository::Repository;

/// Without any progress for this long something is wrong, and the user shall know.
const PATIENCE: Duration = Duration::from_secs(120);
/// Members without `--clusters`.
const MEMBERS: u16 = 8;
/// The same of real control planes, which take a quarter of a gigabyte each.
const REAL_MEMBERS: u16 = 3;

/// How the demo runs.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// Member clusters [default: 8, or 3 with --real]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clusters: Option<u16>,
    /// Real control planes (etcd and kube-apiserver) in place of the embedded API server
    #[arg(long)]
    real: bool,
    /// Keep the kubeconfig, the repository and the controller's data in this folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// End after the second commit has been rolled out
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let display = Display::new();
    let start = Instant::now();
    let folder = Folder::open(arguments.data_dir)?;
    let default = if arguments.real { REAL_MEMBERS } else { MEMBERS };
    let members = usize::from(arguments.clusters.unwrap_or(default));
    display.line(&format!("starting a management cluster and {members} members"));
    let ground = if arguments.real {
        Ground::real(members, &folder.clusters(), &display).await?
    } else {
        Ground::embedded(members, folder.server().as_deref()).await?
    };
    let members = ground.members.len();
    folder.write_kubeconfig(&ground.kubeconfig()?)?;
    let repository = Repository::open(&folder.repository())?;
    let hub = ground.hub().await?;

    hub::install(&hub).await?;
    fleet::apply(&hub, &ground, repository.url()).await?;
    display.line(&format!(
        "they are there after {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    let settings = Settings {
        namespace: None,
        data_dir: folder.data(),
        allow_insecure_sources: true,
        concurrency: 20,
        kustomize: ground.kustomize.clone(),
        sops: None,
    };
    let controller = Controller::start(hub.clone(), settings).await?;

    let groups: Api<SyncGroup> = Api::namespaced(hub, NAMESPACE);
    let outcome = tokio::select! {
        rolled = roll_two(&groups, &repository, &display, members) => rolled.map(|()| false),
        () = stop.asked() => Ok(true),
    };
    if matches!(outcome, Ok(false)) && !arguments.once {
        look_around(&display, &ground, &folder);
        stop.asked().await;
    }
    display.line("stopping");
    controller.stop().await;
    outcome.map(drop)
}

async fn roll_two(
    groups: &Api<SyncGroup>,
    repository: &Repository,
    display: &Display,
    members: usize,
) -> anyhow::Result<()> {
    let first = repository.head()?;
    display.line(&format!("first commit {}", short(&first)));
    follow(groups, &first, display, members).await?;
    let second = repository.next_commit()?;
    display.line(&format!("second commit {}: a new image", short(&second)));
    follow(groups, &second, display, members).await
}

/// Shows the rollout of one commit until it has succeeded.
async fn follow(
    groups: &Api<SyncGroup>,
    commit: &str,
    display: &Display,
    members: usize,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let config = watcher::Config::default().fields(&format!("metadata.name={GROUP}"));
    let statuses = watcher(groups.clone(), config)
        .default_backoff()
        .applied_objects();
    tokio::pin!(statuses);
    let bar = display.bar(members);
    loop {
        let next = tokio::time::timeout(PATIENCE, statuses.try_next());
        let Some(group) = next.await.context("the rollout does not go on")?? else {
            bail!("the watch of SyncGroup {GROUP} ended");
        };
        let Some(status) = group.status else { continue };
        let Some(rollout) = status.rollout else { continue };
        let is_this = |revision: &str| revision.ends_with(commit);
        if !rollout.revisions.iter().any(|entry| is_this(&entry.revision)) {
            continue;
        }
        bar.show(&status.clusters, rollout.phase);
        match rollout.phase {
            RolloutPhase::Succeeded => break,
            RolloutPhase::Failed => bail!("the rollout has failed: {:?}", status.problems),
            _ => {}
        }
    }
    bar.finish(&format!(
        "{} is on every cluster after {:.1} s",
        short(commit),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn look_around(display: &Display, ground: &Ground, folder: &Folder) {
    let (kubectl, kubeconfig) = (&ground.kubectl, folder.kubeconfig());
    let kubectl = format!("{kubectl} --kubeconfig {}", kubeconfig.display());
    let end = if folder.is_kept() {
        "Ctrl-C ends the demo"
    } else {
        "Ctrl-C ends the demo and removes everything"
    };
    display.line("");
    display.line(&format!("Look around ({end}):"));
    display.line(&format!("  {kubectl} get starling -A"));
    if let Some(member) = ground.members.first() {
        display.line(&format!(
            "  {kubectl} --context {} -n shop get deployments,configmaps --show-labels",
            member.name
        ));
    }
    display.line("Push to the repository and watch it roll:");
    display.line(&format!("  git clone {}", folder.repository().display()));
    display.line(&format!("  {kubectl} -n {NAMESPACE} get syncgroup --watch"));
}

fn short(commit: &str) -> &str {
    commit.get(..8).unwrap_or(commit)
}
