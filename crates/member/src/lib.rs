//! A member cluster: strict kubeconfig, client, limits, probe, apply, prune, drift, health.
//!
//! [`Member::connect`] is the only way to create a client of a member, so every request passes the same limits of
//! concurrency, rate, time and size. Nothing is retried here: a retry belongs to the scheduler, where the wait is
//! visible. [`starling_core::apply`] decides what to write.

mod adopt;
mod apply;
mod attempt;
mod batch;
mod body;
mod budget;
mod call;
mod connections;
mod containers;
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
mod limits;
mod mark;
mod metadata;
mod network;
mod numbered;
mod numbers;
mod origins;
mod outcome;
mod paths;
mod preview;
mod probe;
mod prune;
mod recreate;
mod relinquish;
mod resource;
mod scope;
mod secret;
mod siblings;
mod status;
mod stored;
mod token;
mod transport;
mod unserved;
mod wait;
mod write;

pub use self::apply::ApplyJob;
pub use self::budget::{BudgetRequest, Budgets, DeletionRefusal, NoBudgets};
pub use self::delete::{DeleteJob, DeleteOutcome};
pub use self::drift::DriftReport;
pub use self::error::{FieldConflict, MemberError};
pub use self::health::{HealthReport, ObjectHealth};
pub use self::kubeconfig::{Endpoint, KubeconfigError, KubeconfigText, MemberConfig};
pub use self::limits::MemberLimits;
pub use self::metadata::Manager;
pub use self::network::{Network, Stream};
pub use self::numbers::{NumberError, WriteNumbers};
pub use self::outcome::{Applied, ApplyOutcome, Change};
pub use self::preview::{Preview, PreviewJob};
pub use self::probe::Probe;
pub use self::secret::IssuedToken;
pub use self::siblings::{NoSiblings, OtherOwner, Siblings};
pub use self::transport::Member;
