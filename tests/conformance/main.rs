//! Compares the embedded API server with a real kube-apiserver: written and random requests, who may send
//! them, and `kubectl`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod kubectl;
mod rbac;
mod requests;
mod typed;
mod upgrade;
