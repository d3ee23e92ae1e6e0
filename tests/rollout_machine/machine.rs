//! The controller's loop over one group, with the order of effects of `reconcile/sync_group`, on a real ledger.
//!
//! It knows what its cache holds, and nothing else: after a crash, what it reads anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use jiff::Timestamp;
use starling::ledger::{Admission, AdmissionKey, AdmissionOutcome, Ledger, Rollout, RolloutOutcome};
use starling_api::conditions;
use starling_api::{
    ClusterProblem, HeldRelease, ReleaseStatus, RolloutDirection, RolloutPhase, RolloutStatus,
    SyncGroupStatus,
};
use starling_core::course::{self, Course, CourseInput, Current, Reason};
use starling_core::journal::Recorder;
use starling_core::plan::check::check;
use starling_core::plan::{
    ClusterView, Decision, Direction, EntryView, FailureReason, Gate, Plan, PlanInput, Report, RolloutView,
    To, plan, record,
};
use starling_core::steering::{self, Asked, Of};
use tempfile::TempDir;

use crate::faults::{Faults, Interrupted};
use crate::law::Broken;
use crate::world::{Api, ENTRY, GROUP, UID, World, Written};

/// Releases that one look may begin, as in the controller.
const STEPS: usize = 3;

pub(crate) type Step<T> = Result<T, Interrupted>;

/// The order of effects: that of the controller, or one that a law is to be broken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Right,
    SyncBeforeIntent,
    StageAfterAdmission,
    JournalAfterAdmission,
    /// What was answered with an error is taken for not done, if no watch says otherwise.
    NotReadAgain,
}

/// Which watches have brought what is new. Each kind has one of its own, and none knows of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub(crate) sources: bool,
    pub(crate) group: bool,
    pub(crate) syncs: bool,
    pub(crate) people: bool,
}

impl News {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        sources: true,
        group: true,
        syncs: true,
        people: true,
    };
}

/// How a look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// At its end.
    Through,
    /// Something that was to be written was not, or it is not known whether it was.
    Failed,
    /// The process died, and was started again.
    Restarted,
}

/// The controller, and the world that it works on.
pub(crate) struct Machine {
    pub(crate) world: World,
    pub(crate) faults: Faults,
    order: Order,
    cache: Api,
    /// Writes of which it is not known whether they were done: of the status, and of Syncs by their clusters.
    unsure: (bool, BTreeSet<String>),
    pub(crate) ledger: Ledger,
    /// What the journal says last; `None`: the ledger is to be asked.
    pub(crate) recorder: Option<Recorder>,
    /// This look has come so far.
    journal_is_written: bool,
    pub(crate) folder: TempDir,
}

/// What rolls, and what happens next.
pub(crate) struct Decided {
    status: SyncGroupStatus,
    pub(crate) input: PlanInput,
    pub(crate) plan: Plan,
}

impl Decided {
    pub(crate) fn rollout(&self) -> RolloutStatus {
        self.status.rollout.clone().unwrap_or_default()
    }
}

impl Machine {
    pub(crate) async fn start(world: World, order: Order) -> Self {
        let folder = TempDir::new().unwrap();
        let (ledger, _) = Ledger::open(folder.path()).await.unwrap();
        Self {
            cache: world.api.clone(),
            world,
            faults: Faults::default(),
            order,
            unsure: (false, BTreeSet::new()),
            ledger,
            recorder: None,
            journal_is_written: false,
            folder,
        }
    }

    /// The watches bring what is new.
    pub(crate) fn watch(&mut self, news: News) {
        let api = &self.world.api;
        if news.sources {
            self.cache.offered.clone_from(&api.offered);
        }
        if news.group {
            self.cache.status.clone_from(&api.status);
        }
        if news.syncs {
            self.cache.clusters.clone_from(&api.clusters);
        }
        if news.people {
            self.cache.actions.clone_from(&api.actions);
            self.cache.approvals.clone_from(&api.approvals);
        }
    }

