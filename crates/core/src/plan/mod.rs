//! The rollout plan: from what is wanted and what is observed to one decision per cluster.
//!
//! [`plan`] is a pure function in three steps that read top to bottom: *classify* each cluster by itself
//! (`classify`), count what is in flight and what has failed, then *start* what may start within the limits
//! (`admit`). Every cluster gets exactly one [`Decision`]; every hold has a reason, and the plan the time at
//! which time alone changes something.
//!
//! Five rules carry the safety:
//! - **Done is a pair** of cluster and target (I1). Nothing here looks at health of another target.
//! - **A slot is held from admission to done**, to failure, or to `progressDeadline`, whichever release the work is
//!   for; a cluster that became unreachable after it was admitted keeps its slot until then and counts as failed
//!   afterwards (`LostAfterAdmission`).
//! - **A release spreads no wider than the slots**: it is never under way on more clusters than `maxConcurrency`,
//!   however many were busy with older releases when it came. So a revision that cuts its clusters off stops after
//!   at most `maxConcurrency + maxFailures` of them.
//! - **A cluster in backoff holds no slot but counts as failed**, from its first failed attempt on and until it
//!   recovers; to become unreachable is not to recover. Otherwise a revision that every cluster refuses would march
//!   through the fleet, one slot at a time.
//! - **What is missing comes before what failed**: a ready cluster that lacks an entry of the release is started
//!   with it, whatever became of its other entries, for they may have failed for want of it.

mod admit;
pub mod check;
mod classify;
mod report;
mod types;

use std::collections::BTreeMap;

use classify::{Class, Slot, Standing};
use jiff::Timestamp;
pub use report::{Counts, Report};
pub use types::*;

/// Decides for every cluster of `input` what happens now.
pub fn plan(input: &PlanInput) -> Plan {
    let standings: BTreeMap<&str, Standing> = input
        .clusters
        .iter()
        .map(|(name, cluster)| (name.as_str(), classify::classify(input, cluster)))
        .collect();

    let total = standings.len();
    let tally = Tally {
        slots: input.limits.max_concurrency.of_rounded_up(total).max(1),
        in_flight: standings
            .values()
            .filter(|standing| standing.slot.is_some())
            .count(),
        failed: standings
            .values()
            .filter(|standing| matches!(standing.class, Class::Failed(_)))
            .count(),
        failures_allowed: input.limits.max_failures.of_rounded_down(total),
    };

    let decisions = admit::admit(input, &standings, tally);
    let recheck_at = decisions
        .values()
        .filter_map(Decision::recheck_at)
        .chain(next_free_slot(&standings, &decisions, tally))
        .min();
    Plan {
        decisions,
        tally,
        recheck_at,
    }
}

/// When a cluster that waits for a slot gets one because leftover work elsewhere runs out of time. `None`: nobody
/// waits for that. The deadlines of this release are not meant; its own decisions carry them.
fn next_free_slot(
    standings: &BTreeMap<&str, Standing>,
    decisions: &BTreeMap<String, Decision>,
    tally: Tally,
) -> Option<Timestamp> {
    let (mut in_flight, mut reached) = (0, 0);
    let (mut someone_waits, mut begun_waits) = (false, false);
    let mut ends = Vec::new();
    for (&name, standing) in standings {
        let decision = decisions.get(name)?;
        let starts = matches!(decision, Decision::Start { .. });
        in_flight += usize::from(starts || standing.slot.is_some());
        reached += usize::from(starts || standing.is_reached());
        if let (Some(Slot::Leftover { until }), false) = (standing.slot, starts) {
            ends.push(until);
        }
        let waits = matches!(
            decision,
            Decision::Hold {
                reason: HoldReason::NoSlot,
                ..
            }
        );
        someone_waits |= waits;
        begun_waits |= waits && standing.is_reached();
    }
    let slot_helps = begun_waits || (someone_waits && reached < tally.slots);
    ends.sort_unstable();
    // As many end first as there are more in flight than slots; the next one leaves a slot free.
    ends.get(in_flight.checked_sub(tally.slots)?)
        .copied()
        .filter(|_| slot_helps)
}

#[cfg(test)]
mod tests;
