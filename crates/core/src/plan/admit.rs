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
                deadline: *deadline,
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
            Class::Startable { entries } => match blocked(input, tally, name) {
                Some(hold) => hold,
                None => {
                    candidates.push(Candidate {
                        name,
                        entries,
                        keeps_slot: standing.holds_slot,
                        eligible: eligible_at(input, name),
                    });
                    continue;
                }
            },
        };
        decisions.insert(name.to_owned(), decision);
    }
    decisions.extend(fill_slots(candidates, tally));
    decisions
}

/// A cluster that only needs a slot.
struct Candidate<'a> {
    name: &'a str,
    entries: &'a [String],
    /// It is in flight for an older release and goes on to this one in the slot it has.
    keeps_slot: bool,
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

fn fill_slots(mut candidates: Vec<Candidate<'_>>, tally: Tally) -> Vec<(String, Decision)> {
    candidates.sort_by_key(|candidate| (!candidate.keeps_slot, candidate.eligible, candidate.name));
    let mut free = tally.slots.saturating_sub(tally.in_flight);
    candidates
        .into_iter()
        .map(|candidate| {
            let decision = if candidate.keeps_slot {
                Decision::Start {
                    entries: candidate.entries.to_vec(),
                }
            } else if free > 0 {
                free -= 1;
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
        .collect()
}
