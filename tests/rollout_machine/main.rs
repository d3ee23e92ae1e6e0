//! The rollout machine, its interpreter and the ledger together. At each effect of a pass, the process may die before
//! or after the effect, or the call may return an error although the effect was done or because it was refused.
//!
//! The machine (`starling_core::rollout`) and the interpreter (`starling::controller::interpreter`) are those of the
//! controller. The ledger is a real one with its journal; the management API and the clusters are a model (`world`).
//!
//! The invariants (`invariants`) are about the world and not about plans: they count the clusters in flight themselves,
//! and read the ledger and its journal before each write. In the end, the journal is verified. Controllers with another
//! order of effects (`order`) show that an invariant detects the error.
//!
//! Each kind has its own watch, which may lag behind. The result of a successful write is known immediately, and an
//! object with a failed write is read again before the next decision.

// clippy.toml lets tests unwrap, but does not count the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

#[expect(
    dead_code,
    reason = "shared with the properties of the planner, which use all of it"
)]
#[path = "../../crates/core/tests/plan_properties/arbitrary/mod.rs"]
mod arbitrary;
mod basic;
mod faults;
mod gates;
mod hub;
mod idle;
mod invariants;
mod journal;
mod ledger;
mod machine;
mod marks;
mod memory;
mod observed;
mod order;
mod prunes;
mod random;
mod recorded_successes;
mod removals;
mod retries;
mod scenario;
mod world;

/// The writer of the ledger is a task, so it needs a runtime; one thread is sufficient.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}
