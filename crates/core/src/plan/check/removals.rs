//! Removals: which Syncs may be removed, and which must be.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::facts::CheckedState;
use super::moment::Moment;
use super::rules::share;
use super::violation::Violation;
use super::windows;
use crate::ids::{ClusterName, SyncName};
use crate::plan::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};
use crate::plan::stages::Direction;
use crate::plan::types::Decision;

/// The decision that a removal or a prune should have.
pub(super) enum Expected {
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
            (LeavingCause::GroupDeleted { .. }, _) if !self.input.deleting => return Err(wanted()),
            (LeavingCause::EntryRemoved, Some(member)) if member.view.entries.contains_key(&sync.entry) => {
                return Err(wanted());
            }
            _ if sync.removing_since.is_some() => RemovalDecision::Removing,
            (LeavingCause::GroupDeleted { stage, windows }, _) => {
                return Ok(self.of_deleted_group((name, sync), *stage, windows));
            }
            _ if self.input.membership_held => hold(RemovalHold::MembershipHeld, None),
            (
                LeavingCause::ClusterUnselected {
                    settles_at,
                    stage,
                    windows,
                },
                None,
            ) => return Ok(self.of_unselected((name, sync), *settles_at, *stage, windows)),
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

    /// Reports whether a Sync that leaves is suspended and depends on `name`, directly or by others that leave.
    fn has_suspended_dependent(&self, name: &SyncName) -> bool {
        let mut below = BTreeSet::from([name]);
        loop {
            let leaving = self.input.leaving.iter();
            let mut above = leaving.filter(|(of, sync)| {
                !below.contains(of) && sync.depends_on.iter().any(|on| below.contains(on))
            });
            match above.next() {
                None => break,
                Some((_, sync)) if sync.suspended => return true,
                Some((of, _)) => below.insert(of),
            };
        }
        false
    }

    /// Returns what a Sync depends on, directly or by others that leave.
    fn dependencies_of<'s>(&'s self, sync: &'s LeavingSync) -> BTreeSet<&'s SyncName> {
        let mut below: BTreeSet<&SyncName> = sync.depends_on.iter().collect();
        loop {
            let next = below.iter().filter_map(|name| self.input.leaving.get(*name));
            let more: BTreeSet<&SyncName> = next.flat_map(|on| &on.depends_on).collect();
            if more.is_subset(&below) {
                return below;
            }
            below.extend(more);
        }
    }

