//! One run: a management cluster, eight members, a git server, the controller, and a user.
//!
//! One embedded API server has all virtual clusters, and its controllers run on a host of their own; each cluster has a
//! host that serves it, so that the network to each can be partitioned. Time is that of turmoil; nothing depends on the
//! machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::Value;
use starling::controller::ports::Ports;
use starling::controller::{Controller, Readiness, Settings};
use starling_api::{SyncGroup, SyncResource};
use starling_apiserver::controllers::Health;
use starling_apiserver::faults::Effect;
use starling_apiserver::journal::Keep;
use starling_apiserver::server::{ClusterHandle, Options, Server};
use starling_apiserver::state::Backup;
use starling_net::clock::Clock;
use turmoil::Sim;
use turmoil::net::TcpListener;

use crate::extras::Extras;
use crate::fakes::builder::MemoryBuilder;
use crate::fakes::git::{self, GitServer, Mirrors};
use crate::fakes::ledger::{self, MemoryLedger};
use crate::reads::Reads;
use crate::script::{DiskFate, Event, MEMBERS, Script, member};
use crate::staged::Staged;
use crate::wanted::Wanted;
use crate::{content, net, user};

/// The management cluster.
pub(crate) const HUB: &str = "hub";
/// The host of the controller.
const CONTROLLER: &str = "controller";
/// Resolution of simulated time: a message takes at least one tick.
const TICK: Duration = Duration::from_millis(50);
/// How long the fleet may take to converge after the last fault.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// The same with stages: three releases may have to pass all stages, with a clock that is minutes behind.
const STAGED_CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(90 * 60);
/// How long the converged fleet is watched: one drift check of each Sync.
const IDLE_TIME: Duration = Duration::from_secs(70);
/// How long a frozen watch delivers nothing after the fault has ended: the longest watch, after which the controller
/// gives it up.
const FROZEN_TIME: Duration = Duration::from_secs(150);
/// Time limit of the setup.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// The inputs and outputs of a run, shared by its hosts.
pub(crate) struct World {
    seed: u64,
    server: OnceLock<Server>,
    pub(crate) git: GitServer,
    mirror: git::Disk,
    pub(crate) ledger: ledger::Disk,
    /// Offset of the controller's clock, in seconds.
    clock_offset: Arc<AtomicI64>,
    /// Whether the setup is complete, so that the controller can start.
    pub(crate) ready: AtomicBool,
    /// The strategy with stages, if any.
    pub(crate) staged: Option<Staged>,
    /// The entry that comes and goes, and policies that delete, if any.
    pub(crate) extras: Option<Extras>,
    /// Delay of the release of a restore, in seconds.
    pub(crate) release_delay: i64,
    /// Whether the management cluster was set back and the user has not brought it up to date yet.
    pub(crate) is_old: AtomicBool,
    /// When the operator released a restore, just before the write.
    releases: Mutex<Vec<Timestamp>>,
    /// What the user wants.
    wanted: Mutex<Wanted>,
    /// The members whose Clusters leave a group at some time.
    leaving: BTreeSet<String>,
    /// Whether all faults have ended, so that the operator handles everything that waits.
    pub(crate) faults_ended: AtomicBool,
    /// The tasks of the user.
    pub(crate) tasks: Mutex<VecDeque<Event>>,
    /// Failed starts of the controller.
    pub(crate) log: Mutex<Vec<String>>,
    config_maps: Reads<Value>,
    syncs: Reads<SyncResource>,
    groups: Reads<SyncGroup>,
}

/// The result of a run.
pub(crate) struct Run {
    pub(crate) world: Arc<World>,
    /// Problems of the fleet; empty if it has converged.
    pub(crate) problems: Vec<String>,
    pub(crate) elapsed: Duration,
    /// When the fleet converged.
    pub(crate) converged_at: Option<Timestamp>,
    pub(crate) ended: Timestamp,
    /// When the controller's clock jumped, and by how many seconds.
    pub(crate) jumps: Vec<(Timestamp, i64)>,
    /// When a cluster was set back to a backup, and which.
    pub(crate) set_backs: Vec<(Timestamp, String)>,
}

