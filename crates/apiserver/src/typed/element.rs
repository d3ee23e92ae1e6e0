//! The path element that identifies an item of an associative list.

use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use crate::fields::PathElement;
use crate::schema::{List, Relation, Schema};
use crate::value;

/// Why an item has no path element, in the texts of the API server.
#[derive(Debug, Error)]
pub(super) enum ElementError {
    #[error("invalid indexing of non-associative list")]
    NotAssociative,
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    #[error("associative list with keys may not have a null element")]
    NullItem,
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    /// The item has none of the keys.
    #[error(
        "associative list with keys has an element that omits all key fields [{}] \
         (and doesn't have default values for any key fields)",
        quoted(keys)
    )]
    NoKeys { keys: Vec<Arc<str>> },
    /// The schema of the items has no fields.
    #[error("couldn't find default value for {key}: associative list may not have non-map types")]
    NoFields { key: String },
}

fn quoted(keys: &[Arc<str>]) -> String {
    let names: Vec<_> = keys.iter().map(|key| value::quoted(key)).collect();
    names.join(" ")
}

/// Returns the path element of an item.
pub(super) fn element_of(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, ElementError> {
    match &list.relation {
        Relation::Atomic => Err(ElementError::NotAssociative),
        Relation::Set => member(item),
        Relation::Keyed(keys) => keyed(schema, list, keys, item),
    }
}

fn member(item: &Value) -> Result<PathElement, ElementError> {
    match item {
        Value::Object(_) => Err(ElementError::MapInSet),
        Value::Array(_) => Err(ElementError::ListInSet),
        Value::Null => Err(ElementError::NullInSet),
        scalar => Ok(PathElement::Value(Arc::new(scalar.clone()))),
    }
}

fn keyed(schema: &Schema, list: &List, keys: &[Arc<str>], item: &Value) -> Result<PathElement, ElementError> {
    let item = match item {
        Value::Object(item) => item,
        Value::Null => return Err(ElementError::NullItem),
        _ => return Err(ElementError::NotAMap),
    };
    let mut found: Vec<(Arc<str>, Value)> = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(value) = item.get(&**key) {
            found.push((Arc::clone(key), value.clone()));
        } else if let Some(default) = default_of(schema, list, key)? {
            found.push((Arc::clone(key), default.clone()));
        }
        // An item without the key differs from every item with the key.
    }
    if found.is_empty() {
        return Err(ElementError::NoKeys { keys: keys.to_vec() });
    }
    found.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(PathElement::Key(found.into()))
}

fn default_of<'a>(schema: &'a Schema, list: &List, key: &str) -> Result<Option<&'a Value>, ElementError> {
    match &schema.atom(list.element).map {
        Some(map) => Ok(map.field(key).and_then(|field| field.default.as_ref())),
        None => Err(ElementError::NoFields { key: key.to_owned() }),
    }
}
