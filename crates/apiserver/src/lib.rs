//! The Kubernetes API in one process, for any number of virtual clusters.
//!
//! From the edge inwards:
//!
//! - [`listen`] accepts connections, [`http`] reads requests and writes responses, and [`server`] has the clusters with
//!   their addresses, credentials and clock;
//! - [`controllers`] reconcile objects after writes, and [`verbs`] execute requests, both on the [`state`] of a
//!   cluster;
//! - [`state`] is a [`store`] of objects with the resources that the cluster serves ([`kinds`]); [`rbac`] decides who
//!   may do what, [`journal`] records every write, [`persist`] stores the state on disk, [`faults`] injects errors;
//! - [`schema`] defines how the values of a kind merge, [`fields`] has field paths and sets of them, [`typed`] compares
//!   and merges values, [`managed`] maintains `metadata.managedFields` (server-side apply, KEP-555), [`patch`] has the
//!   other patch types and [`crd`] custom resources.
//!
//! Each module only uses those below it. Everything below the edge is synchronous, takes the time as a parameter and
//! draws names from a seeded generator.
//!
//! The specification is the behaviour of Kubernetes 1.35. Tests compare merging, patching and validation with
//! Kubernetes' libraries, and `tests/conformance` sends the same requests to a real kube-apiserver;
//! `docs/apiserver-gaps.md` lists the differences.
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

mod admission;
mod cause;
pub mod controllers;
pub mod crd;
pub mod discovery;
pub mod faults;
pub mod fields;
pub mod http;
pub mod journal;
pub mod kinds;
pub mod listen;
pub mod managed;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod persist;
pub mod random;
pub mod rbac;
pub mod schema;
pub mod server;
pub mod state;
pub mod status;
pub mod store;
pub mod table;
pub mod target;
pub mod typed;
mod value;
pub mod verbs;
pub mod write;

pub use cause::Cause;
pub use value::{IllegalBase64, settle_numbers};
