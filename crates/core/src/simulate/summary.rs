//! The figures of a simulation.

use super::World;
use crate::plan::{Progress, Reach};

/// The peaks of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The most clusters in progress at once.
    pub peak_concurrency: usize,
    /// The most reachable clusters that were not healthy at once: in progress, failing, or broken.
    pub worst_unhealthy: usize,
}

impl Summary {
    /// Includes the present state of `world`.
    #[must_use]
    pub(super) fn with(mut self, world: &World) -> Self {
        let reachable = world
            .members
            .values()
            .filter(|member| member.reach == Reach::Ready);
        let unhealthy = reachable.filter(|member| {
            member.observed.as_ref().is_some_and(|sync| match &sync.progress {
                Progress::Applied(applied) => applied.since.is_none(),
                Progress::Working | Progress::Failing { .. } => true,
            })
        });
        self.worst_unhealthy = self.worst_unhealthy.max(unhealthy.count());
        self.peak_concurrency = self.peak_concurrency.max(world.in_flight().len());
        self
    }
}
