//! Compares the decisions of this crate with those of a real kube-apiserver, by sending the same requests to both.

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
#[path = "../../../../tests/contract/refusal_cases.rs"]
mod refusal_cases;
