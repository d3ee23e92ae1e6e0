//! Merging a configuration into a value.

use std::collections::BTreeMap;

use serde_json::{Map as Json, Value};

use super::compare::{fields, items, zip};
use super::element::element_of;
use crate::fields::PathElement;
use crate::schema::{List, Map, Relation, Schema, Shape, Type, TypeId};

pub(super) fn merge(ty: &Type, live: &Value, config: &Value) -> Value {
    walk(&ty.schema, Some(ty.id), Some(live), Some(config)).unwrap_or(Value::Null)
}

/// Merges the values at a position; `None` if nothing remains.
fn walk(schema: &Schema, ty: Option<TypeId>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let atom = schema.atom(ty?);
    let of = if config.is_some() { config } else { live };
    let shape = atom.shape(atom.possible(of));
    let leaf = || config.or(live).cloned();
    match shape {
        Shape::Scalar(_) => leaf(),
        Shape::List(list) => {
            let (mine, theirs) = (items(live), items(config));
            // An empty list and null are kept.
            if matches!(list.relation, Relation::Atomic) || (mine.is_empty() && theirs.is_empty()) {
                return leaf();
            }
            let merged = merge_list(schema, list, mine, theirs);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
        Shape::Map(map) => {
            let (mine, theirs) = (fields(live), fields(config));
            if map.atomic || (mine.is_none_or(Json::is_empty) && theirs.is_none_or(Json::is_empty)) {
                return leaf();
            }
            let merged = merge_map(schema, map, mine, theirs);
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        Shape::Nothing => None,
    }
}

fn merge_map(
    schema: &Schema,
    map: &Map,
    live: Option<&Json<String, Value>>,
    config: Option<&Json<String, Value>>,
) -> Json<String, Value> {
    let mut merged = Json::new();
    zip(live, config, |name, live, config| {
        if let Some(value) = walk(schema, map.type_at(name), live, config) {
            merged.insert(name.to_owned(), value);
        }
    });
    merged
}

/// The items of one of the lists.
struct Side<'a> {
    /// The items with their path elements, in the order of the list.
    items: Vec<(PathElement, &'a Value)>,
    /// For each path element, the position of its first item, and whether there are more.
    known: BTreeMap<PathElement, (usize, bool)>,
}

impl<'a> Side<'a> {
    fn new(schema: &Schema, list: &List, items: &'a [Value]) -> Self {
        let items: Vec<_> = items
            .iter()
            .filter_map(|item| Some((element_of(schema, list, item).ok()?, item)))
            .collect();
        let mut known = BTreeMap::new();
        for (place, (element, _)) in items.iter().enumerate() {
            known
                .entry(element.clone())
                .and_modify(|(_, more)| *more = true)
                .or_insert((place, false));
        }
        Self { items, known }
    }

    /// Returns the item of the other list to merge with: null if several match.
    fn counterpart(&self, element: &PathElement) -> Option<&'a Value> {
        let (place, more) = self.known.get(element)?;
        if *more {
            return Some(&Value::Null);
        }
        self.items.get(*place).map(|(_, item)| *item)
    }

    fn has(&self, element: &PathElement) -> bool {
        self.known.contains_key(element)
    }
}

/// Merges two associative lists.
///
/// Both orders are kept as far as they agree; where they do not, that of the configuration counts. Items that only
/// the live list has stay before the shared item that follows them.
fn merge_list(schema: &Schema, list: &List, live: &[Value], config: &[Value]) -> Vec<Value> {
    let (mine, theirs) = (Side::new(schema, list, live), Side::new(schema, list, config));
    let mut shared = theirs
        .items
        .iter()
        .map(|(element, _)| element)
        .filter(|element| mine.has(element));
    let mut next_shared = shared.next();
    // Whether the item of the configuration at this position is in the result.
    let mut taken = vec![false; theirs.items.len()];
    let mut merged = Vec::with_capacity(mine.items.len().max(theirs.items.len()));
    let take = |merged: &mut Vec<Value>, live: Option<&Value>, config: Option<&Value>| {
        merged.extend(walk(schema, Some(list.element), live, config));
    };
    let (mut m, mut t) = (0, 0);
    while m < mine.items.len() || t < theirs.items.len() {
        if let (Some((my, _)), Some((their, item))) = (mine.items.get(m), theirs.items.get(t)) {
            if my == their {
                taken[t] = true;
                take(&mut merged, mine.counterpart(my), Some(item));
                (m, t) = (m + 1, t + 1);
                next_shared = shared.next();
                continue;
            }
            if theirs.has(my) && next_shared.is_some_and(|next| next != my) {
                // The item is shared, and comes later.
                m += 1;
                continue;
            }
        }
        if let Some((my, item)) = mine.items.get(m) {
            match theirs.known.get(my) {
                None => {
                    take(&mut merged, Some(item), None);
                    m += 1;
                    continue;
                }
                Some((place, _)) if taken[*place] => m += 1,
                Some(_) => {}
            }
        }
        if let Some((their, item)) = theirs.items.get(t) {
            taken[t] = true;
            take(&mut merged, mine.counterpart(their), Some(item));
            t += 1;
            if next_shared == Some(their) {
                next_shared = shared.next();
            }
        }
    }
    merged
}
