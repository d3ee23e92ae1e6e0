//! The third-party packages that a package of the workspace depends on, directly or through others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use crate::Arrows;

/// The prefix of the packages of the workspace.
const OURS: &str = "starling-";

/// Returns the third-party packages that the packages of `list` depend on directly, tests excepted. The dependencies
/// of other platforms and optional ones count.
pub(crate) fn direct(metadata: &Value, list: &[(&str, &[&str])]) -> Arrows {
    let mut arrows = Arrows::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().and_then(|name| name.strip_prefix(OURS));
        let Some(from) = name.filter(|name| list.iter().any(|(from, _)| from == name)) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            if dependency["kind"] != "dev" && !name.starts_with(OURS) {
                arrows.insert((from.to_owned(), name.to_owned()));
            }
        }
    }
    arrows
}

/// Describes each way on which a package of `list` reaches one of the packages `unwanted`, by the normal dependencies
/// of the default features of the workspace.
pub(crate) fn reached(metadata: &Value, list: &[(&str, &[&str])], unwanted: &[&str]) -> Vec<String> {
    let graph = Graph::read(metadata);
    let ways = list.iter().flat_map(|(from, _)| {
        let from = format!("{OURS}{from}");
        let ways = graph.ways(&from);
        let unwanted = ways
            .into_iter()
            .filter(|way| way.last().is_some_and(|last| unwanted.contains(last)));
        unwanted.map(|way| way.join(" > ")).collect::<Vec<_>>()
    });
    ways.collect()
}

/// Which packages depend on which, by their ids.
struct Graph<'a> {
    names: BTreeMap<&'a str, &'a str>,
    uses: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Graph<'a> {
    fn read(metadata: &'a Value) -> Self {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let names = packages.filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)));
        let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
        let uses = nodes.filter_map(|node| {
            let uses = node["deps"].as_array()?.iter();
            let uses = uses.filter(|dependency| {
                let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
                kinds.any(|of| of["kind"].is_null())
            });
            let uses = uses.filter_map(|dependency| dependency["pkg"].as_str());
            Some((node["id"].as_str()?, uses.collect()))
        });
        Self {
            names: names.collect(),
            uses: uses.collect(),
        }
    }

    /// Returns a shortest way to each package that a package depends on, as names.
    fn ways(&self, from: &str) -> Vec<Vec<&'a str>> {
        // A package that is missing lacks its direct dependencies too.
        let Some((&id, &name)) = self.names.iter().find(|(_, name)| **name == from) else {
            return Vec::new();
        };
        let (mut ways, mut seen) = (Vec::new(), BTreeSet::from([id]));
        let mut queue = VecDeque::from([(id, vec![name])]);
        while let Some((id, way)) = queue.pop_front() {
            for next in self.uses.get(id).into_iter().flatten() {
                if seen.insert(next) {
                    queue.push_back((next, [way.as_slice(), &[self.names[next]]].concat()));
                }
            }
            ways.push(way);
        }
        ways
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn direct_and_transitive_dependencies_are_found() {
        let node = |id: &str, uses: &[(&str, Option<&str>)]| {
            let uses = uses.iter();
            let uses = uses.map(|(id, kind)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]}));
            json!({"id": id, "deps": uses.collect::<Vec<_>>()})
        };
        let metadata = json!({
            "packages": [
                {"id": "1", "name": "starling-core", "dependencies": [
                    {"name": "starling-api", "kind": null},
                    {"name": "kube", "kind": null, "optional": true},
                    {"name": "cc", "kind": "build"},
                    {"name": "proptest", "kind": "dev"},
                ]},
                {"id": "2", "name": "starling-api", "dependencies": []},
                {"id": "3", "name": "kube", "dependencies": []},
                {"id": "4", "name": "tokio", "dependencies": []},
            ],
            "resolve": {"nodes": [
                node("1", &[("2", None), ("4", Some("dev"))]),
                node("2", &[("3", None), ("4", Some("build"))]),
                node("3", &[("4", None)]),
                node("4", &[]),
            ]},
        });
        let list: &[(&str, &[&str])] = &[("core", &[])];
        let direct = direct(&metadata, list).into_iter();
        let direct: Vec<String> = direct.map(|(from, to)| format!("{from} > {to}")).collect();
        assert_eq!(direct, ["core > cc", "core > kube"]);
        assert_eq!(
            reached(&metadata, list, &["kube", "tokio"]),
            [
                "starling-core > starling-api > kube",
                "starling-core > starling-api > kube > tokio"
            ]
        );
    }
}