    /// Reads anew what may have been written and was not answered.
    fn read_again(&mut self) {
        let (group, syncs) = std::mem::take(&mut self.unsure);
        if self.order == Order::NotReadAgain {
            return;
        }
        if group {
            self.cache.status.clone_from(&self.world.api.status);
        }
        for name in syncs {
            let cluster = self.world.api.clusters.get(&name).cloned();
            self.cache.clusters.extend(cluster.map(|cluster| (name, cluster)));
        }
    }

    /// Looks at the group once. Who dies is started again.
    pub(crate) async fn look(&mut self) -> Looked {
        match self.reconcile().await {
            Ok(()) => Looked::Through,
            Err(Interrupted::Failed) => {
                if !self.journal_is_written {
                    self.recorder = None;
                }
                Looked::Failed
            }
            Err(Interrupted::Crashed) => {
                while self.restart().await.is_err() {}
                Looked::Restarted
            }
        }
    }

    /// A new process: what the last one knew is gone.
    async fn restart(&mut self) -> Step<()> {
        self.ledger.close().await;
        (self.ledger, _) = Ledger::open(self.folder.path()).await.unwrap();
        self.recorder = None;
        self.watch(News::ALL);
        self.unsure = (false, BTreeSet::new());
        let Some(current) = self.cache.status.rollout.clone() else {
            return Ok(());
        };
        for record in self.ledger.rollouts(UID).await.unwrap() {
            let id: i64 = record.rollout.id.parse().unwrap();
            let outcome = match (record.end, id.cmp(&current.id)) {
                (None, std::cmp::Ordering::Less) => RolloutOutcome::Superseded,
                (None, std::cmp::Ordering::Equal) if current.phase == RolloutPhase::Succeeded => {
                    RolloutOutcome::Succeeded
                }
                _ => continue,
            };
            self.end_rollout(id, outcome).await?;
        }
        Ok(())
    }

    async fn reconcile(&mut self) -> Step<()> {
        self.read_again();
        self.resume_journal().await;
        self.journal_is_written = false;
        let Some(mut decided) = self.decide().await? else {
            return Ok(());
        };
        match self.order {
            Order::StageAfterAdmission => {
                self.write_journal(&decided).await?;
                self.admit(&decided).await?;
                self.keep_stages(&mut decided)?;
            }
            Order::JournalAfterAdmission => {
                self.keep_stages(&mut decided)?;
                self.admit(&decided).await?;
                self.write_journal(&decided).await?;
            }
            Order::Right | Order::SyncBeforeIntent | Order::NotReadAgain => {
                self.keep_stages(&mut decided)?;
                self.write_journal(&decided).await?;
                self.journal_is_written = true;
                self.admit(&decided).await?;
            }
        }
        self.report(&decided).await?;
        self.render()
    }

    // ------------------------------------------------------------------ which release rolls

    async fn decide(&mut self) -> Step<Option<Decided>> {
        for _ in 0..STEPS {
            let asked = self.asked();
            let planned = self.planned(&asked);
            match self.course(planned.as_ref(), &asked) {
                Course::Keep | Course::NothingToGoBackTo => return Ok(planned),
                Course::Enqueue { release } => {
                    let Some(planned) = planned else { return Ok(None) };
                    return self.enqueue(planned, &release).map(Some);
                }
                Course::Start {
                    release,
                    direction,
                    hold,
                    reason,
                } => {
                    if let Some(planned) = &planned {
                        // How it stood when it was left.
                        self.write_journal(planned).await?;
                    }
                    let begun = self.begin(&release, direction, hold, reason).await?;
                    if begun.is_break() {
                        return Ok(planned);
                    }
                }
            }
        }
        Ok(None)
    }

    fn asked(&self) -> Asked {
        let rollout = self.cache.status.rollout.as_ref();
        let digest = rollout.map_or("", |rollout| rollout.release_digest.as_str());
        let of = Of {
            group: GROUP,
            since: jiff::Timestamp::UNIX_EPOCH,
            rollout: rollout.map_or(0, |rollout| rollout.id),
            digest: (!digest.is_empty()).then_some(digest),
        };
        steering::asked(of, &self.cache.actions, &self.cache.approvals)
    }

