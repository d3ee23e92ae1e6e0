//! Starling: one control cluster that keeps any number of Kubernetes clusters in step with git.
//!
//! The adapters `git`, `render`, `member`, `web` and `ledger` do things and do not know each other; `starling-core` decides;
//! `controller` observes, asks core, executes and reports; `cli` wires it all.

pub mod cli;
pub mod clock;
pub mod controller;
mod errors;
pub mod git;
pub mod ledger;
pub mod member;
pub mod render;
pub mod server;
pub mod web;

pub use errors::chain;
