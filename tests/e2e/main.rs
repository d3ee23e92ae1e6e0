//! End to end: the program, real control planes, real git, real kustomize.

mod accounts;
mod bounds;
mod building;
mod contests;
mod deleting;
mod dependencies;
mod drift;
mod encryption;
mod gates;
mod health;
mod held;
mod hostile;
mod isolation;
mod labels;
mod looks;
mod ordering;
mod outages;
mod policies;
mod pruning;
mod relist;
mod rollout;
mod sharing;
mod stages;
mod steering;
mod surroundings;
mod suspension;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
