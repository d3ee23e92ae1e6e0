//! What the embedded API server answers, held against a real kube-apiserver: requests, written and random ones, and
//! `kubectl`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod kubectl;
mod requests;
