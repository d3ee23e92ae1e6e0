//! The program is killed at every moment that matters, loses what it keeps on disk, and is asked to stop: the
//! members hold what git says, and nothing was done twice. `docs/effects.md` has the list of moments.

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod bound;
mod effects;
mod loss;

mod named;
mod random;
mod stop;

mod supervisor;
mod waiting;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");

/// Each test has a fleet of its own, which is most of a small machine: one after the other.
pub(crate) static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
