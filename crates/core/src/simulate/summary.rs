//! What a simulation shows in figures.

use jiff::Timestamp;

use super::World;
use crate::plan::{Progress, Reach};

/// The worst of everything that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The most clusters at work at once.
    pub peak_concurrency: usize,
    /// The most reachable clusters that were not healthy at once: at work, failing, or broken.
    pub worst_unhealthy: usize,
    /// When it was last looked at.
    pub last_look: Option<Timestamp>,
}

impl Summary {
    /// Takes in how the world is.
    #[must_use]
    pub(super) fn with(mut self, world: &World) -> Self {
        let reachable = world
            .members
            .values()
            .filter(|member| member.reach == Reach::Ready);
        let unhealthy = reachable.filter(|member| {
            member.observed.as_ref().is_some_and(|sync| match &sync.progress {
                Progress::Held(held) => held.since.is_none(),
                Progress::Working | Progress::Failing { .. } => true,
            })
        });
        self.worst_unhealthy = self.worst_unhealthy.max(unhealthy.count());
        self.peak_concurrency = self.peak_concurrency.max(world.in_flight().len());
        self.last_look = Some(world.now);
        self
    }
}
