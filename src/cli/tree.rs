//! `starling tree`: a group from its Sources to the Syncs on its clusters, stage by stage.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, ValueEnum};
use kube::ResourceExt;
use serde::Serialize;
use starling_api::conditions::{self, Condition, READY};
use starling_api::{Cluster, Source, SyncGroup, SyncResource};
use starling_core::plan::ReadStrategy;

use super::caller::{Caller, CallerArguments};
use super::get::short;
use super::{lists, output};

/// Clusters of a stage that are shown; those that are done go first where there are more.
const SHOWN: usize = 20;

/// What is shown.
#[derive(Debug, Args)]
pub(super) struct TreeArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Every cluster, also where there are many
    #[arg(long)]
    all: bool,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// How a tree is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Text,
    /// For programs, as JSON
    Json,
    /// For programs, as YAML
    Yaml,
}

/// One thing, and what hangs on it.
#[derive(Debug, Serialize)]
struct Node {
    /// What it is: `Cluster eu-1`.
    title: String,
    /// How it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    /// What hangs on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Node>,
    /// Nothing of it needs a look.
    #[serde(skip)]
    is_fine: bool,
}

pub(super) async fn run(arguments: TreeArguments) -> anyhow::Result<()> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    let group = lists::group(&caller, &arguments.group).await?;
    let sources: Vec<Source> = lists::all(&caller).await?;
    let clusters = lists::selected(&caller, &group).await?;
    let syncs = lists::syncs(&caller, &group).await?;
    let shown = if arguments.all || arguments.output != Form::Text {
        usize::MAX
    } else {
        SHOWN
    };
    let tree = tree(&group, &sources, &clusters, &syncs, shown)?;
    match arguments.output {
        Form::Json => output::print_value(&tree, false),
        Form::Yaml => output::print_value(&tree, true),
        Form::Text => {
            output::print(&tree.text());
            Ok(())
        }
    }
}

fn tree(
    group: &SyncGroup,
    sources: &[Source],
    clusters: &BTreeMap<String, Cluster>,
    syncs: &BTreeMap<(String, String), SyncResource>,
    shown: usize,
) -> anyhow::Result<Node> {
    let strategy =
        ReadStrategy::new(&group.spec.rollout_strategy).map_err(|error| anyhow::anyhow!("spec.{error}"))?;
    let mut by_stage: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
    for (name, cluster) in clusters {
        let node = cluster_node(group, name, cluster, syncs);
        by_stage
            .entry(strategy.place(cluster.labels()).stage)
            .or_default()
            .push(node);
    }
    let mut children = source_nodes(group, sources);
    let names = strategy.strategy.stages.iter().map(|stage| stage.name.as_str());
    for (place, name) in names.enumerate() {
        let Some(of_stage) = by_stage.remove(&place) else {
            continue;
        };
        // Without stages there is only the implicit one, which is not worth a level.
        if group.spec.rollout_strategy.stages.is_empty() {
            children.extend(limited(of_stage, shown));
        } else {
            children.push(stage_node(group, name, of_stage, shown));
        }
    }
    let status = group.status.clone().unwrap_or_default();
    let state = match &status.rollout {
        None => state(&status.conditions),
        Some(rollout) => format!(
            "{:?}, rollout {}, {}",
            rollout.phase,
            rollout.id,
            super::get::shorts(&rollout.revisions)
        ),
    };
    Ok(Node {
        title: format!("SyncGroup {}", group.name_any()),
        state,
        children,
        is_fine: false,
    })
}

