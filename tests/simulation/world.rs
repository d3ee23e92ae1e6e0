//! One run: a management cluster, eight members, a git server, the controller, and somebody who uses them.
//!
//! All virtual clusters are of one embedded API server, whose controllers run on a host of their own; each cluster has a host that
//! serves it, so that the network to each can be cut apart. Time is turmoil's; nothing of the machine is asked for anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use jiff::{SignedDuration, Timestamp};
use starling::clock::Clock;
use starling::controller::ports::Ports;
use starling::controller::{Controller, Settings};
use starling_apiserver::controllers::Health;
use starling_apiserver::journal::Keep;
use starling_apiserver::server::{ClusterHandle, Options, Server};
use turmoil::Sim;
use turmoil::net::TcpListener;

use crate::script::{Event, MEMBERS, Script, member};
use crate::staged::Staged;
use crate::twins::git::{self, GitServer, Mirrors};
use crate::twins::ledger::{self, MemoryLedger};
use crate::twins::workshop::Bench;
use crate::{content, net, user};

/// The management cluster.
pub(crate) const HUB: &str = "hub";
/// The host of the controller.
const CONTROLLER: &str = "controller";
/// Grain of simulated time: messages take one at least.
const TICK: Duration = Duration::from_millis(50);
/// How long the fleet may take to be in step once nothing goes wrong any more.
const SETTLES_WITHIN: Duration = Duration::from_secs(20 * 60);
/// The same with stages: three releases may have to go through all of them, with a clock that is minutes behind.
const SETTLES_WITH_STAGES_WITHIN: Duration = Duration::from_secs(90 * 60);
/// How long the fleet is watched in step: each Sync looks for drift once.
const REST: Duration = Duration::from_secs(70);
/// How long setting the world up may take.
const SET_UP_WITHIN: Duration = Duration::from_secs(60);

/// What a run is told and what it leaves behind, shared by its hosts.
pub(crate) struct World {
    seed: u64,
    server: OnceLock<Server>,
    pub(crate) git: GitServer,
    mirror: git::Disk,
    pub(crate) ledger: ledger::Disk,
    /// How far the controller's clock is off.
    jumped: Arc<AtomicI64>,
    /// The clusters have what they need for the controller to start.
    pub(crate) ready: AtomicBool,
    /// How the group is rolled, if by stages.
    pub(crate) staged: Option<Staged>,
    /// Nothing goes wrong any more, and people see to what waits for them.
    pub(crate) is_fair: AtomicBool,
    /// What the user is to do.
    pub(crate) errands: Mutex<VecDeque<Event>>,
    /// Starts of the controller that failed.
    pub(crate) log: Mutex<Vec<String>>,
}

/// How a run ended.
pub(crate) struct Run {
    pub(crate) world: Arc<World>,
    /// What is wrong; empty if nothing is.
    pub(crate) complaints: Vec<String>,
    pub(crate) elapsed: Duration,
    /// Since when the fleet was in step.
    pub(crate) settled: Option<Timestamp>,
    pub(crate) ended: Timestamp,
    /// When the controller's clock jumped, and by how many seconds.
    pub(crate) jumps: Vec<(Timestamp, i64)>,
}

impl World {
    fn new(seed: u64, staged: Option<Staged>) -> Arc<Self> {
        Arc::new(Self {
            seed,
            server: OnceLock::new(),
            git: GitServer::default(),
            mirror: git::Disk::default(),
            ledger: ledger::Disk::default(),
            jumped: Arc::default(),
            ready: AtomicBool::new(false),
            staged,
            is_fair: AtomicBool::new(false),
            errands: Mutex::default(),
            log: Mutex::default(),
        })
    }

    /// The server of all clusters, once there is one.
    fn server(&self) -> anyhow::Result<&Server> {
        self.server.get().context("the API server does not run yet")
    }

    /// A cluster.
    pub(crate) fn cluster(&self, name: &str) -> anyhow::Result<ClusterHandle> {
        self.server()?
            .cluster(name)
            .with_context(|| format!("there is no cluster {name}"))
    }

