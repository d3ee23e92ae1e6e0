//! End to end: the program, real control planes, real git, real kustomize.

mod bounds;
mod building;
mod drift;
mod encryption;
mod labels;
mod outages;
mod policies;
mod pruning;
mod rollout;
mod suspension;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
