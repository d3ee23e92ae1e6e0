//! A server whose clusters are kept in a file: what it answered is there in its next life, and not seen before.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod damage;
mod durable;
mod restart;
mod world;
