//! The controller: four loops around core, and what they share.
//!
//! `run` wires, through `ports` where a simulation has a twin; `watch` feeds the cache of each kind in `caches`; a
//! change adds the keys of the objects that depend on it (`wake`) to a `workqueue`; workers (`work`) hand each key to
//! its loop in `reconcile`.

pub mod artifacts;
pub mod builds;
pub mod caches;
pub mod context;
pub mod credentials;
pub mod decryption;
pub mod events;
pub(crate) mod exported_trees;
pub mod gates;
pub mod hub;
pub mod interpreter;
pub mod keyed;
pub mod lanes;
pub mod manifests;
pub mod object_key;
pub mod origins;
pub mod pace;
pub mod pins;
pub mod ports;
mod queues;
pub mod reconcile;
mod restart;
mod run;
pub mod shares;
mod waits;
mod wake;
mod watch;
mod work;
pub mod workqueue;

pub use caches::cache;
pub use run::{Controller, Settings, StartError};
