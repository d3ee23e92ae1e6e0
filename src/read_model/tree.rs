//! A group as a tree: its Sources, and by stage its clusters with their Syncs.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Serialize;
use starling_api::conditions::{self, Condition, READY};
use starling_api::{Cluster, Source, SyncGroup, SyncResource};
use starling_core::plan::{ReadStrategy, StrategyError};
use starling_core::plural::counted;

use super::group::{GroupObjects, Syncs};
use super::revisions::{short, shorts};

/// Problems of a Sync that the tree shows.
const PROBLEMS: usize = 3;

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Kind and name, such as `Cluster eu-1`.
    pub title: String,
    /// The state; empty: the node has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// The nodes below.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Node>,
    /// Type of the node, for readers that leave some nodes out.
    #[serde(skip)]
    pub kind: NodeKind,
    /// Whether the node and all nodes below are as they should be.
    #[serde(skip)]
    pub is_ok: bool,
}

/// Type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// The SyncGroup, the root.
    Group,
    /// A Source of an entry.
    Source,
    /// A stage with its clusters.
    Stage,
    /// A Cluster with its Syncs.
    Cluster,
    /// A Sync with its problems.
    Sync,
    /// An object that has a problem.
    Object,
}

/// Builds the tree of a group.
///
/// # Errors
/// If `spec.rolloutStrategy` is invalid.
pub fn of_group(objects: &GroupObjects, sources: &[Source]) -> Result<Node, StrategyError> {
    let GroupObjects {
        group,
        clusters,
        syncs,
    } = objects;
    let strategy = ReadStrategy::new(&group.spec.rollout_strategy)?;
    let mut by_stage: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
    for (name, cluster) in clusters {
        let stage = strategy.place(cluster.labels()).stage;
        let node = cluster_node(group, name, cluster, syncs);
        by_stage.entry(stage).or_default().push(node);
    }
    let mut children = source_nodes(group, sources);
    let names = strategy.strategy.stages.iter().map(|stage| stage.name.as_str());
    for (place, name) in names.enumerate() {
        let Some(of_stage) = by_stage.remove(&place) else {
            continue;
        };
        // A group without stages has only the implicit one, which is not worth a level.
        if group.spec.rollout_strategy.stages.is_empty() {
            children.extend(of_stage);
        } else {
            children.push(stage_node(group, name, of_stage));
        }
    }
    let status = group.status.clone().unwrap_or_default();
    let state = match &status.rollout {
        None => state(&status.conditions),
        Some(rollout) => format!(
            "{:?}, rollout {}, {}",
            rollout.phase,
            rollout.id,
            shorts(&rollout.revisions)
        ),
    };
    Ok(Node {
        title: format!("SyncGroup {}", group.name_any()),
        state,
        children,
        kind: NodeKind::Group,
        is_ok: false,
    })
}

/// The Sources that the entries name, existing or not.
fn source_nodes(group: &SyncGroup, sources: &[Source]) -> Vec<Node> {
    let entries = group.spec.syncs.iter();
    let names: BTreeSet<&str> = entries
        .map(|entry| entry.template.source_ref.name.as_str())
        .collect();
    let node = |name: &str| {
        let found = sources.iter().find(|source| source.name_any() == name);
        found.map_or_else(
            || Node {
                kind: NodeKind::Source,
                title: format!("Source {name}"),
                state: "not found".to_owned(),
                children: Vec::new(),
                is_ok: false,
            },
            source_node,
        )
    };
    names.into_iter().map(node).collect()
}

fn source_node(source: &Source) -> Node {
    let status = source.status.clone().unwrap_or_default();
    let ready = state(&status.conditions);
    Node {
        kind: NodeKind::Source,
        title: format!("Source {}", source.name_any()),
        state: format!("{}, {ready}", short(&status.revision)),
        children: Vec::new(),
        is_ok: ready == READY,
    }
}

fn stage_node(group: &SyncGroup, name: &str, clusters: Vec<Node>) -> Node {
    let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
    let known = rollout.and_then(|rollout| rollout.stages.iter().find(|stage| stage.name == name));
    let state = known.map_or_else(String::new, |stage| {
        let until = if stage.until.is_empty() {
            String::new()
        } else {
            format!(" until {}", stage.until)
        };
        format!(
            "{}{until}, {}/{} done, {} failed",
            stage.phase, stage.updated, stage.total, stage.failed
        )
    });
    let title = if name == starling_core::plan::REST {
        "other clusters (no stage)".to_owned()
    } else {
        format!("stage {name}")
    };
    Node {
        title,
        state,
        kind: NodeKind::Stage,
        is_ok: false,
        children: clusters,
    }
}

fn cluster_node(group: &SyncGroup, name: &str, cluster: &Cluster, syncs: &Syncs) -> Node {
    let conditions = cluster
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    let ready = if cluster.spec.suspend {
        "Suspended".to_owned()
    } else {
        state(&conditions)
    };
    let children: Vec<Node> = group
        .spec
        .syncs
        .iter()
        .filter_map(|entry| Some((entry, syncs.get(&(name.to_owned(), entry.name.clone()))?)))
        .map(|(entry, sync)| sync_node(group, &entry.name, sync))
        .collect();
    let is_ok = ready == READY
        && children.len() == group.spec.syncs.len()
        && children.iter().all(|child| child.is_ok);
    Node {
        kind: NodeKind::Cluster,
        title: format!("Cluster {name}"),
        state: ready,
        children,
        is_ok,
    }
}

fn sync_node(group: &SyncGroup, entry: &str, sync: &SyncResource) -> Node {
    let status = sync.status.clone().unwrap_or_default();
    let ready = state(&status.conditions);
    let (applied, target) = (short(&status.last_applied_revision), short(&sync.spec.revision));
    let mut revision = if applied == target {
        applied
    } else {
        format!("{applied} → {target}")
    };
    let pending = pending(group, entry, sync);
    if let Some(rolled) = pending {
        revision = format!("{revision} (pending {})", short(rolled));
    }
    let problems = status.problems.iter().take(PROBLEMS).map(|problem| Node {
        kind: NodeKind::Object,
        title: problem.object.clone(),
        state: format!("{}: {}", problem.reason, problem.message),
        children: Vec::new(),
        is_ok: false,
    });
    Node {
        kind: NodeKind::Sync,
        title: format!("Sync {} ({entry})", sync.name_any()),
        state: format!(
            "{revision}, {}, {ready}",
            counted(status.inventory.objects, "object", "objects")
        ),
        is_ok: pending.is_none() && ready == READY && status.last_applied_revision == sync.spec.revision,
        children: problems.collect(),
    }
}

/// The revision of the rollout, if the Sync has not been admitted to it: the Sync may be ready at an older one.
fn pending<'a>(group: &'a SyncGroup, entry: &str, sync: &SyncResource) -> Option<&'a str> {
    let rollout = group.status.as_ref()?.rollout.as_ref()?;
    let rolled = rollout.revisions.iter().find(|rolled| rolled.sync == entry)?;
    (rolled.revision != sync.spec.revision).then_some(rolled.revision.as_str())
}

/// `Ready`, or the reason and the message of the condition.
fn state(conditions: &[Condition]) -> String {
    match conditions::find(conditions, READY) {
        None => "not reconciled yet".to_owned(),
        Some(ready) if ready.status == "True" => READY.to_owned(),
        Some(ready) => format!("{}: {}", ready.reason, ready.message),
    }
}
