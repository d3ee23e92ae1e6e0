//! The input of the judge: the writes to the clusters, and the pushes. Of the controller's own reports it contains only
//! what the controller wrote into the CRs, and that is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::clock::ControllerClock;
use super::world::Owner;

/// A run, from the first write to the last.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The writes to each member, by the name of its Cluster, in order. The names are unique over all namespaces. A
    /// cluster that was rebuilt under its name continues in the same list, with a new `kube-system`.
    pub(crate) members: BTreeMap<String, Vec<Write>>,
    /// The writes to the management cluster, in order: every version of every relevant object, and possibly of others.
    pub(crate) hub: Vec<Write>,
    /// The pushes to each repository, by the URL in the Source, in order.
    pub(crate) git: BTreeMap<String, Vec<Push>>,
    /// The time since which only the controller writes, no fault is active, and everything has had the time to become
    /// idle. Without it the final state is not checked.
    pub(crate) idle_since: Option<Timestamp>,
    /// The end of the run.
    pub(crate) ended: Timestamp,
    /// When the controller did not run, or the management cluster did not respond to it: a wait has no explanation
    /// then.
    pub(crate) away: Vec<(Timestamp, Timestamp)>,
    /// How long a write to the management cluster may be unknown to the controller, by faults of watches and responses.
    /// Its own writes with a response are always known to it.
    pub(crate) lag: SignedDuration,
    /// How long before a deletion the state that confirms it may have been read. Unlike `lag`, this grows only with
    /// faults that delay the request or its response: a frozen watch is no excuse for a read.
    pub(crate) live: SignedDuration,
    /// The controller's clock.
    pub(crate) clock: ControllerClock,
    /// The plans that the groups recorded before they acted, in order. Without any, there is no witness, and no
    /// deletion is compared with the plans.
    pub(crate) plans: Vec<Plan>,
    /// When a cluster was set back to an earlier state, and its name: that of a member, or any other name for the
    /// management cluster. The journal has the restored objects as writes of that moment.
    pub(crate) set_backs: Vec<(Timestamp, String)>,
    /// When a person released a restore of the management cluster, just before that write. The command of the person
    /// writes under Starling's name.
    pub(crate) releases: Vec<Timestamp>,
    /// The owner of each owner label, as far as it is known from elsewhere. Without any, the judge finds them by what
    /// the Syncs render, which says nothing where two groups render the same.
    pub(crate) owners: BTreeMap<String, Owner>,
    /// API group and kind of the kinds that an operator added to those whose deletion deletes others.
    pub(crate) confirmed_kinds: BTreeSet<(String, String)>,
}

impl History {
    /// Returns when the management cluster was set back.
    pub(crate) fn hub_set_backs(&self) -> impl Iterator<Item = Timestamp> {
        let set_backs = self.set_backs.iter();
        let of_hub = set_backs.filter(|(_, name)| !self.members.contains_key(name));
        of_hub.map(|(back, _)| *back)
    }
}

/// A plan of a group, as far as it decides about what is taken away.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// When it was recorded, by the same clock as the journals.
    pub(crate) at: Timestamp,
    /// Namespace of the group.
    pub(crate) namespace: String,
    /// Name of the group.
    pub(crate) group: String,
    /// The Syncs that the plan removes, or has begun to remove.
    pub(crate) removes: BTreeSet<String>,
    /// The Syncs whose prune after the admitted attempt the plan allows, or has in progress.
    pub(crate) prunes: BTreeSet<String>,
}

/// A write that a cluster committed and that changed an object.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// When.
    pub(crate) at: Timestamp,
    /// The kind of change.
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
    /// The resulting version.
    pub(crate) resource_version: u64,
    /// The object after the write; for a deletion the last version.
    pub(crate) object: Value,
}

/// The change that a write made to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Creation or change.
    Write,
    /// Start of a deletion that waits for finalizers.
    DeleteBegins,
    /// Deletion.
    Delete,
}

/// A commit that became the head of a reference.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    /// When.
    pub(crate) at: Timestamp,
    /// Such as `refs/heads/main`.
    pub(crate) reference: String,
    /// The full commit ID.
    pub(crate) commit: String,
    /// The objects of each folder before substitution, by the path of the folder without `./`; empty for the root. A
    /// folder that cannot be rendered is missing.
    pub(crate) objects: BTreeMap<String, Vec<Value>>,
}

/// The identity of an object in one cluster.
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
    /// Returns the identity of the written object.
    pub(crate) fn key(&self) -> Key {
        Key {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}
