//! The judge: an independent check of a run.
//!
//! [`judge`] reads the journals of the clusters' API servers, the pushes, and the CRs, and returns the violations of
//! the invariants. It shares the types of the CRs with Starling and nothing else: neither planner, rollout machine,
//! renderer nor digests. Where the judge needs one of these it has a smaller one of its own, or takes the meaning of a
//! value from the history.
//!
//! The judge is built to have no false alarms: a change that the controller cannot know (a label that changed while it
//! decided) is no violation for the time of `History::lag`. Its own writes are always known to the controller.
//!
//! A judge that accepts everything is the most common bug of such tests. Therefore `tests` contains histories that each
//! break one rule, and a recorded one that the tests tamper with.

mod actions;
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
mod world;

#[cfg(test)]
mod tests;

pub(crate) use clock::ControllerClock;
pub(crate) use history::{History, Plan, Push, Verb, Write};
use hub::Hub;
pub(crate) use load::writes;
pub(crate) use violation::{Rule, Violation};
pub(crate) use world::Owner;
use world::World;

/// Returns all violations, in the order of time.
pub(crate) fn judge(history: &History) -> Vec<Violation> {
    let hub = Hub::read(&history.hub);
    let world = World::new(history, &hub);
    let mut violations: Vec<Violation> = rules::ALL.iter().flat_map(|rule| rule(&world)).collect();
    violations.sort_by_key(|violation| (violation.at, violation.rule));
    violations
}