    fn planned(&mut self, asked: &Asked) -> Option<Decided> {
        let input = self.input(asked)?;
        let plan = plan(&input);
        if let Err(violation) = check(&input, &plan) {
            self.world.broken.push(Broken::Plan(format!("{violation:?}")));
        }
        Some(Decided {
            status: self.cache.status.clone(),
            input,
            plan,
        })
    }

    fn input(&self, asked: &Asked) -> Option<PlanInput> {
        let rollout = self.cache.status.rollout.as_ref()?;
        let known_good = self.known_good(rollout);
        let view = |cluster: &crate::world::Cluster| ClusterView {
            uid: cluster.member.uid.clone(),
            reach: cluster.member.reach.clone(),
            stage: cluster.stage,
            windows: Vec::new(),
            entries: BTreeMap::from([(
                ENTRY.to_owned(),
                EntryView {
                    wanted: Ok(rollout.release.clone()),
                    known_good: known_good.clone(),
                    observed: cluster.member.observed.clone(),
                },
            )]),
        };
        let clusters = self.cache.clusters.iter();
        Some(PlanInput {
            now: self.world.now,
            strategy: self.world.spec.strategy.clone(),
            rollout: RolloutView {
                release: rollout.release.clone(),
                direction: match rollout.direction {
                    RolloutDirection::Forward => Direction::Forward,
                    RolloutDirection::Back => Direction::Back,
                    RolloutDirection::BackAtOnce => Direction::BackAtOnce,
                },
                started_at: rollout.start_time.parse().unwrap_or(Timestamp::UNIX_EPOCH),
                stages: record::recorded(rollout),
                approvals: asked.approvals.clone(),
            },
            steering: asked.steering.clone(),
            suspended: false,
            membership_held: false,
            clusters: clusters
                .map(|(name, cluster)| (name.clone(), view(cluster)))
                .collect(),
        })
    }

    /// What clusters get that join behind a closed stage.
    fn known_good(&self, rollout: &RolloutStatus) -> Option<String> {
        let good = self.cache.status.last_known_good.as_ref()?;
        let counts = good.release != rollout.release && self.world.spec.strategy.stages.len() > 1;
        (counts && self.world.api.kept.contains(&good.release)).then(|| good.release.clone())
    }

    fn course(&self, planned: Option<&Decided>, asked: &Asked) -> Course {
        let status = &self.cache.status;
        let queue: Vec<String> = status.queue.iter().map(|of| of.release.clone()).collect();
        let rolls = status.rollout.as_ref();
        let release_at = asked.release.as_ref().map(|word| word.at);
        let wish = match &asked.rollback {
            Some((_, word)) if release_at.is_none_or(|at| at <= word.at) => Some(course::Asked::Back(None)),
            Some(_) | None => release_at.map(|_| course::Asked::Release),
        };
        course::course(&CourseInput {
            offered: &self.cache.offered,
            current: rolls.zip(planned).map(|(rollout, planned)| Current {
                release: &rollout.release,
                verdict: &planned.plan.verdict,
                is_over: planned.plan.is_over(),
            }),
            held: status.held_release.as_ref().map(|held| held.release.as_str()),
            known_good: status.last_known_good.as_ref().map(|good| good.release.as_str()),
            asked: wish,
            on_new_revision: self.world.spec.on_new_revision,
            rollback: self.world.spec.rollback,
            queue: &queue,
        })
    }

