//! End to end: the program, real control planes, real git, real kustomize.

mod bounds;
mod building;
mod contests;
mod dependencies;
mod drift;
mod health;
mod labels;
mod ordering;
mod outages;
mod policies;
mod pruning;
mod rollout;
mod sharing;
mod suspension;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
