//! The ledger on the real file system: durability, damage, and the guarantees of each table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod build;
mod damage;
mod journal;
mod kill;
mod model;
mod storage;
mod tables;
