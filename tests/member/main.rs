//! The member adapter against a real kube-apiserver, and against servers that do not behave like one.

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod applying;
mod connecting;
mod cutting;
mod drifting;
mod health;
mod ignoring;
mod inventories;
mod ordering;
mod pruning;
mod refusing;
mod world;
