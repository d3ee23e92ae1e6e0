//! The controller of one group: the real rollout machine and interpreter, on a real ledger and a modelled world.
//!
//! The controller knows only its cache, which is read again after a crash.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::json;
use starling::controller::interpreter::{
    self, AdmittedSync, CarriedOut, Interpreter, RecordedGroup, StillOpen,
};
use starling::controller::ports::Ledger as _;
use starling_api::{IntOrPercent, RolloutPhase, RolloutStrategy, StageTaskType};
use starling_core::clock_jumps::ClockJumps;
use starling_core::ids::RolloutNumber;
use starling_core::journal::{Recorder, resume};
use starling_core::plan::check::check;
use starling_core::plan::{Gate, Plan, PlanInput, Progress, REST, ReadStrategy, StageRules, Strategy, plan};
use starling_core::rollout::{
    self, Epoch, Facts, Known, Loaded, Need, Observations, Offer, Preview, StepError, Transition,
};
use starling_ledger::{Admission, AdmissionKey, AdmissionOutcome, Ledger, RolloutOutcome};
use tempfile::TempDir;

use crate::faults::{Faults, Interrupted};
use crate::hub::Hub;
use crate::invariants::Violation;
use crate::ledger::{Port, new_ledger};
use crate::memory::Memory;
use crate::observed::{Leaving, Observed};
use crate::order::Order;
use crate::world::{Api, ENTRY, GROUP, ID, World, snapshot};

pub(crate) type Step<T> = Result<T, Interrupted>;

/// The watches that have delivered updates. Each kind has its own, independent watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Updates {
    pub(crate) sources: bool,
    pub(crate) group: bool,
    pub(crate) clusters: bool,
    pub(crate) syncs: bool,
    pub(crate) actions: bool,
}

impl Updates {
    /// All watches.
    pub(crate) const ALL: Self = Self {
        sources: true,
        group: true,
        clusters: true,
        syncs: true,
        actions: true,
    };
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassOutcome {
    /// The pass was completed.
    Completed,
    /// A write failed or is unconfirmed.
    Failed,
    /// The process died, and was started again.
    Restarted,
}

/// The controller and its world.
pub(crate) struct Machine {
    pub(crate) world: World,
    pub(crate) faults: Faults,
    pub(crate) order: Order,
    cache: Api,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    strategy: ReadStrategy,
    /// Admissions that the Sync loop has ended, with their time.
    settled: BTreeSet<(AdmissionKey, Timestamp)>,
    pub(crate) folder: TempDir,
}

/// A step of the machine: [`rollout::step`] or [`rollout::preview`].
type Machinery<T> = fn(Known<'_>, &Facts<'_>, &mut dyn Observations) -> Result<T, StepError>;

/// Returns a strategy with the stages and gates of another one: other systems are asked with the tasks of a spec.
fn with_tasks(strategy: &Strategy) -> RolloutStrategy {
    let task = |gate: &Gate| match gate {
        Gate::Effect(StageTaskType::Webhook) => {
            json!({"type": "Webhook", "webhook": {"url": "https://gate.example.com", "secretRef": {"name": "gate"}}})
        }
        Gate::Effect(StageTaskType::Metric) => {
            json!({"type": "Metric", "metric": {"url": "https://prometheus.example.com", "query": "up", "test": "value > 0"}})
        }
        Gate::Effect(StageTaskType::Job) => {
            let pod = json!({"restartPolicy": "Never", "containers": [{"name": "check", "image": "check"}]});
            json!({"type": "Job", "job": {"template": {"spec": {"template": {"spec": pod}}}}})
        }
        // The planner has them; only their places count here.
        Gate::Approval | Gate::TimedWait(_) | Gate::Effect(_) => {
            json!({"type": "TimedWait", "waitTime": "1s"})
        }
    };
    let tasks = |gates: &[Gate]| gates.iter().map(task).collect::<Vec<_>>();
    let stages = strategy.stages.iter().filter(|stage| stage.name != REST);
    let stage = |stage: &StageRules| {
        json!({"name": stage.name, "clusterSelector": {}, "beforeStageTasks": tasks(&stage.before),
            "afterStageTasks": tasks(&stage.after)})
    };
    let stages: Vec<_> = stages.map(stage).collect();
    serde_json::from_value(json!({"stages": stages})).unwrap()
}

impl Machine {
    pub(crate) async fn start(world: World, order: Order) -> Self {
        let folder = new_ledger().await;
        let (ledger, _) = Ledger::open(folder.path()).await.unwrap();
        // The world defines the stages of clusters and the windows.
        let mut strategy = ReadStrategy::new(&with_tasks(&world.spec.strategy)).unwrap();
        strategy.strategy = world.spec.strategy.clone();
        Self {
            cache: world.api.clone(),
            world,
            faults: Faults::default(),
            order,
            memory: Memory::default(),
            ledger,
            strategy,
            settled: BTreeSet::new(),
            folder,
        }
    }

