//! `starling demo`: runs a fleet on this machine and rolls out two commits of a sample repository.

mod clusters;
mod directory;
mod display;
mod objects;
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
use super::signals::StopSignals;
use crate::controller::{Controller, Readiness, Settings};
use clusters::DemoClusters;
use directory::DemoDirectory;
use display::Display;
use objects::{GROUP, NAMESPACE};
use repository::Repository;

/// The demo fails after this time without progress.
const PATIENCE: Duration = Duration::from_secs(120);
/// Default number of members.
const MEMBERS: u16 = 8;
/// Default number of real control planes, which take a quarter of a gigabyte each.
const REAL_MEMBERS: u16 = 3;

/// Options of `demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// Number of member clusters. Default: 8, or 3 with --real
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clusters: Option<u16>,
    /// Use real control planes (etcd and kube-apiserver) instead of the embedded API server
    #[arg(long)]
    real: bool,
    /// Directory that keeps the kubeconfig, the repository and the controller's data. Default: a temporary directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Exit after the second commit has rolled out
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let mut stop = StopSignals::new()?;
    let display = Display::new();
    let start = Instant::now();
    let directory = DemoDirectory::open(arguments.data_dir)?;
    let default = if arguments.real { REAL_MEMBERS } else { MEMBERS };
    let members = usize::from(arguments.clusters.unwrap_or(default));
    display.line(&format!("starting a management cluster and {members} members"));
    let clusters = if arguments.real {
        DemoClusters::real(members, &directory.clusters(), &display).await?
    } else {
        DemoClusters::embedded(members, directory.server().as_deref()).await?
    };
    let members = clusters.members.len();
    directory.write_kubeconfig(&clusters.kubeconfig()?)?;
    let repository = Repository::open(&directory.repository())?;
    let hub = clusters.hub().await?;

    hub::install(&hub).await?;
    objects::apply(&hub, &clusters, repository.url()).await?;
    display.line(&format!("ready after {:.1} s", start.elapsed().as_secs_f64()));
    let settings = Settings {
        namespace: None,
        data_dir: directory.data(),
        allow_insecure_sources: true,
        max_clusters_in_flight: None,
        concurrency: 20,
        kustomize: clusters.kustomize.clone(),
        sops: None,
        deletions: Default::default(),
        addresses: Default::default(),
        rights: Default::default(),
    };
    let controller = Controller::start(hub.clone(), settings, Readiness::default()).await?;

    let groups: Api<SyncGroup> = Api::namespaced(hub, NAMESPACE);
    let outcome = tokio::select! {
        rolled = roll_out_two(&groups, &repository, &display, members) => rolled.map(|()| false),
        () = stop.received() => Ok(true),
    };
    if matches!(outcome, Ok(false)) && !arguments.once {
        print_instructions(&display, &clusters, &directory);
        stop.received().await;
    }
    display.line("stopping");
    controller.stop().await;
    outcome.map(drop)
}

async fn roll_out_two(
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

/// Shows the rollout of one commit until it succeeds.
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
        let Some(group) = next
            .await
            .with_context(|| format!("no progress of the rollout for {} s", PATIENCE.as_secs()))??
        else {
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
            RolloutPhase::Failed => bail!("rollout {} failed: {:?}", rollout.id, status.problems),
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

fn print_instructions(display: &Display, clusters: &DemoClusters, directory: &DemoDirectory) {
    let (kubectl, kubeconfig) = (&clusters.kubectl, directory.kubeconfig());
    let kubectl = format!("{kubectl} --kubeconfig {}", kubeconfig.display());
    let end = if directory.is_kept() {
        "Ctrl-C stops the demo"
    } else {
        "Ctrl-C stops the demo and removes everything"
    };
    display.line("");
    display.line(&format!("Look around ({end}):"));
    display.line(&format!("  {kubectl} get starling -A"));
    if let Some(member) = clusters.members.first() {
        display.line(&format!(
            "  {kubectl} --context {} -n shop get deployments,configmaps --show-labels",
            member.name
        ));
    }
    display.line("Push to the repository and watch the rollout:");
    display.line(&format!("  git clone {}", directory.repository().display()));
    display.line(&format!("  {kubectl} -n {NAMESPACE} get syncgroup --watch"));
}

fn short(commit: &str) -> &str {
    commit.get(..8).unwrap_or(commit)
}