    fn of_unselected(
        &self,
        (name, sync): (&SyncName, &LeavingSync),
        settles_at: Timestamp,
        stage: usize,
        about: &[usize],
    ) -> Expected {
        let at_once = self.is_back_at_once();
        let stage = if at_once { 0 } else { stage };
        let deletes = sync.policy == DeletionPolicy::Delete;
        let reasons = [
            (RemovalHold::Settling, self.at < settles_at),
            (RemovalHold::SyncSuspended, sync.suspended),
            (
                RemovalHold::DependentStays,
                deletes && self.has_suspended_dependent(name),
            ),
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
        self.in_windows(about)
    }

    /// Returns what is expected of a Sync of a group that is being deleted: no cluster begins while one of an earlier
    /// stage has to lose something, or is losing it.
    fn of_deleted_group(
        &self,
        (name, sync): (&SyncName, &LeavingSync),
        stage: usize,
        about: &[usize],
    ) -> Expected {
        // What depends on the Sync itself is in a cycle with it.
        let stays = |on: &SyncName| {
            let on = self.input.leaving.get(on);
            on.is_some_and(|on| on.removing_since.is_none() && !self.dependencies_of(on).contains(name))
        };
        if sync.suspended && self.dependencies_of(sync).into_iter().any(stays) {
            return Expected::Exactly(hold(RemovalHold::SyncSuspended, None));
        }
        if sync.policy != DeletionPolicy::Delete {
            return Expected::Exactly(RemovalDecision::Remove);
        }
        if self.input.suspended {
            return Expected::Exactly(hold(RemovalHold::GroupSuspended, None));
        }
        if self.input.operator.paused.is_some() {
            return Expected::Exactly(hold(RemovalHold::Paused, None));
        }
        if sync.not_ready {
            return Expected::Exactly(hold(RemovalHold::ClusterNotReady, None));
        }
        self.begins_in_deleted_group(&sync.cluster, stage, about)
    }

    /// Returns what is expected of a cluster of a group that is being deleted and has something to lose.
    pub(super) fn begins_in_deleted_group(&self, cluster: &str, stage: usize, about: &[usize]) -> Expected {
        let mut in_progress = self.losing(false);
        in_progress.extend(self.pruning(false));
        if in_progress.contains(cluster) {
            return Expected::Exactly(RemovalDecision::Remove);
        }
        let is_late = |name: &SyncName| {
            let request = self.input.prunes.get(name);
            request.is_some_and(|request| !self.is_pruning(request))
        };
        let is_before = |(name, other): (&SyncName, &LeavingSync)| {
            let is_earlier =
                matches!(other.cause, LeavingCause::GroupDeleted { stage: of, .. } if of < stage);
            let waits = (other.removing_since.is_none() || is_late(name)) && !other.not_ready;
            is_earlier
                && other.policy == DeletionPolicy::Delete
                && (waits || in_progress.contains(&*other.cluster))
        };
        if self.input.leaving.iter().any(is_before) {
            let ends = self
                .input
                .leaving
                .values()
                .filter_map(|other| self.loses_until(other));
            let late = self.input.prunes.values();
            let ends = ends.chain(late.filter_map(|request| self.prunes_until(request)));
            return Expected::Exactly(hold(RemovalHold::StageNotOpen, ends.min()));
        }
        self.in_windows(about)
    }

    pub(super) fn is_back_at_once(&self) -> bool {
        self.input.rollout.direction == Direction::BackAtOnce
    }

    /// Returns what is expected of a removal or a prune that only windows and slots hold.
    pub(super) fn in_windows(&self, about: &[usize]) -> Expected {
        let all = &self.input.strategy.windows;
        let about: Vec<_> = about.iter().filter_map(|place| all.get(*place)).collect();
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
        let Some(slots) = self.slots() else {
            return Ok(());
        };
        let before = self.losing(false);
        // What begins on a cluster that deletes late is done in the slot that the cluster has.
        let late = self.pruning(false);
        let after = self.losing(true).difference(&late).count();
        let bound = slots.max(self.group.in_flight_after + before.len());
        let after = self.group.in_flight_after + after;
        // Those in flight are bounded by a rule of their own.
        if after > bound {
            return Err(Violation::TooManyLeave { after, bound });
        }
        Ok(())
    }

    /// Reports whether the cluster could begin to leave in addition to what the plan begins.
    fn may_leave_now(&self, cluster: &ClusterName) -> bool {
        let losing = self.losing(true);
        let used = self.group.in_flight_after + losing.len() + self.pruning(true).len();
        let free = |slots| used < slots;
        losing.contains(cluster.as_str()) || self.slots().is_none_or(free)
    }

    /// Returns the slots of the group. A group that is being deleted selects no cluster: its size is that of the
    /// clusters that lose something.
    pub(super) fn slots(&self) -> Option<usize> {
        if !self.input.deleting {
            return self.group.tally.slots;
        }
        let leaving = self.input.leaving.values();
        let losing = leaving.filter(|sync| sync.policy == DeletionPolicy::Delete);
        let clusters: BTreeSet<&ClusterName> = losing.map(|sync| &sync.cluster).collect();
        Some(share(self.input.strategy.limits.max_concurrency, clusters.len(), 99).max(1))
    }

    /// Returns until when the removal of a Sync takes the slot of its cluster; `None`: it takes none.
    fn loses_until(&self, sync: &LeavingSync) -> Option<Timestamp> {
        // Nothing is in progress on a cluster of a deleted group that is not ready.
        let is_away = self.input.deleting && sync.not_ready;
        if sync.cause == LeavingCause::EntryRemoved || sync.policy != DeletionPolicy::Delete || is_away {
            return None;
        }
        let limits = &self.input.strategy.limits;
        let until = self
            .input
            .clock_jumps
            .due(sync.removing_since?, limits.progress_deadline)?;
        (until > self.at).then_some(until)
    }

    /// Returns the clusters that lose their Syncs because they left; if `planned`, also those that this plan begins
    /// with.
    pub(super) fn losing(&self, planned: bool) -> BTreeSet<&str> {
        let begins = |name: &SyncName, sync: &LeavingSync| {
            planned
                && sync.removing_since.is_none()
                && sync.cause != LeavingCause::EntryRemoved
                && sync.policy == DeletionPolicy::Delete
                && self.plan.removals.get(name) == Some(&RemovalDecision::Remove)
        };
        let leaving = self.input.leaving.iter();
        let losing = leaving.filter(|(name, sync)| self.loses_until(sync).is_some() || begins(name, sync));
        losing.map(|(_, sync)| &*sync.cluster).collect()
    }
}

fn hold(reason: RemovalHold, recheck_at: Option<Timestamp>) -> RemovalDecision {
    RemovalDecision::Hold { reason, recheck_at }
}