    /// Delivers updates of watches to the cache.
    pub(crate) fn watch(&mut self, updates: Updates) {
        let api = &self.world.api;
        if updates.sources {
            self.cache.offered.clone_from(&api.offered);
        }
        if updates.group {
            self.cache.status.clone_from(&api.status);
            self.cache
                .approved_deselection
                .clone_from(&api.approved_deselection);
        }
        if updates.clusters {
            self.cache.take_clusters(api);
        }
        if updates.syncs {
            for name in api.clusters.keys() {
                self.cache.take_sync(api, name);
            }
        }
        if updates.actions {
            self.cache.actions.clone_from(&api.actions);
            self.cache.approvals.clone_from(&api.approvals);
        }
        // Releases are read from their store.
        self.cache.stored.clone_from(&api.stored);
    }

    /// Reads objects with unconfirmed writes again.
    fn read_unconfirmed(&mut self) {
        let unconfirmed = std::mem::take(&mut self.memory.unconfirmed);
        if self.order == Order::NotReadAgain {
            return;
        }
        if unconfirmed.status {
            self.cache.status.clone_from(&self.world.api.status);
        }
        for name in unconfirmed.syncs {
            self.cache.take_sync(&self.world.api, &name);
        }
    }

    /// Runs one pass over the group. Restarts the process if it dies.
    pub(crate) async fn pass(&mut self) -> PassOutcome {
        self.finish_ended_admissions().await;
        match self.reconcile().await {
            Ok(()) => PassOutcome::Completed,
            Err(Interrupted::Failed) => {
                self.memory.interrupted = true;
                PassOutcome::Failed
            }
            Err(Interrupted::Crashed) => {
                while self.restart().await.is_err() {}
                PassOutcome::Restarted
            }
        }
    }

    /// Starts a new process without the memory of the last one.
    async fn restart(&mut self) -> Step<()> {
        self.ledger.close().await;
        (self.ledger, _) = Ledger::open(self.folder.path()).await.unwrap();
        self.faults.revive();
        self.memory = Memory::default();
        self.watch(Updates::ALL);
        self.close_interrupted().await
    }

    fn port(&self) -> Port<'_> {
        Port {
            ledger: &self.ledger,
            faults: &self.faults,
            records_leaves: self.order != Order::RemovalNotSettled,
        }
    }

    /// Ends in the ledger what the last pass or process left open.
    async fn close_interrupted(&mut self) -> Step<()> {
        let port = self.port();
        let admitted = |admission: &Admission| {
            let name = &admission.key.cluster;
            match self.cache.admission(name) {
                Some(admission) => AdmittedSync::At(admission),
                None if self.cache.is_selected(name) => AdmittedSync::Awaited,
                None => AdmittedSync::Gone,
            }
        };
        let status = &self.cache.status;
        let closed = interpreter::close_interrupted(&port, &ID, status, admitted, self.world.now);
        match closed.await {
            Ok(StillOpen { awaits_sync }) => {
                self.memory.interrupted = awaits_sync;
                Ok(())
            }
            Err(_) if self.faults.is_dead() => Err(Interrupted::Crashed),
            Err(_) => Err(Interrupted::Failed),
        }
    }

    async fn reconcile(&mut self) -> Step<()> {
        (self.memory.again, self.memory.recheck_at) = (false, None);
        self.read_unconfirmed();
        if self.memory.interrupted {
            self.close_interrupted().await?;
        }
        let mut recorder = self.recorder().await?;
        let transition = self.step(&recorder);
        let Transition {
            effects,
            decided,
            again,
            recheck_at,
            blocked,
            ..
        } = transition;
        self.memory.blocked = blocked.map(|blocked| blocked.reason);
        let group = RecordedGroup {
            id: ID.clone(),
            namespace: "fleet".to_owned(),
            name: GROUP.to_owned(),
        };
        let port = Port {
            ledger: &self.ledger,
            faults: &self.faults,
            records_leaves: self.order != Order::RemovalNotSettled,
        };
        let hub = Hub {
            known: self.cache.status.clone(),
            world: &mut self.world,
            cache: &mut self.cache,
            memory: &mut self.memory,
            faults: &self.faults,
            ledger: &self.ledger,
            decided: decided.as_ref(),
            order: self.order,
            status_writes: 0,
        };
        let mut interpreter = Interpreter {
            group: &group,
            now: hub.world.now,
            ledger: &port,
            api: hub,
        };
        let carried_out = interpreter.carry_out(self.order.of(effects), &mut recorder).await;
        if self.faults.is_dead() {
            return Err(Interrupted::Crashed);
        }
        // If a pass is interrupted, the newest journal entry is read from the ledger.
        let CarriedOut {
            all_admitted,
            all_removed,
            again: more,
        } = carried_out.map_err(|_| Interrupted::Failed)?;
        self.memory.recorder = Some(recorder);
        self.memory.again = again || more.is_some();
        self.memory.recheck_at = recheck_at;
        if all_admitted && all_removed {
            Ok(())
        } else {
            Err(Interrupted::Failed)
        }
    }

