//! The program is killed before and after each effect, loses its data, and is stopped: the members converge to git, and
//! no effect is repeated. `docs/effects.md` lists the effects.

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod approved;
mod audit;
mod concurrency;
mod data_loss;
mod deleting;
mod effects;

mod named_effects;
mod random_kills;
mod stop;

mod health_wait;
mod supervisor;
mod world;

/// Each test has its own fleet, which uses most of a small machine, so the tests run sequentially.
pub(crate) static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
