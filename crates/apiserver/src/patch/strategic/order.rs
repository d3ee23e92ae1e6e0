//! The order of merged lists: that of the patch, with the other items of the object around it.

use serde_json::Value;

use super::{DIRECTIVE, PatchError, UnmergeableError, as_map, key_of};
use crate::patch::NotApplicable;

/// The Go kind of a value. The items of a list all have the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool,
    Int,
    Float,
    String,
    List,
    Map,
}

pub(super) fn kind_of(value: &Value) -> Kind {
    match value {
        Value::Null => Kind::Null,
        Value::Bool(_) => Kind::Bool,
        Value::Number(number) if number.is_i64() => Kind::Int,
        Value::Number(_) => Kind::Float,
        Value::String(_) => Kind::String,
        Value::Array(_) => Kind::List,
        Value::Object(_) => Kind::Map,
    }
}

/// Returns the kind of the items of lists that are merged.
pub(super) fn kind_of_items(lists: &[&[Value]]) -> Result<Kind, PatchError> {
    let mut kinds = lists.iter().copied().flatten().map(kind_of);
    let first = kinds.next().ok_or(UnmergeableError::NoItems)?;
    if first == Kind::List {
        return Err(NotApplicable::ListOfLists.into());
    }
    if kinds.all(|kind| kind == first) {
        return Ok(first);
    }
    let lists = Value::Array(lists.iter().map(|list| Value::Array(list.to_vec())).collect());
    Err(UnmergeableError::MixedItems { lists }.into())
}

/// Splits a list into the items that another list also has, and the others.
pub(super) fn partition(
    list: Vec<Value>,
    by: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), UnmergeableError> {
    let mut inside = Vec::with_capacity(list.len());
    let mut outside = Vec::new();
    for item in list {
        let found = if key.is_empty() {
            by.contains(&item)
        } else {
            let value = key_of(&item, key)?;
            match by.iter().position(|other| !other.is_object()) {
                Some(index) => return Err(UnmergeableError::NotAMap { index }),
                None => by.iter().any(|other| other.get(key) == Some(value)),
            }
        };
        if found {
            inside.push(item);
        } else {
            outside.push(item);
        }
    }
    Ok((inside, outside))
}

/// Removes duplicate scalars. As in the API server's library, the last item replaces a removed one; [`normalize`]
/// then restores the order.
pub(super) fn without_duplicates(mut list: Vec<Value>) -> Vec<Value> {
    let mut place = 0;
    while place + 1 < list.len() {
        let mut other = place + 1;
        while other < list.len() {
            if list[place] == list[other] {
                list.swap_remove(other);
            } else {
                other += 1;
            }
        }
        place += 1;
    }
    list
}

/// Sorts the items of the patch by the requested order and the others by their previous order, and inserts the others
/// at their previous positions.
pub(super) fn normalize(
    of_patch: Vec<Value>,
    others: Vec<Value>,
    patch_order: &[Value],
    old_order: &[Value],
    key: &str,
    kind: Kind,
) -> Result<Vec<Value>, UnmergeableError> {
    let of_patch = sorted(of_patch, patch_order, key, kind)?;
    let others = sorted(others, old_order, key, kind)?;
    let mut of_patch = of_patch.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    let mut merged = Vec::new();
    while let (Some(other), Some(item)) = (others.peek(), of_patch.peek()) {
        let places = (
            position_in(old_order, other, key, kind),
            position_in(old_order, item, key, kind),
        );
        let before = matches!(places, (Some(other), Some(item)) if other < item);
        merged.extend(if before { others.next() } else { of_patch.next() });
    }
    merged.extend(of_patch);
    merged.extend(others);
    Ok(merged)
}

fn position_in(list: &[Value], item: &Value, key: &str, kind: Kind) -> Option<usize> {
    if kind == Kind::Map {
        list.iter().position(|other| other.get(key) == item.get(key))
    } else {
        list.iter().position(|other| other == item)
    }
}

/// Sorts items by a list. Deleted items come last. An item that the list lacks precedes every item that it is
/// compared with, by a simple insertion sort, as in the library.
fn sorted(items: Vec<Value>, order: &[Value], key: &str, kind: Kind) -> Result<Vec<Value>, UnmergeableError> {
    let mut deletions = Vec::new();
    let mut items = items;
    if kind == Kind::Map {
        for item in items.iter().chain(order) {
            key_of(item, key)?;
        }
        let mut kept = Vec::with_capacity(items.len());
        for item in items {
            let deleted = as_map(&item)?.get(DIRECTIVE).is_some_and(|it| it == "delete");
            if deleted {
                deletions.push(item);
            } else {
                kept.push(item);
            }
        }
        items = kept;
    }
    let mut places: Vec<(Option<usize>, Value)> = items
        .into_iter()
        .map(|item| (position_in(order, &item, key, kind), item))
        .collect();
    let less = |left: Option<usize>, right: Option<usize>| match (left, right) {
        (Some(left), Some(right)) => left < right,
        _ => true,
    };
    for end in 1..places.len() {
        let mut place = end;
        while place > 0 && less(places[place].0, places[place - 1].0) {
            places.swap(place, place - 1);
            place -= 1;
        }
    }
    Ok(places
        .into_iter()
        .map(|(_, item)| item)
        .chain(deletions)
        .collect())
}