    /// The release is kept, the intent recorded, the status written. `Break`: the release is not there any more.
    async fn begin(
        &mut self,
        release: &str,
        direction: Direction,
        hold: Option<String>,
        reason: Reason,
    ) -> Step<ControlFlow<()>> {
        if release != self.cache.offered && !self.world.api.kept.contains(release) {
            return Ok(ControlFlow::Break(()));
        }
        let mut status = self.cache.status.clone();
        let before = status.rollout.take();
        let id = before.as_ref().map_or(0, |before| before.id) + 1;
        self.keep(release)?;
        let rollout = RolloutStatus {
            id,
            release: release.to_owned(),
            direction: match direction {
                Direction::Forward => RolloutDirection::Forward,
                Direction::Back => RolloutDirection::Back,
                Direction::BackAtOnce => RolloutDirection::BackAtOnce,
            },
            phase: RolloutPhase::Pending,
            start_time: self.world.now.to_string(),
            ..RolloutStatus::default()
        };
        self.begin_in_ledger(&rollout).await?;
        status.held_release = hold.map(|release| HeldRelease {
            release,
            since: self.world.now.to_string(),
            ..HeldRelease::default()
        });
        let queue: Vec<String> = status
            .queue
            .iter()
            .map(|waiting| waiting.release.clone())
            .collect();
        let held = status.held_release.as_ref().map(|held| held.release.as_str());
        let dropped = course::overtaken(&queue, &self.cache.offered, release, direction, held);
        status.queue.drain(..dropped);
        status.rollout = Some(rollout);
        self.write_status(&status)?;
        if let Some(before) = before.filter(|before| before.phase != RolloutPhase::Succeeded) {
            let outcome = match reason {
                Reason::Failed => RolloutOutcome::Failed,
                Reason::Offered | Reason::Asked => RolloutOutcome::Superseded,
            };
            self.end_rollout(before.id, outcome).await?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn enqueue(&mut self, mut decided: Decided, release: &str) -> Step<Decided> {
        self.keep(release)?;
        let queue = &mut decided.status.queue;
        queue.truncate(course::QUEUE - 1);
        queue.push(ReleaseStatus {
            release: release.to_owned(),
            revisions: Vec::new(),
        });
        self.write_status(&decided.status)?;
        Ok(decided)
    }

    // ------------------------------------------------------------------ what is done about it

    fn keep_stages(&mut self, decided: &mut Decided) -> Step<()> {
        let before = decided.rollout();
        let after = RolloutStatus {
            stages: record::stage_statuses(&decided.plan, &BTreeMap::new()),
            ..before.clone()
        };
        if record::recorded(&after) == record::recorded(&before) {
            return Ok(());
        }
        decided.status.rollout = Some(after);
        self.write_status(&decided.status)
    }

    async fn admit(&mut self, decided: &Decided) -> Step<()> {
        let rollout = decided.rollout();
        let good = self.known_good(&rollout);
        let starts: Vec<Written> = decided
            .plan
            .decisions
            .iter()
            .filter_map(|(cluster, decision)| {
                let Decision::Start { to, .. } = decision else {
                    return None;
                };
                Some(Written {
                    cluster: cluster.clone(),
                    release: match to {
                        To::Release => rollout.release.clone(),
                        To::LastKnownGood => good.clone()?,
                    },
                    rollout: rollout.id,
                    at: self.world.now,
                })
            })
            .collect();
        self.settle_failed(decided).await?;
        if starts.is_empty() {
            return Ok(());
        }
        let intents: Vec<Admission> = starts.iter().map(intent).collect();
        if self.order == Order::SyncBeforeIntent {
            self.write_syncs(&starts).await?;
            self.record(&intents).await
        } else {
            self.record(&intents).await?;
            self.write_syncs(&starts).await
        }
    }

    /// One that is not taken, or of which that is not known, keeps no other from being written.
    async fn write_syncs(&mut self, starts: &[Written]) -> Step<()> {
        for start in starts {
            if self.write_sync(start).await == Err(Interrupted::Crashed) {
                return Err(Interrupted::Crashed);
            }
        }
        Ok(())
    }

    /// Ends in the ledger what counts as failed by time.
    async fn settle_failed(&mut self, decided: &Decided) -> Step<()> {
        for (name, decision) in &decided.plan.decisions {
            let Decision::Failed {
                reason: reason @ (FailureReason::ProgressDeadlineExceeded | FailureReason::LostAfterAdmission),
                ..
            } = decision
            else {
                continue;
            };
            let mut known = decided.status.problems.iter();
            let target = self.cache.clusters.get(name).and_then(|cluster| {
                let target = cluster.member.observed.as_ref()?.target.clone()?;
                Some((cluster.rollout, target))
            });
            let Some((rollout, target)) =
                target.filter(|_| !known.any(|p| p.cluster == *name && p.reason == reason.as_str()))
            else {
                continue;
            };
            let key = key(rollout, name, &target);
            let passage = self.faults.enter()?;
            let settled =
                self.ledger
                    .settle_admission(&key, AdmissionOutcome::Failed, reason.as_str(), self.world.now);
            settled.await.unwrap();
            passage.leave()?;
        }
        Ok(())
    }

    async fn report(&mut self, decided: &Decided) -> Step<()> {
        let said = decided.plan.report(&decided.input);
        let after = status(decided, &said);
        if after == decided.status {
            return Ok(());
        }
        let before = decided.rollout();
        self.write_status(&after)?;
        if said.phase == RolloutPhase::Succeeded && before.phase != said.phase {
            self.end_rollout(before.id, RolloutOutcome::Succeeded).await?;
        }
        Ok(())
    }

    /// What the release renders to, for approvals.
    fn render(&mut self) -> Step<()> {
        let mut stages = self.world.spec.strategy.stages.iter();
        let needed = stages.any(|stage| stage.before.iter().chain(&stage.after).any(is_approval));
        let mut status = self.cache.status.clone();
        match &mut status.rollout {
            Some(rollout) if needed && rollout.release_digest.is_empty() => {
                rollout.release_digest = format!("digest of {}", rollout.release);
            }
            _ => return Ok(()),
        }
        self.write_status(&status)
    }

    // ------------------------------------------------------------------ effects

    fn keep(&mut self, release: &str) -> Step<()> {
        if self.world.api.kept.contains(release) {
            return Ok(());
        }
        let passage = self.faults.enter()?;
        self.world.api.kept.insert(release.to_owned());
        passage.leave()
    }

    /// What was answered is in the cache at once.
    fn write_status(&mut self, status: &SyncGroupStatus) -> Step<()> {
        let passage = self.faults.enter()?;
        self.world.write_status(status);
        self.unsure.0 = true;
        passage.leave()?;
        self.unsure.0 = false;
        self.cache.status.clone_from(status);
        Ok(())
    }

    async fn write_sync(&mut self, written: &Written) -> Step<()> {
        let passage = self.faults.enter()?;
        self.check_is_in_journal(written).await;
        let rollout = written.rollout.to_string();
        let intents = self.ledger.admissions(UID, &rollout).await.unwrap();
        self.world.write_sync(written, &intents);
        self.unsure.1.insert(written.cluster.clone());
        passage.leave()?;
        self.unsure.1.remove(&written.cluster);
        let cluster = self.world.api.clusters.get(&written.cluster).cloned();
        self.cache
            .clusters
            .extend(cluster.map(|cluster| (written.cluster.clone(), cluster)));
        Ok(())
    }

    async fn record(&mut self, intents: &[Admission]) -> Step<()> {
        let passage = self.faults.enter()?;
        self.ledger.record_admissions(intents).await.unwrap();
        passage.leave()
    }

    async fn begin_in_ledger(&mut self, rollout: &RolloutStatus) -> Step<()> {
        let passage = self.faults.enter()?;
        let row = Rollout {
            group_uid: UID.into(),
            id: rollout.id.to_string(),
            namespace: "fleet".into(),
            name: GROUP.into(),
            release: rollout.release.clone(),
            revisions: BTreeMap::new(),
            started_at: self.world.now,
        };
        self.ledger.begin_rollout(&row).await.unwrap();
        passage.leave()
    }

    async fn end_rollout(&mut self, id: i64, outcome: RolloutOutcome) -> Step<()> {
        let passage = self.faults.enter()?;
        let (id, now) = (id.to_string(), self.world.now);
        let ended = self.ledger.end_rollout(UID, &id, outcome, now).await;
        ended.unwrap();
        passage.leave()
    }

    // ------------------------------------------------------------------ what a test asks

    /// What would be planned now by who knows everything.
    pub(crate) fn plan_of_now(&mut self) -> Option<Plan> {
        self.watch(News::ALL);
        let asked = self.asked();
        self.input(&asked).as_ref().map(plan)
    }

    /// When it would look again by itself, as far as it knows.
    pub(crate) fn rechecks_at(&self) -> Option<Timestamp> {
        let asked = self.asked();
        self.input(&asked).and_then(|input| plan(&input).recheck_at)
    }

    /// Starts the controller anew, and holds the history of rollouts against status: every one that is there has the release
    /// that it had, all but the last have ended, and the last if it succeeded. The journal of it all holds.
    pub(crate) async fn check_history(&mut self) {
        self.faults.disarm();
        assert_eq!(self.restart().await, Ok(()));
        self.check_journal().await;
        let Some(current) = self.world.rollout().cloned() else {
            return;
        };
        let rows = self.ledger.rollouts(UID).await.unwrap();
        let mut wrong = Vec::new();
        for row in &rows {
            let id: i64 = row.rollout.id.parse().unwrap();
            let ended = row.end.map(|(outcome, _)| outcome);
            let right = match id.cmp(&current.id) {
                std::cmp::Ordering::Less => ended.is_some(),
                std::cmp::Ordering::Equal => {
                    let succeeded = current.phase == RolloutPhase::Succeeded;
                    row.rollout.release == current.release
                        && (!succeeded || ended == Some(RolloutOutcome::Succeeded))
                }
                // An intent that was never carried out: the next rollout takes its number.
                std::cmp::Ordering::Greater => ended.is_none() && id == current.id + 1,
            };
            if !right {
                wrong.push(format!("{id} {} {ended:?}", row.rollout.release));
            }
        }
        let known = rows.iter().any(|row| row.rollout.id == current.id.to_string());
        if !known || !wrong.is_empty() {
            let current = (current.id, current.phase);
            self.world
                .broken
                .push(Broken::History(format!("{wrong:?} beside {current:?}")));
        }
    }
}

fn is_approval(gate: &Gate) -> bool {
    *gate == Gate::Approval
}

fn key(rollout: i64, cluster: &str, target: &str) -> AdmissionKey {
    AdmissionKey {
        group_uid: UID.into(),
        rollout: rollout.to_string(),
        entry: ENTRY.into(),
        cluster: cluster.to_owned(),
        target: target.to_owned(),
    }
}

fn intent(written: &Written) -> Admission {
    Admission {
        key: key(written.rollout, &written.cluster, &written.release),
        sync_namespace: "fleet".into(),
        sync_name: format!("{GROUP}-{ENTRY}-{}", written.cluster),
        revision: written.release.clone(),
        admitted_at: written.at,
    }
}

/// What of status decides anything, or is read by people who do.
fn status(decided: &Decided, said: &Report) -> SyncGroupStatus {
    let mut status = decided.status.clone();
    let mut rollout = decided.rollout();
    rollout.phase = said.phase;
    rollout.stage.clone_from(&said.stage);
    rollout.stages = record::stage_statuses(&decided.plan, &said.soaks);
    if said.is_known_good {
        status.last_known_good = Some(ReleaseStatus {
            release: rollout.release.clone(),
            revisions: Vec::new(),
        });
    }
    status.problems = said
        .problems
        .iter()
        .map(|(cluster, reason, message, _)| ClusterProblem {
            cluster: cluster.clone(),
            reason: reason.clone(),
            message: conditions::cut(message, conditions::MESSAGE_LIMIT),
            since: String::new(),
        })
        .collect();
    status.rollout = Some(rollout);
    status
}
