//! `starling demo`: real control planes on this machine, a repository, and two commits that roll through it.

mod display;
mod fleet;
mod repository;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use futures::TryStreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use starling_api::{RolloutPhase, SyncGroup};
use starling_controlplane::{Assets, ControlPlanes, Options};

use crate::controller::{Controller, Settings};
use display::Display;
use fleet::{GROUP, MANAGEMENT, NAMESPACE};
use repository::Repository;

/// A rollout in the demo takes a second; when it takes this long something is wrong, and the user shall know.
const PATIENCE: Duration = Duration::from_secs(120);

/// How the demo runs.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// End after the second commit has been rolled out
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let display = Display::new();
    let assets = {
        let display = display.clone();
        tokio::task::spawn_blocking(move || Assets::find_or_build(|line| display.line(line))).await??
    };
    display.line("starting a management cluster and three members");
    let folder = tempfile::Builder::new().prefix("starling-demo-").tempdir()?;
    let names: Vec<&str> = std::iter::once(MANAGEMENT).chain(fleet::MEMBERS).collect();
    let options = Options {
        dir: Some(folder.path().join("clusters")),
        ..Options::default()
    };
    let planes = ControlPlanes::start(&assets, &names, options).await?;
    let repository = Repository::make(&folder.path().join("shop.git"))?;
    let hub = planes.get(MANAGEMENT)?.client().await?;

    fleet::install(&hub).await?;
    fleet::apply(&hub, &planes, repository.url()).await?;
    let settings = Settings {
        namespace: None,
        data_dir: folder.path().join("data"),
        allow_insecure_sources: true,
        concurrency: 20,
        kustomize: assets.kustomize().map(ToOwned::to_owned),
        sops: None,
    };
    let controller = Controller::start(hub.clone(), settings).await?;

    let groups: Api<SyncGroup> = Api::namespaced(hub, NAMESPACE);
    let outcome = tokio::select! {
        rolled = roll_two(&groups, &repository, &display) => rolled,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    if outcome.is_ok() && !arguments.once {
        look_around(&display, &planes, &assets, &repository);
        tokio::signal::ctrl_c().await?;
    }
    display.line("stopping");
    controller.stop().await;
    outcome
}

async fn roll_two(groups: &Api<SyncGroup>, repository: &Repository, display: &Display) -> anyhow::Result<()> {
    let first = repository.head()?;
    display.line(&format!("first commit {}", short(&first)));
    follow(groups, &first, display).await?;
    let second = repository.second_commit()?;
    display.line(&format!("second commit {}: a new image", short(&second)));
    follow(groups, &second, display).await
}

/// Shows the rollout of one commit until it has succeeded.
async fn follow(groups: &Api<SyncGroup>, commit: &str, display: &Display) -> anyhow::Result<()> {
    let start = Instant::now();
    let config = watcher::Config::default().fields(&format!("metadata.name={GROUP}"));
    let statuses = watcher(groups.clone(), config)
        .default_backoff()
        .applied_objects();
    tokio::pin!(statuses);
    let bar = display.bar(fleet::MEMBERS.len());
    let succeeded = tokio::time::timeout(PATIENCE, async {
        while let Some(group) = statuses.try_next().await? {
            let Some(status) = group.status else { continue };
            let Some(rollout) = status.rollout else { continue };
            if !rollout
                .revisions
                .iter()
                .any(|entry| entry.revision.ends_with(commit))
            {
                continue;
            }
            bar.show(&status.clusters, rollout.phase);
            if rollout.phase == RolloutPhase::Succeeded {
                return Ok(());
            }
        }
        bail!("the watch of SyncGroup {GROUP} ended")
    });
    succeeded.await.context("the rollout did not finish in time")??;
    bar.finish(&format!(
        "{} is on every cluster after {:.1} s",
        short(commit),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn look_around(display: &Display, planes: &ControlPlanes, assets: &Assets, repository: &Repository) {
    display.line("");
    display.line("Look around (Ctrl-C ends the demo and removes everything):");
    let kubectl = assets.kubectl().display();
    for plane in planes.iter() {
        let config = plane.kubeconfig_path();
        let what = if plane.name() == MANAGEMENT {
            format!("-n {NAMESPACE} get starling")
        } else {
            "-n shop get deployments,configmaps --show-labels".to_owned()
        };
        display.line(&format!("  {kubectl} --kubeconfig {} {what}", config.display()));
    }
    display.line(&format!(
        "Push to it (git clone {}) and watch it roll:",
        repository.path().display()
    ));
    let management = planes.iter().find(|plane| plane.name() == MANAGEMENT);
    if let Some(management) = management {
        let config = management.kubeconfig_path();
        display.line(&format!(
            "  {kubectl} --kubeconfig {} -n {NAMESPACE} get syncgroup --watch",
            config.display()
        ));
    }
}

fn short(commit: &str) -> &str {
    commit.get(..8).unwrap_or(commit)
}
