//! A fleet with a history, and a group that rolls releases out to it by the plan.
//!
//! The model knows nothing of slots or limits. It simulates the clusters, stores the records of a plan, writes what the
//! plan admits, and counts on its own where the group is in flight and what was approved.

mod fair;
mod member;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use starling_api::OnFailure;
use starling_core::clock_jumps::ClockJumps;
use starling_core::ids::{ClusterName, TargetDigest};
use starling_core::plan::{
    ClusterView, Direction, EntryView, Gate, GateResult, HealthProblem, OperatorInput, PlanInput, Progress,
    Reach, RolloutLimits, RolloutView, Strategy as Rollout, UnresolvedTarget, plan,
};

use member::{Member, failing, is_applied, is_failing, is_working};

use crate::arbitrary::{self, attribution, t, unreachable};
use crate::events::{Event, Fault};

/// The entries of the group.
const ENTRIES: [&str; 3] = ["app", "base", "crds"];

/// The versions of the entries of a release.
type Release = BTreeMap<&'static str, u32>;

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) members: BTreeMap<ClusterName, Member>,
    pub(crate) group_suspended: bool,
    pub(crate) strategy: Rollout,
    /// Strategies that may replace the present one.
    others: Vec<Rollout>,
    pub(crate) operator: OperatorInput,
    pub(crate) rollout: RolloutView,
    entries: Vec<&'static str>,
    /// The releases so far; the last one is the current one.
    releases: Vec<Release>,
    /// The last release that succeeded.
    good: Option<Release>,
    /// Whether the strategy or the stage of a cluster changed since the rollout started.
    pub(crate) irregular: bool,
    /// A counter for everything that needs a new number.
    serial: u32,
}

pub(crate) fn world(limits: impl Strategy<Value = RolloutLimits>) -> impl Strategy<Value = World> {
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
                operator: OperatorInput::default(),
                rollout: RolloutView {
                    release: String::new().into(),
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

fn target(versions: &Release, member: &Member, entry: &str) -> Result<TargetDigest, UnresolvedTarget> {
    let version = versions.get(entry);
    match (entry, member.label) {
        ("app", None) => Err(UnresolvedTarget::parameter("no such label")),
        ("app", Some(label)) => Ok(format!("{entry} {version:?} {label}").into()),
        _ => Ok(format!("{entry} {version:?}").into()),
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
            id: member.uid.clone(),
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
                    ((*entry).into(), view)
                })
                .collect(),
        };
        let clusters = self.members.iter();
        PlanInput {
            installation_slots: None,
            now: self.now,
            clock_jumps: ClockJumps::default(),
            strategy: self.strategy.clone(),
            rollout: self.rollout.clone(),
            operator: self.operator.clone(),
            deleting: false,
            suspended: self.group_suspended,
            membership_held: false,
            leaving: BTreeMap::new(),
            returned: Default::default(),
            prunes: Default::default(),
            clusters: clusters
                .map(|(name, member)| (name.clone(), view(member)))
                .collect(),
        }
    }

    /// Returns the slots, and the failure limit.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let (total, limits) = (self.members.len(), &self.strategy.limits);
        (
            limits.max_concurrency.of_rounded_up(total).max(1),
            limits.max_failures.of_rounded_down(total),
        )
    }

    // ------------------------------------------------------------------ events

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
                self.rollout.approvals.insert(stage, attribution(0));
            }
            Event::FinishGates(passed) => self.finish_gates(*passed),
            Event::Promote(pick) => {
                let stage = self.stage(*pick);
                self.operator.promoted.insert(stage, attribution(0));
            }
            Event::SkipStage(pick) => {
                let stage = self.stage(*pick);
                self.operator.skipped_stages.insert(stage, attribution(0));
            }
            Event::SkipCluster(pick) => {
                let name = self.pick(*pick, |_| true).map(|(name, _)| name.clone());
                self.operator
                    .skipped
                    .extend(name.map(|name| (name, attribution(0))));
            }
            Event::Pause => self.operator.paused = Some(attribution(0)),
            Event::Abort => self.operator.aborted = Some(attribution(0)),
            Event::Unblock => self.unblock(),
            Event::Later(seconds) => self.now += Duration::from_secs((*seconds).into()),
            Event::Tick => {
                if let Some(at) = plan(&self.input()).recheck_at {
                    self.now = at;
                }
            }
            _ => self.happen_to(event, |_| true),
        }
    }

    /// Applies an event to one of the clusters that are `meant`.
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
            Event::Break(pick) | Event::HealthProblem(pick) | Event::Heal(pick) => {
                self.pick(*pick, |(name, member)| meant(name) && of(member, is_applied))
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
            | Event::Repair(pick) => self.pick(*pick, |(name, _)| meant(name)),
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
            Event::HealthProblem(_) => {
                let (reason, message) = ("HealthCheckFailed".into(), "0/1".into());
                member.break_health(now, Some(&HealthProblem { reason, message }));
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
            Event::Relabel(_) | Event::Repair(_) => member.label = Some(serial),
            Event::BreakLabel(_) => member.label = None,
            Event::Move(_) => {
                member.stage += 1;
                self.irregular = true;
            }
            _ => {}
        }
    }

    fn pick(
        &mut self,
        pick: u8,
        can: impl Fn((&str, &Member)) -> bool,
    ) -> Option<(&ClusterName, &mut Member)> {
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
        self.members.insert(format!("c{:03}", self.serial).into(), member);
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

    /// Starts a rollout without records and requests.
    fn start(&mut self, release: Release, direction: Direction) {
        self.rollout = RolloutView {
            release: name(&release).into(),
            direction,
            started_at: self.now,
            stages: BTreeMap::new(),
            approvals: BTreeMap::new(),
        };
        self.operator = OperatorInput::default();
        self.irregular = false;
        self.releases.push(release);
    }

    /// Starts a release that changes every entry.
    pub(crate) fn release_everything_anew(&mut self) {
        self.new_release(u8::MAX);
    }

    /// Reports a result for every gate that waits for one.
    fn finish_gates(&mut self, passed: bool) {
        let result = || match passed {
            true => GateResult::Passed,
            false => GateResult::Failed {
                message: "500".into(),
            },
        };
        for record in self.rollout.stages.values_mut() {
            for gate in record.before.iter_mut().chain(&mut record.after) {
                if matches!(gate.gate, Gate::Effect(_)) && gate.result.is_none() {
                    gate.result = Some(result());
                }
            }
        }
    }

    fn unblock(&mut self) {
        self.operator.paused = None;
        self.operator.aborted = None;
        if self.strategy.on_failure == OnFailure::Continue {
            return;
        }
        // A failed gate, which stops the rollout, is retried.
        for record in self.rollout.stages.values_mut() {
            for gate in record.before.iter_mut().chain(&mut record.after) {
                if matches!(gate.result, Some(GateResult::Failed { .. })) {
                    gate.result = None;
                }
            }
        }
    }

    pub(crate) fn inject(&mut self, name: &str, fault: Fault) {
        let (now, release) = (self.now, self.rollout.release.clone());
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        if matches!(fault, Fault::Fails | Fault::FailsAndCutsOff) {
            for sync in member.syncs.values_mut().filter(|sync| sync.release == release) {
                sync.progress = failing();
            }
        }
        if matches!(fault, Fault::CutsOff | Fault::FailsAndCutsOff) {
            member.reach = unreachable(now);
        }
    }
}
