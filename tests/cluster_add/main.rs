//! `starling cluster add`, with the real program against real control planes: what it makes on both sides, for whatever
//! sign-in, what that permits, and how its token is renewed.

mod adding;
mod refusing;
mod renewing;
mod rights;
mod sign_in;
mod world;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
