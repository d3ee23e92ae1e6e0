//! Removals: which Syncs may be removed, and which must be.

use super::facts::State;
use super::moment::Moment;
use super::violation::Violation;
use crate::plan::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};

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
            let expected = self.removal(name, sync)?;
            if *decision != expected {
                return Err(Violation::WrongRemoval {
                    sync: name.clone(),
                    actual: *decision,
                    expected,
                });
            }
        }
        Ok(())
    }

    fn removal(&self, name: &str, sync: &LeavingSync) -> Result<RemovalDecision, Violation> {
        let wanted = || Violation::RemovesWanted {
            sync: name.to_owned(),
        };
        let member = self.fleet.iter().find(|member| member.name == sync.cluster);
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        let decision = match (sync.cause, member) {
            (LeavingCause::ClusterUnselected { .. }, Some(_)) => return Err(wanted()),
            (LeavingCause::EntryRemoved, Some(member)) if member.view.entries.contains_key(&sync.entry) => {
                return Err(wanted());
            }
            _ if self.input.membership_held => hold(RemovalHold::MembershipHeld, None),
            (LeavingCause::ClusterUnselected { settles_at }, None) if self.at < settles_at => {
                hold(RemovalHold::Settling, Some(settles_at))
            }
            (LeavingCause::ClusterUnselected { .. }, None) => RemovalDecision::Remove,
            (LeavingCause::EntryRemoved, Some(member)) if matches!(member.facts.state, State::Done) => {
                RemovalDecision::Remove
            }
            (LeavingCause::EntryRemoved, _) => hold(RemovalHold::ClusterNotDone, None),
        };
        Ok(decision)
    }
}
