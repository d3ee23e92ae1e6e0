//! The removal of fields and items from a value.

use serde_json::{Map as Json, Value};

use super::element::element_of;
use crate::fields::{FieldSet, PathElement};
use crate::schema::{List, Map, Relation, Schema, Shape, Type, TypeId};

pub(super) fn remove_items(ty: &Type, value: &Value, items: &FieldSet) -> Value {
    remove(&ty.schema, Some(ty.id), value, items)
}

/// Removes fields at a position. A list or map without remaining content becomes null.
fn remove(schema: &Schema, ty: Option<TypeId>, value: &Value, items: &FieldSet) -> Value {
    let shape = ty.map_or(Shape::Nothing, |ty| schema.atom(ty).shape_of(value));
    match (shape, value) {
        (Shape::Scalar(_), value) => value.clone(),
        (Shape::List(list), Value::Array(all)) if !matches!(list.relation, Relation::Atomic) => {
            let kept: Vec<_> = all
                .iter()
                .filter_map(|item| keep_item(schema, list, item, items))
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        (Shape::Map(map), Value::Object(fields)) if !map.atomic => {
            let kept: Json<_, _> = fields
                .iter()
                .filter_map(|(name, value)| {
                    Some((name.clone(), keep_field(schema, map, name, value, items)?))
                })
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        _ => Value::Null,
    }
}

fn keep_item(schema: &Schema, list: &List, item: &Value, items: &FieldSet) -> Option<Value> {
    let node = element_of(schema, list, item)
        .ok()
        .and_then(|element| items.node(&element));
    match node {
        None => Some(item.clone()),
        Some(node) if node.member => None,
        Some(node) => Some(remove(schema, Some(list.element), item, &node.children)),
    }
}

fn keep_field(schema: &Schema, map: &Map, name: &str, value: &Value, items: &FieldSet) -> Option<Value> {
    match items.field(name) {
        None => Some(value.clone()),
        Some(node) if node.member => None,
        Some(node) => Some(remove(schema, map.type_at(name), value, &node.children)),
    }
}

pub(super) fn extract_items(ty: &Type, value: &Value, items: &FieldSet) -> Value {
    extract(&ty.schema, Some(ty.id), value, items)
}

/// Extracts fields at a position. Atomic values are extracted as a whole.
fn extract(schema: &Schema, ty: Option<TypeId>, value: &Value, items: &FieldSet) -> Value {
    let shape = ty.map_or(Shape::Nothing, |ty| schema.atom(ty).shape_of(value));
    match (shape, value) {
        (Shape::Scalar(_), value) => value.clone(),
        (_, Value::Array(all)) if all.is_empty() => Value::Null,
        (_, Value::Object(fields)) if fields.is_empty() => Value::Null,
        (Shape::List(list), Value::Array(all)) => match list.relation {
            Relation::Atomic => value.clone(),
            Relation::Set | Relation::Keyed(_) => extract_from_list(schema, list, all, items),
        },
        (Shape::Map(map), Value::Object(_)) if map.atomic => value.clone(),
        (Shape::Map(map), Value::Object(fields)) => extract_from_map(schema, map, fields, items),
        _ => Value::Null,
    }
}

fn extract_from_list(schema: &Schema, list: &List, all: &[Value], items: &FieldSet) -> Value {
    let mut kept = Vec::new();
    for item in all {
        let element: Option<PathElement> = element_of(schema, list, item).ok();
        let Some(node) = element.and_then(|element| items.node(&element)) else {
            continue;
        };
        // The library looks up the children of an extracted item in the set of the level above, and does so twice for
        // an item whose children are listed too. Clients depend on the result, so this does the same.
        if node.member {
            kept.push(extract(schema, Some(list.element), item, items));
        }
        if !node.children.is_empty() {
            kept.push(extract(schema, Some(list.element), item, &node.children));
        }
    }
    if kept.is_empty() {
        Value::Null
    } else {
        Value::Array(kept)
    }
}

fn extract_from_map(schema: &Schema, map: &Map, fields: &Json<String, Value>, items: &FieldSet) -> Value {
    let mut kept = Json::new();
    for (name, value) in fields {
        let Some(node) = items.field(name) else {
            continue;
        };
        let below = if node.member { items } else { &node.children };
        kept.insert(name.clone(), extract(schema, map.type_at(name), value, below));
    }
    if kept.is_empty() {
        Value::Null
    } else {
        Value::Object(kept)
    }
}
