//! Which Syncs are removed: those of clusters that left the group, and of entries that left its spec.

use std::collections::BTreeMap;

use super::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};
use super::types::{Decision, PlanInput};

/// Returns the decision for every Sync that leaves.
pub(super) fn removals(
    input: &PlanInput,
    decisions: &BTreeMap<String, Decision>,
) -> BTreeMap<String, RemovalDecision> {
    let leaving = input.leaving.iter();
    leaving
        .map(|(name, sync)| (name.clone(), removal(input, decisions, sync)))
        .collect()
}

fn removal(input: &PlanInput, decisions: &BTreeMap<String, Decision>, sync: &LeavingSync) -> RemovalDecision {
    let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
    if input.membership_held {
        return hold(RemovalHold::MembershipHeld, None);
    }
    match sync.cause {
        LeavingCause::ClusterUnselected { settles_at } if settles_at > input.now => {
            hold(RemovalHold::Settling, Some(settles_at))
        }
        LeavingCause::EntryRemoved if decisions.get(&sync.cluster) != Some(&Decision::Done) => {
            hold(RemovalHold::ClusterNotDone, None)
        }
        LeavingCause::ClusterUnselected { .. } | LeavingCause::EntryRemoved => RemovalDecision::Remove,
    }
}
