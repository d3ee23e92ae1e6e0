//! Wiring: opens the adapters, starts the loops, and stops them in order.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::{Client, Resource, ResourceExt};
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};
use starling_core::ids::InstallationId;
use starling_git::{GitLimits, GitStore};
use starling_ledger::{Ledger, LedgerError};
use starling_member::Network;
use starling_net::clock::Clock;
use starling_net::rules::{AddressLists, Purpose};
use starling_net::web::Web;
use starling_render::{BuildTool, Isolation, RenderError, RenderLimits, Renderer, Sops, memory};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::artifacts::ArtifactStores;
use super::caches::availability::AvailabilityCache;
use super::caches::cache::Cache;
use super::caches::origins;
use super::caches::renders::RenderCache;
use super::caches::sync_index::SyncCache;
use super::caches::{Caches, ObjectCaches};
use super::context::{Adapters, Context};
use super::deletion_budgets::{DeletionBudgets, DeletionSettings};
use super::digest_key;
use super::event_handlers::ChangedBy;
use super::events::Events;
use super::hub::{Hub, HubError};
use super::ledger_retention;
use super::pins;
use super::policies::AdmissionPolicies;
use super::ports::Ports;
use super::queues::{Loop, Queues};
use super::readiness::{Readiness, check_ledger};
use super::reconcile::cluster::is_reachable;
use super::restart;
use super::restore_hold;
use super::rights::Rights;
use super::scratch;
use super::shares::{self, Limits};
use super::start_rates::StartRates;
use super::tree_renderer::TreeRenderer;
use super::watch::{WatchReport, follow};
use super::work::{Schedule, Workers};
use super::worker_turns::WorkerTurns;
use super::workqueue::{LaneRules, Workqueue};
use super::write_counter::WriteCounter;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Number of workers of the Source loop. They mostly wait for git hosts. One namespace occupies at most half of them,
/// if there are several.
const SOURCE_WORKERS: usize = 16;
/// Number of calls to git hosts at a time that are not those of the Source loop: attempts fetch artifacts that are
/// gone.
const OTHER_FETCHES: usize = 8;
/// Number of workers of the Cluster loop. They mostly wait for members, some of which do not respond before a timeout.
/// One namespace occupies at most half of them, if there are several.
const CLUSTER_WORKERS: usize = 32;
/// Number of workers of the SyncGroup loop. They read caches, compute, and write little, except where the digest of a
/// release needs a build. One namespace occupies at most half of them, if there are several.
const GROUP_WORKERS: usize = 8;

/// The settings of a controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The watched namespace; `None` for all namespaces.
    pub namespace: Option<String>,
    /// The directory of the ledger and the git mirrors.
    pub data_dir: PathBuf,
    /// Accepts http:// and file:// URLs.
    pub allow_insecure_sources: bool,
    /// Number of Syncs that are reconciled concurrently, over all groups.
    pub concurrency: usize,
    /// The limit of clusters in flight over all groups; `None` for no limit.
    pub max_clusters_in_flight: Option<usize>,
    /// Path of kustomize; `None` to search PATH.
    pub kustomize: Option<PathBuf>,
    /// Path of sops; `None` to search PATH.
    pub sops: Option<PathBuf>,
    /// The settings of deletions.
    pub deletions: DeletionSettings,
    /// The addresses that may be connected to.
    pub addresses: AddressLists,
    /// The limits of the rights of users.
    pub rights: Rights,
}

