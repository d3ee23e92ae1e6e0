//! The member adapter against a real kube-apiserver, and against servers that behave differently.

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod applying;
mod connecting;
mod containers;
mod deleting;
mod drift;
mod expired_lists;
mod health;
mod hostile;
mod ignored_fields;
mod interruptions;
mod inventories;
mod ordering;
mod pruning;
mod refusals;
mod refused_deletes;
mod scope;
mod view;
mod world;
mod write_numbers;
