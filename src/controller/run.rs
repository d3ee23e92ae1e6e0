//! Wiring: opens what the loops need, starts them, and ends them in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use starling_git::{GitLimits, GitStore};
use starling_ledger::{Ledger, LedgerError};
use starling_member::Network;
use starling_net::clock::Clock;
use starling_net::web::Web;
use starling_render::{BuildTool, RenderError, RenderLimits, Renderer, Sops};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::artifacts::ArtifactStores;
use super::cache::{Change, ObjectKey};
use super::caches::availability::AvailabilityCache;
use super::caches::renders::RenderCache;
use super::caches::sync_index::SyncCache;
use super::caches::{Caches, ObjectCaches};
use super::context::{Adapters, Context};
use super::event_handlers::ChangedBy;
use super::events::Events;
use super::hub::{Hub, HubError};
use super::pins;
use super::ports::Ports;
use super::queues::{Loop, Queues};
use super::restart;
use super::shares::Limits;
use super::start_rates::StartRates;
use super::tree_renderer::TreeRenderer;
use super::watch::follow;
use super::work::{Schedule, Workers};
use super::workqueue::{LaneRules, Workqueue};
use crate::controller::waits;

/// Workers of the Source loop: they mostly wait for git hosts.
const SOURCE_WORKERS: usize = 8;
/// Workers of the Cluster loop: they mostly wait for members, some of which do not answer before a timeout.
const CLUSTER_WORKERS: usize = 32;
/// Workers of the SyncGroup loop: they read caches, compute, and write a little.
const GROUP_WORKERS: usize = 4;