    fn say(&self, line: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// The clock of the controller.
    fn clock(&self) -> Clock {
        let jumped = Arc::clone(&self.jumped);
        Clock::new(move || {
            let off = SignedDuration::from_secs(jumped.load(Ordering::SeqCst));
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
    async fn control(self: Arc<Self>) -> anyhow::Result<()> {
        let _last = net::LastTask;
        while !self.ready.load(Ordering::SeqCst) {
            tokio::time::sleep(TICK).await;
        }
        loop {
            // As with a pod: a start that fails is tried again.
            match self.start_controller().await {
                Ok(_running) => std::future::pending().await,
                Err(error) => self.say(format!("{}: the controller does not start: {error:#}", now())),
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
            workshop: Arc::new(Bench(mirrors.clone())),
            git: Arc::new(mirrors),
            web: Arc::new(net::NoWeb),
        };
        let settings = Settings {
            namespace: None,
            data_dir: "/nowhere".into(),
            allow_insecure_sources: false,
            concurrency: 20,
            kustomize: None,
            sops: None,
        };
        let client = net::client(HUB, &self.cluster(HUB)?.token())?;
        Ok(Controller::start_on(ports, client, settings).await?)
    }
}

/// What time it is where nothing is wrong with clocks.
pub(crate) fn now() -> Timestamp {
    at(turmoil::sim_elapsed().unwrap_or_default())
}

/// What time it is so long after the beginning.
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
        // Not `tokio::spawn`: where the host goes down, its tasks end in an order that depends on how many the process has had so far
        // (tokio keeps them in shards by their number), and so would what is broken off first.
        tokio::task::spawn_local(async move { server.serve(stream).await });
    }
}

/// Runs a script.
pub(crate) fn run(seed: u64, script: &Script) -> anyhow::Result<Run> {
    let world = World::new(seed, script.staged.clone());
    let mut simulation = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(40))
        .tcp_capacity(4096)
        .simulation_duration(Duration::from_secs(24 * 3600))
        .build();
    furnish(&mut simulation, &world);
    world
        .git
        .push(at(Duration::ZERO), "main", content::tree(1, false));
    let mut stage = Stage {
        world: Arc::clone(&world),
        simulation,
        pushed: 1,
        jumps: Vec::new(),
    };
    let zero = stage.until(SET_UP_WITHIN, |world| world.ready.load(Ordering::SeqCst))?;
    for (at, event) in &script.events {
        stage.until(*at + zero, |_| false)?;
        stage.happen(event)?;
    }
    stage.heal()?;
    let patience = match script.staged {
        Some(_) => SETTLES_WITH_STAGES_WITHIN,
        None => SETTLES_WITHIN,
    };
    let limit = stage.simulation.elapsed() + patience;
    stage.until(limit, |world| unsettled(world).is_empty())?;
    let complaints = unsettled(&world);
    let settled = complaints.is_empty().then(|| at(stage.simulation.elapsed()));
    let rest = stage.simulation.elapsed() + REST;
    stage.until(rest, |_| settled.is_none())?;
    Ok(Run {
        complaints,
        elapsed: stage.simulation.elapsed(),
        settled,
        ended: at(stage.simulation.elapsed()),
        jumps: stage.jumps,
        world,
    })
}

fn boxed(error: anyhow::Error) -> Box<dyn std::error::Error> {
    error.into()
}

fn furnish(simulation: &mut Sim<'_>, world: &Arc<World>) {
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
        async move { of.control().await.map_err(boxed) }
    });
    let of = Arc::clone(world);
    simulation.client("user", async move { user::live(of).await.map_err(boxed) });
}

/// A simulation that runs.
struct Stage<'a> {
    world: Arc<World>,
    simulation: Sim<'a>,
    pushed: usize,
    jumps: Vec<(Timestamp, i64)>,
}

