//! Why a cluster is held: the first reason that is true, in the order of [`HoldReason`].

use jiff::Timestamp;

use super::facts::State;
use super::member::Member;
use super::moment::Moment;
use super::violation::Violation;
use super::windows;
use crate::plan::stages::{StagePhase, StageWait, Word};
use crate::plan::types::{HoldReason, To};

/// The place of a reason in the order.
fn rank(reason: &HoldReason) -> u8 {
    match reason {
        HoldReason::Skipped(_) => 0,
        HoldReason::ClusterSuspended => 1,
        HoldReason::SyncSuspended { .. } => 2,
        HoldReason::InvalidParameters { .. } => 3,
        HoldReason::ClusterNotProbed => 4,
        HoldReason::ClusterUnreachable { .. } => 5,
        HoldReason::GroupSuspended => 6,
        HoldReason::Paused(_) => 7,
        HoldReason::Aborted(_) => 8,
        HoldReason::MembershipHeld => 9,
        HoldReason::TooManyFailures { .. } => 10,
        HoldReason::StageWaits { .. } => 11,
        HoldReason::WindowClosed => 12,
        HoldReason::Jitter => 13,
        HoldReason::NoSlot | HoldReason::TooManyUnavailable => ROOM,
    }
}

/// The place of what other clusters have to give.
const ROOM: u8 = 14;

/// What a cluster that could start may be started with.
#[derive(Clone, Copy)]
struct Chance {
    to: To,
    /// A closed window keeps it back.
    closed: bool,
}

