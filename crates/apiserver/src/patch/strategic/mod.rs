//! Strategic merge patch: a merge patch that knows how lists are merged, and that can contain directives.
//!
//! - `$patch: replace | delete` in a map replaces or empties the map; in an item of a list it replaces the list or
//!   removes the item.
//! - `$retainKeys` lists the fields of a map that are kept.
//! - `$deleteFromPrimitiveList/NAME` lists the items to remove from a list of scalars.
//! - `$setElementOrder/NAME` lists the order of a list's items.
//!
//! The rules are those of apimachinery's `strategicpatch`. Only built-in kinds support it.

mod error;
mod meta;
mod order;

use serde_json::{Map, Value};

use super::{MalformedPatch, PatchError};
pub use error::UnmergeableError;
pub use meta::StrategicType;
use order::{Kind, kind_of_items, normalize, partition};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

type Object = Map<String, Value>;

/// Merges a patch into an object of a kind.
///
/// In a map without a previous value all directives except `$patch` are kept: decoding reports them as unknown
/// fields, as Kubernetes does.
///
/// # Errors
/// [`PatchError`].
pub fn strategic_merge(ty: StrategicType, object: Value, patch: Value) -> Result<Value, PatchError> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(MalformedPatch::StrategicDocument.into());
    };
    merge_map(object, patch, ty).map(Value::Object)
}

fn as_list(value: &Value) -> Result<&Vec<Value>, UnmergeableError> {
    value.as_array().ok_or_else(|| UnmergeableError::WrongType {
        wanted: Value::Array(Vec::new()),
        found: value.clone(),
    })
}

fn as_map(value: &Value) -> Result<&Object, UnmergeableError> {
    value.as_object().ok_or_else(|| UnmergeableError::WrongType {
        wanted: Value::Object(Map::new()),
        found: value.clone(),
    })
}

/// Returns the merge key's value of an item.
fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, UnmergeableError> {
    as_map(item)?
        .get(key)
        .ok_or_else(|| UnmergeableError::ItemWithoutMergeKey {
            item: item.clone(),
            key: key.to_owned(),
        })
}

fn merge_map(mut object: Object, mut patch: Object, ty: StrategicType) -> Result<Object, PatchError> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            patch.remove(DIRECTIVE);
            return Ok(patch);
        }
        Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
        Some(other) => return Err(unknown_directive(other, &patch).into()),
    }
    retain_keys(&mut object, &mut patch)?;
    merge_ordered_lists(&mut object, &mut patch, ty)?;
    for (name, new) in patch {
        merge_field(&mut object, &name, new, ty)?;
    }
    Ok(object)
}

fn unknown_directive(directive: &Value, map: &Object) -> UnmergeableError {
    UnmergeableError::UnknownDirective {
        directive: directive.clone(),
        map: Value::Object(map.clone()),
    }
}

fn merge_field(object: &mut Object, name: &str, mut new: Value, ty: StrategicType) -> Result<(), PatchError> {
    let (name, deletes) = if name.starts_with(DELETE_FROM_LIST) {
        let list = list_of(name, DELETE_FROM_LIST).ok_or(MalformedPatch::DeleteFromPrimitiveList)?;
        (list, true)
    } else {
        (name, false)
    };
    if new.is_null() {
        object.remove(name);
        return Ok(());
    }
    let Some(old) = object.get_mut(name) else {
        if !deletes {
            drop_nulls(&mut new);
            set(object, name, new);
        }
        return Ok(());
    };
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let meta = ty.of_map(name)?;
            let old = std::mem::take(old);
            let merged = if meta.strategy == "replace" {
                new
            } else {
                merge_map(old, new, meta.ty)?
            };
            object.insert(name.to_owned(), Value::Object(merged));
        }
        (Value::Array(old), Value::Array(new)) => {
            let meta = ty.of_list(name)?;
            let old = std::mem::take(old);
            let merged = if meta.strategy == "merge" || deletes {
                merge_list(old, new, meta.ty, meta.key, deletes)?
            } else {
                new
            };
            object.insert(name.to_owned(), Value::Array(merged));
        }
        (_, _) if deletes => {}
        (_, mut new) => {
            drop_nulls(&mut new);
            set(object, name, new);
        }
    }
    Ok(())
}

/// Returns the name of the list that a directive refers to.
fn list_of<'a>(name: &'a str, directive: &str) -> Option<&'a str> {
    let (prefix, list) = name.split_once('/')?;
    (prefix == directive).then_some(list)
}

/// Sets a field to a value without directives; removes the field if the value is null.
fn set(object: &mut Object, name: &str, value: Value) {
    match without_directives(value) {
        Some(value) => object.insert(name.to_owned(), value),
        None => object.remove(name),
    };
}

fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter_map(|(name, value)| Some((name, without_directives(value)?)))
                .collect(),
        )),
        Value::Array(list) => Some(Value::Array(
            list.into_iter().filter_map(without_directives).collect(),
        )),
        other => Some(other),
    }
}

/// Removes the null fields from all maps of a value.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Removes the fields that `$retainKeys` does not list.
fn retain_keys(object: &mut Object, patch: &mut Object) -> Result<(), MalformedPatch> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let keys = keys.as_array().ok_or(MalformedPatch::RetainKeys)?;
    let listed = |name: &str| keys.iter().any(|key| key == name);
    let directive = |name: &str| name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER);
    let fields = patch
        .iter()
        .filter(|(name, value)| !value.is_null() && !directive(name));
    if fields.map(|(name, _)| name).any(|name| !listed(name)) {
        return Err(MalformedPatch::RetainKeys);
    }
    object.retain(|name, _| listed(name));
    Ok(())
}

