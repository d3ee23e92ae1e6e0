//! The embedded API server with its main clients: kube-rs and kubectl.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

mod backup;
mod controllers;
mod faults;
mod kube_rs;
mod kubectl;
mod many;
mod policies;
mod starling;
mod watches;
mod world;
