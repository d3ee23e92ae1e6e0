//! End to end: the program, real control planes, real git, real kustomize.

mod rollout;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
