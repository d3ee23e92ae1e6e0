//! The decisions of Starling, without IO: no clock, no randomness, no network, no disk, no `async`.
//! `now` is a parameter, maps are ordered, the same input gives the same answer.

pub mod address;
pub mod apply;
pub mod backoff;
pub mod breaker;
pub mod digest;
pub mod expand;
pub mod inventory;
pub mod object;
pub mod pause;
pub mod plan;
pub mod promise;
pub mod range;
pub mod release;
pub mod revision;
pub mod step;
pub mod target;
