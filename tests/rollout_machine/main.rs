//! The rollout engine, the ledger and the order of effects between them, as a state machine: a driver does what the controller's
//! loop over a group does, in the same order, on a real ledger with its journal, and on a model of the management API and of the
//! clusters. Every effect may not be done, be done by somebody who dies at once, or be done and answered with an error.
//!
//! The laws (`law`) are about the world and not about plans: they count for themselves who is at work, and look into the ledger and
//! its journal before each write. In the end the journal is verified. Membership and deletions are not part of it (`tests/e2e`,
//! `tests/crash`), nor are repeated tries of failed clusters.
//!
//! Each kind has a watch of its own, which may lag behind; what was answered is known at once, and what was answered with an
//! error is read anew before anything else is decided.

// clippy.toml lets tests unwrap, but does not count the functions that tests share.
#![allow(clippy::unwrap_used)]

#[expect(
    dead_code,
    reason = "shared with the properties of the planner, which use all of it"
)]
#[path = "../../crates/core/tests/plan_properties/arbitrary/mod.rs"]
mod arbitrary;
mod fair;
mod faults;
mod journal;
mod law;
mod machine;
mod random;
mod small;
mod world;

/// The ledger's writer is a task: it needs a runtime, and nothing here needs a second thread.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}
