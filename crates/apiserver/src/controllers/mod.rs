//! What the controllers of a cluster do that users meet: synchronous steps from what has been written.
//!
//! A write puts work into a [`Queue`]; [`step`] does it. Work is a key and nothing else, as in Kubernetes: what there is
//! to do is read from the objects. Nothing is done in the background: who holds the state calls `step` after a write
//! and again at the time that it returns.

mod definitions;
mod garbage;
mod namespaces;
mod queue;
mod workloads;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

pub(crate) use queue::DEFINITIONS;
pub use queue::{Queue, Work};

use crate::kinds::Resource;
use crate::state::State;
use crate::status::Status;
use crate::store::Stored;
use crate::verbs::{Target, Validation, Write};

/// When what is deployed becomes healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// So long after it was written.
    After(SignedDuration),
    /// Never: it stays under way.
    Never,
    /// Nobody looks at it: its status stays as it is written, as in a cluster without these controllers.
    Unattended,
}

/// What the controllers of a cluster go by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The authority that every namespace publishes, as PEM; shared by all clusters of a server.
    pub ca: Arc<str>,
    /// When what is deployed becomes healthy, if no rule says otherwise.
    pub health: Health,
    /// Rules for some objects: kind, namespace and name, of which an empty one means any. The last that fits counts.
    pub rules: Vec<HealthRule>,
}

/// When some objects become healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthRule {
    /// Kind, empty for any.
    pub kind: String,
    /// Namespace, empty for any.
    pub namespace: String,
    /// Name, empty for any.
    pub name: String,
    /// When.
    pub health: Health,
}

impl Settings {
    /// Returns settings under which everything is healthy at once.
    pub fn new(ca: Arc<str>) -> Self {
        Self {
            ca,
            health: Health::After(SignedDuration::ZERO),
            rules: Vec::new(),
        }
    }

    fn health_of(&self, kind: &str, stored: &Stored) -> Health {
        let fits = |pattern: &str, text: &str| pattern.is_empty() || pattern == text;
        self.rules
            .iter()
            .rev()
            .find(|rule| {
                fits(&rule.kind, kind)
                    && fits(&rule.namespace, &stored.head.namespace)
                    && fits(&rule.name, &stored.head.name)
            })
            .map_or(self.health, |rule| rule.health)
    }
}

/// How much work is done before others get a turn at the state.
const AT_ONCE: usize = 256;

/// Does the work that is due, and returns when to come again: now if there is more of it, none if nothing is planned.
pub fn step(state: &mut State, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
    for _ in 0..AT_ONCE {
        let Some(work) = state.queue.take(now) else {
            return state.queue.next();
        };
        // A step that is refused is one that something else has overtaken; its next write brings it back.
        let _ = match &work {
            Work::Namespace(name) => namespaces::step(state, settings, name, now),
            Work::Definition(name) => definitions::step(state, name, now),
            Work::Owner { table, key } => garbage::owner(state, table, key, now),
            Work::Dependent { table, key } => garbage::dependent(state, table, key, now),
            Work::Expired { table, key } => garbage::expired(state, table, key, now),
            Work::Unused { table, key } => garbage::unused(state, table, key, now),
            Work::Workload { table, key } => workloads::step(state, settings, table, key, now),
        };
    }
    Some(now)
}

/// A write by a controller.
fn write_by(manager: &'static str, subresource: &'static str, now: Timestamp) -> Write<'static> {
    Write {
        manager,
        user: "system:kube-controller-manager",
        dry_run: false,
        validation: Validation::Ignore,
        force: false,
        now,
        subresource,
    }
}

/// The endpoint of an object in the preferred version.
fn target(resource: &Arc<Resource>, stored: &Stored, subresource: &str) -> Option<Target> {
    Some(Target {
        version: Arc::clone(resource.versions.first()?),
        resource: Arc::clone(resource),
        namespace: stored.head.namespace.to_string(),
        name: stored.head.name.to_string(),
        subresource: subresource.to_owned(),
    })
}

/// Reads an object with its endpoint.
fn find(state: &State, table: &str, key: &str, subresource: &str) -> Option<(Target, Arc<Stored>, Value)> {
    let stored = Arc::clone(state.store.get(table, key)?);
    let resource = state.registry.of_table(table)?;
    let target = target(&resource, &stored, subresource)?;
    let object = target.read(&stored);
    Some((target, stored, object))
}

/// Replaces an object, if it differs.
fn replace(
    state: &mut State,
    target: &Target,
    object: Value,
    manager: &'static str,
    now: Timestamp,
) -> Result<(), Status> {
    let subresource = if target.subresource == "status" {
        "status"
    } else {
        ""
    };
    crate::verbs::update(state, target, object, &[], &write_by(manager, subresource, now)).map(|_| ())
}
