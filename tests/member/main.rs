//! The member adapter against a real kube-apiserver, and against servers that do not behave like one.

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod applying;
mod connecting;
mod drifting;
mod hostile;
mod inventories;
mod pruning;
mod relisting;
mod view;
mod world;
