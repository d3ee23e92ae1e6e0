//! End to end: the program, real control planes, real git, real kustomize.

mod bounds;
mod building;
mod deleting;
mod drift;
mod held;
mod labels;
mod outages;
mod policies;
mod pruning;
mod rollout;
mod surroundings;
mod suspension;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