/// The settings of a controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The one namespace that is watched; `None`: all.
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
    #[error("cannot open or write the ledger in the data directory")]
    Ledger(#[from] LedgerError),
    /// `--kustomize` names something that is none.
    #[error("--kustomize")]
    Kustomize(#[source] RenderError),
    /// `--sops` names something that is none.
    #[error("--sops")]
    Sops(#[source] RenderError),
    /// The management cluster does not take or give what the start needs.
    #[error("cannot read or create the installation ID")]
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
        context.objects.synced().await;
        // From here on changes wake. One that comes between the list and this line is in the caches, which `resume`
        // reads afterwards.
        resumed.store(true, Ordering::SeqCst);
        restart::resume(&context).await?;

        let schedule = Arc::new(Schedule::default());
        let mut workers = JoinSet::new();
        for of in Loop::ALL {
            let shared = Arc::new(Workers::new(of, context.clone(), schedule.clone()));
            for _ in 0..workers_of(of, &settings) {
                workers.spawn(shared.clone().work(stop.clone()));
            }
        }
        tasks.spawn(housekeep(context.clone(), schedule.clone(), stop.clone()));
        tracing::info!("controller ready");
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
        let drained = tokio::time::timeout(waits::STOP_GRACE, async {
            while self.workers.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("attempts did not end in time; the next start retries them");
            self.workers.shutdown().await;
        }
        self.context.caches.group.gate_tasks.stop();
        self.schedule.save(&self.context).await;
        self.tasks.shutdown().await;
        self.context.adapters.ledger.close().await;
        tracing::info!("controller stopped");
    }
}

/// How many workers a loop has.
fn workers_of(of: Loop, settings: &Settings) -> usize {
    match of {
        Loop::Source => SOURCE_WORKERS,
        Loop::Cluster => CLUSTER_WORKERS,
        Loop::Sync => settings.concurrency.max(1),
        Loop::SyncGroup => GROUP_WORKERS,
    }
}

/// What the controller stands on outside simulations.
async fn open(settings: &Settings) -> Result<Ports, StartError> {
    let (ledger, opened) = Ledger::open(&settings.data_dir).await?;
    tracing::info!(?opened, "ledger open");
    let tool = BuildTool::discover(settings.kustomize.clone()).map_err(StartError::Kustomize)?;
    let sops = Sops::discover(settings.sops.clone()).map_err(StartError::Sops)?;
    tracing::info!(?tool, ?sops, "build tools found");
    let artifacts = ArtifactStores {
        git: GitStore::new(settings.data_dir.join("git"), GitLimits::default()),
    };
    let renderer = Renderer::new(tool, RenderLimits::default()).with_sops(sops);
    Ok(Ports {
        clock: Clock::system(),
        network: Network::system(),
        ledger: Arc::new(ledger),
        manifest_builder: Arc::new(TreeRenderer::new(artifacts.clone(), renderer)),
        artifacts: Arc::new(artifacts),
        web: Arc::new(Web::default()),
    })
}

async fn connect(ports: Ports, client: Client, settings: &Settings) -> Result<Context, StartError> {
    let hub = Hub::new(client);
    let installation = hub.installation().await?;
    Ok(assemble(ports, hub, installation, settings))
}

/// What the loops share, with empty caches.
pub(super) fn assemble(ports: Ports, hub: Hub, installation: String, settings: &Settings) -> Context {
    let Ports {
        clock,
        network,
        ledger,
        artifacts,
        manifest_builder,
        web,
    } = ports;
    let (objects, caches) = (ObjectCaches::default(), Caches::new(clock.clone()));
    let queues = Queues {
        syncs: Workqueue::with_lanes(lane_rules(settings, &objects.syncs, &caches.cluster.availability)),
        ..Queues::default()
    };
    Context {
        events: Events::new(hub.client(), clock.clone()),
        clock,
        hub,
        queues,
        objects,
        caches,
        renders: RenderCache::new(manifest_builder),
        adapters: Adapters {
            artifacts,
            network,
            web,
            ledger,
        },
        start_rates: StartRates::default(),
        installation,
        allow_insecure_sources: settings.allow_insecure_sources,
    }
}

/// One lane per cluster in the queue of Syncs: what one cluster, or all bad ones together, may hold of the workers.
fn lane_rules(
    settings: &Settings,
    syncs: &Arc<SyncCache>,
    availability: &Arc<AvailabilityCache>,
) -> LaneRules {
    let (syncs, availability) = (syncs.clone(), availability.clone());
    LaneRules {
        lane_of: Box::new(move |key| {
            let sync = syncs.get(key)?;
            Some(ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name))
        }),
        is_suspect: Box::new(move |cluster| availability.is_suspect(cluster)),
        limits: Limits::of(workers_of(Loop::Sync, settings)),
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
        ($cache:ident, $handler:ident) => {{
            let (context, resumed) = (context.clone(), resumed.clone());
            tasks.spawn(follow(
                context.hub.clone(),
                namespace.cloned(),
                context.objects.$cache.clone(),
                move |change: Change<_>| {
                    if resumed.load(Ordering::SeqCst) {
                        context.event_handlers().$handler(&change, ChangedBy::Others);
                    }
                },
                stop.clone(),
            ));
        }};
    }
    follow_kind!(sources, on_source);
    follow_kind!(clusters, on_cluster);
    follow_kind!(syncs, on_sync);
    follow_kind!(groups, on_group);
    follow_kind!(approvals, on_approval);
    follow_kind!(actions, on_action);
}

/// Deletes the content of Sources that are gone and of credentials that were replaced.
async fn drop_unused_artifacts(context: &Context) {
    let sources: Vec<_> = context
        .objects
        .sources
        .select(|_| true)
        .iter()
        .map(|source| ObjectKey::of(&**source))
        .collect();
    // A Source that was not addressed yet may need what is there.
    let Some(keep) = context.caches.source.origins.fingerprints(&sources) else {
        return;
    };
    match context.adapters.artifacts.retain(keep).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "unused artifacts deleted"),
        Err(error) => tracing::warn!(%error, "cannot delete unused artifacts"),
    }
}

/// Housekeeping.
async fn housekeep(context: Arc<Context>, schedule: Arc<Schedule>, stop: CancellationToken) {
    let mut save = tokio::time::interval(waits::SAVE_INTERVAL);
    let mut tidy = tokio::time::interval(waits::TIDY_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = save.tick() => schedule.save(&context).await,
            _ = tidy.tick() => {
                context.start_rates.tidy();
                context.caches.forget_gone(&context.objects);
                drop_unused_artifacts(&context).await;
                pins::end_unneeded(&context).await;
            }
        }
    }
}
