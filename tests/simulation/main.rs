//! The simulated world, and the judge of what happened in it.

mod judge;
