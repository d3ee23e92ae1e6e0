//! A fleet with a history, and a group that rolls releases through it by the plan.
//!
//! The model knows nothing of slots or budgets. It knows what the clusters do, keeps what a plan wants recorded, writes
//! what it admits, and counts for itself where the group's work is going on and what was approved.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use starling_api::{OnFailure, OnUnreachable};
use starling_core::plan::check::check;
use starling_core::plan::{
    ClusterView, Decision, Direction, EntryView, Finding, Gate, GateRecord, Held, HoldReason, Limits,
    ObservedSync, Plan, PlanInput, Progress, Reach, RolloutView, StagePhase, StageRecord, StageRules,
    StageWait, Steering, Strategy as Rollout, To, Trouble, plan,
};

use crate::arbitrary::{self, t, unreachable, word};
use crate::events::{Curse, Event};

/// The group's entries.
const ENTRIES: [&str; 3] = ["app", "base", "crds"];

/// The versions of a release's entries.
type Release = BTreeMap<&'static str, u32>;

#[derive(Clone, Debug)]
pub(crate) struct Member {
    uid: String,
    pub(crate) reach: Reach,
    /// Value of the label that the targets of `app` depend on.
    label: Option<u32>,
    /// Modulo the stages that there are.
    stage: usize,
    windows: Vec<usize>,
    syncs: BTreeMap<&'static str, ObservedSync>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) group_suspended: bool,
    pub(crate) strategy: Rollout,
    /// Strategies that may take its place.
    others: Vec<Rollout>,
    pub(crate) steering: Steering,
    pub(crate) rollout: RolloutView,
    entries: Vec<&'static str>,
    /// The releases so far; the last one rolls.
    releases: Vec<Release>,
    /// The last that went through.
    good: Option<Release>,
    /// The strategy or the place of a cluster changed since it started.
    pub(crate) irregular: bool,
    /// Counts up with everything that needs a new number.
    serial: u32,
}

pub(crate) fn world(limits: impl Strategy<Value = Limits>) -> impl Strategy<Value = World> {
    let strategies = (arbitrary::strategy(), vec(arbitrary::strategy(), 2));
    let members = vec((any::<bool>(), any::<u8>()), 1..14);
    (limits, strategies, 1usize..=ENTRIES.len(), members).prop_map(
        |(limits, (strategy, others), entries, members)| {
            let mut world = World {
                now: t(0),
                members: BTreeMap::new(),
                group_suspended: false,
                strategy: Rollout { limits, ..strategy },
                others,
                steering: Steering::default(),
                rollout: RolloutView {
                    release: String::new(),
                    direction: Direction::Forward,
                    started_at: t(0),
                    stages: BTreeMap::new(),
                    approvals: BTreeMap::new(),
                },
                entries: ENTRIES[..entries].to_vec(),
                releases: Vec::new(),
                good: None,
                irregular: false,
                serial: 0,
            };
            world.start(
                ENTRIES.iter().map(|entry| (*entry, 0)).collect(),
                Direction::Forward,
            );
            for (probed, pick) in members {
                world.join(if probed { Reach::Ready } else { Reach::Unprobed }, pick);
            }
            world
        },
    )
}

fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "refused".into(),
        retry_at: None,
    }
}

fn target(versions: &Release, member: &Member, entry: &str) -> Result<String, String> {
    let version = versions.get(entry);
    match (entry, member.label) {
        ("app", None) => Err("no such label".into()),
        ("app", Some(label)) => Ok(format!("{entry} {version:?} {label}")),
        _ => Ok(format!("{entry} {version:?}")),
    }
}

fn name(release: &Release) -> String {
    format!("{release:?}")
}

impl World {
    fn release(&self) -> &Release {
        self.releases.last().unwrap()
    }

