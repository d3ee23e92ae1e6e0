//! Sets of field paths.

use std::cmp::Ordering;
use std::fmt;

use super::{Path, PathElement};

/// A set of paths, as a tree with sorted branches.
///
/// Each operation walks two trees side by side, once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: Vec<Node>,
}

/// A path element that paths of a set share.
///
/// A node is a member of the set, or has children, or both.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) element: PathElement,
    /// Whether the path that ends here is in the set.
    pub(crate) member: bool,
    /// The paths that continue from here.
    pub(crate) children: FieldSet,
}

impl FieldSet {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Returns whether the set has no paths.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the number of paths.
    pub fn len(&self) -> usize {
        self.nodes
            .iter()
            .map(|node| usize::from(node.member) + node.children.len())
            .sum()
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn node(&self, element: &PathElement) -> Option<&Node> {
        let place = self
            .nodes
            .binary_search_by(|node| node.element.cmp(element))
            .ok()?;
        self.nodes.get(place)
    }

    /// Returns the node of a named field, like [`Self::node`].
    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        let place = self
            .nodes
            .binary_search_by(|node| match &node.element {
                PathElement::Field(field) => (**field).cmp(name),
                _ => Ordering::Greater,
            })
            .ok()?;
        self.nodes.get(place)
    }

    /// Adds a path. The empty path is ignored: no manager owns an object as a whole.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let place = match self.nodes.binary_search_by(|node| node.element.cmp(first)) {
            Ok(place) => place,
            Err(place) => {
                self.nodes.insert(
                    place,
                    Node {
                        element: first.clone(),
                        member: false,
                        children: Self::new(),
                    },
                );
                place
            }
        };
        if rest.is_empty() {
            self.nodes[place].member = true;
        } else {
            self.nodes[place].children.insert(rest);
        }
    }

    /// Returns whether a path is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.children.has(rest)),
        }
    }

    /// Returns the paths of either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        walk(&self.nodes, &other.nodes, |left, right| match (left, right) {
            (Some(left), Some(right)) => nodes.push(Node {
                element: left.element.clone(),
                member: left.member || right.member,
                children: left.children.union(&right.children),
            }),
            (Some(node), None) | (None, Some(node)) => nodes.push(node.clone()),
            (None, None) => {}
        });
        Self { nodes }
    }

    /// Adds the paths of another set.
    pub fn extend(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            *self = self.union(&other);
        }
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |left, right| Node {
            element: left.element.clone(),
            member: left.member && right.is_some_and(|right| right.member),
            children: right.map_or_else(Self::new, |right| left.children.intersection(&right.children)),
        })
    }

    /// Returns the paths that are not in the other set, including those below paths of the other set.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |left, right| match right {
            None => left.clone(),
            Some(right) => Node {
                element: left.element.clone(),
                member: left.member && !right.member,
                children: left.children.difference(&right.children),
            },
        })
    }

    /// Returns the paths that are neither in the other set nor below one of its paths.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.combine(other, |left, right| match right {
            None => left.clone(),
            Some(right) => Node {
                element: left.element.clone(),
                member: left.member && !right.member,
                children: if right.member {
                    Self::new()
                } else {
                    left.children.recursive_difference(&right.children)
                },
            },
        })
    }

    /// Returns whether every path is in the other set too.
    pub fn is_subset(&self, other: &Self) -> bool {
        let mut rest = other.nodes.as_slice();
        self.nodes.iter().all(|node| {
            let skipped = rest
                .iter()
                .take_while(|other| other.element < node.element)
                .count();
            rest = &rest[skipped..];
            rest.first().is_some_and(|other| {
                other.element == node.element
                    && (other.member || !node.member)
                    && node.children.is_subset(&other.children)
            })
        })
    }

    /// Returns the paths that no other path of the set continues.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let nodes = self
            .nodes
            .iter()
            .map(|node| Node {
                element: node.element.clone(),
                member: node.member && node.children.is_empty(),
                children: node.children.leaves(),
            })
            .collect();
        Self { nodes }
    }

    /// Calls a function with each path, parents before children.
    pub fn each(&self, mut found: impl FnMut(&[PathElement])) {
        self.each_below(&mut Vec::new(), &mut found);
    }

    fn each_below(&self, prefix: &mut Vec<PathElement>, found: &mut impl FnMut(&[PathElement])) {
        for node in self.nodes.iter().filter(|node| node.member) {
            prefix.push(node.element.clone());
            found(prefix);
            prefix.pop();
        }
        for node in self.nodes.iter().filter(|node| !node.children.is_empty()) {
            prefix.push(node.element.clone());
            node.children.each_below(prefix, found);
            prefix.pop();
        }
    }

    /// Returns all paths in the order of [`Self::each`].
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::with_capacity(self.len());
        self.each(|path| paths.push(Path(path.to_vec())));
        paths
    }

    /// Maps the nodes of this set by `keep`, which also gets the node of the other set at the same element.
    fn combine(&self, other: &Self, mut keep: impl FnMut(&Node, Option<&Node>) -> Node) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        walk(&self.nodes, &other.nodes, |left, right| {
            let Some(left) = left else { return };
            let node = keep(left, right);
            if node.is_needed() {
                nodes.push(node);
            }
        });
        Self { nodes }
    }
}

