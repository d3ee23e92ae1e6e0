//! Dependencies: `dependsOn` among Syncs of a namespace, or among the entries of a SyncGroup.
//!
//! The field names are those of Flux. Unlike in Flux, "ready" is not enough: a dependency must be done with its current
//! target, and within a group with the same release. Otherwise a dependency that was ready with the previous commit
//! would let its dependents start.

use std::collections::{BTreeSet, VecDeque};

use starling_api::SyncEntry;

/// The state of the dependencies of a Sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dependencies {
    /// All dependencies are done, or there are none.
    #[default]
    Done,
    /// A dependency is not done.
    Waiting {
        /// The dependency and its state.
        message: String,
    },
    /// The Sync depends on itself by this path, which begins and ends with it.
    Cycle {
        /// The names along the path.
        names: Vec<String>,
    },
}

/// Returns the shortest path from `start` along the edges back to `start`; of several, the first in the order of edges.
///
/// A name that leads to a cycle without being part of it has no cycle of its own: it waits.
#[must_use]
pub fn cycle<'a>(start: &'a str, edges: impl Fn(&str) -> Vec<&'a str>) -> Option<Vec<String>> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut ways: VecDeque<Vec<&'a str>> = [vec![start]].into();
    while let Some(way) = ways.pop_front() {
        for next in edges(way.last()?) {
            let further = || way.iter().copied().chain([next]);
            if next == start {
                return Some(further().map(str::to_owned).collect());
            }
            if seen.insert(next) {
                ways.push_back(further().collect());
            }
        }
    }
    None
}

/// An error in the dependencies of the entries of a SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// An entry depends on one that does not exist.
    #[error("syncs[{entry}].dependsOn: there is no entry {name:?}; it must name one of {known}")]
    Unknown {
        /// The entry.
        entry: String,
        /// The name of the dependency.
        name: String,
        /// The names of the entries.
        known: String,
    },
    /// An entry depends on itself.
    #[error("syncs[{entry}].dependsOn: it depends on itself: {way}")]
    Cycle {
        /// The entry.
        entry: String,
        /// The path.
        way: String,
    },
}

impl EntryError {
    /// Returns the reason of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "InvalidSpec",
            Self::Cycle { .. } => "DependencyCycle",
        }
    }
}

/// Checks the dependencies among the entries of a SyncGroup.
///
/// # Errors
/// The first [`EntryError`].
pub fn check_entries(entries: &[SyncEntry]) -> Result<(), EntryError> {
    let edges = |name: &str| -> Vec<&str> {
        let entry = entries.iter().find(|entry| entry.name == name);
        entry.map(on).unwrap_or_default()
    };
    for entry in entries {
        for name in on(entry) {
            if !entries.iter().any(|known| known.name == name) {
                let known: Vec<&str> = entries.iter().map(|known| known.name.as_str()).collect();
                return Err(EntryError::Unknown {
                    entry: entry.name.clone(),
                    name: name.to_owned(),
                    known: known.join(", "),
                });
            }
        }
    }
    for entry in entries {
        if let Some(names) = cycle(&entry.name, edges) {
            return Err(EntryError::Cycle {
                entry: entry.name.clone(),
                way: way(&names),
            });
        }
    }
    Ok(())
}

fn on(entry: &SyncEntry) -> Vec<&str> {
    let names = entry.template.depends_on.iter().map(|on| on.name.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns the path as text: `a → b → a`.
#[must_use]
pub fn way(names: &[String]) -> String {
    names.join(" → ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found(graph: &[(&'static str, &[&'static str])], start: &'static str) -> Option<String> {
        let graph: BTreeMap<&str, &[&'static str]> = graph.iter().copied().collect();
        cycle(start, |name| {
            graph.get(name).map(|next| next.to_vec()).unwrap_or_default()
        })
        .map(|names| way(&names))
    }

    #[test]
    fn a_cycle_is_reported_for_its_members() {
        let chain: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &[])];
        let square: &[(&str, &[&str])] = &[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])];
        let long: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &["a"])];
        let behind: &[(&str, &[&str])] = &[("x", &["a"]), ("a", &["b"]), ("b", &["a"])];
        let two: &[(&str, &[&str])] = &[("a", &["b", "c"]), ("b", &["c"]), ("c", &["a"])];
        for (graph, start, expected) in [
            (chain, "a", None),
            (square, "a", None),
            (&[("a", &["a"] as &[&str])] as &[_], "a", Some("a → a")),
            (&[("a", &["nobody"] as &[&str])] as &[_], "a", None),
            (long, "a", Some("a → b → c → a")),
            (long, "b", Some("b → c → a → b")),
            (behind, "x", None),
            (behind, "b", Some("b → a → b")),
            (two, "a", Some("a → c → a")),
        ] {
            assert_eq!(found(graph, start).as_deref(), expected, "{graph:?} from {start}");
        }
    }

    #[test]
    fn dependencies_between_entries_are_checked() {
        let entries = |graph: &[(&str, &str)]| -> Vec<SyncEntry> {
            let entry = |(name, on): &(&str, &str)| {
                let json = serde_json::json!({"name": name, "sourceRef": {"name": "s"}, "dependsOn": [{"name": on}]});
                serde_json::from_value(json).unwrap()
            };
            graph.iter().map(entry).collect()
        };
        assert_eq!(check_entries(&entries(&[("a", "b"), ("b", "")])), Ok(()));
        let unknown = check_entries(&entries(&[("a", "c"), ("b", "a")])).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "syncs[a].dependsOn: there is no entry \"c\"; it must name one of a, b"
        );
        let cycle = check_entries(&entries(&[("x", "a"), ("a", "b"), ("b", "a")])).unwrap_err();
        assert_eq!(
            cycle.to_string(),
            "syncs[a].dependsOn: it depends on itself: a → b → a"
        );
        assert_eq!(cycle.reason(), "DependencyCycle");
    }

    /// Each name is visited once: a lattice has 2^n paths.
    #[test]
    fn a_lattice_is_walked_once() {
        let names: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        let edges = |name: &str| {
            let n: usize = name.parse().unwrap();
            let (row, next) = (n / 2, (n / 2 + 1) * 2);
            if row < 199 {
                vec![names[next].as_str(), names[next + 1].as_str()]
            } else {
                Vec::new()
            }
        };
        assert_eq!(cycle(&names[0], edges), None);
    }
}