    pub(crate) fn input(&self) -> PlanInput {
        let stages = self.strategy.stages.len();
        let good = |member: &Member, entry: &str| target(self.good.as_ref()?, member, entry).ok();
        let view = |member: &Member| ClusterView {
            uid: member.uid.clone(),
            reach: member.reach.clone(),
            stage: member.stage % stages,
            windows: member.windows.clone(),
            entries: self
                .entries
                .iter()
                .map(|entry| {
                    let view = EntryView {
                        wanted: target(self.release(), member, entry),
                        known_good: good(member, entry),
                        observed: member.syncs.get(entry).cloned(),
                    };
                    ((*entry).to_owned(), view)
                })
                .collect(),
        };
        let clusters = self.members.iter();
        PlanInput {
            now: self.now,
            strategy: self.strategy.clone(),
            rollout: self.rollout.clone(),
            steering: self.steering.clone(),
            suspended: self.group_suspended,
            membership_held: false,
            clusters: clusters
                .map(|(name, member)| (name.clone(), view(member)))
                .collect(),
        }
    }

    /// Slots, and how many clusters may fail.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let (total, limits) = (self.members.len(), &self.strategy.limits);
        (
            limits.max_concurrency.of_rounded_up(total).max(1),
            limits.max_failures.of_rounded_down(total),
        )
    }

    /// On how many clusters the group's work goes on: they are ready, or were lost on the way to the release that
    /// rolls; their time is not over, and nothing that was admitted with that work or since has failed, or broke before
    /// it had soaked.
    pub(crate) fn at_work(&self) -> usize {
        let members = self.members.values();
        members.filter(|member| self.is_at_work(member)).count()
    }

    fn is_at_work(&self, member: &Member) -> bool {
        let syncs = || member.syncs.values();
        let deadline = self.strategy.limits.progress_deadline;
        let fails: Vec<&ObservedSync> = member
            .syncs
            .iter()
            .filter(|(entry, sync)| self.fails(member, entry, sync))
            .map(|(_, sync)| sync)
            .collect();
        let work = syncs().filter(|sync| {
            let failed = |other: &&ObservedSync| {
                fails.contains(other)
                    && (other.release == sync.release || other.admitted_at >= sync.admitted_at)
            };
            sync.progress == Progress::Working
                && sync.admitted_at.is_some_and(|at| at + deadline > self.now)
                && syncs().find(failed).is_none()
        });
        let untouched = member.reach != Reach::Suspended && syncs().all(|sync| !sync.suspended);
        let ready = member.reach == Reach::Ready;
        untouched
            && work
                .into_iter()
                .any(|sync| ready || sync.release == self.rollout.release)
    }

    fn fails(&self, member: &Member, entry: &str, sync: &ObservedSync) -> bool {
        let wanted = target(self.release(), member, entry).ok();
        let soak = match self.rollout.direction {
            Direction::BackAtOnce => Duration::ZERO,
            Direction::Forward | Direction::Back => self.strategy.limits.min_success_time,
        };
        match &sync.progress {
            Progress::Failing { .. } => true,
            Progress::Held(held) => held.trouble.is_some() && sync.target == wanted && held.longest < soak,
            Progress::Working => false,
        }
    }

    // ------------------------------------------------------------------ what happens

    pub(crate) fn happen(&mut self, event: &Event) {
        self.now += Duration::from_secs(3);
        match event {
            Event::SuspendGroup => self.group_suspended = true,
            Event::ResumeGroup => self.group_suspended = false,
            Event::Join(pick) => self.join(Reach::Ready, *pick),
            Event::Leave(pick) => {
                let name = self.pick(*pick, |_| true).map(|(name, _)| name.clone());
                name.and_then(|name| self.members.remove(&name));
            }
            Event::Release(mask) => self.new_release(*mask),
            Event::RollBack(at_once) if self.releases.len() > 1 => {
                self.releases.pop();
                let back = self.releases.pop().unwrap_or_default();
                let direction = if *at_once {
                    Direction::BackAtOnce
                } else {
                    Direction::Back
                };
                self.start(back, direction);
            }
            Event::NewStrategy(pick) => {
                let place = usize::from(*pick) % self.others.len();
                std::mem::swap(&mut self.strategy, &mut self.others[place]);
                self.irregular = true;
            }
            Event::Approve(pick) => {
                let stage = self.stage(*pick);
                self.rollout.approvals.insert(stage, word(0));
            }
            Event::Find(passed) => self.find(*passed),
            Event::Promote(pick) => {
                let stage = self.stage(*pick);
                self.steering.promoted.insert(stage, word(0));
            }
            Event::SkipStage(pick) => {
                let stage = self.stage(*pick);
                self.steering.skipped_stages.insert(stage, word(0));
            }
            Event::SkipCluster(pick) => {
                let name = self.pick(*pick, |_| true).map(|(name, _)| name.clone());
                self.steering.skipped.extend(name.map(|name| (name, word(0))));
            }
            Event::Pause => self.steering.paused = Some(word(0)),
            Event::Abort => self.steering.aborted = Some(word(0)),
            Event::GoOn => self.go_on(),
            Event::Later(seconds) => self.now += Duration::from_secs((*seconds).into()),
            Event::Tick => {
                if let Some(at) = plan(&self.input()).recheck_at {
                    self.now = at;
                }
            }
            _ => self.happen_to(event, |_| true),
        }
    }

    /// An event to one of the clusters that are `meant`.
    pub(crate) fn happen_to(&mut self, event: &Event, meant: impl Fn(&str) -> bool) {
        let (now, serial) = (self.now, self.serial + 1);
        self.serial = serial;
        let of = |member: &Member, wanted: fn(&Progress) -> bool| {
            member.reach == Reach::Ready && member.syncs.values().any(|sync| wanted(&sync.progress))
        };
        let chosen = match event {
            Event::Finish(pick) | Event::FinishEntry(pick) | Event::Fail(pick) => {
                self.pick(*pick, |(name, member)| meant(name) && of(member, is_working))
            }
            Event::Recover(pick) | Event::RecoverEntry(pick) => {
                self.pick(*pick, |(name, member)| meant(name) && of(member, is_failing))
            }
            Event::Break(pick) | Event::Trouble(pick) | Event::Heal(pick) => {
                self.pick(*pick, |(name, member)| meant(name) && of(member, is_held))
            }
            Event::ComeBack(pick) => self.pick(*pick, |(name, member)| {
                meant(name) && member.reach != Reach::Ready
            }),
            Event::Lose(pick)
            | Event::Unprobe(pick)
            | Event::SuspendCluster(pick)
            | Event::SuspendSync(pick)
            | Event::Resume(pick)
            | Event::Relabel(pick)
            | Event::BreakLabel(pick)
            | Event::Move(pick)
            | Event::Mend(pick) => self.pick(*pick, |(name, _)| meant(name)),
            _ => None,
        };
        let Some((_, member)) = chosen else { return };
        let healthy = Progress::healthy_since(now);
        match event {
            Event::Finish(_) => member.turn(is_working, &healthy, usize::MAX),
            Event::FinishEntry(_) => member.turn(is_working, &healthy, 1),
            Event::Fail(_) => member.turn(is_working, &failing(), 1),
            Event::RecoverEntry(_) => member.turn(is_failing, &healthy, 1),
            Event::Recover(_) => {
                member.turn(is_failing, &healthy, usize::MAX);
                member.turn(is_working, &healthy, usize::MAX);
            }
            Event::Break(_) => member.break_health(now, None),
            Event::Trouble(_) => {
                let (reason, message) = ("HealthCheckFailed".into(), "0/1".into());
                member.break_health(now, Some(&Trouble { reason, message }));
            }
            Event::Heal(_) => member.heal(now),
            Event::Lose(_) => member.reach = unreachable(now),
            Event::ComeBack(_) => member.reach = Reach::Ready,
            Event::Unprobe(_) => member.reach = Reach::Unprobed,
            Event::SuspendCluster(_) => member.reach = Reach::Suspended,
            Event::SuspendSync(pick) => {
                if let Some(sync) = member.syncs.values_mut().nth(usize::from(*pick) % 3) {
                    sync.suspended = true;
                }
            }
            Event::Resume(_) => member.resume(),
            Event::Relabel(_) | Event::Mend(_) => member.label = Some(serial),
            Event::BreakLabel(_) => member.label = None,
            Event::Move(_) => {
                member.stage += 1;
                self.irregular = true;
            }
            _ => {}
        }
    }

    fn pick(&mut self, pick: u8, can: impl Fn((&str, &Member)) -> bool) -> Option<(&String, &mut Member)> {
        let mut possible: Vec<_> = self
            .members
            .iter_mut()
            .filter(|(name, member)| can((name, member)))
            .collect();
        let at = usize::from(pick).checked_rem(possible.len())?;
        Some(possible.swap_remove(at))
    }

    fn stage(&self, pick: u8) -> String {
        let stages = &self.strategy.stages;
        stages[usize::from(pick) % stages.len()].name.clone()
    }

    fn join(&mut self, reach: Reach, pick: u8) {
        self.serial += 1;
        let member = Member {
            uid: format!("uid-{}", self.serial),
            reach,
            label: Some(0),
            stage: usize::from(pick),
            windows: if pick < 16 {
                vec![usize::from(pick % 2)]
            } else {
                Vec::new()
            },
            syncs: BTreeMap::new(),
        };
        self.members.insert(format!("c{:03}", self.serial), member);
    }

    fn new_release(&mut self, mask: u8) {
        self.serial += 1;
        let mut versions = self.release().clone();
        let changed = |bit: usize| mask >> bit & 1 == 1;
        let any = (0..self.entries.len()).any(changed);
        for (bit, entry) in self.entries.iter().enumerate() {
            if changed(bit) || !any {
                versions.insert(entry, self.serial);
            }
        }
        self.start(versions, Direction::Forward);
    }

    /// A rollout: nothing is recorded of it and nobody asked for anything yet.
    fn start(&mut self, release: Release, direction: Direction) {
        self.rollout = RolloutView {
            release: name(&release),
            direction,
            started_at: self.now,
            stages: BTreeMap::new(),
            approvals: BTreeMap::new(),
        };
        self.steering = Steering::default();
        self.irregular = false;
        self.releases.push(release);
    }

    /// A release that changes every entry.
    pub(crate) fn release_everything_anew(&mut self) {
        self.new_release(u8::MAX);
    }

    /// Somebody finds out about every gate that waits for it.
    fn find(&mut self, passed: bool) {
        let found = || match passed {
            true => Finding::Passed,
            false => Finding::Failed {
                message: "500".into(),
            },
        };
        for record in self.rollout.stages.values_mut() {
            for gate in record.before.iter_mut().chain(&mut record.after) {
                if matches!(gate.gate, Gate::Effect(_)) && gate.found.is_none() {
                    gate.found = Some(found());
                }
            }
        }
    }

    fn go_on(&mut self) {
        self.steering.paused = None;
        self.steering.aborted = None;
        if self.strategy.on_failure == OnFailure::Continue {
            return;
        }
        // What failed, and stops the rollout, is tried again.
        for record in self.rollout.stages.values_mut() {
            for gate in record.before.iter_mut().chain(&mut record.after) {
                if matches!(gate.found, Some(Finding::Failed { .. })) {
                    gate.found = None;
                }
            }
        }
    }

    pub(crate) fn curse(&mut self, name: &str, curse: Curse) {
        let (now, release) = (self.now, self.rollout.release.clone());
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        if matches!(curse, Curse::Fails | Curse::FailsAndCutsOff) {
            for sync in member.syncs.values_mut().filter(|sync| sync.release == release) {
                sync.progress = failing();
            }
        }
        if matches!(curse, Curse::CutsOff | Curse::FailsAndCutsOff) {
            member.reach = unreachable(now);
        }
    }

    /// Nothing is suspended or held any more, and every cluster is back that has something of this release on it, or
    /// that is waited for.
    pub(crate) fn faults_stop(&mut self, stay_broken: bool) {
        self.group_suspended = false;
        self.go_on();
        let (now, waits) = (self.now, self.strategy.on_unreachable == OnUnreachable::Wait);
        for member in self.members.values_mut() {
            member.resume();
            member.heal(now);
            member.windows.clear();
            if member.reach == Reach::Unprobed || waits {
                member.reach = Reach::Ready;
            }
            if !stay_broken {
                member.label.get_or_insert(0);
            }
        }
        let decisions = plan(&self.input()).decisions;
        for (name, member) in &mut self.members {
            let may_stay_away = matches!(
                decisions[name],
                Decision::Hold {
                    reason: HoldReason::ClusterUnreachable { .. },
                    ..
                }
            );
            if !may_stay_away {
                member.reach = Reach::Ready;
            }
        }
    }

    /// What is left of an older release becomes healthy as well: a release that goes forward may have to wait for
    /// that (`maxUnavailable`). A way back must not, but for clusters that it cannot touch because their parameters are not
    /// mended: what they hold becomes healthy, or somebody would have to pass them over.
    pub(crate) fn the_past_recovers(&mut self) -> bool {
        let (now, mut recovers) = (self.now, false);
        let forward = self.rollout.direction == Direction::Forward;
        let release = &self.rollout.release;
        for member in self.members.values_mut() {
            let (ready, broken) = (member.reach == Reach::Ready, member.label.is_none());
            for sync in member.syncs.values_mut() {
                let is_past = forward && sync.release != *release;
                if ready && (broken || is_past) && !is_held(&sync.progress) {
                    sync.progress = Progress::healthy_since(now);
                    recovers = true;
                }
            }
        }
        recovers
    }

    /// One of the clusters that are admitted with all their entries, and not done, is healthy now. No other
    /// progress is fair to expect: an entry may need one that is not admitted yet.
    pub(crate) fn one_finishes(&mut self, pick: u8) -> bool {
        let (now, input) = (self.now, self.input());
        let finished = self.pick(pick, |(name, member)| {
            let complete = input.clusters[name].entries.values().all(|entry| {
                let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
                entry.wanted.as_ref().ok() == target && target.is_some()
            });
            let healthy = member.syncs.values().all(|sync| is_held(&sync.progress));
            complete && !healthy && member.reach == Reach::Ready
        });
        finished.is_some_and(|(_, member)| {
            member.turn(
                |progress| !is_held(progress),
                &Progress::healthy_since(now),
                usize::MAX,
            );
            true
        })
    }

    /// Everybody does what the plan waits for people to do: approves, finds out, and looks at what proves nothing.
    pub(crate) fn people_act(&mut self, plan: &Plan) {
        self.find(true);
        for stage in &plan.stages {
            self.rollout.approvals.insert(stage.name.clone(), word(0));
            if stage.phase == StagePhase::Waiting(StageWait::Unproven) {
                self.steering.promoted.insert(stage.name.clone(), word(0));
            }
        }
    }

    // ------------------------------------------------------------------ what the group does

    /// Plans after `event` and executes the plan, up to the write after which a crash ends it. Returns the
    /// clusters that were written to with this release.
    pub(crate) fn roll(&mut self, event: &Event) -> Result<Vec<String>, TestCaseError> {
        let writes = match event {
            Event::Crash(writes) => usize::from(*writes),
            _ => usize::MAX,
        };
        let (_, written) = self.plan_and_write(writes)?;
        Ok(written)
    }

    pub(crate) fn plan_and_execute(&mut self) -> Result<Plan, TestCaseError> {
        Ok(self.plan_and_write(usize::MAX)?.0)
    }

    fn plan_and_write(&mut self, mut writes: usize) -> Result<(Plan, Vec<String>), TestCaseError> {
        let input = self.input();
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?} {:#?}", input, plan);
        // Time is counted from what is recorded, so that is kept first; a crash may come even before.
        if writes > 0 {
            let records = plan
                .stages
                .iter()
                .map(|stage| (stage.name.clone(), stage.record.clone()));
            let records: BTreeMap<String, StageRecord> = records.collect();
            self.rollout.stages.extend(records);
        }
        let before = self.at_work();
        let mut written = Vec::new();
        for (name, decision) in &plan.decisions {
            let Decision::Start { entries, to } = decision else {
                continue;
            };
            if writes == 0 {
                // Nothing is written any more, and the records by which it might be judged may be among that.
                break;
            }
            prop_assert!(
                *to == To::LastKnownGood || self.may_start(name),
                "{} before what its stage waits for: {:#?}",
                name,
                plan
            );
            for entry in entries {
                if writes == 0 {
                    break;
                }
                writes -= 1;
                self.admit(name, entry, *to);
                if *to == To::Release && written.last() != Some(name) {
                    written.push(name.clone());
                }
            }
        }
        let (after, bound) = (self.at_work(), before.max(self.bounds().0));
        prop_assert!(after <= bound, "at work on {} of {}: {:#?}", after, bound, plan);
        if plan.verdict == starling_core::plan::Verdict::Through {
            self.good = Some(self.release().clone());
        }
        Ok((plan, written))
    }

    /// Whether what must be passed before this cluster's stage was: every gate in front of it was approved, or found to be
    /// passed, in this very rollout, or a person let the whole stage go. Of what is irregular it has no opinion.
    fn may_start(&self, name: &str) -> bool {
        if self.irregular || self.rollout.direction != Direction::Forward {
            return true;
        }
        let stages = &self.strategy.stages;
        let own = self.members[name].stage % stages.len();
        let is_let_go = |stage: &StageRules| {
            let steering = &self.steering;
            steering.promoted.contains_key(&stage.name) || steering.skipped_stages.contains_key(&stage.name)
        };
        let in_front = || stages.iter().take(own).filter(|stage| !is_let_go(stage));
        is_let_go(&stages[own])
            || (in_front().all(|stage| self.is_passed(stage, true)) && self.is_passed(&stages[own], false))
    }

    /// Whether the gates before a stage are passed, and those after it if asked for.
    fn is_passed(&self, stage: &StageRules, after: bool) -> bool {
        let record = self.rollout.stages.get(&stage.name).cloned().unwrap_or_default();
        let passed =
            |gate: &Gate, recorded: Option<&GateRecord>| match (gate, recorded.map(|gate| &gate.found)) {
                (Gate::TimedWait(wait), _) => recorded.is_some_and(|gate| gate.begun_at + *wait <= self.now),
                (Gate::Approval, _) => self.rollout.approvals.contains_key(&stage.name),
                (Gate::Effect(_), Some(Some(Finding::Passed))) => true,
                (Gate::Effect(_), Some(Some(Finding::Failed { .. }))) => {
                    self.strategy.on_failure == OnFailure::Continue
                }
                (Gate::Effect(_), _) => false,
            };
        let all = |gates: &[Gate], records: &[GateRecord]| {
            let mut gates = gates.iter().enumerate();
            gates.all(|(place, gate)| passed(gate, records.get(place)))
        };
        all(&stage.before, &record.before) && (!after || all(&stage.after, &record.after))
    }

    fn admit(&mut self, name: &str, entry: &str, to: To) {
        let release = match to {
            To::Release => self.release().clone(),
            To::LastKnownGood => self.good.clone().unwrap(),
        };
        let sync = ObservedSync {
            target: Some(target(&release, &self.members[name], entry).unwrap()),
            release: self::name(&release),
            admitted_at: Some(self.now),
            progress: Progress::Working,
            suspended: false,
        };
        let entry = self.entries.iter().find(|known| **known == entry).unwrap();
        self.members.get_mut(name).unwrap().syncs.insert(entry, sync);
    }
}

