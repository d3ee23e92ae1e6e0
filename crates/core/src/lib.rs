//! The decisions of Starling, without IO: no clock, no randomness, no network, no disk, no `async`.
//! `now` is a parameter, maps are ordered, the same input gives the same answer.

pub mod address;
pub mod apply;
pub mod backoff;
pub mod breaker;
pub mod depend;
pub mod digest;
pub mod drift_fight;
pub mod expand;
pub mod explain;
pub mod fields;
pub mod finalize;
pub mod fingerprint;
pub mod gate;
pub mod group_deletion;
pub mod health;
pub mod ignore;
pub mod inventory;
pub mod journal;
pub mod membership;
pub mod object;
pub mod pause;
pub mod plan;
pub mod preview;
pub mod progress;
pub mod range;
pub mod release;
pub mod resource_version;
pub mod revision;
pub mod rollout;
pub mod simulate;
pub mod step;
pub mod target;
pub mod token;
pub mod unimplemented;
pub mod window;
