//! Compares the embedded API server with a real kube-apiserver: written and random requests, who may send
//! them, which of them admission policies deny, and `kubectl`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod kubectl;
mod policies;
mod rbac;
mod requests;
mod typed;
mod upgrade;