impl World {
    fn new(seed: u64, script: &Script) -> Arc<Self> {
        let (staged, extras) = (script.staged.clone(), script.extras.clone());
        let leaving = script.events.iter().filter_map(|(_, event)| match event {
            Event::Label { cluster, .. }
            | Event::Cluster { cluster, .. }
            | Event::Transfer { cluster, .. } => Some(cluster.clone()),
            _ => None,
        });
        Arc::new(Self {
            wanted: Mutex::new(Wanted::first(staged.as_ref(), extras.as_ref())),
            leaving: leaving.collect(),
            release_delay: script.release_delay,
            is_old: AtomicBool::new(false),
            releases: Mutex::default(),
            extras,
            seed,
            server: OnceLock::new(),
            git: GitServer::default(),
            mirror: git::Disk::default(),
            ledger: ledger::Disk::default(),
            clock_offset: Arc::default(),
            ready: AtomicBool::new(false),
            staged,
            faults_ended: AtomicBool::new(false),
            tasks: Mutex::default(),
            log: Mutex::default(),
            config_maps: Reads::new("configmaps"),
            syncs: Reads::new("syncs.starling.dev"),
            groups: Reads::new("syncgroups.starling.dev"),
        })
    }

    /// Returns the server of all clusters, once it runs.
    fn server(&self) -> anyhow::Result<&Server> {
        self.server.get().context("the API server does not run yet")
    }

    /// Returns a cluster.
    pub(crate) fn cluster(&self, name: &str) -> anyhow::Result<ClusterHandle> {
        self.server()?
            .cluster(name)
            .with_context(|| format!("there is no cluster {name}"))
    }

    /// Returns all ConfigMaps of a cluster.
    pub(crate) fn config_maps(&self, cluster: &str) -> anyhow::Result<Vec<Arc<Value>>> {
        self.config_maps.list(&self.cluster(cluster)?)
    }

    /// Returns the Syncs as the management cluster has them.
    pub(crate) fn syncs(&self) -> anyhow::Result<Vec<Arc<SyncResource>>> {
        self.syncs.list(&self.cluster(HUB)?)
    }

    /// Returns a group as the management cluster has it.
    pub(crate) fn group(&self, name: &str) -> anyhow::Result<Arc<SyncGroup>> {
        let key = format!("{}/{name}", user::NAMESPACE);
        let group = self.groups.get(&self.cluster(HUB)?, &key)?;
        group.with_context(|| format!("there is no group {name}"))
    }

    /// Records that the operator releases a restore now.
    pub(crate) fn add_release(&self) {
        let mut releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
        releases.push(now());
    }

