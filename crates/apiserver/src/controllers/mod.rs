//! The controllers of a cluster whose effects users see, as synchronous steps.
//!
//! A write adds keys to a [`Queue`], and [`step`] handles them. As in Kubernetes, a key carries no data: the
//! controllers read the objects to find out what to do. No controller runs in the background: the holder of the state
//! calls `step` after a write, and again at the time that `step` returns.

mod aggregation;
mod definitions;
mod enabled;
mod garbage;
mod namespaces;
mod objects;
mod settings;
mod workloads;

use jiff::Timestamp;

pub use enabled::{Controller, Controllers, ControllersError};
pub use settings::{Health, HealthRule, Settings};

use crate::state::State;
pub use crate::state::{Queue, Work};

/// The keys that one step handles before it releases the state to other users.
const KEYS_PER_STEP: usize = 256;

/// Handles the keys that are due and returns when to call again: `now` if more keys are due, `None` if none is
/// planned.
pub fn step(state: &mut State, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
    for _ in 0..KEYS_PER_STEP {
        let Some(work) = state.queue.take(now) else {
            return state.queue.next();
        };
        if !settings.controllers.handle(&work) {
            continue;
        }
        // A controller fails only if another write came first, and that write queued the object again.
        let _ = match &work {
            Work::Namespace(name) => namespaces::reconcile(state, settings, name, now),
            Work::Aggregation => aggregation::reconcile(state, now),
            Work::Definition(name) => definitions::reconcile(state, name, now),
            Work::Owner { table, key } => garbage::reconcile_owner(state, table, key, now),
            Work::Dependent { table, key } => garbage::reconcile_dependent(state, table, key, now),
            Work::Expired { table, key } => garbage::delete_expired(state, table, key, now),
            Work::Unused { table, key } => garbage::remove_protection(state, table, key, now),
            Work::Workload { table, key } => workloads::reconcile(state, settings, table, key, now),
        };
    }
    Some(now)
}
