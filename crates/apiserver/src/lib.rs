//! The Kubernetes API in one process, without IO: the part of it that decides.
//!
//! So far this is server-side apply (KEP-555): [`schema`] knows how values of a kind merge, [`fields`] names fields and
//! holds sets of them, [`typed`] compares and merges values, and [`managed`] keeps `metadata.managedFields` for the
//! requests that a server gets. No clock, no store, no HTTP: the time of a request is a parameter, and defaulting,
//! admission and writing are the caller's.
//!
//! The specification is what Kubernetes 1.35 does. `tests/apply_oracle.rs` compares with what its libraries say,
//! `tests/apiserver` with a real kube-apiserver.
//!
//! ```
//! use serde_json::json;
//! use starling_apiserver::managed::{ApplyRequest, FieldManager, Live};
//! use starling_apiserver::schema::builtin;
//!
//! let fields = FieldManager::for_builtin("v1", "ConfigMap").unwrap();
//! let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}});
//! let request = ApplyRequest { manager: "starling", force: false, now: jiff::Timestamp::UNIX_EPOCH };
//!
//! let first = fields.apply(None, &config, &request).unwrap();
//! let object = first.object.unwrap();
//! let live = Live { object: &object, managed: &first.managed };
//! let again = fields.apply(Some(live), &config, &request).unwrap();
//! assert!(again.object.is_none(), "nothing has changed");
//! # assert!(builtin("v1", "ConfigMap").is_some());
//! ```

mod cause;
pub mod controllers;
pub mod crd;
pub mod faults;
pub mod fields;
pub mod http;
pub mod journal;
pub mod kinds;
pub mod managed;
pub mod object;
pub mod patch;
pub mod persist;
pub mod random;
pub mod schema;
pub mod server;
pub mod state;
pub mod status;
pub mod store;
pub mod typed;
mod value;
pub mod verbs;

pub use cause::Cause;