/// Merges the lists that have an order directive, and removes them from the patch.
fn merge_ordered_lists(object: &mut Object, patch: &mut Object, ty: StrategicType) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|name| name.starts_with(SET_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = patch.remove(&directive).unwrap_or_default();
        let order = as_list(&order)?;
        let name = list_of(&directive, SET_ORDER).ok_or(MalformedPatch::SetElementOrder)?;
        let old = object.get(name).map(as_list).transpose()?.cloned();
        let new = patch.get(name).map(as_list).transpose()?.cloned();
        let meta = ty.of_list(name)?;
        check_order(new.as_deref().unwrap_or_default(), order, meta.key)?;
        let merged = match (old.clone(), new.clone()) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
            (Some(old), Some(new)) if meta.strategy == "merge" => {
                merge_list(old, new, meta.ty, meta.key, false)?
            }
            (Some(_), Some(new)) => new,
        };
        let (of_patch, others) = partition(merged, order, meta.key)?;
        let old = old.unwrap_or_default();
        let kind = kind_of_items(&[&old, new.as_deref().unwrap_or_default()])?;
        let merged = normalize(of_patch, others, order, &old, meta.key, kind)?;
        object.insert(name.to_owned(), Value::Array(merged));
        patch.remove(name);
    }
    Ok(())
}

/// Checks that the items of a patch are listed by the order directive, in that order.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), UnmergeableError> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut left: Vec<&Value> = Vec::with_capacity(patch.len());
    for item in patch {
        if key.is_empty() || !is_deletion(as_map(item)?) {
            left.push(item);
        }
    }
    let mut left = left.into_iter().peekable();
    let mut order_left = order.iter();
    while let Some(item) = left.peek() {
        if item.as_object().is_some_and(|map| map.contains_key(DIRECTIVE)) {
            left.next();
            continue;
        }
        let Some(next) = order_left.next() else {
            let [patch, order] = [patch, order].map(|list| Value::Array(list.to_vec()));
            return Err(UnmergeableError::Order { patch, order });
        };
        let same = if key.is_empty() {
            *item == next
        } else {
            key_of(item, key)? == key_of(next, key)?
        };
        if same {
            left.next();
        }
    }
    Ok(())
}

fn is_deletion(item: &Object) -> bool {
    item.get(DIRECTIVE).is_some_and(|directive| directive == "delete")
}

fn merge_list(
    mut old: Vec<Value>,
    patch: Vec<Value>,
    ty: StrategicType,
    key: &str,
    deletes: bool,
) -> Result<Vec<Value>, PatchError> {
    if old.is_empty() && patch.is_empty() {
        return Ok(old);
    }
    let kind = kind_of_items(&[&old, &patch])?;
    let (merged, patch, old) = if kind == Kind::Map {
        if key.is_empty() {
            return Err(UnmergeableError::NoMergeKey { kind: ty.name() }.into());
        }
        let (old, patch) = take_directives(old, patch, key)?;
        (merge_items(old.clone(), &patch, ty, key)?, patch, old)
    } else if deletes {
        old.retain(|item| !patch.contains(item));
        return Ok(old);
    } else {
        let both = old.iter().chain(&patch).cloned().collect();
        (order::without_duplicates(both), patch, old)
    };
    let (of_patch, others) = partition(merged, &patch, key)?;
    Ok(normalize(of_patch, others, &patch, &old, key, kind)?)
}

/// Applies the directives among the items; returns the list and the patch without them.
fn take_directives(
    mut old: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), UnmergeableError> {
    let mut plain_items = Vec::with_capacity(patch.len());
    let mut replaces = false;
    for item in patch {
        let map = as_map(&item)?;
        let Some(directive) = map.get(DIRECTIVE) else {
            plain_items.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let gone = key_of(&item, key)?;
                if let Some(index) = old.iter().position(|item| !item.is_object()) {
                    return Err(UnmergeableError::NotAMap { index });
                }
                old.retain(|item| item.get(key) != Some(gone));
            }
            Some("replace") => replaces = true,
            Some("merge") => return Err(UnmergeableError::MergeDirective),
            _ => return Err(unknown_directive(directive, map)),
        }
    }
    if replaces {
        return Ok((plain_items, Vec::new()));
    }
    Ok((old, plain_items))
}

fn merge_items(
    mut list: Vec<Value>,
    patch: &[Value],
    ty: StrategicType,
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    for item in patch {
        let value = key_of(item, key)?;
        let found = list.iter_mut().find(|old| old.get(key) == Some(value));
        match (found, item) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                *old = merge_map(std::mem::take(old), new.clone(), ty)?;
            }
            _ => list.push(item.clone()),
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(object: Value, patch: Value) -> Result<Value, PatchError> {
        strategic_merge(StrategicType::of("v1", "Pod").unwrap(), object, patch)
    }

    #[test]
    fn values_other_than_objects_are_rejected() {
        let error = pod(json!({}), json!([])).unwrap_err();
        assert_eq!((error.code(), error.reason()), (400, "BadRequest"));
    }
}
