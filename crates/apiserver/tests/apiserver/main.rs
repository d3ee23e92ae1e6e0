//! Compares what this crate decides with a real kube-apiserver: the same requests to both.

// Schemas are written as JSON.
#![recursion_limit = "512"]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod apply;
mod causes;
mod crd;
mod definitions;
mod expressions;
mod objects;
mod real;
#[path = "../../../../tests/contract/refused.rs"]
mod refused;
