//! What the judge is told: what was written to the clusters, and what was pushed. Nothing that the controller says of
//! itself is part of it but what it wrote into the CRs, and that is what is judged.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::clock::ControllerClock;

/// A run, from its first write to its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// What was written to each member, by the name of its Cluster, in order. The names are unique over all namespaces.
    /// A cluster that was rebuilt under its name goes on in the same list; a new `kube-system` begins it.
    pub(crate) members: BTreeMap<String, Vec<Write>>,
    /// What was written to the management cluster, in order: every version of every object that is of interest. Others
    /// may be among them.
    pub(crate) hub: Vec<Write>,
    /// What was pushed to each repository, by its URL as the Source names it, in order.
    pub(crate) git: BTreeMap<String, Vec<Push>>,
    /// Since when nobody but the controller has written anything, no fault was at work, and everything had had the time
    /// to come to rest. Without it nothing is asked of the end.
    pub(crate) quiet_since: Option<Timestamp>,
    /// When the run was over.
    pub(crate) ended: Timestamp,
    /// When the controller did not run, or the management cluster did not answer it: nobody can explain a wait then.
    pub(crate) away: Vec<(Timestamp, Timestamp)>,
    /// How long what was written to the management cluster may have been unknown to the controller, by faults of watches
    /// and answers. What it wrote itself and got an answer to is never unknown to it.
    pub(crate) lag: SignedDuration,
    /// What the controller's clock showed.
    pub(crate) clock: ControllerClock,
}

/// A write that a cluster committed and that changed an object.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// When.
    pub(crate) at: Timestamp,
    /// What it did.
    pub(crate) verb: Verb,
    /// API group; empty for the core.
    pub(crate) group: String,
    /// Kind.
    pub(crate) kind: String,
    /// Namespace; empty for an object of the whole cluster.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
    /// The field manager of the request.
    pub(crate) manager: String,
    /// The version that it made.
    pub(crate) resource_version: u64,
    /// The object after it; of a deletion the last version.
    pub(crate) object: Value,
}

/// What a write did to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// It is new, or was changed.
    Write,
    /// Its deletion began; it waits for finalizers.
    DeleteBegins,
    /// It is gone.
    Delete,
}

/// A commit that became the head of a reference.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    /// When.
    pub(crate) at: Timestamp,
    /// Such as `refs/heads/main`.
    pub(crate) reference: String,
    /// All hex digits of it.
    pub(crate) commit: String,
    /// What each folder renders to, before anything is substituted, by the path of the folder without `./`; empty for the
    /// root. A folder that cannot be rendered is not there.
    pub(crate) objects: BTreeMap<String, Vec<Value>>,
}

/// Names an object of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// API group; empty for the core.
    pub(crate) group: String,
    /// Kind.
    pub(crate) kind: String,
    /// Namespace; empty for an object of the whole cluster.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group: _,
            kind,
            namespace,
            name,
        } = self;
        match namespace.as_str() {
            "" => write!(f, "{kind} {name}"),
            _ => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}

impl Write {
    /// Which object it was.
    pub(crate) fn key(&self) -> Key {
        Key {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}