    /// Returns the newest journal entry: from the previous pass, or from the ledger if that was interrupted.
    async fn recorder(&mut self) -> Step<Recorder> {
        if let Some(recorder) = self.memory.recorder.take() {
            return Ok(recorder);
        }
        let port = self.port();
        match port.journal_tail(&ID).await {
            Ok(tail) => Ok(resume(&tail).unwrap()),
            Err(_) if self.faults.is_dead() => Err(Interrupted::Crashed),
            Err(_) => Err(Interrupted::Failed),
        }
    }

    // ------------------------------------------------------------------ what is decided

    /// Runs one step, and checks its decisions.
    fn step(&mut self, recorder: &Recorder) -> Transition {
        let leaving = self.leaving();
        let mut plans: Vec<(PlanInput, Plan)> = Vec::new();
        let mut observed = Observed::new(&self.cache, &self.memory, &leaving, &self.world);
        let transition = self.drive(rollout::step, Some(recorder), &leaving, &mut observed);
        let is_whole = observed.lent == 0;
        let input = observed.input.take();
        if let Some((input, decided)) = input.zip(transition.decided.as_ref()) {
            plans.push((input, decided.plan.clone()));
        }
        // The plan of the rollout in the status, if another rollout replaces it.
        if transition.began.is_some() || transition.decided.is_none() {
            let preview = self.drive(rollout::preview, None, &leaving, &mut observed);
            if let Preview::Planned(planned) = preview {
                let plan = plan(&planned.input);
                plans.push((planned.input, plan));
            }
        }
        let mismatches = plans.iter().filter_map(|(input, plan)| check(input, plan).err());
        let mismatches = mismatches.map(|violation| Violation::Plan(format!("{violation:?}")));
        self.world.violations.extend(mismatches);
        if !is_whole {
            self.world.violations.push(Violation::ViewsNotReturned);
        }
        transition
    }

    fn leaving(&self) -> Leaving {
        let allowed = match self.order {
            Order::MembershipNotHeld => IntOrPercent::Percent(100),
            _ => self.world.spec.max_unselected,
        };
        Leaving::observe(&self.cache, &self.memory, allowed, self.world.now)
    }

    /// Runs the machine, and loads missing data until it can step.
    fn drive<T>(
        &self,
        machinery: Machinery<T>,
        recorder: Option<&Recorder>,
        leaving: &Leaving,
        observed: &mut Observed<'_>,
    ) -> T {
        let offer = Offer {
            release: self.cache.offered.clone(),
            snapshot: Some(snapshot(&self.cache.offered)),
            settles_at: None,
        };
        let facts = Facts {
            now: self.world.now,
            clock_jumps: &ClockJumps::default(),
            epoch: Epoch::NONE,
            strategy: &self.strategy,
            on_new_revision: self.world.spec.on_new_revision,
            rollback: self.world.spec.rollback,
            suspended: false,
            membership_held: leaving.held.is_some(),
            unselected: &[],
            kept_entries: &[],
            offer: &offer,
            identity: None,
            generation: None,
            requested_at: None,
            reported_at: self.memory.reported_at,
        };
        let stored = &self.world.api.stored;
        let mut loaded = Loaded::default();
        loop {
            let known = Known {
                status: &self.cache.status,
                loaded: &loaded,
                recorder,
            };
            match machinery(known, &facts, observed) {
                Ok(done) => return done,
                Err(StepError::Needs(Need::Release(digest))) => {
                    let found = stored.contains(&digest).then(|| snapshot(&digest));
                    loaded.take_release(digest, found);
                }
                Err(StepError::Needs(Need::Revision(revision))) => {
                    let found = stored.get(revision.as_str()).cloned();
                    loaded.take_revision(revision, found);
                }
                Err(StepError::Journal(error)) => unreachable!("{error}"),
            }
        }
    }

