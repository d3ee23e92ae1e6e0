//! The controller: four loops around core, and everything that they share.
//!
//! `run` wires, through `ports` where a simulation has another adapter. `watch` feeds the cache of each kind in
//! `caches`, and tells `readiness` whether it is up to date. `event_handlers` adds the keys that a change affects to a
//! `workqueue`. Workers (`work`) pass each key to its loop in `reconcile`.

pub mod artifacts;
pub mod builds;
pub mod caches;
pub mod context;
pub mod credentials;
pub mod decryption;
pub mod deletion_budgets;
mod digest_key;
mod event_handlers;
pub mod events;
mod expressions;
pub mod gates;
pub mod hub;
pub mod interpreter;
pub mod keyed;
mod ledger_retention;
mod live_approvals;
pub mod manifests;
pub mod object_key;
pub mod pins;
pub mod policies;
pub mod ports;
mod queues;
mod readiness;
pub mod reconcile;
pub mod removal;
mod restart;
mod restore_hold;
pub mod rights;
mod run;
mod scratch;
pub mod shares;
pub mod start_rates;
pub mod suspicions;
pub(crate) mod tree_renderer;
mod unmatched_approvals;
mod waits;
mod watch;
mod work;
mod worker_turns;
pub mod workqueue;
pub mod write_counter;

pub use caches::cache;
pub use readiness::{NotReady, Readiness};
pub use run::{Controller, Settings, StartError};
