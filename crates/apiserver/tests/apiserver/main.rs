//! Compares what this crate decides with a real kube-apiserver: the same requests to both.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod apply;
mod crd;
mod real;