/// The error of the start of the controller.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ledger cannot be opened or written.
    #[error("cannot open or write the ledger in the data directory")]
    Ledger(#[from] LedgerError),
    /// The directory of builds cannot be prepared.
    #[error("cannot prepare the directory of builds in the temporary directory")]
    Scratch(#[source] io::Error),
    /// The key of digests cannot be read or written.
    #[error("cannot read or write digest.key in the data directory")]
    DigestKey(#[source] io::Error),
    /// `--kustomize` does not name a kustomize.
    #[error("--kustomize")]
    Kustomize(#[source] RenderError),
    /// `--sops` does not name a sops.
    #[error("--sops")]
    Sops(#[source] RenderError),
    /// The installation ID cannot be read or created.
    #[error("cannot read or create the installation ID")]
    Hub(#[from] HubError),
}

/// A running controller.
pub struct Controller {
    context: Arc<Context>,
    schedule: Arc<Schedule>,
    readiness: Readiness,
    tasks: JoinSet<()>,
    workers: JoinSet<()>,
    stop: CancellationToken,
}

impl Controller {
    /// Opens the adapters, lists the objects of the management cluster, and starts the loops. Returns when all caches
    /// have a complete list and the workers run. `readiness` tells at any time, also during the start, whether the
    /// controller is ready.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(client: Client, settings: Settings, readiness: Readiness) -> Result<Self, StartError> {
        let ports = open(&settings).await?;
        Self::start_on(ports, client, settings, readiness).await
    }

    /// Starts a controller with the given adapters; see [`Self::start`].
    ///
    /// # Errors
    /// [`StartError::Hub`] and [`StartError::Ledger`].
    pub async fn start_on(
        ports: Ports,
        client: Client,
        settings: Settings,
        readiness: Readiness,
    ) -> Result<Self, StartError> {
        let context = Arc::new(connect(ports, client, &settings).await?);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let resumed = Arc::new(AtomicBool::new(false));
        let following = Following {
            context: &context,
            namespace: settings.namespace.as_ref(),
            resumed: &resumed,
            readiness: &readiness,
            stop: &stop,
        };
        following.spawn_all(&mut tasks);
        context.objects.synced().await;
        // From here on, changes enqueue keys. A change between the list and this line is in the caches, which `resume`
        // reads afterwards.
        resumed.store(true, Ordering::SeqCst);
        restart::resume(&context).await?;

        let schedule = Arc::new(Schedule::default());
        let mut workers = JoinSet::new();
        for of in Loop::ALL {
            let count = workers_of(of, &settings);
            let shared = Arc::new(Workers::new(of, count, context.clone(), schedule.clone()));
            for _ in 0..WorkerTurns::tasks(count) {
                workers.spawn(shared.clone().work(stop.clone()));
            }
        }
        tasks.spawn(context.writes.clone().serve());
        tasks.spawn(context.writes.clone().check_suspicions());
        tasks.spawn(restore_hold::follow(context.clone()));
        if context.rights.check_policies {
            tasks.spawn(follow_policies(context.clone()));
        }
        tasks.spawn(housekeep(context.clone(), schedule.clone(), stop.clone()));
        let ledger = context.adapters.ledger.clone();
        tasks.spawn(check_ledger(ledger, readiness.clone(), stop.clone()));
        readiness.started();
        tracing::info!("controller ready");
        Ok(Self {
            context,
            schedule,
            readiness,
            tasks,
            workers,
            stop,
        })
    }

    /// Starts no more work, waits for running attempts, and closes the ledger. An attempt that takes longer than the
    /// grace period is aborted, as a crash would do.
    pub async fn stop(mut self) {
        self.readiness.stops();
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

/// Returns the number of workers of a loop.
fn workers_of(of: Loop, settings: &Settings) -> usize {
    match of {
        Loop::Source => SOURCE_WORKERS,
        Loop::Cluster => CLUSTER_WORKERS,
        Loop::Sync => settings.concurrency.max(1),
        Loop::SyncGroup => GROUP_WORKERS,
    }
}

/// Opens the adapters that are used outside simulations.
async fn open(settings: &Settings) -> Result<Ports, StartError> {
    let (ledger, opened) = Ledger::open(&settings.data_dir).await?;
    tracing::info!(?opened, folder = %settings.data_dir.display(), "ledger opened");
    let tool = BuildTool::discover(settings.kustomize.clone()).map_err(StartError::Kustomize)?;
    let sops = Sops::discover(settings.sops.clone()).map_err(StartError::Sops)?;
    tracing::info!(?tool, ?sops, "build tools found");
    let rules = |purpose| settings.addresses.rules(purpose);
    let limits = GitLimits {
        addresses: rules(Purpose::Git),
        // One namespace has half of them.
        network_jobs: 2 * (SOURCE_WORKERS / 2 + OTHER_FETCHES),
        ..GitLimits::default()
    };
    let artifacts = ArtifactStores {
        git: GitStore::new(settings.data_dir.join("git"), limits),
    };
    let directory =
        scratch::prepare(&std::env::temp_dir(), &settings.data_dir).map_err(StartError::Scratch)?;
    let limits = RenderLimits {
        directory: directory.path().to_path_buf(),
        ..RenderLimits::default().within(memory::limit())
    };
    tracing::info!(
        builds = limits.builds,
        bytes = limits.memory_bytes,
        "limits of builds"
    );
    let key = digest_key::load(&settings.data_dir).map_err(StartError::DigestKey)?;
    let isolation = Isolation::discover();
    if isolation == Isolation::None {
        tracing::warn!(
            "builds run in the network of the controller: unshare is missing, or may create no namespaces"
        );
    }
    let renderer = Renderer::new(tool, limits)
        .with_sops(sops)
        .with_isolation(isolation);
    Ok(Ports {
        clock: Clock::system(),
        network: Network::system().with_addresses(rules(Purpose::Members)),
        ledger: Arc::new(ledger),
        manifest_builder: Arc::new(
            TreeRenderer::new(artifacts.clone(), renderer, settings.rights.labels.clone())
                .with_key(key)
                .owning(directory),
        ),
        artifacts: Arc::new(artifacts),
        web: Arc::new(Web::with_rules(rules(Purpose::Gates))),
    })
}

async fn connect(ports: Ports, client: Client, settings: &Settings) -> Result<Context, StartError> {
    let hub = Hub::new(client);
    let installation = hub.installation().await?;
    hub.publish_confirmed_kinds(&settings.deletions.confirm).await?;
    hub.publish_account_rules(&settings.rights.accounts).await?;
    hub.publish_label_rules(&settings.rights.labels).await?;
    let context = assemble(ports, hub, installation, settings);
    context.writes.load().await?;
    if settings.rights.check_policies {
        context.policies.check(&context.hub, context.clock.now()).await;
    }
    Ok(context)
}

/// Creates the context of the loops, with empty caches.
pub(super) fn assemble(ports: Ports, hub: Hub, installation: InstallationId, settings: &Settings) -> Context {
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
        sources: Workqueue::with_lanes(equal_namespaces(&objects.sources, SOURCE_WORKERS)),
        clusters: Workqueue::with_lanes(equal_namespaces(&objects.clusters, CLUSTER_WORKERS)),
        groups: Arc::new(Workqueue::with_lanes(equal_namespaces(
            &objects.groups,
            GROUP_WORKERS,
        ))),
    };
    Context {
        events: Events::new(hub.client(), clock.clone()),
        writes: Arc::new(WriteCounter::new(
            hub.clone(),
            clock.clone(),
            installation.clone(),
        )),
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
        budgets: DeletionBudgets::new(settings.deletions.clone()),
        rights: settings.rights.clone(),
        policies: AdmissionPolicies::default(),
        installation,
        allow_insecure_sources: settings.allow_insecure_sources,
        max_clusters_in_flight: settings.max_clusters_in_flight,
    }
}

/// Returns the lanes of the work queue of Syncs: one for each cluster. They limit the workers that one cluster, or all
/// suspect clusters together, may occupy.
fn lane_rules(
    settings: &Settings,
    syncs: &Arc<SyncCache>,
    availability: &Arc<AvailabilityCache>,
) -> LaneRules {
    let (syncs, availability) = (syncs.clone(), availability.clone());
    let known = syncs.clone();
    LaneRules {
        lane_of: Box::new(move |key| {
            let sync = syncs.get(key)?;
            Some(ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name))
        }),
        is_suspect: Box::new(move |cluster| availability.is_suspect(cluster)),
        of_namespace: {
            let workers = workers_of(Loop::Sync, settings);
            Box::new(move || shares::of_namespace(workers, known.has_several_namespaces()))
        },
        limits: Limits::of(workers_of(Loop::Sync, settings)),
    }
}

/// Returns the lanes of a work queue whose keys wait for others: one for each object, of which the namespaces have
/// equal rights.
fn equal_namespaces<K>(objects: &Arc<Cache<K>>, workers: usize) -> LaneRules
where
    K: ResourceExt + Send + Sync + 'static,
{
    let objects = objects.clone();
    LaneRules {
        lane_of: Box::new(|key| Some(key.clone())),
        is_suspect: Box::new(|_| false),
        of_namespace: Box::new(move || shares::of_namespace(workers, objects.has_several_namespaces())),
        limits: Limits {
            lane: 1,
            suspects: workers,
        },
    }
}

/// The parts that the watches of all kinds share.
struct Following<'a> {
    context: &'a Arc<Context>,
    namespace: Option<&'a String>,
    /// Whether the start has enqueued all objects.
    resumed: &'a Arc<AtomicBool>,
    readiness: &'a Readiness,
    stop: &'a CancellationToken,
}

impl Following<'_> {
    /// Starts the watch of each kind.
    fn spawn_all(&self, tasks: &mut JoinSet<()>) {
        macro_rules! follow_kind {
            ($cache:ident: $kind:ty, $handler:ident) => {{
                let (context, resumed) = (self.context.clone(), self.resumed.clone());
                tasks.spawn(follow(
                    context.hub.clone(),
                    self.namespace.cloned(),
                    context.objects.$cache.clone(),
                    (
                        self.readiness.watch(&<$kind as Resource>::kind(&())),
                        context
                            .writes
                            .suspicions()
                            .of_kind(&<$kind as Resource>::kind(&())),
                    ),
                    move |report: WatchReport<$kind>| match report {
                        WatchReport::SetBack => context.caches.forget_computed(),
                        WatchReport::Changed(change) if resumed.load(Ordering::SeqCst) => {
                            context
                                .event_handlers()
                                .$handler(&change, ChangedBy::Others);
                        }
                        WatchReport::Changed(_) => {}
                    },
                    self.stop.clone(),
                ));
            }};
        }
        follow_kind!(sources: Source, on_source);
        follow_kind!(clusters: Cluster, on_cluster);
        follow_kind!(syncs: SyncResource, on_sync);
        follow_kind!(groups: SyncGroup, on_group);
        follow_kind!(approvals: RolloutApproval, on_approval);
        follow_kind!(actions: RolloutAction, on_action);
        follow_kind!(deletion_approvals: DeletionApproval, on_deletion_approval);
    }
}

/// Deletes the content of deleted Sources, and of earlier origins of others.
async fn drop_unused_artifacts(context: &Context) {
    let sources = &context.objects.sources;
    let unreadable = sources
        .unreadable()
        .into_iter()
        .map(|key| (key.to_string(), None));
    let readable = sources.select(|_| true);
    let readable = readable.iter().map(|source| {
        let key = origins::store_key(source, context.allow_insecure_sources);
        (ObjectKey::of(&**source).to_string(), key)
    });
    // The last readable state of an unreadable Source is no reason to keep less.
    let readers = unreadable.chain(readable).collect();
    match context.adapters.artifacts.retain(readers).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "unused artifacts deleted"),
        Err(error) => tracing::warn!(%error, "cannot delete unused artifacts"),
    }
}