/// The Sources that the entries name, whether they are there or not.
fn source_nodes(group: &SyncGroup, sources: &[Source]) -> Vec<Node> {
    let entries = group.spec.syncs.iter();
    let names: BTreeSet<&str> = entries
        .map(|entry| entry.template.source_ref.name.as_str())
        .collect();
    let node = |name: &str| {
        let found = sources.iter().find(|source| source.name_any() == name);
        found.map_or_else(
            || Node {
                title: format!("Source {name}"),
                state: "not found".to_owned(),
                children: Vec::new(),
                is_fine: false,
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
        title: format!("Source {}", source.name_any()),
        state: format!("{}, {ready}", short(&status.revision)),
        children: Vec::new(),
        is_fine: ready == READY,
    }
}

fn stage_node(group: &SyncGroup, name: &str, clusters: Vec<Node>, shown: usize) -> Node {
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
        "the other clusters".to_owned()
    } else {
        format!("stage {name}")
    };
    Node {
        title,
        state,
        is_fine: false,
        children: limited(clusters, shown),
    }
}

/// At most so many clusters; those that are fine are left out first.
fn limited(clusters: Vec<Node>, shown: usize) -> Vec<Node> {
    let all = clusters.len();
    if all <= shown {
        return clusters;
    }
    let mut room = shown;
    let troubled = clusters.iter().filter(|node| !node.is_fine).count();
    let mut fine_room = shown.saturating_sub(troubled);
    let mut kept: Vec<Node> = Vec::new();
    for node in clusters {
        let fits = if node.is_fine { &mut fine_room } else { &mut room };
        if *fits > 0 {
            *fits -= 1;
            kept.push(node);
        }
    }
    let more = all - kept.len();
    let rest = if troubled <= shown {
        ", all of them done"
    } else {
        ""
    };
    kept.push(Node {
        title: format!("and {more} more{rest}"),
        state: String::new(),
        children: Vec::new(),
        is_fine: true,
    });
    kept
}

fn cluster_node(
    group: &SyncGroup,
    name: &str,
    cluster: &Cluster,
    syncs: &BTreeMap<(String, String), SyncResource>,
) -> Node {
    let conditions = cluster
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    let ready = if cluster.spec.suspend {
        "suspended".to_owned()
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
    let is_fine = ready == READY
        && children.len() == group.spec.syncs.len()
        && children.iter().all(|child| child.is_fine);
    Node {
        title: format!("Cluster {name}"),
        state: ready,
        children,
        is_fine,
    }
}

fn sync_node(group: &SyncGroup, entry: &str, sync: &SyncResource) -> Node {
    let status = sync.status.clone().unwrap_or_default();
    let ready = state(&status.conditions);
    let (applied, wanted) = (short(&status.last_applied_revision), short(&sync.spec.revision));
    let mut revision = if applied == wanted {
        applied
    } else {
        format!("{applied} → {wanted}")
    };
    let awaited = awaited(group, entry, sync);
    if let Some(rolled) = awaited {
        revision = format!("{revision} (not yet {})", short(rolled));
    }
    let problems = status.problems.iter().take(3).map(|problem| Node {
        title: problem.object.clone(),
        state: format!("{}: {}", problem.reason, problem.message),
        children: Vec::new(),
        is_fine: false,
    });
    Node {
        title: format!("Sync {} ({entry})", sync.name_any()),
        state: format!("{revision}, {} objects, {ready}", status.inventory.objects),
        is_fine: awaited.is_none() && ready == READY && status.last_applied_revision == sync.spec.revision,
        children: problems.collect(),
    }
}

/// What the rollout of the group brings, if this Sync has not been told to take it: it may be in step with something older.
fn awaited<'a>(group: &'a SyncGroup, entry: &str, sync: &SyncResource) -> Option<&'a str> {
    let rollout = group.status.as_ref()?.rollout.as_ref()?;
    let rolled = rollout.revisions.iter().find(|rolled| rolled.sync == entry)?;
    (rolled.revision != sync.spec.revision).then_some(rolled.revision.as_str())
}

/// `Ready`, or why not.
fn state(conditions: &[Condition]) -> String {
    match conditions::find(conditions, READY) {
        None => "not looked at yet".to_owned(),
        Some(ready) if ready.status == "True" => READY.to_owned(),
        Some(ready) => format!("{}: {}", ready.reason, ready.message),
    }
}

impl Node {
    fn text(&self) -> String {
        let mut text = self.line();
        self.push_children(&mut text, "");
        text
    }

    fn line(&self) -> String {
        if self.state.is_empty() {
            format!("{}\n", self.title)
        } else {
            format!("{}  {}\n", self.title, self.state)
        }
    }

