//! A server with a data directory: after a restart it has everything that it acknowledged, and it acknowledged nothing
//! too early.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod damage;
mod durable;
mod rbac;
mod restart;
mod world;
