//! Removals: which Syncs may be removed, and which must be.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::facts::CheckedState;
use super::moment::Moment;
use super::violation::Violation;
use super::windows;
use crate::ids::{ClusterName, SyncName};
use crate::plan::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};
use crate::plan::stages::Direction;
use crate::plan::types::Decision;

/// The decision that a removal should have.
enum Expected {
    /// The decision is this one.
    Exactly(RemovalDecision),
    /// Removed, or held until a slot is free.
    InASlot,
    /// Held until a window opens, whose time is unknown here.
    ClosedWindow,
    /// Each of these: whether a window is open is unknown here.
    AnyWindow,
}

impl Moment<'_> {
    /// Checks that every Sync that leaves has one decision, which is true at this time.
    pub(super) fn removals_are_lawful(&self) -> Result<(), Violation> {
        let (leaving, decided) = (&self.input.leaving, &self.plan.removals);
        if let Some(sync) = leaving.keys().find(|name| !decided.contains_key(*name)) {
            return Err(Violation::RemovalUndecided { sync: sync.clone() });
        }
        for (name, decision) in decided {
            let Some(sync) = leaving.get(name) else {
                return Err(Violation::RemovesWanted { sync: name.clone() });
            };
            self.removal_is_true(name, sync, decision)?;
        }
        self.leaving_clusters_are_bounded()
    }

    fn removal_is_true(
        &self,
        name: &SyncName,
        sync: &LeavingSync,
        actual: &RemovalDecision,
    ) -> Result<(), Violation> {
        let wrong = |expected| {
            Err(Violation::WrongRemoval {
                sync: name.clone(),
                actual: *actual,
                expected,
            })
        };
        let no_slot = matches!(
            actual,
            RemovalDecision::Hold {
                reason: RemovalHold::NoSlot,
                ..
            }
        );
        let closed = matches!(
            actual,
            RemovalDecision::Hold {
                reason: RemovalHold::WindowClosed,
                ..
            }
        );
        match self.removal(name, sync)? {
            Expected::Exactly(expected) if *actual != expected => wrong(expected),
            Expected::Exactly(_) => Ok(()),
            Expected::ClosedWindow if closed => Ok(()),
            Expected::ClosedWindow => wrong(hold(RemovalHold::WindowClosed, None)),
            Expected::AnyWindow if closed => Ok(()),
            Expected::InASlot | Expected::AnyWindow => match actual {
                RemovalDecision::Remove => Ok(()),
                _ if no_slot && !self.may_leave_now(&sync.cluster) => Ok(()),
                _ if no_slot => Err(Violation::RemovalIdleSlot { sync: name.clone() }),
                _ => wrong(RemovalDecision::Remove),
            },
        }
    }

    fn removal(&self, name: &SyncName, sync: &LeavingSync) -> Result<Expected, Violation> {
        let wanted = || Violation::RemovesWanted { sync: name.clone() };
        let member = self.fleet.iter().find(|member| *member.name == sync.cluster);
        let expected = match (&sync.cause, member) {
            (LeavingCause::ClusterUnselected { .. }, Some(_)) => return Err(wanted()),
            (LeavingCause::EntryRemoved, Some(member)) if member.view.entries.contains_key(&sync.entry) => {
                return Err(wanted());
            }
            _ if sync.removing_since.is_some() => RemovalDecision::Removing,
            _ if self.input.membership_held => hold(RemovalHold::MembershipHeld, None),
            (
                LeavingCause::ClusterUnselected {
                    settles_at,
                    stage,
                    windows,
                },
                None,
            ) => return Ok(self.of_unselected(sync, *settles_at, *stage, windows)),
            (LeavingCause::EntryRemoved, _) if sync.approval.is_some() => {
                hold(RemovalHold::AutomaticRollback, None)
            }
            (LeavingCause::EntryRemoved, Some(member)) => {
                let has_all = member.facts.removal.is_some();
                let is_held = matches!(
                    member.facts.state,
                    CheckedState::Obstructed | CheckedState::Startable { .. }
                );
                match member.decision {
                    Decision::Remove { entries } if entries.contains(&sync.entry) => RemovalDecision::Remove,
                    _ if has_all && is_held => hold(RemovalHold::ClusterWaits, None),
                    _ => hold(RemovalHold::ClusterNotDone, None),
                }
            }
            (LeavingCause::EntryRemoved, None) => hold(RemovalHold::ClusterNotDone, None),
        };
        Ok(Expected::Exactly(expected))
    }

    fn of_unselected(
        &self,
        sync: &LeavingSync,
        settles_at: Timestamp,
        stage: usize,
        about: &[usize],
    ) -> Expected {
        let at_once = self.input.rollout.direction == Direction::BackAtOnce;
        let stage = if at_once { 0 } else { stage };
        let deletes = sync.policy == DeletionPolicy::Delete;
        let reasons = [
            (RemovalHold::Settling, self.at < settles_at),
            (RemovalHold::SyncSuspended, sync.suspended),
            (RemovalHold::GroupSuspended, self.input.suspended),
            (RemovalHold::Paused, self.input.operator.paused.is_some()),
            (RemovalHold::ClusterNotReady, deletes && sync.not_ready),
            (
                RemovalHold::StageNotOpen,
                deletes && !self.fleet.is_empty() && !self.is_open(stage),
            ),
            (
                RemovalHold::DeletionBudget,
                deletes && sync.budget_until.is_some_and(|until| self.at < until),
            ),
        ];
        if let Some((reason, _)) = reasons.into_iter().find(|(_, applies)| *applies) {
            let until = match reason {
                RemovalHold::Settling => Some(settles_at),
                RemovalHold::DeletionBudget => sync.budget_until,
                _ => None,
            };
            return Expected::Exactly(hold(reason, until));
        }
        // Objects that stay are not taken away.
        if !deletes {
            return Expected::Exactly(RemovalDecision::Remove);
        }
        let about: Vec<_> = match at_once {
            true => Vec::new(),
            false => {
                let all = &self.input.strategy.windows;
                about.iter().filter_map(|place| all.get(*place)).collect()
            }
        };
        match windows::are_open(&about, self.at) {
            Some(true) => Expected::InASlot,
            None => Expected::AnyWindow,
            Some(false) => match windows::next_opening(&about, self.at) {
                Some(until) => Expected::Exactly(hold(RemovalHold::WindowClosed, until)),
                None => Expected::ClosedWindow,
            },
        }
    }

    /// Checks that the clusters that leave have slots beside those in flight, unless as many had them before.
    fn leaving_clusters_are_bounded(&self) -> Result<(), Violation> {
        let Some(slots) = self.group.tally.slots else {
            return Ok(());
        };
        let before = self.losing(false);
        let after = self.losing(true);
        let bound = slots.max(self.group.in_flight_after + before.len());
        let after = self.group.in_flight_after + after.len();
        // Those in flight are bounded by a rule of their own.
        if after > bound {
            return Err(Violation::TooManyLeave { after, bound });
        }
        Ok(())
    }

    /// Reports whether the cluster could begin to leave in addition to what the plan begins.
    fn may_leave_now(&self, cluster: &ClusterName) -> bool {
        let losing = self.losing(true);
        let free = |slots| self.group.in_flight_after + losing.len() < slots;
        losing.contains(cluster.as_str()) || self.group.tally.slots.is_none_or(free)
    }

    /// Returns the clusters that lose their Syncs because they left; if `planned`, also those that this plan begins
    /// with.
    fn losing(&self, planned: bool) -> BTreeSet<&str> {
        let limits = &self.input.strategy.limits;
        let leaving = self.input.leaving.iter();
        let unselected = leaving.filter(|(_, sync)| {
            sync.cause != LeavingCause::EntryRemoved && sync.policy == DeletionPolicy::Delete
        });
        let losing = unselected.filter(|(name, sync)| match sync.removing_since {
            Some(since) => {
                let deadline = self.input.clock_jumps.due(since, limits.progress_deadline);
                deadline.is_some_and(|deadline| deadline > self.at)
            }
            None => planned && self.plan.removals.get(*name) == Some(&RemovalDecision::Remove),
        });
        losing.map(|(_, sync)| &*sync.cluster).collect()
    }
}

fn hold(reason: RemovalHold, recheck_at: Option<Timestamp>) -> RemovalDecision {
    RemovalDecision::Hold { reason, recheck_at }
}