    /// Returns when the operator released a restore.
    pub(crate) fn releases(&self) -> Vec<Timestamp> {
        self.releases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns what the user wants.
    pub(crate) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a snapshot of the controller's disk.
    fn take_snapshot(&self) {
        self.ledger.take_snapshot();
        self.mirror.take_snapshot();
    }

    /// Does to the controller's disk what happens to it before a start.
    fn change_disk(&self, fate: DiskFate) {
        match fate {
            DiskFate::Kept => {}
            DiskFate::Lost => {
                self.ledger.replace();
                self.mirror.replace();
            }
            DiskFate::PutBack { age, mirror } => {
                self.ledger.put_back(age);
                if mirror {
                    self.mirror.put_back(age);
                }
            }
        }
    }

    fn add_log_line(&self, line: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Returns the clock of the controller.
    fn clock(&self) -> Clock {
        let clock_offset = Arc::clone(&self.clock_offset);
        Clock::new(move || {
            let off = SignedDuration::from_secs(clock_offset.load(Ordering::SeqCst));
            now().checked_add(off).unwrap_or(Timestamp::MAX)
        })
    }

    /// Starts the API server; its controllers run on the host that calls this.
    fn start_server(&self) -> anyhow::Result<()> {
        let options = Options {
            seed: self.seed,
            secret: Some([7; 32]),
            clock: Arc::new(SimulatedClock),
            journal: Keep::Everything,
            health: Health::After(SignedDuration::from_secs(3)),
            url: Some("https://nobody".to_owned()),
            ..Options::default()
        };
        let server = Server::start(options)?;
        server.create_cluster(HUB)?;
        for number in 0..MEMBERS {
            server.create_cluster(&member(number))?;
        }
        self.server.set(server).map_err(|_| anyhow!("started twice"))
    }

    /// Runs the controller until it crashes.
    async fn run_controller(self: Arc<Self>) -> anyhow::Result<()> {
        let _last = net::LastTask;
        while !self.ready.load(Ordering::SeqCst) {
            tokio::time::sleep(TICK).await;
        }
        loop {
            // As with a pod, a failed start is repeated.
            match self.start_controller().await {
                Ok(_running) => std::future::pending().await,
                Err(error) => {
                    self.add_log_line(format!("{}: the controller does not start: {error:#}", now()));
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn start_controller(&self) -> anyhow::Result<Controller> {
        let clock = self.clock();
        let mirrors = Mirrors::new(self.git.clone(), self.mirror.clone());
        let ports = Ports {
            network: net::network(clock.clone()),
            clock,
            ledger: Arc::new(MemoryLedger::open(&self.ledger, Duration::from_millis(2))),
            manifest_builder: Arc::new(MemoryBuilder(mirrors.clone())),
            artifacts: Arc::new(mirrors),
            web: Arc::new(net::NoWeb),
        };
        let settings = Settings {
            namespace: None,
            data_dir: "/nowhere".into(),
            allow_insecure_sources: false,
            max_clusters_in_flight: None,
            concurrency: 20,
            kustomize: None,
            sops: None,
            deletions: Default::default(),
            addresses: Default::default(),
            rights: Default::default(),
        };
        let client = net::client(HUB, &self.cluster(HUB)?.token())?;
        Ok(Controller::start_on(ports, client, settings, Readiness::default()).await?)
    }
}

/// Returns the time without clock faults.
pub(crate) fn now() -> Timestamp {
    at(turmoil::sim_elapsed().unwrap_or_default())
}

/// Returns the time after a span since the start.
fn at(elapsed: Duration) -> Timestamp {
    const ORIGIN: i64 = 1_800_000_000;
    let elapsed = SignedDuration::try_from(elapsed).unwrap_or_default();
    Timestamp::from_second(ORIGIN)
        .and_then(|origin| origin.checked_add(elapsed))
        .unwrap_or(Timestamp::MAX)
}

struct SimulatedClock;

impl starling_apiserver::server::Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        now()
    }
}

/// Serves a cluster on its host.
async fn serve(world: Arc<World>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", net::PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let server = world.server()?.clone();
        // Not `tokio::spawn`: when the host stops, its tasks end in an order that depends on how many the process has
        // had so far (tokio keeps them in shards by their number), and so would the order of interrupted requests.
        tokio::task::spawn_local(async move { server.serve(stream).await });
    }
}

/// Runs a script.
pub(crate) fn run(seed: u64, script: &Script) -> anyhow::Result<Run> {
    let world = World::new(seed, script);
    let mut simulation = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(40))
        .tcp_capacity(4096)
        .simulation_duration(Duration::from_secs(24 * 3600))
        .build();
    set_up_hosts(&mut simulation, &world);
    world.git.push(
        at(Duration::ZERO),
        "main",
        content::tree(1, false, script.extras.as_ref()),
    );
    let mut stage = Stage {
        world: Arc::clone(&world),
        simulation,
        pushed: 1,
        jumps: Vec::new(),
        backups: BTreeMap::new(),
        set_backs: Vec::new(),
    };
    let zero = stage.until(SET_UP_TIMEOUT, |world| world.ready.load(Ordering::SeqCst))?;
    world.take_snapshot();
    for (at, event) in &script.events {
        stage.until(*at + zero, |_| false)?;
        stage.apply_event(event)?;
    }
    stage.end_faults()?;
    let timeout = match script.staged {
        Some(_) => STAGED_CONVERGENCE_TIMEOUT,
        None => CONVERGENCE_TIMEOUT,
    };
    let is_freeze =
        |event: &Event| matches!(event, Event::Fault { fault, .. } if fault.effect == Effect::FreezeWatch);
    if script.events.iter().any(|(_, event)| is_freeze(event)) {
        // What the controller does not know of yet passes for converged.
        let thawed = stage.simulation.elapsed() + FROZEN_TIME;
        stage.until(thawed, |_| false)?;
    }
    let limit = stage.simulation.elapsed() + timeout;
    let problems = loop {
        stage.until(limit, |world| problems_of(world).next().is_none())?;
        stage.settle(script)?;
        let problems: Vec<String> = problems_of(&world).collect();
        // What the controller did not know of passed for converged.
        if problems.is_empty() || stage.simulation.elapsed() >= limit {
            break problems;
        }
    };
    let converged_at = problems.is_empty().then(|| at(stage.simulation.elapsed()));
    let idle_end = stage.simulation.elapsed() + IDLE_TIME;
    stage.until(idle_end, |_| converged_at.is_none())?;
    Ok(Run {
        problems,
        elapsed: stage.simulation.elapsed(),
        converged_at,
        ended: at(stage.simulation.elapsed()),
        jumps: stage.jumps,
        set_backs: stage.set_backs,
        world,
    })
}

fn boxed(error: anyhow::Error) -> Box<dyn std::error::Error> {
    error.into()
}

fn set_up_hosts(simulation: &mut Sim<'_>, world: &Arc<World>) {
    let of = Arc::clone(world);
    simulation.client("machine", async move {
        of.start_server().map_err(boxed)?;
        std::future::pending().await
    });
    let clusters = (0..MEMBERS).map(member).chain([HUB.to_owned()]);
    for name in clusters {
        let of = Arc::clone(world);
        simulation.host(name, move || {
            let of = Arc::clone(&of);
            async move { serve(of).await.map_err(boxed) }
        });
    }
    let of = Arc::clone(world);
    simulation.host(CONTROLLER, move || {
        let of = Arc::clone(&of);
        async move { of.run_controller().await.map_err(boxed) }
    });
    let of = Arc::clone(world);
    simulation.client("user", async move { user::act_as_user(of).await.map_err(boxed) });
}

/// A running simulation.
struct Stage<'a> {
    world: Arc<World>,
    simulation: Sim<'a>,
    pushed: usize,
    jumps: Vec<(Timestamp, i64)>,
    /// The last backup of each cluster.
    backups: BTreeMap<String, Backup>,
    set_backs: Vec<(Timestamp, String)>,
}

impl Stage<'_> {
    /// Waits after the fleet seems to have converged, for what takes time and does not show.
    fn settle(&mut self, script: &Script) -> anyhow::Result<()> {
        let moves = { script.events.iter() }.any(|(_, event)| matches!(event, Event::Transfer { .. }));
        if moves || !self.set_backs.is_empty() {
            // What a restore set back without a visible difference is repaired by the next drift check, which also
            // takes back the objects that have the label of the other group.
            let next_check = self.simulation.elapsed() + IDLE_TIME;
            self.until(next_check, |_| false)?;
        }
        // An object that may stay, because its cluster has left its group before, is pruned after its grace all the
        // same.
        let after_grace = self.simulation.elapsed() + IDLE_TIME;
        self.until(after_grace, |world| !content::awaits_prune(world))?;
        Ok(())
    }