impl Node {
    fn is_needed(&self) -> bool {
        self.member || !self.children.is_empty()
    }
}

/// Walks two sorted lists of nodes side by side.
fn walk<'a>(
    mut left: &'a [Node],
    mut right: &'a [Node],
    mut visit: impl FnMut(Option<&'a Node>, Option<&'a Node>),
) {
    loop {
        match (left.split_first(), right.split_first()) {
            (Some((l, l_rest)), Some((r, r_rest))) => match l.element.cmp(&r.element) {
                Ordering::Less => {
                    visit(Some(l), None);
                    left = l_rest;
                }
                Ordering::Greater => {
                    visit(None, Some(r));
                    right = r_rest;
                }
                Ordering::Equal => {
                    visit(Some(l), Some(r));
                    (left, right) = (l_rest, r_rest);
                }
            },
            (Some((l, rest)), None) => {
                visit(Some(l), None);
                left = rest;
            }
            (None, Some((r, rest))) => {
                visit(None, Some(r));
                right = rest;
            }
            (None, None) => return,
        }
    }
}

/// Builds a set from nodes in nearly sorted order, as a walk over an object visits them.
#[derive(Default)]
pub(crate) struct FieldSetBuilder {
    set: FieldSet,
}

impl FieldSetBuilder {
    /// Adds a node. A node without content is dropped; one with the same element as an earlier node is merged into
    /// it.
    pub(crate) fn push(&mut self, node: Node) {
        if !node.is_needed() {
            return;
        }
        let nodes = &mut self.set.nodes;
        if nodes.last().is_none_or(|last| last.element < node.element) {
            nodes.push(node);
            return;
        }
        match nodes.binary_search_by(|other| other.element.cmp(&node.element)) {
            Ok(place) => {
                nodes[place].member |= node.member;
                nodes[place].children.extend(node.children);
            }
            Err(place) => nodes.insert(place, node),
        }
    }

    pub(crate) fn build(self) -> FieldSet {
        self.set
    }
}

impl FromIterator<Path> for FieldSet {
    fn from_iter<T: IntoIterator<Item = Path>>(paths: T) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&path.0);
        }
        set
    }
}

/// Shows the paths, so that a failed test is readable.
impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.paths().iter().map(ToString::to_string))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(paths: &[&str]) -> FieldSet {
        paths
            .iter()
            .map(|path| Path::of_fields(&path.split('.').collect::<Vec<_>>()))
            .collect()
    }

    #[test]
    fn operations_follow_the_table() {
        let left = set(&["a", "a.b", "a.b.c", "d.e"]);
        let right = set(&["a.b", "d", "f"]);
        for (name, got, wanted) in [
            (
                "union",
                left.union(&right),
                set(&["a", "a.b", "a.b.c", "d", "d.e", "f"]),
            ),
            ("intersection", left.intersection(&right), set(&["a.b"])),
            ("difference", left.difference(&right), set(&["a", "a.b.c", "d.e"])),
            (
                "recursive difference",
                left.recursive_difference(&right),
                set(&["a"]),
            ),
            ("leaves", left.leaves(), set(&["a.b.c", "d.e"])),
        ] {
            assert_eq!(got, wanted, "{name}");
        }
        assert!(set(&["a.b", "d.e"]).is_subset(&left));
        assert!(!right.is_subset(&left));
        assert_eq!(left.len(), 4);
    }

    #[test]
    fn no_manager_owns_an_object_as_a_whole() {
        let mut set = FieldSet::new();
        set.insert(&[]);
        assert!(set.is_empty() && !set.has(&[]));
    }

    #[test]
    fn a_path_does_not_contain_its_parents() {
        let set = set(&["a.b.c"]);
        assert!(set.has(&Path::of_fields(&["a", "b", "c"]).0));
        assert!(!set.has(&Path::of_fields(&["a", "b"]).0));
    }
}
