//! The rollout machine of a group, without IO.
//!
//! [`step`] takes the recorded state (status, stored releases, the head of the journal) and the observations of one
//! pass, and returns a [`Transition`]: the effects to execute, in order, and the time of the next pass. Every runner of
//! a rollout uses this machine: the interpreter of the controller executes the effects, `simulate` applies them to a
//! model, and the state-machine test lets each of them fail. So one place decides which release begins, which writes
//! follow, and in which order.
//!
//! A pass begins at most one rollout and writes status at most once. A release is stored before status names it, and
//! admissions that depend on a status follow it ([`Durable`]).

mod actions;
mod begin;
mod choose;
mod deletion;
mod effect;
mod finish;
mod garbage;
mod gates;
pub mod next;
mod observe;
pub mod operator;
mod pass;
mod planned;
mod restart;
mod snapshot;
mod status;
mod step;
mod transition;

pub use actions::{retry_counts_at, without_retried};
pub use deletion::{DeletedGroup, PlannedDeletion, plan_deletion};
pub use effect::{
    Action, Admission, AdmissionRef, Durable, Effect, Epoch, OpenGate, Outcome, Removal, RolloutIntent,
    StatusWrite,
};
pub use observe::{Facts, Known, Loaded, Need, Observations, Offer, PassFacts, Rolling};
pub use pass::removal_digest;
pub use restart::ended;
pub use snapshot::ReleaseSnapshot;
pub use status::{blocked_status, has_succeeded};
pub use step::{preview, step};
pub use transition::{Began, Blocked, Decided, PlannerInput, Preview, StepError, Transition};

#[cfg(test)]
mod tests;
