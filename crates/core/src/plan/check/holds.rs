//! The reason why a cluster is held: the first reason that is true, in the order of [`HoldReason`].

use crate::ids::EntryName;
use jiff::Timestamp;

use super::facts::CheckedState;
use super::member::CheckedMember;
use super::moment::Moment;
use super::violation::Violation;
use super::windows;
use crate::plan::stages::{Attribution, StagePhase, StageWait};
use crate::plan::types::{AdmittedRelease, HoldReason, UnresolvedTarget};

/// Returns the precedence of a reason.
fn rank(reason: &HoldReason) -> u8 {
    match reason {
        HoldReason::Skipped(_) => 0,
        HoldReason::ClusterSuspended => 1,
        HoldReason::SyncSuspended { .. } => 2,
        HoldReason::SyncUnreadable { .. } => 3,
        HoldReason::InvalidParameters { .. } => 4,
        HoldReason::ClusterNotProbed => 5,
        HoldReason::ClusterUnreachable { .. } => 6,
        HoldReason::GroupSuspended => 7,
        HoldReason::Paused(_) => 8,
        HoldReason::Aborted(_) => 9,
        HoldReason::MembershipHeld => 10,
        HoldReason::TooManyFailures { .. } => 11,
        HoldReason::StageWaits { .. } => 12,
        HoldReason::WindowClosed => 13,
        HoldReason::Jitter => 14,
        HoldReason::NoSlot | HoldReason::TooManyUnavailable | HoldReason::InstallationLimit => LIMIT,
    }
}

/// The precedence of the reasons that other clusters end.
const LIMIT: u8 = 15;

/// A release that a startable cluster may be started with.
#[derive(Clone, Copy)]
struct Start {
    to: AdmittedRelease,
    /// Whether a closed window blocks it.
    closed: bool,
}

