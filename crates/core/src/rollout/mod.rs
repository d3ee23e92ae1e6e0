//! The machine that rolls releases through a group, without IO.
//!
//! [`step`] takes what is known (status, stored releases, the journal's head) and what one pass observed, and returns a
//! [`Transition`]: the effects to carry out, in order, and when the next pass is due. Whoever runs a rollout runs this
//! machine: the controller's interpreter carries the effects out, `simulate` applies them to a model, and the
//! state-machine test lets each of them fail. So there is one place that decides which release begins, what is stored,
//! recorded, written, admitted, retried and removed, and in which order.
//!
//! A pass begins at most one rollout and writes status at most once. What status names is stored before it, what
//! status has to outlive is admitted after it ([`Durable`]).

mod actions;
mod begin;
mod choose;
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
pub use effect::{
    Action, Admission, AdmissionRef, Durable, Effect, Epoch, OpenGate, Outcome, Removal, RolloutIntent,
    StatusWrite,
};
pub use observe::{Facts, Known, Loaded, Need, Observations, Offer, Rolling};
pub use restart::ended;
pub use snapshot::ReleaseSnapshot;
pub use status::has_succeeded;
pub use step::{preview, step};
pub use transition::{Began, Blocked, Decided, PlannerInput, Preview, StepError, Transition};

#[cfg(test)]
mod tests;
