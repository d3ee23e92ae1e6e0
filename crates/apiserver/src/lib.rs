//! The Kubernetes API in one process, for any number of virtual clusters.
//!
//! [`server`] is the edge: clusters with their addresses and credentials, and the clock. [`http`] reads requests;
//! [`verbs`] does them on a cluster's [`state`], which is a [`store`] of objects and the [`kinds`] that are served;
//! [`controllers`] does what follows. All below the edge is synchronous, has the time as a parameter and draws names
//! from a seeded generator. [`journal`] has every write in order, [`faults`] what goes wrong on purpose.
//!
//! The heart decides what becomes of objects: [`schema`] knows how values of a kind merge, [`fields`] names fields and
//! holds sets of them, [`typed`] compares and merges values, [`managed`] keeps `metadata.managedFields` (server-side
//! apply, KEP-555), [`patch`] has the other patches and [`crd`] custom resources.
//!
//! The specification is what Kubernetes 1.35 does. The heart is compared with its libraries, `tests/conformance` sends the
//! same requests to a real kube-apiserver; `docs/apiserver-gaps.md` says what differs.
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
pub mod discovery;
pub mod faults;
pub mod fields;
pub mod http;
pub mod journal;
pub mod kinds;
pub mod managed;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod persist;
pub mod random;
pub mod schema;
pub mod server;
pub mod state;
pub mod status;
pub mod store;
pub mod table;
pub mod typed;
mod value;
pub mod verbs;

pub use cause::Cause;
pub use value::settle_numbers;
