//! Which of the clusters that could start do start.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::classify::{Class, Standing};
use super::types::{Decision, HoldReason, PlanInput, Tally};
use crate::digest::{hash64, spread};

/// One decision per cluster, in three steps: what each cluster's own standing says, then who waits for the
/// whole group, then who gets the free slots, in the order of eligibility.
pub(super) fn admit(
    input: &PlanInput,
    standings: &BTreeMap<&str, Standing>,
    tally: Tally,
) -> BTreeMap<String, Decision> {
    let mut decisions = BTreeMap::new();
    let mut candidates = Vec::new();
    for (&name, standing) in standings {
        let decision = match &standing.class {
            Class::Done => Decision::Done,
            Class::InFlight { deadline, lost } => Decision::InFlight {
                deadline: Some(*deadline),
                lost: *lost,
            },
            Class::Failed(failed) => Decision::Failed {
                reason: failed.reason.clone(),
                retry_at: failed.retry_at,
            },
            Class::Held(reason) => Decision::Hold {
                reason: reason.clone(),
                recheck_at: None,
            },
            Class::Startable { entries, begun } => match blocked(input, tally, name) {
                Some(hold) => hold,
                None => {
                    candidates.push(Candidate {
                        name,
                        entries,
                        begun: *begun,
                        has_slot: standing.slot.is_some(),
                        eligible: eligible_at(input, name),
                    });
                    continue;
                }
            },
        };
        decisions.insert(name.to_owned(), decision);
    }
    let reached = standings
        .values()
        .filter(|standing| standing.is_reached())
        .count();
    decisions.extend(fill_slots(candidates, tally, reached));
    decisions
}

/// A cluster that only needs a slot.
struct Candidate<'a> {
    name: &'a str,
    entries: &'a [String],
    /// Its admission was begun before.
    begun: bool,
    /// It is in flight and goes on in the slot it has.
    has_slot: bool,
    eligible: Timestamp,
}

/// What keeps every startable cluster back, or this one for now. The order is that of what a person would have
/// to change first.
fn blocked(input: &PlanInput, tally: Tally, name: &str) -> Option<Decision> {
    if input.suspended {
        return Some(Decision::Hold {
            reason: HoldReason::GroupSuspended,
            recheck_at: None,
        });
    }
    if input.membership_held {
        return Some(Decision::Hold {
            reason: HoldReason::MembershipHeld,
            recheck_at: None,
        });
    }
    if tally.too_many_failures() {
        return Some(Decision::Hold {
            reason: HoldReason::TooManyFailures,
            recheck_at: None,
        });
    }
    let eligible = eligible_at(input, name);
    (eligible > input.now).then_some(Decision::Hold {
        reason: HoldReason::Jitter,
        recheck_at: Some(eligible),
    })
}

/// When a cluster's share of the jitter is over. A hash of cluster and release: it needs no memory, and the
/// same cluster is not always the first.
fn eligible_at(input: &PlanInput, name: &str) -> Timestamp {
    let uid = input
        .clusters
        .get(name)
        .map_or(name, |cluster| cluster.uid.as_str());
    let delay = spread(input.limits.jitter, hash64(&[uid, &input.release]));
    input.started_at.checked_add(delay).unwrap_or(input.started_at)
}

/// Starts first what was begun, then what goes on from older work in the slot it has, then others.
///
/// Two bounds hold at once: no more than `slots` clusters are in flight, and this release has `reached` no more than
/// `slots` that are not through with it. The second matters where more clusters are at work on older releases than
/// there are slots (the bound was lowered, or lost clusters came back): they all have a slot, but it is the new
/// release that may be bad.
fn fill_slots(
    mut candidates: Vec<Candidate<'_>>,
    tally: Tally,
    reached: usize,
) -> impl Iterator<Item = (String, Decision)> {
    candidates.sort_by_key(|c| (!c.begun, !c.has_slot, c.eligible, c.name));
    let mut in_flight = tally.in_flight;
    let mut reached = reached;
    candidates.into_iter().map(move |candidate| {
        let has_slot = candidate.has_slot || in_flight < tally.slots;
        let may_spread = candidate.begun || reached < tally.slots;
        let decision = if has_slot && may_spread {
            in_flight += usize::from(!candidate.has_slot);
            reached += usize::from(!candidate.begun);
            Decision::Start {
                entries: candidate.entries.to_vec(),
            }
        } else {
            Decision::Hold {
                reason: HoldReason::NoSlot,
                recheck_at: None,
            }
        };
        (candidate.name.to_owned(), decision)
    })
}
