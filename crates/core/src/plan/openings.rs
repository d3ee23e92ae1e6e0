//! Which windows are open for whom.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::classify::Standing;
use super::stages::Direction;
use super::types::{ClusterView, Decision, HoldReason, PlanInput};
use crate::window::{self, Calendar, Opening};

/// How each set of windows that some cluster has stands now. Few sets, many clusters.
pub(super) struct Openings<'a> {
    sets: BTreeMap<&'a [usize], Opening>,
}

impl<'a> Openings<'a> {
    pub(super) fn of(input: &'a PlanInput, standings: &[Standing<'a>]) -> Self {
        let mut sets = BTreeMap::new();
        if input.rollout.direction == Direction::BackAtOnce || input.strategy.windows.is_empty() {
            return Self { sets };
        }
        let calendar = |window| Calendar::of(window, input.now);
        let calendars: Vec<Calendar> = input.strategy.windows.iter().map(calendar).collect();
        for standing in standings {
            let set = standing.cluster.windows.as_slice();
            sets.entry(set).or_insert_with(|| {
                let about = set.iter().filter_map(|place| calendars.get(*place));
                window::combined(&about.collect::<Vec<_>>(), input.now)
            });
        }
        Self { sets }
    }

    pub(super) fn about(&self, cluster: &ClusterView) -> Opening {
        let set = self.sets.get(cluster.windows.as_slice());
        set.copied().unwrap_or(Opening::ALWAYS)
    }

    /// When the first calendar ends for which somebody waits: what it does not know yet may change what keeps him back. A
    /// calendar for which nobody waits is not looked at again.
    pub(super) fn ends_for_waiting(
        &self,
        standings: &[Standing<'_>],
        decisions: &BTreeMap<String, Decision>,
    ) -> Option<Timestamp> {
        let waiting = standings
            .iter()
            .filter(|standing| decisions.get(standing.name).is_some_and(depends_on_windows));
        waiting
            .filter_map(|standing| self.about(standing.cluster).known_until)
            .min()
    }
}

/// Whether a window that opens or closes changes it.
fn depends_on_windows(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Hold {
            reason: HoldReason::WindowClosed
                | HoldReason::Jitter
                | HoldReason::NoSlot
                | HoldReason::TooManyUnavailable,
            ..
        }
    )
}
