//! Wiring: opens what the loops need, starts them, and ends them in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Change, ObjectKey};
use super::context::{Checks, Context, Departures, Dependents, Queues};
use super::events::Events;
use super::gates::Gates;
use super::healths::Healths;
use super::hub::{Hub, HubError};
use super::journals::Journals;
use super::lanes::Lanes;
use super::members::Members;
use super::objects::{cluster_of, group_of_action, group_of_approval, identity_of};
use super::pace::Pace;
use super::pins::{self, Pins};
use super::ports::Ports;
use super::releases::Releases;
use super::renders::Renders;
use super::repositories::Repositories;
use super::restart;
use super::roster::Syncs;
use super::selection::Selections;
use super::shares::Limits;
use super::standing::Standings;
use super::targets::Targets;
use super::trees::Trees;
use super::unsure::Unsure;
use super::wake::By;
use super::watch::follow;
use super::work::{Crew, Loop, Schedule};
use super::workqueue::{LaneRules, Workqueue};
use crate::clock::Clock;
use crate::git::{GitLimits, GitStore};
use crate::ledger::{Ledger, LedgerError};
use crate::member::Network;
use crate::render::{BuildTool, RenderError, RenderLimits, Renderer, Sops};
use crate::web::Web;

/// How long a stop waits for attempts that have begun.
const GRACE: Duration = Duration::from_secs(20);
/// How often the queue's times go into the ledger. They spare work after a restart and nothing else depends on
/// them, so a second of them may be lost.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// How often what is no longer used is let go.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);

/// What the operator sets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The one namespace that is looked at; `None`: all.
    pub namespace: Option<String>,
    /// Where ledger and mirrors are.
    pub data_dir: PathBuf,
    /// Whether http:// and file:// are accepted.
    pub allow_insecure_sources: bool,
    /// Syncs that are worked on at the same time, over all groups.
    pub concurrency: usize,
    /// The kustomize to use; `None`: from PATH.
    pub kustomize: Option<PathBuf>,
    /// The sops to use; `None`: from PATH.
    pub sops: Option<PathBuf>,
}