impl Stage<'_> {
    /// Goes on until a time, or until something holds. Returns when that was.
    fn until(&mut self, limit: Duration, holds: impl Fn(&World) -> bool) -> anyhow::Result<Duration> {
        let mut looked = self.simulation.elapsed();
        while self.simulation.elapsed() < limit {
            self.simulation.step().map_err(|error| anyhow!("{error}"))?;
            // Not each time: some of what is waited for costs a look at all objects.
            if self.simulation.elapsed() - looked >= Duration::from_millis(500) {
                looked = self.simulation.elapsed();
                if holds(&self.world) {
                    break;
                }
            }
        }
        Ok(self.simulation.elapsed())
    }

    fn happen(&mut self, event: &Event) -> anyhow::Result<()> {
        let simulation = &mut self.simulation;
        match event {
            Event::Push => {
                self.pushed += 1;
                let now = at(simulation.elapsed());
                let is_bad = self.world.staged.as_ref().is_some_and(|staged| staged.is_bad);
                self.world
                    .git
                    .push(now, "main", content::tree(self.pushed, is_bad));
            }
            Event::Fault { cluster, fault } => {
                self.world.cluster(cluster)?.faults().add(fault.clone());
            }
            Event::Clear { cluster } => self.world.cluster(cluster)?.faults().clear(),
            Event::Partition { cluster } => simulation.partition(cluster.as_str(), CONTROLLER),
            Event::Repair { cluster } => simulation.repair(cluster.as_str(), CONTROLLER),
            Event::Hold { cluster } => simulation.hold(cluster.as_str(), CONTROLLER),
            Event::Release { cluster } => simulation.release(cluster.as_str(), CONTROLLER),
            Event::Crash => net::go_down(|| simulation.crash(CONTROLLER)),
            Event::Start { loses_disk } => {
                if *loses_disk {
                    self.world.ledger.lose();
                    self.world.mirror.lose();
                }
                net::go_down(|| simulation.bounce(CONTROLLER));
            }
            Event::Bounce { cluster } => simulation.bounce(cluster.as_str()),
            Event::Compact => self.world.cluster(HUB)?.compact(),
            Event::Git { away } => self.world.git.set_away(*away),
            Event::Jump { seconds } => {
                self.jumps.push((at(simulation.elapsed()), *seconds));
                self.world.jumped.fetch_add(*seconds, Ordering::SeqCst);
            }
            Event::Label { .. }
            | Event::Cluster { .. }
            | Event::Edit { .. }
            | Event::Move { .. }
            | Event::Stages
            | Event::Say(_) => {
                let mut errands = self.world.errands.lock().unwrap_or_else(PoisonError::into_inner);
                errands.push_back(event.clone());
            }
        }
        Ok(())
    }

    /// Nothing is wrong any more.
    fn heal(&mut self) -> anyhow::Result<()> {
        for name in (0..MEMBERS).map(member).chain([HUB.to_owned()]) {
            self.world.cluster(&name)?.faults().clear();
            self.simulation.repair(name.as_str(), CONTROLLER);
            self.simulation.release(name.as_str(), CONTROLLER);
        }
        self.world.git.set_away(false);
        self.world.is_fair.store(true, Ordering::SeqCst);
        if !self.simulation.is_host_running(CONTROLLER) {
            net::go_down(|| self.simulation.bounce(CONTROLLER));
        }
        Ok(())
    }
}

/// What keeps the fleet from being in step.
fn unsettled(world: &World) -> Vec<String> {
    let members = (0..MEMBERS).map(|number| {
        let name = member(number);
        match world.cluster(&name) {
            Ok(cluster) => content::missing(&cluster).map(|what| format!("{name}: {what}")),
            Err(error) => Some(error.to_string()),
        }
    });
    let errands = world.errands.lock().unwrap_or_else(PoisonError::into_inner);
    let errands: Vec<String> = errands
        .iter()
        .map(|errand| format!("not done yet: {errand:?}"))
        .collect();
    members
        .flatten()
        .chain(user::not_done(world))
        .chain(errands)
        .collect()
}