impl Moment<'_> {
    pub(super) fn hold_is_true(
        &self,
        member: &Member<'_>,
        reason: &HoldReason,
        recheck_at: Option<Timestamp>,
    ) -> Result<(), Violation> {
        let cluster = member.name.to_owned();
        match member.facts.state {
            State::UnderWay { .. } => return Err(Violation::UnderWayUnnoticed { cluster }),
            State::Soaking { .. } => return Err(Violation::SoakUnnoticed { cluster }),
            State::Failed(_) => return Err(Violation::FailureUnnoticed { cluster }),
            State::Done | State::Obstructed | State::Startable { .. } => {}
        }
        let chances = self.chances(member);
        let first = |chance: &Chance| self.first_rank(member, *chance) == rank(reason);
        if !self.is_so(member, reason) {
            return Err(Violation::WrongHold {
                cluster,
                reason: reason.clone(),
            });
        }
        if !chances.iter().any(first) {
            // What this release was admitted to before, and is passed over now, may finish and need not.
            if matches!(reason, HoldReason::Skipped(_)) && member.facts.admitted {
                return self.is_looked_at_again(member, reason, recheck_at);
            }
            // A new cluster whose stage waits is told so also while it waits for room, or for its time; but
            // not where it could be started with what was good.
            let told = matches!(reason, HoldReason::StageWaits { .. });
            let good = |chance: &&Chance| chance.to == To::LastKnownGood;
            let waits = chances.iter().find(good);
            let Some(chance) =
                waits.filter(|chance| told && self.first_rank(member, **chance) > rank(reason))
            else {
                let reason = reason.clone();
                return Err(Violation::NotTheFirstReason { cluster, reason });
            };
            let is_next = self.first_rank(member, *chance) == ROOM;
            if is_next && self.has_room_for(member, To::LastKnownGood) {
                return Err(Violation::KnownGoodForgotten { cluster });
            }
        }
        if rank(reason) == ROOM {
            self.there_is_no_room(member, reason, &chances)?;
        }
        self.is_looked_at_again(member, reason, recheck_at)
    }

    /// What the cluster could be started with, and whether windows count; more than one where either is right.
    fn chances(&self, member: &Member<'_>) -> Vec<Chance> {
        let good = !self.is_open(member.stage) && !member.facts.known_good.is_empty();
        let to = if good { To::LastKnownGood } else { To::Release };
        let begun = matches!(member.facts.state, State::Startable { cut_short: true });
        let about = self.rules.windows_of(member.view);
        let closed: &[bool] = match windows::are_open(&about, self.at) {
            // What was begun has started, and finishes.
            _ if begun && !good => &[false],
            Some(true) => &[false],
            Some(false) if !begun => &[true],
            _ => &[true, false],
        };
        closed.iter().map(|&closed| Chance { to, closed }).collect()
    }

    /// The place of the first reason that is true of a cluster that is not started.
    fn first_rank(&self, member: &Member<'_>, chance: Chance) -> u8 {
        let steering = &self.input.steering;
        if member.is_held_back() {
            return 0;
        }
        if let Some(reason) = member.own_reason() {
            return rank(&reason);
        }
        let good = chance.to == To::LastKnownGood;
        let reasons = [
            (6, self.input.suspended),
            (7, steering.paused.is_some()),
            (8, steering.aborted.is_some()),
            (9, self.input.membership_held),
            (10, self.overdrawn().next().is_some()),
            (
                11,
                self.failed_gates().next().is_some() || (!self.is_open(member.stage) && !good),
            ),
            (12, chance.closed),
            (13, self.eligible_at(member, chance.to) > self.at),
        ];
        let first = reasons.into_iter().find(|(_, is_so)| *is_so);
        first.map_or(ROOM, |(rank, _)| rank)
    }

    /// Whether a reason is true of the cluster, whatever else is.
    fn is_so(&self, member: &Member<'_>, reason: &HoldReason) -> bool {
        let steering = &self.input.steering;
        let same = |word: &Word, given: Option<&Word>| given == Some(word);
        let entry = |name: &String| member.view.entries.get(name);
        match reason {
            HoldReason::Skipped(word) => {
                let with_stage = self.rules.skipped(self.input, member.stage);
                same(word, steering.skipped.get(member.name)) || same(word, with_stage)
            }
            HoldReason::SyncSuspended { entry: name } => entry(name)
                .and_then(|entry| entry.observed.as_ref())
                .is_some_and(|sync| sync.suspended),
            HoldReason::InvalidParameters { entry: name, message } => {
                entry(name).is_some_and(|entry| entry.wanted.as_ref().err() == Some(message))
            }
            HoldReason::ClusterSuspended
            | HoldReason::ClusterNotProbed
            | HoldReason::ClusterUnreachable { .. } => member.own_reason().as_ref() == Some(reason),
            HoldReason::GroupSuspended => self.input.suspended,
            HoldReason::Paused(word) => same(word, steering.paused.as_ref()),
            HoldReason::Aborted(word) => same(word, steering.aborted.as_ref()),
            HoldReason::MembershipHeld => self.input.membership_held,
            HoldReason::TooManyFailures { stage } => self.overdrawn().any(|(place, _)| place == *stage),
            HoldReason::StageWaits { stage, wait } => self.stage_waits(member, *stage, wait),
            HoldReason::WindowClosed => self.chances(member).iter().any(|chance| chance.closed),
            HoldReason::Jitter => {
                let late = |chance: &Chance| self.eligible_at(member, chance.to) > self.at;
                self.chances(member).iter().any(late)
            }
            HoldReason::NoSlot | HoldReason::TooManyUnavailable => true,
        }
    }

    /// Whether a cluster waits for that: the first stage that is not passed, up to its own, where its own is not
    /// open; or any of which a gate failed, for that stops every cluster.
    fn stage_waits(&self, member: &Member<'_>, stage: usize, wait: &StageWait) -> bool {
        let mut upto = self.stages.iter().take(member.stage + 1);
        let first = upto.position(|stage| stage.record.passed_at.is_none());
        let failed = matches!(wait, StageWait::GateFailed { .. });
        let is_next = first == Some(stage) && !self.is_open(member.stage);
        // What the stage itself says and what is said of it are the same.
        let told = match self.phase(stage) {
            Some(StagePhase::Waiting(told)) => told == wait,
            _ => true,
        };
        let waits = self.stages.get(stage).map(|stage| &stage.waits);
        (failed || (is_next && told)) && waits.is_some_and(|waits| waits.contains(wait))
    }

    /// Whether a cluster could start beside everything that the plan starts: in the slot that it has or a free
    /// one, where the release has been before or may spread to, and with what may be unavailable.
    fn has_slot_for(&self, member: &Member<'_>, to: To) -> bool {
        let stage = self.stages.get(member.stage).map(|stage| &stage.scope);
        let mut scopes = [Some(&self.group), stage].into_iter().flatten();
        scopes.all(|scope| {
            let Some(slots) = scope.tally.slots else {
                return true;
            };
            let free = member.facts.holds_slot() || scope.in_flight_after < slots;
            let spreads = to == To::LastKnownGood || member.facts.is_reached() || scope.reached_after < slots;
            free && spreads
        })
    }

    fn may_be_unavailable(&self, member: &Member<'_>) -> bool {
        let stage = self.stages.get(member.stage).map(|stage| &stage.scope);
        let mut scopes = [Some(&self.group), stage].into_iter().flatten();
        self.rules.unavailable.is_none()
            || member.is_unavailable()
            || scopes.all(|scope| scope.unavailable_after < scope.tally.unavailable_allowed)
    }

    fn has_room_for(&self, member: &Member<'_>, to: To) -> bool {
        self.has_slot_for(member, to) && self.may_be_unavailable(member)
    }

    fn there_is_no_room(
        &self,
        member: &Member<'_>,
        reason: &HoldReason,
        chances: &[Chance],
    ) -> Result<(), Violation> {
        let cluster = member.name.to_owned();
        let idle = |chance: &Chance| match reason {
            HoldReason::NoSlot => self.has_slot_for(member, chance.to),
            _ => self.may_be_unavailable(member),
        };
        if chances.iter().all(idle) {
            return Err(match reason {
                HoldReason::NoSlot => Violation::IdleSlot { cluster },
                _ => Violation::MayBeUnavailable { cluster },
            });
        }
        Ok(())
    }

    /// Where the plan can know when time ends a hold, it says exactly that.
    fn is_looked_at_again(
        &self,
        member: &Member<'_>,
        reason: &HoldReason,
        said: Option<Timestamp>,
    ) -> Result<(), Violation> {
        let expected = match reason {
            HoldReason::Jitter => {
                let to = self
                    .chances(member)
                    .first()
                    .map_or(To::Release, |chance| chance.to);
                Some(self.eligible_at(member, to))
            }
            HoldReason::WindowClosed => {
                let about = self.rules.windows_of(member.view);
                match windows::next_opening(&about, self.at) {
                    Some(expected) => expected,
                    None => said,
                }
            }
            HoldReason::StageWaits {
                wait: StageWait::Gate {
                    until: Some(until), ..
                },
                ..
            } => Some(*until),
            // An event ends it, or something else of which the plan may know the time.
            _ => said,
        };
        // A window that closes before that makes it another hold, and the plan may say so.
        let windows = !self.rules.windows_of(member.view).is_empty();
        let sooner = matches!(reason, HoldReason::Jitter) && windows && said < expected && said.is_some();
        if !(said == expected || sooner) || said.is_some_and(|said| said <= self.at) {
            return Err(Violation::WrongHoldRecheck {
                cluster: member.name.to_owned(),
                said,
                expected,
            });
        }
        Ok(())
    }
}