fn is_working(progress: &Progress) -> bool {
    *progress == Progress::Working
}

fn is_failing(progress: &Progress) -> bool {
    matches!(progress, Progress::Failing { .. })
}

fn is_held(progress: &Progress) -> bool {
    matches!(progress, Progress::Held(_))
}

impl Member {
    fn turn(&mut self, from: impl Fn(&Progress) -> bool, to: &Progress, at_most: usize) {
        let found = self.syncs.values_mut().filter(|sync| from(&sync.progress));
        for sync in found.take(at_most) {
            sync.progress = to.clone();
        }
    }

    fn held(&mut self) -> impl Iterator<Item = &mut Held> {
        self.syncs
            .values_mut()
            .filter_map(|sync| match &mut sync.progress {
                Progress::Held(held) => Some(held),
                Progress::Working | Progress::Failing { .. } => None,
            })
    }

    fn break_health(&mut self, now: Timestamp, trouble: Option<&Trouble>) {
        for held in self.held() {
            let span = held.since.take().map(|since| now.duration_since(since));
            let span = span.and_then(|span| Duration::try_from(span).ok());
            held.longest = held.longest.max(span.unwrap_or_default());
            held.trouble = trouble.cloned();
        }
    }

    fn heal(&mut self, now: Timestamp) {
        for held in self.held().filter(|held| held.since.is_none()) {
            held.since = Some(now);
            held.trouble = None;
        }
    }

    fn resume(&mut self) {
        if self.reach == Reach::Suspended {
            self.reach = Reach::Ready;
        }
        for sync in self.syncs.values_mut() {
            sync.suspended = false;
        }
    }
}