impl Moment<'_> {
    pub(super) fn hold_is_true(
        &self,
        member: &CheckedMember<'_>,
        reason: &HoldReason,
        recheck_at: Option<Timestamp>,
    ) -> Result<(), Violation> {
        let cluster = member.name.clone();
        match member.facts.state {
            CheckedState::UnderWay { .. } => return Err(Violation::UnderWayUnnoticed { cluster }),
            CheckedState::Soaking { .. } => return Err(Violation::SoakUnnoticed { cluster }),
            CheckedState::Failed(_) => return Err(Violation::FailureUnnoticed { cluster }),
            CheckedState::Done | CheckedState::Obstructed | CheckedState::Startable { .. } => {}
        }
        let starts = self.starts(member);
        let first = |start: &Start| self.first_rank(member, *start) == rank(reason);
        if !self.applies(member, reason) {
            return Err(Violation::WrongHold {
                cluster,
                reason: reason.clone(),
            });
        }
        if !starts.iter().any(first) {
            // A cluster that this release was admitted to and that is skipped now may finish, but need not.
            if matches!(reason, HoldReason::Skipped(_)) && member.facts.admitted {
                return self.ends_in_time(member, reason, recheck_at);
            }
            // A new cluster whose stage waits may be held for the stage also while it waits for a slot or a time,
            // unless it could start with the last known good release.
            let stage_waits = matches!(reason, HoldReason::StageWaits { .. });
            let good = |start: &&Start| start.to == AdmittedRelease::LastKnownGood;
            let waits = starts.iter().find(good);
            let Some(start) =
                waits.filter(|start| stage_waits && self.first_rank(member, **start) > rank(reason))
            else {
                let reason = reason.clone();
                return Err(Violation::NotTheFirstReason { cluster, reason });
            };
            let is_next = self.first_rank(member, *start) == LIMIT;
            if is_next && self.may_start(member, AdmittedRelease::LastKnownGood) {
                return Err(Violation::KnownGoodForgotten { cluster });
            }
        }
        if rank(reason) == LIMIT {
            self.limit_is_reached(member, reason, &starts)?;
        }
        self.ends_in_time(member, reason, recheck_at)
    }

    /// Returns what the cluster could start with, and whether windows apply; several if each is right.
    fn starts(&self, member: &CheckedMember<'_>) -> Vec<Start> {
        let good = !self.is_open(member.stage) && !member.facts.known_good.is_empty();
        let to = if good {
            AdmittedRelease::LastKnownGood
        } else {
            AdmittedRelease::Release
        };
        let begun = matches!(member.facts.state, CheckedState::Startable { interrupted: true });
        let about = self.rules.windows_of(member.view);
        let closed: &[bool] = match windows::are_open(&about, self.at) {
            // An admission that has begun is completed.
            _ if begun && !good => &[false],
            Some(true) => &[false],
            Some(false) if !begun => &[true],
            _ => &[true, false],
        };
        closed.iter().map(|&closed| Start { to, closed }).collect()
    }

    /// Returns the precedence of the first reason that applies to a cluster that is not started.
    fn first_rank(&self, member: &CheckedMember<'_>, start: Start) -> u8 {
        let operator = &self.input.operator;
        if member.is_held_back() {
            return 0;
        }
        if let Some(reason) = member.own_reason() {
            return rank(&reason);
        }
        let good = start.to == AdmittedRelease::LastKnownGood;
        let reasons = [
            (7, self.input.suspended),
            (8, operator.paused.is_some()),
            (9, operator.aborted.is_some()),
            (10, self.input.membership_held),
            (11, self.overdrawn().next().is_some()),
            (
                12,
                self.failed_gates().next().is_some() || (!self.is_open(member.stage) && !good),
            ),
            (13, start.closed),
            (14, self.eligible_at(member, start.to) > self.at),
        ];
        let first = reasons.into_iter().find(|(_, applies)| *applies);
        first.map_or(LIMIT, |(rank, _)| rank)
    }

    /// Reports whether a reason applies to the cluster, whatever else does.
    fn applies(&self, member: &CheckedMember<'_>, reason: &HoldReason) -> bool {
        let operator = &self.input.operator;
        let same = |attribution: &Attribution, given: Option<&Attribution>| given == Some(attribution);
        let entry = |name: &EntryName| member.view.entries.get(name);
        match reason {
            HoldReason::Skipped(attribution) => {
                let with_stage = self.rules.skipped(self.input, member.stage);
                same(attribution, operator.skipped.get(member.name)) || same(attribution, with_stage)
            }
            HoldReason::SyncSuspended { entry: name } => {
                let sync = entry(name).and_then(|entry| entry.observed.as_ref());
                let removal = member.facts.removal.as_ref();
                sync.is_some_and(|sync| sync.suspended)
                    || removal.is_some_and(|removal| removal.suspended.contains(name))
            }
            HoldReason::SyncUnreadable { entry: name, sync } => {
                let error = entry(name).and_then(|entry| entry.wanted.as_ref().err());
                matches!(error, Some(UnresolvedTarget::UnreadableSync { sync: found }) if found == sync)
            }
            HoldReason::InvalidParameters { entry: name, message } => {
                let error = entry(name).and_then(|entry| entry.wanted.as_ref().err());
                matches!(error, Some(UnresolvedTarget::Parameter { message: found }) if found == message)
            }
            HoldReason::ClusterSuspended
            | HoldReason::ClusterNotProbed
            | HoldReason::ClusterUnreachable { .. } => member.own_reason().as_ref() == Some(reason),
            HoldReason::GroupSuspended => self.input.suspended,
            HoldReason::Paused(attribution) => same(attribution, operator.paused.as_ref()),
            HoldReason::Aborted(attribution) => same(attribution, operator.aborted.as_ref()),
            HoldReason::MembershipHeld => self.input.membership_held,
            HoldReason::TooManyFailures { stage } => self.overdrawn().any(|(place, _)| place == *stage),
            HoldReason::StageWaits { stage, wait } => self.stage_waits(member, *stage, wait),
            HoldReason::WindowClosed => self.starts(member).iter().any(|start| start.closed),
            HoldReason::Jitter => {
                let late = |start: &Start| self.eligible_at(member, start.to) > self.at;
                self.starts(member).iter().any(late)
            }
            HoldReason::InstallationLimit => self.input.installation_slots.is_some(),
            HoldReason::NoSlot | HoldReason::TooManyUnavailable => true,
        }
    }

    /// Reports whether a cluster waits for that stage: the first that has not passed, up to its own, if its own is not
    /// open; or any stage with a failed gate, which stops all clusters.
    fn stage_waits(&self, member: &CheckedMember<'_>, stage: usize, wait: &StageWait) -> bool {
        let mut upto = self.stages.iter().take(member.stage + 1);
        let first = upto.position(|stage| stage.record.passed_at.is_none());
        let failed = matches!(wait, StageWait::GateFailed { .. });
        let is_next = first == Some(stage) && !self.is_open(member.stage);
        // The wait in the phase and the wait in the reason are the same.
        let is_planned = match self.phase(stage) {
            Some(StagePhase::Waiting(planned)) => planned == wait,
            _ => true,
        };
        let waits = self.stages.get(stage).map(|stage| &stage.waits);
        (failed || (is_next && is_planned)) && waits.is_some_and(|waits| waits.contains(wait))
    }

    /// Reports whether a cluster could start in addition to everything that the plan starts: in the slot that it has or
    /// a free one, where the release is in flight already or may be, and within the limit of unavailable clusters.
    fn has_slot_for(&self, member: &CheckedMember<'_>, to: AdmittedRelease) -> bool {
        let stage = self.stages.get(member.stage).map(|stage| &stage.scope);
        let mut scopes = [Some(&self.group), stage].into_iter().flatten();
        scopes.all(|scope| {
            let Some(slots) = scope.tally.slots else {
                return true;
            };
            let free = member.facts.holds_slot() || scope.in_flight_after < slots;
            let spreads = to == AdmittedRelease::LastKnownGood
                || member.facts.is_reached()
                || scope.reached_after < slots;
            free && spreads
        })
    }

    fn may_be_unavailable(&self, member: &CheckedMember<'_>) -> bool {
        let stage = self.stages.get(member.stage).map(|stage| &stage.scope);
        let mut scopes = [Some(&self.group), stage].into_iter().flatten();
        self.rules.unavailable.is_none()
            || member.is_unavailable()
            || scopes.all(|scope| scope.unavailable_after < scope.tally.unavailable_allowed)
    }

    fn may_start(&self, member: &CheckedMember<'_>, to: AdmittedRelease) -> bool {
        self.has_slot_for(member, to) && self.may_be_unavailable(member) && self.installation_has_slot(member)
    }

    /// Reports whether the installation allows the cluster to be in flight, in addition to everything that the plan
    /// starts.
    fn installation_has_slot(&self, member: &CheckedMember<'_>) -> bool {
        let slots = self.input.installation_slots;
        member.facts.holds_slot() || slots.is_none_or(|slots| self.begun() < slots)
    }

    /// Returns the number of clusters that begin to be in flight with the plan.
    pub(super) fn begun(&self) -> usize {
        let begins = |member: &&CheckedMember<'_>| {
            (member.starts() || member.is_retried()) && !member.facts.holds_slot()
        };
        self.fleet.iter().filter(begins).count()
    }

    fn limit_is_reached(
        &self,
        member: &CheckedMember<'_>,
        reason: &HoldReason,
        starts: &[Start],
    ) -> Result<(), Violation> {
        let cluster = member.name.clone();
        let idle = |start: &Start| match reason {
            HoldReason::NoSlot => self.has_slot_for(member, start.to),
            HoldReason::InstallationLimit => self.installation_has_slot(member),
            _ => self.may_be_unavailable(member),
        };
        if starts.iter().all(idle) {
            return Err(match reason {
                HoldReason::NoSlot | HoldReason::InstallationLimit => Violation::IdleSlot { cluster },
                _ => Violation::MayBeUnavailable { cluster },
            });
        }
        Ok(())
    }

    /// Checks that the hold has exactly the time at which time ends it, if that can be known.
    fn ends_in_time(
        &self,
        member: &CheckedMember<'_>,
        reason: &HoldReason,
        actual: Option<Timestamp>,
    ) -> Result<(), Violation> {
        let expected = match reason {
            HoldReason::Jitter => {
                let to = self
                    .starts(member)
                    .first()
                    .map_or(AdmittedRelease::Release, |start| start.to);
                Some(self.eligible_at(member, to))
            }
            HoldReason::WindowClosed => {
                let about = self.rules.windows_of(member.view);
                match windows::next_opening(&about, self.at) {
                    Some(expected) => expected,
                    None => actual,
                }
            }
            HoldReason::StageWaits {
                wait: StageWait::Gate {
                    until: Some(until), ..
                },
                ..
            } => Some(*until),
            // An event ends it, or something else whose time the plan may know.
            _ => actual,
        };
        // A window that closes earlier replaces the hold by another one, and the plan may have that time.
        let windows = !self.rules.windows_of(member.view).is_empty();
        let sooner = matches!(reason, HoldReason::Jitter) && windows && actual < expected && actual.is_some();
        if !(actual == expected || sooner) || actual.is_some_and(|actual| actual <= self.at) {
            return Err(Violation::WrongHoldRecheck {
                cluster: member.name.clone(),
                actual,
                expected,
            });
        }
        Ok(())
    }
}
