//! Finds circles: modules that use each other in a loop, directly or through others.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Uses;

/// The places of a use that a message names.
const PLACES: usize = 3;

/// Returns the circles, each as large as it can be: two of its modules reach each other, and no others do.
pub(crate) fn circles(uses: &Uses) -> BTreeSet<BTreeSet<&str>> {
    let reached = reached(uses);
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|ends| ends.contains(to));
    let in_circles = reached.keys().filter(|module| reaches(module, module));
    let circles = in_circles.map(|module| {
        let ends = reached[module].iter().copied();
        ends.filter(|other| reaches(other, module)).collect()
    });
    circles.collect()
}

/// Returns the modules that each module uses, directly or through others.
fn reached(uses: &Uses) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in uses.keys() {
        reached.entry(from).or_default().insert(to);
    }
    loop {
        let before = reached.clone();
        for ends in reached.values_mut() {
            let further = ends.iter().filter_map(|end| before.get(end)).flatten();
            let further: Vec<&str> = further.copied().collect();
            ends.extend(further);
        }
        if before == reached {
            return reached;
        }
    }
}

/// Describes each circle of the modules in `directory`.
pub(crate) fn described(directory: &str, uses: &Uses) -> Vec<String> {
    let described = circles(uses).into_iter().map(|circle| {
        let ties = ties(uses, &circle).join("\n  ");
        format!("{directory}: {} are a circle:\n  {ties}", joined(&circle))
    });
    described.collect()
}

fn joined(circle: &BTreeSet<&str>) -> String {
    circle.iter().copied().collect::<Vec<_>>().join(", ")
}

/// Describes each use between two modules of a circle.
fn ties(uses: &Uses, circle: &BTreeSet<&str>) -> Vec<String> {
    let within = uses
        .iter()
        .filter(|((from, to), _)| circle.contains(from.as_str()) && circle.contains(to.as_str()));
    let described = within.map(|((from, to), places)| {
        // A name that a `use` has brought adds nothing to the `use`.
        let (full, brought): (Vec<_>, Vec<_>) = places.iter().partition(|(_, path)| is_full(path));
        let places = if full.is_empty() { brought } else { full };
        let first = places
            .iter()
            .take(PLACES)
            .map(|(module, path)| format!("{path} in {module}"));
        let first = first.collect::<Vec<_>>().join(", ");
        match places.len().saturating_sub(PLACES) {
            0 => format!("{from} uses {to}: {first}"),
            more => format!("{from} uses {to}: {first}, and {more} more"),
        }
    });
    described.collect()
}

fn is_full(path: &str) -> bool {
    ["crate::", "super::", "self::"]
        .iter()
        .any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(pairs: &[(&str, &str)]) -> Uses {
        let places = |to: &str| {
            let paths = [format!("crate::{to}::X"), "X".to_owned()];
            BTreeSet::from(paths.map(|path| ("inner".to_owned(), path)))
        };
        let pairs = pairs
            .iter()
            .map(|(from, to)| (((*from).to_owned(), (*to).to_owned()), places(to)));
        pairs.collect()
    }

    #[test]
    fn circles_are_the_modules_that_reach_each_other() {
        for (pairs, expected) in [
            (vec![("a", "b"), ("b", "c"), ("a", "c")], vec![]),
            (vec![("a", "b"), ("b", "a")], vec![vec!["a", "b"]]),
            (
                vec![("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e")],
                vec![vec!["b", "c", "d"]],
            ),
            // Two loops through `b` are one circle.
            (
                vec![("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")],
                vec![vec!["a", "b", "c"]],
            ),
            (
                vec![("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")],
                vec![vec!["a", "b"], vec!["c", "d"]],
            ),
        ] {
            let expected: BTreeSet<BTreeSet<&str>> = expected
                .into_iter()
                .map(|circle| circle.into_iter().collect())
                .collect();
            assert_eq!(circles(&uses(&pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_circle_is_described_with_its_uses() {
        let two = uses(&[("a", "b"), ("b", "a"), ("b", "c")]);
        let expected =
            "src: a, b are a circle:\n  a uses b: crate::b::X in inner\n  b uses a: crate::a::X in inner";
        assert_eq!(described("src", &two), [expected]);
        assert_eq!(described("src", &uses(&[("a", "b")])), Vec::<String>::new());
    }
}
