//! What stands behind the controller's ports in a simulation: in memory, without threads, processes or a generator of the
//! machine. Each keeps what its original would keep on a disk apart from itself, so that it survives a crash of the controller,
//! or not, as the simulation wants.

pub(crate) mod git;
pub(crate) mod ledger;
pub(crate) mod workshop;
