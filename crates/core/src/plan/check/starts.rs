//! The rules for starts, whatever the state of the cluster.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::facts::{self, CheckedState};
use super::member::CheckedMember;
use super::moment::Moment;
use super::violation::Violation;
use super::windows;
use crate::ids::{ClusterName, EntryName};
use crate::plan::types::{AdmittedRelease, Decision, HoldReason, Reach};

/// The place of a cluster in the order of starts; smaller ones start first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Turn<'m> {
    is_new: bool,
    needs_slot: bool,
    eligible_at: Timestamp,
    name: &'m ClusterName,
}

impl Moment<'_> {
    pub(super) fn starts_are_lawful(&self) -> Result<(), Violation> {
        for member in &self.fleet {
            if let Decision::Start { entries, to } = member.decision {
                self.may_be_started(member)?;
                match to {
                    AdmittedRelease::Release => self.takes_the_release(member, entries)?,
                    AdmittedRelease::LastKnownGood => self.takes_the_last_known_good(member, entries)?,
                }
                self.group_may_start(member, *to)?;
            }
            if let Decision::Remove { entries } = member.decision {
                self.may_be_started(member)?;
                self.loses_the_rest(member, entries)?;
                self.group_may_start(member, AdmittedRelease::Release)?;
            }
        }
        Ok(())
    }

    /// Checks what concerns the cluster alone.
    fn may_be_started(&self, member: &CheckedMember<'_>) -> Result<(), Violation> {
        let cluster = member.name.clone();
        if member.is_held_back() {
            return Err(Violation::StartsSkipped { cluster });
        }
        for (entry, found) in &member.view.entries {
            let (cluster, entry) = (cluster.clone(), entry.clone());
            if found.wanted.is_err() {
                return Err(Violation::StartsInvalid { cluster, entry });
            }
            if found.observed.as_ref().is_some_and(|sync| sync.suspended) {
                return Err(Violation::StartsSuspendedSync { cluster, entry });
            }
        }
        if member.view.reach != Reach::Ready {
            return Err(Violation::StartsUnready { cluster });
        }
        Ok(())
    }

    /// Checks a start with the release: exactly the entries that are not at their target, in an open stage.
    fn takes_the_release(&self, member: &CheckedMember<'_>, entries: &[EntryName]) -> Result<(), Violation> {
        let mut named = BTreeSet::new();
        for entry in entries {
            let (cluster, again) = (member.name.clone(), !named.insert(entry));
            let entry = entry.clone();
            match member.view.entries.get(&entry) {
                None => return Err(Violation::StartsUnknownEntry { cluster, entry }),
                Some(_) if again => return Err(Violation::StartsEntryTwice { cluster, entry }),
                Some(found) if facts::at_target(found) => {
                    return Err(Violation::StartsEntryAgain { cluster, entry });
                }
                Some(_) => {}
            }
        }
        let cluster = member.name.clone();
        if entries.is_empty() {
            return Err(Violation::StartsNothing { cluster });
        }
        for (entry, found) in &member.view.entries {
            if !facts::at_target(found) && !named.contains(entry) {
                let entry = entry.clone();
                return Err(Violation::LeavesEntryOut { cluster, entry });
            }
        }
        if !self.is_open(member.stage) {
            let stage = member.stage;
            return Err(Violation::StartsBeforeStage { cluster, stage });
        }
        Ok(())
    }

    /// Checks the removal of entries: exactly those that the release does not have and whose removal has not begun,
    /// once the others are done, in an open stage.
    fn loses_the_rest(&self, member: &CheckedMember<'_>, entries: &[EntryName]) -> Result<(), Violation> {
        let cluster = member.name.clone();
        let Some(removal) = &member.facts.removal else {
            return Err(Violation::RemovesTooEarly { cluster });
        };
        if let Some(entry) = removal.suspended.first() {
            let entry = entry.clone();
            return Err(Violation::StartsSuspendedSync { cluster, entry });
        }
        let actual: BTreeSet<&EntryName> = entries.iter().collect();
        let expected: BTreeSet<&EntryName> = removal.waiting.iter().collect();
        if actual != expected || actual.len() != entries.len() || entries.is_empty() {
            return Err(Violation::WrongRemovedEntries {
                cluster,
                expected: removal.waiting.clone(),
            });
        }
        if !self.is_open(member.stage) {
            let stage = member.stage;
            return Err(Violation::StartsBeforeStage { cluster, stage });
        }
        Ok(())
    }

    /// Checks a start with the last known good release: only a new cluster whose stage is not open.
    fn takes_the_last_known_good(
        &self,
        member: &CheckedMember<'_>,
        entries: &[EntryName],
    ) -> Result<(), Violation> {
        let cluster = member.name.clone();
        if self.is_open(member.stage) {
            return Err(Violation::StartsWithKnownGoodInOpenStage { cluster });
        }
        let actual: BTreeSet<&EntryName> = entries.iter().collect();
        let expected: BTreeSet<&EntryName> = member.facts.known_good.iter().collect();
        if expected.is_empty() {
            return Err(Violation::NotNew { cluster });
        }
        if actual != expected || actual.len() != entries.len() {
            return Err(Violation::WrongKnownGoodEntries {
                cluster,
                expected: member.facts.known_good.clone(),
            });
        }
        Ok(())
    }

    fn group_may_start(&self, member: &CheckedMember<'_>, to: AdmittedRelease) -> Result<(), Violation> {
        let cluster = member.name.clone();
        let operator = &self.input.operator;
        if self.input.suspended {
            return Err(Violation::StartsWhileSuspended { cluster });
        }
        if operator.paused.is_some() {
            return Err(Violation::StartsWhilePaused { cluster });
        }
        if operator.aborted.is_some() {
            return Err(Violation::StartsWhileAborted { cluster });
        }
        if self.input.membership_held {
            return Err(Violation::StartsWhileMembershipHeld { cluster });
        }
        if let Some((stage, scope)) = self.overdrawn().next() {
            return Err(Violation::StartsBeyondBudget {
                cluster,
                stage,
                failed: scope.tally.failed,
                allowed: scope.tally.failures_allowed,
            });
        }
        if let Some(stage) = self.failed_gates().next() {
            return Err(Violation::StartsBehindFailedGate { cluster, stage });
        }
        // An admission that has begun is completed.
        let begun = matches!(member.facts.state, CheckedState::Startable { interrupted: true });
        let about = self.rules.windows_of(member.view);
        if !begun && windows::are_open(&about, self.at) == Some(false) {
            return Err(Violation::StartsInClosedWindow { cluster });
        }
        let eligible = self.eligible_at(member, to);
        if eligible > self.at {
            return Err(Violation::StartsBeforeJitter { cluster, eligible });
        }
        Ok(())
    }

    /// Returns when the jitter of a cluster is over.
    pub(super) fn eligible_at(&self, member: &CheckedMember<'_>, to: AdmittedRelease) -> jiff::Timestamp {
        let opening = self.stages.get(member.stage).and_then(|stage| stage.opening);
        let started_at = self.input.rollout.started_at;
        let from = match to {
            AdmittedRelease::Release => opening.unwrap_or(started_at),
            AdmittedRelease::LastKnownGood => started_at,
        };
        member.eligible_at(self.input, self.rules, from)
    }

    /// Checks the order of starts: a cluster of the same stage that precedes a started one and needs no more is started
    /// too.
    pub(super) fn starts_are_in_order(&self) -> Result<(), Violation> {
        let starts = || self.fleet.iter().filter(|member| member.starts_release());
        for waiting in &self.fleet {
            let for_room = matches!(
                waiting.decision,
                Decision::Hold {
                    reason: HoldReason::NoSlot
                        | HoldReason::TooManyUnavailable
                        | HoldReason::InstallationLimit,
                    ..
                }
            );
            if !for_room || !self.is_open(waiting.stage) {
                continue;
            }
            let needs_no_more = |other: &&CheckedMember<'_>| {
                other.stage == waiting.stage
                    && waiting.is_unavailable() >= other.is_unavailable()
                    && waiting.facts.holds_slot() >= other.facts.holds_slot()
                    && waiting.facts.is_reached() >= other.facts.is_reached()
            };
            let turn = self.turn(waiting);
            if let Some(other) = starts()
                .filter(needs_no_more)
                .find(|other| turn < self.turn(other))
            {
                return Err(Violation::OutOfTurn {
                    cluster: other.name.clone(),
                    before: waiting.name.clone(),
                });
            }
        }
        Ok(())
    }

    fn turn<'m>(&self, member: &'m CheckedMember<'_>) -> Turn<'m> {
        Turn {
            is_new: !member.facts.is_reached(),
            needs_slot: !member.facts.holds_slot(),
            eligible_at: self.eligible_at(member, AdmittedRelease::Release),
            name: member.name,
        }
    }
}