    // ------------------------------------------------------------------ what others do

    /// Ends the admissions of applied targets, as the Sync loop does. It retries the others.
    async fn finish_ended_admissions(&mut self) {
        for (name, cluster) in &self.world.api.clusters {
            let Some(sync) = &cluster.member.observed else {
                continue;
            };
            if !matches!(sync.progress, Progress::Applied(_)) {
                continue;
            }
            let (Some(target), Some(at)) = (sync.target.clone(), sync.admitted_at) else {
                continue;
            };
            let key = AdmissionKey {
                group_id: ID.clone(),
                rollout: RolloutNumber::new(cluster.rollout),
                entry: ENTRY.into(),
                cluster: name.clone(),
                target,
            };
            if self.settled.insert((key.clone(), at)) {
                let applied = AdmissionOutcome::Applied;
                let settled = self.ledger.settle_admission(&key, applied, "", self.world.now);
                settled.await.unwrap();
            }
        }
    }

    // ------------------------------------------------------------------ what a test asks

    /// Returns the plan of a controller with complete knowledge; `None` if no plan is possible.
    pub(crate) fn plan_of_now(&mut self) -> Option<Plan> {
        self.watch(Updates::ALL);
        self.plan_of_cache()
    }

    /// Returns the time of the next scheduled pass, as far as the controller knows.
    pub(crate) fn rechecks_at(&self) -> Option<Timestamp> {
        let planned = self.plan_of_cache().and_then(|plan| plan.recheck_at);
        planned.into_iter().chain(self.memory.recheck_at).min()
    }

    fn plan_of_cache(&self) -> Option<Plan> {
        let leaving = self.leaving();
        let mut observed = Observed::new(&self.cache, &self.memory, &leaving, &self.world);
        let preview = self.drive(rollout::preview, None, &leaving, &mut observed);
        match preview {
            Preview::Planned(planned) => Some(plan(&planned.input)),
            Preview::NotBegun | Preview::Blocked(_) => None,
        }
    }

    /// Every open admission has a Sync, which ends it, or a cluster that gets one.
    pub(crate) async fn check_open_admissions(&mut self) {
        let open = self.ledger.open_admissions(&ID).await.unwrap();
        let clusters = open.into_iter().map(|admission| admission.key.cluster);
        let api = &self.world.api;
        let without = clusters.filter(|name| api.admission(name).is_none() && !api.is_selected(name));
        let violations: Vec<_> = without
            .map(|cluster| Violation::OpenWithoutSync { cluster })
            .collect();
        self.world.violations.extend(violations);
    }

    /// Restarts the controller, and compares the history of rollouts with the status: every rollout has its release,
    /// all but the last have ended, those that the status reported as succeeded have succeeded, and the last has ended
    /// if it succeeded. The journal is valid.
    pub(crate) async fn check_history(&mut self) {
        self.faults.disarm();
        // The process that runs ends them, too.
        self.check_open_admissions().await;
        assert_eq!(self.restart().await, Ok(()));
        self.check_journal().await;
        self.check_open_admissions().await;
        let Some(current) = self.world.rollout().cloned() else {
            return;
        };
        let rows = self.ledger.rollouts(&ID).await.unwrap();
        let mut mismatches = Vec::new();
        for row in &rows {
            let id = row.rollout.id.get();
            let ended = row.end.map(|end| end.outcome);
            let has_succeeded = ended == Some(RolloutOutcome::Succeeded);
            let right = match id.cmp(&current.id) {
                Ordering::Less => ended.is_some() && (has_succeeded || !self.world.succeeded.contains(&id)),
                Ordering::Equal => {
                    let total = self.world.api.status.clusters.total;
                    let succeeded = current.phase == RolloutPhase::Succeeded && total > 0;
                    row.rollout.release == current.release && (!succeeded || has_succeeded)
                }
                // An intent that was never executed: the next rollout reuses its number.
                Ordering::Greater => ended.is_none() && id == current.id + 1,
            };
            if !right {
                mismatches.push(format!("{id} {} {ended:?}", row.rollout.release));
            }
        }
        let known = rows
            .iter()
            .any(|row| row.rollout.id == RolloutNumber::of(&current));
        if !known || !mismatches.is_empty() {
            let current = (current.id, current.phase);
            self.world
                .violations
                .push(Violation::History(format!("{mismatches:?} beside {current:?}")));
        }
    }
}
