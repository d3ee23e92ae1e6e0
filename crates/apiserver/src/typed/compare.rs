//! The comparison of two values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map as Json, Value};

use super::element::element_of;
use crate::fields::{FieldSet, FieldSetBuilder, Node, PathElement};
use crate::schema::{List, Map, Relation, Schema, Shape, Type, TypeId};
use crate::value::equal;

/// The differences between an old and a new value. The three sets are disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The fields that only the old value has.
    pub removed: FieldSet,
    /// The fields that both values have, with different content.
    pub modified: FieldSet,
    /// The fields that only the new value has.
    pub added: FieldSet,
}

impl Comparison {
    /// Returns whether the values are equal.
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Removes fields, and those below them, from the comparison.
    #[must_use]
    pub fn without(&self, fields: &FieldSet) -> Self {
        Self {
            removed: self.removed.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            added: self.added.recursive_difference(fields),
        }
    }
}

pub(super) fn compare(ty: &Type, old: &Value, new: &Value) -> Comparison {
    let found = walk(&ty.schema, Some(ty.id), Some(old), Some(new));
    Comparison {
        removed: found.removed.below,
        modified: found.modified.below,
        added: found.added.below,
    }
}

/// The fields of one of the sets, below a position.
#[derive(Default)]
struct Marks {
    here: bool,
    below: FieldSet,
}

/// The differences below a position.
#[derive(Default)]
struct Difference {
    removed: Marks,
    modified: Marks,
    added: Marks,
}

/// Collects the differences of the children of a position.
#[derive(Default)]
struct Collector {
    removed: FieldSetBuilder,
    modified: FieldSetBuilder,
    added: FieldSetBuilder,
}

impl Collector {
    fn push(&mut self, element: &PathElement, found: Difference) {
        let Difference {
            removed,
            modified,
            added,
        } = found;
        for (builder, marks) in [
            (&mut self.removed, removed),
            (&mut self.modified, modified),
            (&mut self.added, added),
        ] {
            if marks.here || !marks.below.is_empty() {
                builder.push(Node {
                    element: element.clone(),
                    member: marks.here,
                    children: marks.below,
                });
            }
        }
    }

    fn add_to(self, difference: &mut Difference) {
        difference.removed.below.extend(self.removed.build());
        difference.modified.below.extend(self.modified.build());
        difference.added.below.extend(self.added.build());
    }
}

fn walk(schema: &Schema, ty: Option<TypeId>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut difference = Difference::default();
    let Some(ty) = ty else {
        return difference;
    };
    let atom = schema.atom(ty);
    let (was, is) = (atom.possible(old), atom.possible(new));
    let leaf = match (old, new) {
        (_, None) => compare_as(schema, atom.shape(was), old, new, &mut difference),
        (None, Some(_)) => compare_as(schema, atom.shape(is), old, new, &mut difference),
        (Some(_), Some(_)) => {
            if was != is {
                // The value changed its type: everything in the old value is removed, everything in the new one is
                // added.
                compare_as(schema, atom.shape(was), old, new, &mut difference);
            }
            compare_as(schema, atom.shape(is), old, new, &mut difference)
        }
    };
    if !leaf {
        difference.added.here |= old.is_none();
        difference.removed.here |= old.is_some() && new.is_none();
    }
    difference
}

/// Compares two values as one type; returns true if their children need not be compared.
fn compare_as(
    schema: &Schema,
    shape: Shape<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    difference: &mut Difference,
) -> bool {
    match shape {
        Shape::Scalar(_) => leaf(old, new, difference),
        Shape::List(list) => {
            let (was, is) = (items(old), items(new));
            if matches!(list.relation, Relation::Atomic) || (was.is_empty() && is.is_empty()) {
                return leaf(old, new, difference);
            }
            compare_lists(schema, list, was, is, difference);
            false
        }
        Shape::Map(map) => {
            let (was, is) = (fields(old), fields(new));
            if map.atomic || (was.is_none_or(Json::is_empty) && is.is_none_or(Json::is_empty)) {
                return leaf(old, new, difference);
            }
            compare_maps(schema, map, was, is, difference);
            false
        }
        Shape::Nothing => false,
    }
}

fn leaf(old: Option<&Value>, new: Option<&Value>, difference: &mut Difference) -> bool {
    match (old, new) {
        (None, _) => difference.added.here = true,
        (Some(_), None) => difference.removed.here = true,
        (Some(old), Some(new)) => difference.modified.here |= !equal(old, new),
    }
    true
}

pub(super) fn items(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

pub(super) fn fields(value: Option<&Value>) -> Option<&Json<String, Value>> {
    value.and_then(Value::as_object)
}

/// Calls a function with every name of two maps, in order, and its values.
pub(super) fn zip<'a>(
    left: Option<&'a Json<String, Value>>,
    right: Option<&'a Json<String, Value>>,
    mut visit: impl FnMut(&'a str, Option<&'a Value>, Option<&'a Value>),
) {
    let mut left = left.into_iter().flatten().peekable();
    let mut right = right.into_iter().flatten().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((l, _)), Some((r, _))) => l.cmp(r),
        };
        let l = if order.is_le() { left.next() } else { None };
        let r = if order.is_ge() { right.next() } else { None };
        if let Some((name, _)) = l.or(r) {
            visit(name, l.map(|(_, value)| value), r.map(|(_, value)| value));
        }
    }
}

fn compare_maps(
    schema: &Schema,
    map: &Map,
    old: Option<&Json<String, Value>>,
    new: Option<&Json<String, Value>>,
    difference: &mut Difference,
) {
    let mut collector = Collector::default();
    zip(old, new, |name, old, new| {
        let declared = map.field(name);
        let found = walk(schema, declared.map(|field| field.ty).or(map.element), old, new);
        let element = declared.map_or_else(|| name.into(), |field| field.name.clone());
        collector.push(&PathElement::Field(element), found);
    });
    collector.add_to(difference);
}

fn compare_lists(schema: &Schema, list: &List, old: &[Value], new: &[Value], difference: &mut Difference) {
    let mut known: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (item, is_new) in old
        .iter()
        .map(|item| (item, false))
        .chain(new.iter().map(|item| (item, true)))
    {
        let Ok(element) = element_of(schema, list, item) else {
            continue;
        };
        let sides = match known.entry(element) {
            Entry::Vacant(entry) => entry.insert((Vec::new(), Vec::new())),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if is_new {
            sides.1.push(item);
        } else {
            sides.0.push(item);
        }
    }
    let mut collector = Collector::default();
    for (element, (old, new)) in &known {
        collector.push(element, compare_items(schema, list.element, old, new));
    }
    collector.add_to(difference);
}

/// Compares the items with the same key. An item that occurs twice is compared as a whole.
fn compare_items(schema: &Schema, ty: TypeId, old: &[&Value], new: &[&Value]) -> Difference {
    match (old, new) {
        ([] | [_], [] | [_]) => walk(schema, Some(ty), old.first().copied(), new.first().copied()),
        ([_, _, ..], [_, _, ..]) => {
            let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| equal(old, new));
            let mut difference = Difference::default();
            difference.modified.here = !same;
            difference
        }
        ([_, _, ..], _) => {
            let mut difference = match new.first() {
                Some(new) => walk(schema, Some(ty), None, Some(new)),
                None => Difference::default(),
            };
            difference.removed.here = true;
            difference
        }
        (_, [_, _, ..]) => {
            let mut difference = match old.first() {
                Some(old) => walk(schema, Some(ty), Some(old), None),
                None => Difference::default(),
            };
            difference.added.here = true;
            difference
        }
    }
}