    /// Runs until a time, or until a condition is true. Returns the time.
    fn until(&mut self, limit: Duration, condition: impl Fn(&World) -> bool) -> anyhow::Result<Duration> {
        let mut checked = self.simulation.elapsed();
        while self.simulation.elapsed() < limit {
            self.simulation.step().map_err(|error| anyhow!("{error}"))?;
            // Not at each step: some conditions read all objects.
            if self.simulation.elapsed() - checked >= Duration::from_millis(500) {
                checked = self.simulation.elapsed();
                if condition(&self.world) {
                    break;
                }
            }
        }
        Ok(self.simulation.elapsed())
    }

    fn apply_event(&mut self, event: &Event) -> anyhow::Result<()> {
        let simulation = &mut self.simulation;
        match event {
            Event::Push => {
                self.pushed += 1;
                self.world.take_snapshot();
                let now = at(simulation.elapsed());
                let is_bad = self.world.staged.as_ref().is_some_and(|staged| staged.is_bad);
                self.world.git.push(
                    now,
                    "main",
                    content::tree(self.pushed, is_bad, self.world.extras.as_ref()),
                );
            }
            Event::Fault { cluster, fault } => {
                self.world.cluster(cluster)?.faults().add(fault.clone());
            }
            Event::Clear { cluster } => self.world.cluster(cluster)?.faults().clear(),
            Event::Partition { cluster } => simulation.partition(cluster.as_str(), CONTROLLER),
            Event::Repair { cluster } => simulation.repair(cluster.as_str(), CONTROLLER),
            Event::Hold { cluster } => simulation.hold(cluster.as_str(), CONTROLLER),
            Event::Release { cluster } => simulation.release(cluster.as_str(), CONTROLLER),
            Event::Crash => net::shut_down(|| simulation.crash(CONTROLLER)),
            Event::Snapshot => self.world.take_snapshot(),
            Event::Start { disk } => {
                self.world.change_disk(*disk);
                net::shut_down(|| simulation.bounce(CONTROLLER));
            }
            Event::Bounce { cluster } => simulation.bounce(cluster.as_str()),
            Event::Backup { cluster } => {
                let backup = self.world.cluster(cluster)?.backup();
                self.backups.insert(cluster.clone(), backup);
            }
            Event::Serve { cluster } => {
                if !simulation.is_host_running(cluster.as_str()) {
                    simulation.bounce(cluster.as_str());
                }
            }
            Event::SetBack { cluster, bump } => self.set_back(cluster, *bump)?,
            Event::Compact => self.world.cluster(HUB)?.compact(),
            Event::Git { away } => self.world.git.set_unavailable(*away),
            Event::Jump { seconds } => {
                self.jumps.push((at(simulation.elapsed()), *seconds));
                self.world.clock_offset.fetch_add(*seconds, Ordering::SeqCst);
            }
            Event::Label { .. }
            | Event::Cluster { .. }
            | Event::Edit { .. }
            | Event::Move { .. }
            | Event::Remake
            | Event::Stages
            | Event::Entry { .. }
            | Event::Transfer { .. }
            | Event::Suspend { .. }
            | Event::Act(_) => {
                let mut tasks = self.world.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                tasks.push_back(event.clone());
            }
        }
        Ok(())
    }

