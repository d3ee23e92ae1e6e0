//! Prunes after the attempt that the group admitted: which may begin, and which must.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::moment::Moment;
use super::removals::Expected;
use super::violation::Violation;
use crate::ids::SyncName;
use crate::plan::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};
use crate::plan::prune_request::PruneRequest;
use crate::plan::types::Reach;

impl Moment<'_> {
    /// Checks that every prune that is requested has one decision, which is true at this time.
    pub(super) fn prunes_are_lawful(&self) -> Result<(), Violation> {
        let (requests, decided) = (&self.input.prunes, &self.plan.prunes);
        let unknown = |names: &mut dyn Iterator<Item = &SyncName>| names.next().cloned();
        if let Some(sync) = unknown(&mut requests.keys().filter(|name| !decided.contains_key(*name))) {
            return Err(Violation::PruneUndecided { sync });
        }
        if let Some(sync) = unknown(&mut decided.keys().filter(|name| !requests.contains_key(*name))) {
            return Err(Violation::PruneNotRequested { sync });
        }
        for (name, request) in requests {
            if let Some(actual) = decided.get(name) {
                self.prune_is_true(name, request, *actual)?;
            }
        }
        self.prunes_are_bounded()
    }

    fn prune_is_true(
        &self,
        name: &SyncName,
        request: &PruneRequest,
        actual: RemovalDecision,
    ) -> Result<(), Violation> {
        let wrong = |expected| {
            Err(Violation::WrongPrune {
                sync: name.clone(),
                actual,
                expected,
            })
        };
        let held = |by: RemovalHold| matches!(actual, RemovalDecision::Hold { reason, .. } if reason == by);
        let closed = RemovalDecision::Hold {
            reason: RemovalHold::WindowClosed,
            recheck_at: None,
        };
        match self.prune(name, request) {
            Expected::Exactly(expected) if actual != expected => wrong(expected),
            Expected::Exactly(_) => Ok(()),
            Expected::ClosedWindow | Expected::AnyWindow if held(RemovalHold::WindowClosed) => Ok(()),
            Expected::ClosedWindow => wrong(closed),
            Expected::InASlot | Expected::AnyWindow => match actual {
                RemovalDecision::Remove => Ok(()),
                _ if !held(RemovalHold::NoSlot) => wrong(RemovalDecision::Remove),
                _ if self.may_prune_now(request) => Err(Violation::PruneIdleSlot { sync: name.clone() }),
                _ => Ok(()),
            },
        }
    }

    fn prune(&self, name: &SyncName, request: &PruneRequest) -> Expected {
        if self.is_pruning(request) {
            return Expected::Exactly(RemovalDecision::Removing);
        }
        let place = self.place(name, request);
        let leaving = self.input.leaving.get(name).map(|sync| &sync.cause);
        // A group that is being deleted has no release any more that could be aborted.
        let is_of_release =
            !self.input.deleting && matches!(leaving, None | Some(LeavingCause::EntryRemoved));
        let reasons = [
            (RemovalHold::MembershipHeld, self.input.membership_held),
            (RemovalHold::GroupSuspended, self.input.suspended),
            (RemovalHold::Paused, self.input.operator.paused.is_some()),
            (
                RemovalHold::Aborted,
                is_of_release && self.input.operator.aborted.is_some(),
            ),
            (RemovalHold::ClusterNotReady, place.is_none()),
        ];
        let hold = |reason| {
            Expected::Exactly(RemovalDecision::Hold {
                reason,
                recheck_at: None,
            })
        };
        if let Some((reason, _)) = reasons.into_iter().find(|(_, applies)| *applies) {
            return hold(reason);
        }
        let (stage, windows) = place.unwrap_or_default();
        if self.input.deleting {
            return self.begins_in_deleted_group(&request.cluster, stage, windows);
        }
        let at_once = self.is_back_at_once();
        if !self.fleet.is_empty() && !self.is_open(if at_once { 0 } else { stage }) {
            return hold(RemovalHold::StageNotOpen);
        }
        self.in_windows(windows)
    }

    /// Returns the stage and the windows of what deletes late; `None`: it may not, or its cluster is not ready.
    fn place(&self, name: &SyncName, request: &PruneRequest) -> Option<(usize, &[usize])> {
        let leaving = self.input.leaving.get(name);
        let goes = |sync: &LeavingSync| sync.removing_since.is_some() && !sync.not_ready;
        match leaving.map(|sync| &sync.cause) {
            Some(LeavingCause::GroupDeleted { stage, windows }) => {
                let deletes = leaving.is_some_and(|sync| sync.policy == DeletionPolicy::Delete && goes(sync));
                deletes.then_some((*stage, windows))
            }
            Some(LeavingCause::ClusterUnselected { stage, windows, .. }) => {
                leaving.is_some_and(goes).then_some((*stage, windows))
            }
            Some(LeavingCause::EntryRemoved) | None => {
                let member = self.fleet.iter().find(|member| *member.name == request.cluster)?;
                (member.view.reach == Reach::Ready).then_some((member.stage, &*member.view.windows))
            }
        }
    }

    /// Checks that the clusters that prune beside the rollout have slots, unless as many had them before.
    fn prunes_are_bounded(&self) -> Result<(), Violation> {
        let Some(slots) = self.slots() else {
            return Ok(());
        };
        let beside = |planned| self.losing(planned).len() + self.pruning(planned).len();
        let bound = slots.max(self.group.in_flight_after + beside(false));
        let after = self.group.in_flight_after + beside(true);
        if after > bound {
            return Err(Violation::TooManyPrune { after, bound });
        }
        Ok(())
    }

    /// Reports whether a prune could begin in addition to what the plan begins.
    fn may_prune_now(&self, request: &PruneRequest) -> bool {
        let pruning = self.pruning(true);
        let losing = self.losing(true);
        let used = self.group.in_flight_after + losing.len() + pruning.len();
        self.has_slot_after(&request.cluster)
            || losing.contains(&*request.cluster)
            || pruning.contains(&*request.cluster)
            || self.slots().is_none_or(|slots| used < slots)
    }

    /// Returns the clusters that prune beside the rollout and do not lose a Sync in a slot; if `planned`, also those
    /// that this plan begins with.
    pub(super) fn pruning(&self, planned: bool) -> BTreeSet<&str> {
        let requests = self.input.prunes.iter();
        let begins = |name| planned && self.plan.prunes.get(name) == Some(&RemovalDecision::Remove);
        let pruning =
            requests.filter(|(name, request)| self.prunes_until(request).is_some() || begins(*name));
        let clusters = pruning.map(|(_, request)| &*request.cluster);
        let losing = self.losing(planned);
        clusters
            .filter(|cluster| !self.has_slot_after(cluster) && !losing.contains(cluster))
            .collect()
    }

    fn has_slot_after(&self, cluster: &str) -> bool {
        let member = self.fleet.iter().find(|member| **member.name == *cluster);
        member.is_some_and(|member| member.starts() || member.is_retried() || member.facts.holds_slot())
    }

    /// Reports whether a deletion goes on that a plan allowed.
    pub(super) fn is_pruning(&self, request: &PruneRequest) -> bool {
        request.allowed_at.is_some() && (request.begun || self.prunes_until(request).is_some())
    }

    pub(super) fn prunes_until(&self, request: &PruneRequest) -> Option<Timestamp> {
        let limits = &self.input.strategy.limits;
        let jumps = &self.input.clock_jumps;
        let until = jumps.due(request.allowed_at?, limits.progress_deadline)?;
        (until > self.at).then_some(until)
    }
}
