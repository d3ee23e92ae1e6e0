//! `starling tree`: prints a group with its Sources, stages, clusters and Syncs.

use clap::{Args, ValueEnum};
use starling_api::Source;

use super::caller::{Caller, CallerArguments};
use super::{lists, output};
use crate::read_model::tree::{self, Node, NodeKind};

/// Clusters of a stage that the text shows; those with problems come first.
const SHOWN: usize = 20;

/// Options of `tree`.
#[derive(Debug, Args)]
pub(super) struct TreeArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Show every cluster. Default: up to 20 for each stage, those with problems first
    #[arg(long)]
    all: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// Output format of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Plain text
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

pub(super) async fn run(arguments: TreeArguments) -> anyhow::Result<()> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    let group = lists::group(&caller, &arguments.group).await?;
    let sources: Vec<Source> = lists::all(&caller).await?;
    let objects = lists::objects_of(&caller, group).await?;
    let tree = tree::of_group(&objects, &sources).map_err(|error| anyhow::anyhow!("spec.{error}"))?;
    match arguments.output {
        Form::Json => output::print_value(&tree, false),
        Form::Yaml => output::print_value(&tree, true),
        Form::Text => {
            let limit = if arguments.all { usize::MAX } else { SHOWN };
            output::print(&text(&tree, limit));
            Ok(())
        }
    }
}

/// The tree as text, with at most `limit` clusters of each stage.
fn text(tree: &Node, limit: usize) -> String {
    let mut text = line(tree);
    push_children(&mut text, tree, limit, "");
    text
}

fn line(node: &Node) -> String {
    if node.state.is_empty() {
        format!("{}\n", node.title)
    } else {
        format!("{}  {}\n", node.title, node.state)
    }
}

fn push_children(text: &mut String, node: &Node, limit: usize, indent: &str) {
    let Shown { nodes, omitted } = shown(&node.children, limit);
    let last = nodes.len().saturating_sub(1);
    for (place, child) in nodes.into_iter().enumerate() {
        let is_last = place == last && omitted.is_none();
        let (branch, below) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        text.push_str(&format!("{indent}{branch}{}", line(child)));
        push_children(text, child, limit, &format!("{indent}{below}"));
    }
    if let Some(omitted) = omitted {
        text.push_str(&format!("{indent}└─ {omitted}\n"));
    }
}

/// The nodes that the text shows, and what it says of the others.
struct Shown<'a> {
    nodes: Vec<&'a Node>,
    omitted: Option<String>,
}

/// Leaves out clusters above the limit, those without problems first. Other nodes are always shown.
fn shown(children: &[Node], limit: usize) -> Shown<'_> {
    let is_cluster = |node: &Node| node.kind == NodeKind::Cluster;
    let clusters = children.iter().filter(|node| is_cluster(node)).count();
    let with_problems = children
        .iter()
        .filter(|node| is_cluster(node) && !node.is_ok)
        .count();
    let (mut problems_left, mut ok_left) = (limit, limit.saturating_sub(with_problems));
    if clusters <= limit {
        (problems_left, ok_left) = (clusters, clusters);
    }
    let nodes: Vec<&Node> = children
        .iter()
        .filter(|node| {
            if !is_cluster(node) {
                return true;
            }
            let left = if node.is_ok {
                &mut ok_left
            } else {
                &mut problems_left
            };
            let fits = *left > 0;
            *left = left.saturating_sub(1);
            fits
        })
        .collect();
    let omitted = children.len() - nodes.len();
    let rest = if with_problems <= limit { ", all done" } else { "" };
    Shown {
        nodes,
        omitted: (omitted > 0).then(|| format!("and {omitted} more{rest}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::read_model::group::GroupObjects;

    fn ready(is: bool) -> serde_json::Value {
        json!([{"type": "Ready", "status": if is { "True" } else { "False" }, "reason": "Failed", "message": "no",
            "lastTransitionTime": "2026-11-21T11:00:00Z"}])
    }

    fn fleet(clusters: usize) -> (GroupObjects, Vec<Source>) {
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
        let objects = GroupObjects {
            group: serde_json::from_value(group).unwrap(),
            clusters: by_name,
            syncs,
        };
        (objects, vec![serde_json::from_value(source).unwrap()])
    }

    #[test]
    fn a_group_is_shown_stage_by_stage() {
        let (objects, sources) = fleet(2);
        let text = text(&tree::of_group(&objects, &sources).unwrap(), 20);
        let expected = "SyncGroup shop  Progressing, rollout 3, v1@00112233\n\
            ├─ Source s  v1@00112233, Ready\n\
            ├─ stage canary  Passed, 1/1 done, 0 failed\n\
            │  └─ Cluster c0  Ready\n\
            │     └─ Sync shop-app-c0 (app)  v1@00112233, 2 objects, Ready\n\
            └─ other clusters (no stage)\n   \
               └─ Cluster c1  Ready\n      \
                  └─ Sync shop-app-c1 (app)  v1@00112233, 2 objects, Failed: no\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn clusters_with_problems_are_shown_first() {
        let (objects, sources) = fleet(8);
        let text = text(&tree::of_group(&objects, &sources).unwrap(), 2);
        assert!(
            text.contains("Cluster c1") && text.contains("Cluster c2"),
            "{text}"
        );
        assert!(!text.contains("Cluster c3"), "{text}");
        assert!(text.contains("└─ and 5 more, all done"), "{text}");
    }

    #[test]
    fn a_pending_cluster_is_not_done() {
        let (mut objects, sources) = fleet(4);
        let rollout = objects
            .group
            .status
            .as_mut()
            .and_then(|status| status.rollout.as_mut());
        rollout.unwrap().revisions[0].revision = "v2@sha1:4455667788".to_owned();
        let text = text(&tree::of_group(&objects, &sources).unwrap(), 1);
        assert!(text.contains("v1@00112233 (pending v2@44556677)"), "{text}");
        assert!(text.contains("and 2 more\n"), "{text}");
    }

    #[test]
    fn a_missing_source_is_shown() {
        let (objects, _) = fleet(1);
        let text = text(&tree::of_group(&objects, &[]).unwrap(), 20);
        assert!(text.contains("├─ Source s  not found\n"), "{text}");
    }

    /// Programs read this form.
    #[test]
    fn the_json_form_has_titles_states_and_children() {
        let (objects, sources) = fleet(1);
        let tree = serde_json::to_value(tree::of_group(&objects, &sources).unwrap()).unwrap();
        assert_eq!(
            tree,
            json!({"title": "SyncGroup shop", "state": "Progressing, rollout 3, v1@00112233", "children": [
                {"title": "Source s", "state": "v1@00112233, Ready"},
                {"title": "stage canary", "state": "Passed, 1/1 done, 0 failed", "children": [
                    {"title": "Cluster c0", "state": "Ready", "children": [
                        {"title": "Sync shop-app-c0 (app)", "state": "v1@00112233, 2 objects, Ready"},
                    ]},
                ]},
            ]})
        );
    }
}
