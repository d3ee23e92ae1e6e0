//! The ledger against the real file system: durability, damage, and what each table promises.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod build;
mod damage;
mod journal;
mod kill;
mod model;
mod storage;
mod tables;