/// Why the controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ledger cannot be opened.
    #[error("the ledger in the data folder")]
    Ledger(#[from] LedgerError),
    /// `--kustomize` names something that is none.
    #[error("--kustomize")]
    Kustomize(#[source] RenderError),
    /// `--sops` names something that is none.
    #[error("--sops")]
    Sops(#[source] RenderError),
    /// The management cluster does not take or give what the start needs.
    #[error("the management cluster")]
    Hub(#[from] HubError),
}

/// A controller that runs.
pub struct Controller {
    context: Arc<Context>,
    schedule: Arc<Schedule>,
    tasks: JoinSet<()>,
    workers: JoinSet<()>,
    stop: CancellationToken,
}

impl Controller {
    /// Opens what is needed, reads the management cluster once, and starts the loops. Returns when all caches hold a
    /// complete list and work has begun.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(client: Client, settings: Settings) -> Result<Self, StartError> {
        let ports = open(&settings).await?;
        Self::start_on(ports, client, settings).await
    }

    /// As [`Self::start`], on what is handed in.
    ///
    /// # Errors
    /// [`StartError::Hub`] and [`StartError::Ledger`].
    pub async fn start_on(ports: Ports, client: Client, settings: Settings) -> Result<Self, StartError> {
        let context = Arc::new(connect(ports, client, &settings).await?);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let resumed = Arc::new(AtomicBool::new(false));
        follow_all(&context, settings.namespace.as_ref(), &resumed, &stop, &mut tasks);
        tokio::join!(
            context.sources.synced(),
            context.clusters.synced(),
            context.syncs.synced(),
            context.groups.synced(),
            context.approvals.synced(),
            context.actions.synced(),
        );
        // From here on changes wake. One that comes between the list and this line is in the caches, which `resume`
        // reads afterwards.
        resumed.store(true, Ordering::SeqCst);
        restart::resume(&context).await?;

        let schedule = Arc::new(Schedule::default());
        let mut workers = JoinSet::new();
        for of in Loop::ALL {
            let crew = Arc::new(Crew::new(of, context.clone(), schedule.clone()));
            for _ in 0..hands(of, &settings) {
                workers.spawn(crew.clone().work(stop.clone()));
            }
        }
        tasks.spawn(keep(context.clone(), schedule.clone(), stop.clone()));
        tracing::info!("the controller works");
        Ok(Self {
            context,
            schedule,
            tasks,
            workers,
            stop,
        })
    }

    /// Starts nothing more, waits a while for what has begun, and closes the ledger. An attempt that takes longer is
    /// cut, which is what a crash would have done to it.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let drained =
            tokio::time::timeout(GRACE, async { while self.workers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!("attempts that did not end in time are cut; the next start makes them again");
            self.workers.shutdown().await;
        }
        self.context.gates.stop();
        self.schedule.save(&self.context).await;
        self.tasks.shutdown().await;
        self.context.ledger.close().await;
        tracing::info!("the controller has stopped");
    }
}

/// Workers per loop. Sources and clusters mostly wait for answers; groups read caches and write a little.
fn hands(of: Loop, settings: &Settings) -> usize {
    match of {
        Loop::Source => 8,
        Loop::Cluster => 32,
        Loop::Sync => settings.concurrency.max(1),
        Loop::SyncGroup => 4,
    }
}

/// What the controller stands on outside simulations.
async fn open(settings: &Settings) -> Result<Ports, StartError> {
    let (ledger, opened) = Ledger::open(&settings.data_dir).await?;
    tracing::info!(?opened, "ledger open");
    let tool = BuildTool::discover(settings.kustomize.clone()).map_err(StartError::Kustomize)?;
    let sops = Sops::discover(settings.sops.clone()).map_err(StartError::Sops)?;
    tracing::info!(?tool, ?sops, "manifests are built with");
    let git = GitStore::new(settings.data_dir.join("git"), GitLimits::default());
    let renderer = Renderer::new(tool, RenderLimits::default()).with_sops(sops);
    Ok(Ports {
        clock: Clock::system(),
        network: Network::system(),
        ledger: Arc::new(ledger),
        workshop: Arc::new(Trees::new(git.clone(), renderer)),
        git: Arc::new(git),
        web: Arc::new(Web::default()),
    })
}

async fn connect(ports: Ports, client: Client, settings: &Settings) -> Result<Context, StartError> {
    let Ports {
        clock,
        network,
        ledger,
        git,
        workshop,
        web,
    } = ports;
    let hub = Hub::new(client);
    let installation = hub.installation().await?;
    let (syncs, lanes) = (
        Arc::new(Cache::indexed_by(cluster_of)),
        Arc::new(Lanes::new(clock.clone())),
    );
    let queues = Queues {
        syncs: Workqueue::with_lanes(lane_rules(settings, &syncs, &lanes)),
        ..Queues::default()
    };
    Ok(Context {
        events: Events::new(hub.client(), clock.clone()),
        clock,
        departures: Departures::default(),
        unsure: Unsure::default(),
        hub,
        sources: Arc::new(Cache::default()),
        clusters: Arc::new(Cache::indexed_by(identity_of)),
        syncs,
        groups: Arc::new(Cache::default()),
        approvals: Arc::new(Cache::indexed_by(group_of_approval)),
        actions: Arc::new(Cache::indexed_by(group_of_action)),
        queues,
        renders: Renders::new(workshop),
        network,
        gates: Arc::new(Gates::default()),
        web,
        git,
        repositories: Repositories::default(),
        releases: Releases::default(),
        pins: Pins::default(),
        members: Members::default(),
        lanes,
        ledger,
        pace: Pace::default(),
        checks: Checks::default(),
        dependents: Dependents::default(),
        renewals: Checks::default(),
        healths: Healths::default(),
        standings: Standings::default(),
        selections: Selections::default(),
        targets: Targets::default(),
        journals: Journals::default(),
        reports: Checks::default(),
        installation,
        allow_insecure_sources: settings.allow_insecure_sources,
    })
}

/// One lane per cluster in the queue of Syncs: what one cluster, or all bad ones together, may hold of the workers.
fn lane_rules(settings: &Settings, syncs: &Arc<Syncs>, lanes: &Arc<Lanes>) -> LaneRules {
    let (syncs, lanes) = (syncs.clone(), lanes.clone());
    LaneRules {
        lane_of: Box::new(move |key| {
            let sync = syncs.get(key)?;
            Some(ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name))
        }),
        is_suspect: Box::new(move |cluster| lanes.is_suspect(cluster)),
        limits: Limits::of(hands(Loop::Sync, settings)),
    }
}

fn follow_all(
    context: &Arc<Context>,
    namespace: Option<&String>,
    resumed: &Arc<AtomicBool>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    macro_rules! follow_kind {
        ($cache:ident, $wake:ident) => {{
            let (wakes, resumed) = (context.clone(), resumed.clone());
            tasks.spawn(follow(
                context.hub.clone(),
                namespace.cloned(),
                context.$cache.clone(),
                move |change: Change<_>| {
                    if resumed.load(Ordering::SeqCst) {
                        wakes.$wake(&change, By::Others);
                    }
                },
                stop.clone(),
            ));
        }};
    }
    follow_kind!(sources, wake_for_source);
    follow_kind!(clusters, wake_for_cluster);
    follow_kind!(syncs, wake_for_sync);
    follow_kind!(groups, wake_for_group);
    follow_kind!(approvals, wake_for_approval);
    follow_kind!(actions, wake_for_action);
}

/// Deletes mirrors of Sources that are gone and of credentials that were replaced.
async fn drop_unused_mirrors(context: &Context) {
    let sources: Vec<_> = context
        .sources
        .select(|_| true)
        .iter()
        .map(|source| ObjectKey::of(&**source))
        .collect();
    // A Source that was not addressed yet may need a mirror that is there.
    let Some(keep) = context.repositories.fingerprints(&sources) else {
        return;
    };
    match context.git.retain(keep).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "unused mirrors deleted"),
        Err(error) => tracing::warn!(%error, "unused mirrors not deleted"),
    }
}

/// Housekeeping.
async fn keep(context: Arc<Context>, schedule: Arc<Schedule>, stop: CancellationToken) {
    let mut save = tokio::time::interval(SAVE_INTERVAL);
    let mut tidy = tokio::time::interval(TIDY_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = save.tick() => schedule.save(&context).await,
            _ = tidy.tick() => {
                context.pace.tidy();
                drop_unused_mirrors(&context).await;
                pins::end_unneeded(&context).await;
            }
        }
    }
}