/// Returns whether what nothing needs may be deleted. After a restore, the Sources and releases of the backup do not
/// tell what is needed: mirrors and pins of the lost past would go. Before all members were checked, and while a list
/// is older than what was known, it is not known whether there was a restore.
pub(super) fn may_delete(context: &Context) -> bool {
    let number_checks = &context.caches.cluster.number_checks;
    number_checks
        .pending(&context.objects.clusters, is_reachable)
        .is_empty()
        && context.writes.permit().is_valid()
}

/// Reads the policies again and again, and wakes the groups when they have changed.
async fn follow_policies(context: Arc<Context>) {
    loop {
        tokio::time::sleep(waits::POLICY_CHECK).await;
        if context.policies.check(&context.hub, context.clock.now()).await {
            for group in context.objects.groups.select(|_| true) {
                context.queues.groups.add(ObjectKey::of(&*group));
            }
        }
    }
}

/// Saves the due times and drops unused state, in intervals.
async fn housekeep(context: Arc<Context>, schedule: Arc<Schedule>, stop: CancellationToken) {
    let mut save = tokio::time::interval(waits::SAVE_INTERVAL);
    let mut tidy = tokio::time::interval(waits::TIDY_INTERVAL);
    let mut forget = tokio::time::interval(waits::FORGET_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = save.tick() => schedule.save(&context).await,
            _ = tidy.tick() => {
                context.start_rates.tidy();
                context.caches.forget_gone(&context.objects);
                if may_delete(&context) {
                    drop_unused_artifacts(&context).await;
                    pins::end_unneeded(&context).await;
                }
            }
            _ = forget.tick() => {
                if may_delete(&context) {
                    ledger_retention::forget_deleted(&context).await;
                }
            }
        }
    }
}
