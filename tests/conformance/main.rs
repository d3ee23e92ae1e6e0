//! Compares the embedded API server with a real kube-apiserver: written and random requests, and `kubectl`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod kubectl;
mod requests;
mod typed;
mod upgrade;
