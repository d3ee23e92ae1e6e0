//! `starling server --embedded`: a management cluster in one process and one folder, and its restart.

mod authorization;
mod bare;
mod crash;
mod explain;
mod git_server;
mod mirrors;
mod old_ledger;
mod refusals;
mod restart;
mod set_back;
mod world;
