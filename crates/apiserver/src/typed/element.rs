//! The path element that identifies an item of an associative list.

use std::sync::Arc;

use serde_json::Value;

use crate::fields::PathElement;
use crate::schema::{List, Relation, Schema};
use crate::value;

/// Returns the path element of an item, or what is wrong with the item.
pub(super) fn element_of(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, String> {
    match &list.relation {
        Relation::Atomic => Err("invalid indexing of non-associative list".to_owned()),
        Relation::Set => member(item),
        Relation::Keyed(keys) => keyed(schema, list, keys, item),
    }
}

fn member(item: &Value) -> Result<PathElement, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
        scalar => Ok(PathElement::Value(Arc::new(scalar.clone()))),
    }
}

fn keyed(schema: &Schema, list: &List, keys: &[Arc<str>], item: &Value) -> Result<PathElement, String> {
    let item = match item {
        Value::Object(item) => item,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
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
        let names: Vec<_> = keys.iter().map(|key| value::quoted(key)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    found.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(PathElement::Key(found.into()))
}

fn default_of<'a>(schema: &'a Schema, list: &List, key: &str) -> Result<Option<&'a Value>, String> {
    match &schema.atom(list.element).map {
        Some(map) => Ok(map.field(key).and_then(|field| field.default.as_ref())),
        None => Err(format!(
            "couldn't find default value for {key}: associative list may not have non-map types"
        )),
    }
}