    fn push_children(&self, text: &mut String, indent: &str) {
        let last = self.children.len().saturating_sub(1);
        for (place, child) in self.children.iter().enumerate() {
            let (branch, below) = if place == last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            text.push_str(indent);
            text.push_str(branch);
            text.push_str(&child.line());
            child.push_children(text, &format!("{indent}{below}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Syncs = BTreeMap<(String, String), SyncResource>;
    type Fleet = (SyncGroup, Vec<Source>, BTreeMap<String, Cluster>, Syncs);

    fn ready(is: bool) -> serde_json::Value {
        json!([{"type": "Ready", "status": if is { "True" } else { "False" }, "reason": "Failed", "message": "no",
            "lastTransitionTime": "2026-11-21T11:00:00Z"}])
    }

    fn fleet(clusters: usize) -> Fleet {
        let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}}],
                "rolloutStrategy": {"stages": [{"name": "canary", "clusterSelector": {"matchLabels": {"n": "c0"}}}]}},
            "status": {"rollout": {"id": 3, "phase": "Progressing", "revisions": [{"sync": "app", "revision": "v1@sha1:0011223344"}],
                "stages": [{"name": "canary", "phase": "Passed", "total": 1, "updated": 1}]}}});
        let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "s"},
            "spec": {"url": "https://h/r", "ref": {"branch": "main"}},
            "status": {"revision": "v1@sha1:0011223344", "conditions": ready(true)}});
        let of = |n: usize| {
            let name = format!("c{n}");
            let cluster = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": name, "labels": {"n": name}},
                "spec": {"kubeConfig": {"secretRef": {"name": "s"}}}, "status": {"conditions": ready(true)}});
            let sync = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": {"name": format!("shop-app-{name}")},
                "spec": {"clusterRef": {"name": name}, "sourceRef": {"name": "s"}, "revision": "v1@sha1:0011223344"},
                "status": {"lastAppliedRevision": "v1@sha1:0011223344", "inventory": {"objects": 2}, "conditions": ready(n != 1)}});
            (
                name,
                serde_json::from_value(cluster).unwrap(),
                serde_json::from_value(sync).unwrap(),
            )
        };
        let (mut by_name, mut syncs) = (BTreeMap::new(), BTreeMap::new());
        for n in 0..clusters {
            let (name, cluster, sync) = of(n);
            by_name.insert(name.clone(), cluster);
            syncs.insert((name, "app".to_owned()), sync);
        }
        (
            serde_json::from_value(group).unwrap(),
            vec![serde_json::from_value(source).unwrap()],
            by_name,
            syncs,
        )
    }

    #[test]
    fn a_group_is_shown_stage_by_stage() {
        let (group, sources, clusters, syncs) = fleet(2);
        let text = tree(&group, &sources, &clusters, &syncs, 20).unwrap().text();
        let expected = "SyncGroup shop  Progressing, rollout 3, v1@00112233\n\
            ├─ Source s  v1@00112233, Ready\n\
            ├─ stage canary  Passed, 1/1 done, 0 failed\n\
            │  └─ Cluster c0  Ready\n\
            │     └─ Sync shop-app-c0 (app)  v1@00112233, 2 objects, Ready\n\
            └─ the other clusters\n   \
               └─ Cluster c1  Ready\n      \
                  └─ Sync shop-app-c1 (app)  v1@00112233, 2 objects, Failed: no\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn of_many_clusters_those_in_trouble_are_shown() {
        let (group, sources, clusters, syncs) = fleet(8);
        let text = tree(&group, &sources, &clusters, &syncs, 2).unwrap().text();
        assert!(
            text.contains("Cluster c1") && text.contains("Cluster c2"),
            "{text}"
        );
        assert!(!text.contains("Cluster c3"), "{text}");
        assert!(text.contains("└─ and 5 more, all of them done"), "{text}");
    }

    #[test]
    fn a_cluster_that_waits_for_its_turn_is_not_done() {
        let (mut group, sources, clusters, syncs) = fleet(4);
        let rollout = group.status.as_mut().and_then(|status| status.rollout.as_mut());
        rollout.unwrap().revisions[0].revision = "v2@sha1:4455667788".to_owned();
        let text = tree(&group, &sources, &clusters, &syncs, 1).unwrap().text();
        assert!(text.contains("v1@00112233 (not yet v2@44556677)"), "{text}");
        assert!(text.contains("and 2 more\n"), "{text}");
    }

    #[test]
    fn a_source_that_is_not_there_is_told() {
        let (group, _, clusters, syncs) = fleet(1);
        let text = tree(&group, &[], &clusters, &syncs, 20).unwrap().text();
        assert!(text.contains("├─ Source s  not found\n"), "{text}");
    }
}
