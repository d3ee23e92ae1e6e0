//! The controller: four loops around core, and what they share.
//!
//! `run` wires, through `ports` where a simulation has another thing of the kind; `watch` feeds one `cache` per kind; what changed wakes (`wake`) keys in the `workqueue` of those who
//! depend on it; workers (`work`) hand each key to its loop in `reconcile`.

pub mod builds;
pub mod cache;
pub mod context;
pub mod credentials;
pub mod decryption;
pub mod events;
pub mod gates;
pub mod healths;
pub mod hub;
pub mod journals;
pub mod lanes;
pub mod members;
mod objects;
pub mod pace;
pub mod pins;
pub mod ports;
pub mod reconcile;
pub mod releases;
pub mod renders;
pub mod repositories;
mod restart;
pub mod roster;
mod run;
pub mod selection;
pub mod shares;
mod shelf;
pub mod standing;
pub mod targets;
pub(crate) mod trees;
pub mod unsure;
pub mod views;
mod wake;
mod watch;
mod work;
pub mod workqueue;

pub use run::{Controller, Settings, StartError};
