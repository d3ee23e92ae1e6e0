//! Implementations of the controller's ports for the simulation: in memory, without threads, processes or the system's
//! random generator. The data that would be on a disk is separate, so that it can survive a crash of the controller.

pub(crate) mod builder;
pub(crate) mod git;
pub(crate) mod ledger;
