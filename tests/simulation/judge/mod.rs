//! The judge: an opinion of its own on what happened in a run.
//!
//! [`judge`] reads what the clusters' API servers have logged, what was pushed, and the CRs, and says where an invariant of
//! the design was broken. It shares the types of the CRs with Starling and nothing else: not the planner, not the step
//! machine, not the renderer, not a digest. Where it needs one of these it has a smaller one of its own, or learns from
//! the history what a value stands for.
//!
//! It has no false alarms on purpose: what a controller cannot know (a label that changed while it decided) is not held
//! against it, for as long as `History::lag` says. What it does know (its own writes) is.
//!
//! A checker that accepts everything is the commonest bug of such tests, so `tests` holds histories that each break one
//! rule, and a real one that is broken by program.

mod clock;
mod digests;
mod history;
mod hub;
mod load;
mod member;
mod render;
mod rules;
mod targets;
mod violation;
mod words;
mod world;

#[cfg(test)]
mod tests;

pub(crate) use clock::ControllerClock;
pub(crate) use history::{History, Push, Verb, Write};
use hub::Hub;
pub(crate) use load::writes;
pub(crate) use violation::{Rule, Violation};
use world::World;

/// All that was wrong, in the order of time.
pub(crate) fn judge(history: &History) -> Vec<Violation> {
    let hub = Hub::read(&history.hub);
    let world = World::new(history, &hub);
    let mut violations: Vec<Violation> = rules::ALL.iter().flat_map(|rule| rule(&world)).collect();
    violations.sort_by_key(|violation| (violation.at, violation.rule));
    violations
}
