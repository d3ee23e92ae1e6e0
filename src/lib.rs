//! Starling: one control cluster that keeps any number of Kubernetes clusters in step with git.
//!
//! The adapters (`starling-git`, `starling-render`, `starling-member`, `starling-ledger`, `starling-net`) act and do
//! not know each other; `starling-core` decides; `controller` observes, asks core, executes and reports; `read_model`
//! builds what is shown; `cli` wires it all.

pub mod cli;
pub mod controller;
pub mod read_model;
pub mod server;

pub(crate) use starling_net::chain;
