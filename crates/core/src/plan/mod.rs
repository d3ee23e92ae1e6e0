//! The rollout plan: from what is wanted and what is observed to one decision per cluster.
//!
//! [`plan`] is a pure function in three steps that read top to bottom: *classify* each cluster by itself
//! (`classify`), count what is in flight and what has failed, then *start* what may start within the limits
//! (`admit`). Every cluster gets exactly one [`Decision`]; every hold has a reason, and the plan the time at
//! which time alone changes something.
//!
//! Three rules carry the safety:
//! - **Done is a pair** of cluster and target (I1). Nothing here looks at health of another target.
//! - **A slot is held from admission to done**, to failure, or to `progressDeadline`; a cluster that became
//!   unreachable after it was admitted keeps its slot until then and counts as failed afterwards
//!   (`LostAfterAdmission`). So a revision that cuts its clusters off stops after at most
//!   `maxConcurrency + maxFailures` of them.
//! - **A cluster in backoff holds no slot but counts as failed**, from its first failed attempt on and until it
//!   recovers. Otherwise a revision that every cluster refuses would march through the fleet, one slot at a time.

mod admit;
mod classify;
mod report;
mod types;

use std::collections::BTreeMap;

use classify::{Class, Standing};
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
        in_flight: standings.values().filter(|standing| standing.holds_slot).count(),
        failed: standings
            .values()
            .filter(|standing| matches!(standing.class, Class::Failed(_)))
            .count(),
        failures_allowed: input.limits.max_failures.of_rounded_down(total),
    };

    let decisions = admit::admit(input, &standings, tally);
    let recheck_at = decisions.values().filter_map(Decision::recheck_at).min();
    Plan {
        decisions,
        tally,
        recheck_at,
    }
}

#[cfg(test)]
mod tests;
