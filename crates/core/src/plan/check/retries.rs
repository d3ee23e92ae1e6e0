//! Retries: which clusters may be admitted again, and which must be.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::facts::{CheckedState, at_target};
use super::member::CheckedMember;
use super::moment::Moment;
use super::violation::Violation;
use crate::ids::EntryName;
use crate::plan::types::{Decision, EntryView};

/// The newest request for a cluster, with its entries.
struct Request<'a> {
    at: Timestamp,
    entries: BTreeSet<&'a EntryName>,
}

impl Moment<'_> {
    /// Checks that exactly the failed clusters are retried for which a request is pending and a slot is free.
    pub(super) fn retries_are_lawful(&self) -> Result<(), Violation> {
        self.fleet.iter().try_for_each(|member| match member.decision {
            Decision::Retry {
                entries,
                requested_at,
            } => self.may_be_retried(member, entries, *requested_at),
            Decision::Failed { .. } if self.is_retry_forgotten(member) => Err(Violation::RetryForgotten {
                cluster: member.name.clone(),
            }),
            _ => Ok(()),
        })
    }

    fn may_be_retried(
        &self,
        member: &CheckedMember<'_>,
        entries: &[EntryName],
        at: Timestamp,
    ) -> Result<(), Violation> {
        let cluster = || member.name.clone();
        if !matches!(member.facts.state, CheckedState::Failed(_)) {
            return Err(Violation::RetriesNothingFailed { cluster: cluster() });
        }
        if self.stops_everybody() {
            return Err(Violation::RetriesWhileStopped { cluster: cluster() });
        }
        let request = self.request(member);
        let actual: BTreeSet<&EntryName> = entries.iter().collect();
        let is_requested = request.is_some_and(|request| {
            request.at == at && request.entries == actual && actual.len() == entries.len()
        });
        if is_requested {
            Ok(())
        } else {
            Err(Violation::RetryNotRequested { cluster: cluster() })
        }
    }

    fn is_retry_forgotten(&self, member: &CheckedMember<'_>) -> bool {
        let stage = self.stages.get(member.stage).map(|stage| &stage.scope);
        let mut scopes = [Some(&self.group), stage].into_iter().flatten();
        let is_free = scopes.all(|scope| {
            let slots = scope.tally.slots;
            slots.is_none_or(|slots| scope.in_flight_after < slots && scope.reached_after < slots)
        });
        let slots = self.input.installation_slots;
        let has_free = slots.is_none_or(|slots| self.begun() < slots);
        is_free && has_free && !self.stops_everybody() && self.request(member).is_some()
    }

    fn stops_everybody(&self) -> bool {
        let operator = &self.input.operator;
        self.input.suspended
            || self.input.membership_held
            || operator.paused.is_some()
            || operator.aborted.is_some()
    }

    fn request<'m>(&self, member: &'m CheckedMember<'_>) -> Option<Request<'m>> {
        // No entry of the release failed.
        if member.facts.removal.is_some() {
            return None;
        }
        let stage = self
            .rules
            .stages
            .get(member.stage)
            .map(|stage| stage.name.as_str());
        let mut newest = None;
        for retry in &self.input.operator.retries {
            let other_cluster = retry.cluster.as_deref().is_some_and(|of| of != member.name);
            let other_stage = retry.stage.is_some() && retry.stage.as_deref() != stage;
            if !other_cluster && !other_stage {
                newest = newest.max(Some(retry.attribution.at));
            }
        }
        let at = newest?;
        let open = |entry: &EntryView| {
            let sync = entry.observed.as_ref();
            at_target(entry)
                && sync.is_some_and(|sync| {
                    // The time of a request is truncated to the second.
                    let since = sync
                        .admitted_at
                        .map(|admitted| admitted.as_millisecond() - at.as_millisecond());
                    sync.retried_for.is_none_or(|served| served < at)
                        && since.is_none_or(|since| since < 1_000)
                })
        };
        let entries = member.view.entries.iter().filter(|(_, entry)| open(entry));
        let entries: BTreeSet<&EntryName> = entries.map(|(name, _)| name).collect();
        (!entries.is_empty()).then_some(Request { at, entries })
    }
}
