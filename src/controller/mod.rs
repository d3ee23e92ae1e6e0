//! The controller: four loops around core, and what they share.
pub mod cache;
pub mod context;
pub mod hub;
pub mod members;
pub mod pace;
pub mod reconcile;
pub mod renders;
pub mod repositories;
mod wake;
mod watch;
pub mod workqueue;