    /// Stops a cluster's API server, and sets the cluster back to its last backup.
    fn set_back(&mut self, cluster: &str, bump: bool) -> anyhow::Result<()> {
        let Some(backup) = self.backups.get(cluster) else {
            return Ok(());
        };
        let now = at(self.simulation.elapsed());
        self.world.cluster(cluster)?.set_back(backup, bump, now);
        self.simulation.crash(cluster);
        self.set_backs.push((now, cluster.to_owned()));
        if cluster == HUB {
            self.world.is_old.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Ends all faults.
    fn end_faults(&mut self) -> anyhow::Result<()> {
        for name in (0..MEMBERS).map(member).chain([HUB.to_owned()]) {
            self.world.cluster(&name)?.faults().clear();
            if !self.simulation.is_host_running(name.as_str()) {
                self.simulation.bounce(name.as_str());
            }
            self.simulation.repair(name.as_str(), CONTROLLER);
            self.simulation.release(name.as_str(), CONTROLLER);
        }
        self.world.git.set_unavailable(false);
        self.world.faults_ended.store(true, Ordering::SeqCst);
        if !self.simulation.is_host_running(CONTROLLER) {
            net::shut_down(|| self.simulation.bounce(CONTROLLER));
        }
        Ok(())
    }
}

/// Returns the first difference of a member from what it should have.
fn missing(world: &World, member: &ClusterHandle) -> Option<String> {
    let left = world.leaving.contains(member.name());
    let Some(extras) = &world.extras else {
        return content::missing(member, false);
    };
    let has_extra = world.wanted().has_extra || is_rolled_back_to(world, user::GROUP, content::EXTRA);
    let hub = world.cluster(HUB);
    let forgotten = hub.is_ok_and(|hub| content::is_forgotten(&hub, member));
    content::missing(member, left)
        .or_else(|| content::missing_extra(member, extras, has_extra, left || forgotten))
        .or_else(|| content::lost_foreign(member, extras))
}

/// Whether the last rollout of a group went back to a release with an entry, which the next release takes away again.
fn is_rolled_back_to(world: &World, group: &str, entry: &str) -> bool {
    let group = world.group(group).ok();
    let rollout = group.and_then(|group| group.status.as_ref()?.rollout.clone());
    rollout.is_some_and(|rollout| {
        let mut entries = rollout.revisions.iter();
        !rollout.direction.is_forward() && entries.any(|of| of.sync == entry)
    })
}

/// Returns the Syncs that have to go.
fn leaving(world: &World) -> Vec<String> {
    let syncs = match world.syncs() {
        Ok(syncs) => syncs,
        Err(error) => return vec![format!("the Syncs cannot be read: {error:#}")],
    };
    let wanted = world.wanted();
    let goes = |sync: &&Arc<SyncResource>| {
        let of = sync.spec.group_ref.as_ref();
        let is_wanted = of.is_some_and(|of| {
            let cluster = &sync.spec.cluster_ref.name;
            let is_back = is_rolled_back_to(world, &of.name, &of.entry);
            wanted.has_sync(&of.name, &of.entry, cluster, is_back)
        });
        !is_wanted || sync.metadata.deletion_timestamp.is_some()
    };
    let leaving = syncs.iter().filter(goes);
    leaving
        .map(|sync| format!("Sync {} is still there", sync.name_any()))
        .collect()
}

/// Returns the reasons why the fleet has not converged. What is quick to find comes first: most callers ask for the
/// first one only.
fn problems_of(world: &World) -> impl Iterator<Item = String> {
    let tasks = world.tasks.lock().unwrap_or_else(PoisonError::into_inner);
    let tasks: Vec<String> = { tasks.iter() }
        .map(|task| format!("not done yet: {task:?}"))
        .collect();
    let members = (0..MEMBERS).filter_map(|number| {
        let name = member(number);
        match world.cluster(&name) {
            Ok(cluster) => missing(world, &cluster).map(|what| format!("{name}: {what}")),
            Err(error) => Some(error.to_string()),
        }
    });
    let groups = std::iter::once_with(|| user::not_done(world)).flatten();
    let leaving = std::iter::once_with(|| leaving(world)).flatten();
    tasks.into_iter().chain(groups).chain(leaving).chain(members)
}
