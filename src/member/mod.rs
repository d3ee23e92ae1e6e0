//! A member cluster: strict kubeconfig, client, limits, probe, apply, prune, drift, health.
//!
//! [`Member::connect`] is the one place where a client of a member is made, so every request passes the same
//! limits: how many at once, how many a second, how long, how large. Nothing is retried here. A retry belongs to the
//! scheduler, where the wait is visible. What to write is decided in [`starling_core::apply`]; this module does it.

mod adopt;
mod apply;
mod attempt;
mod call;
mod connections;
mod definitions;
mod delete;
mod dial;
mod drift;
mod error;
mod exchange;
mod health;
mod ignored;
mod impersonate;
mod inventory;
mod json;
mod kinds;
pub mod kubeconfig;
mod lane;
mod limits;
mod metadata;
mod network;
mod paths;
mod preview;
mod probe;
mod prune;
mod recreate;
mod siblings;
mod status;
mod token;
mod transport;
mod wait;
mod write;

pub use self::apply::{Applied, ApplyJob, ApplyOutcome, Change};
pub use self::delete::{DeleteJob, DeleteOutcome};
pub use self::drift::{DriftReport, Manager};
pub use self::error::{FieldConflict, MemberError};
pub use self::health::{HealthReport, Seen};
pub use self::kubeconfig::{Endpoint, KubeconfigError, KubeconfigText, MemberConfig};
pub use self::limits::MemberLimits;
pub use self::network::{Network, Stream};
pub use self::preview::{Preview, PreviewJob};
pub use self::probe::Probe;
pub use self::siblings::{NoSiblings, Siblings};
pub use self::token::IssuedToken;
pub use self::transport::Member;
