//! The fields that a value contains.

use serde_json::{Map as Json, Value};

use super::element::element_of;
use crate::fields::{FieldSet, FieldSetBuilder, Node, PathElement};
use crate::schema::{List, Map, Relation, Schema, Shape, Type, TypeId};

pub(super) fn to_field_set(ty: &Type, value: &Value) -> FieldSet {
    walk(&ty.schema, Some(ty.id), value).below
}

/// The fields at a position.
#[derive(Default)]
struct Found {
    /// Whether the position itself is a field.
    here: bool,
    /// The fields below the position.
    below: FieldSet,
}

impl Found {
    fn leaf() -> Self {
        Self {
            here: true,
            below: FieldSet::new(),
        }
    }
}

fn walk(schema: &Schema, ty: Option<TypeId>, value: &Value) -> Found {
    let Some(ty) = ty else {
        return Found::default();
    };
    match schema.atom(ty).shape_of(value) {
        Shape::Scalar(_) => Found::leaf(),
        Shape::List(list) if matches!(list.relation, Relation::Atomic) => Found::leaf(),
        Shape::Map(map) if map.atomic => Found::leaf(),
        Shape::List(list) => match value {
            Value::Array(items) => walk_list(schema, list, items),
            _ => Found::default(),
        },
        Shape::Map(map) => match value {
            Value::Object(fields) => walk_map(schema, map, fields),
            _ => Found::default(),
        },
        Shape::Nothing => Found::default(),
    }
}

fn walk_map(schema: &Schema, map: &Map, fields: &Json<String, Value>) -> Found {
    let mut builder = FieldSetBuilder::default();
    for (name, value) in fields {
        let declared = map.field(name);
        let found = walk(schema, map.type_at(name), value);
        let empty = match value {
            Value::Null => true,
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        builder.push(Node {
            // The name is shared with the schema.
            element: PathElement::Field(
                declared.map_or_else(|| name.as_str().into(), |field| field.name.clone()),
            ),
            member: found.here || empty || declared.is_none(),
            children: found.below,
        });
    }
    Found {
        here: false,
        below: builder.build(),
    }
}

fn walk_list(schema: &Schema, list: &List, items: &[Value]) -> Found {
    let mut items: Vec<(PathElement, &Value)> = items
        .iter()
        .filter_map(|item| Some((element_of(schema, list, item).ok()?, item)))
        .collect();
    items.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut builder = FieldSetBuilder::default();
    for same in items.chunk_by(|(left, _), (right, _)| left == right) {
        // Duplicate items are owned as one.
        let children = match same {
            [(_, item)] => walk(schema, Some(list.element), item).below,
            _ => FieldSet::new(),
        };
        if let Some((element, _)) = same.first() {
            builder.push(Node {
                element: element.clone(),
                member: true,
                children,
            });
        }
    }
    Found {
        here: false,
        below: builder.build(),
    }
}

pub(super) fn with_declared_fields(schema: &Schema, ty: Option<TypeId>, set: &FieldSet) -> FieldSet {
    let atom = ty.map(|ty| schema.atom(ty));
    let map = atom.and_then(|atom| atom.map.as_ref());
    let list = atom.and_then(|atom| atom.list.as_ref());
    let mut builder = FieldSetBuilder::default();
    for node in set.nodes() {
        let (declared, below) = match &node.element {
            PathElement::Field(name) => (
                map.is_some_and(|map| map.field(name).is_some()),
                map.and_then(|map| map.type_at(name)),
            ),
            PathElement::Key(_) => (false, list.map(|list| list.element)),
            PathElement::Value(_) | PathElement::Index(_) => (false, None),
        };
        builder.push(Node {
            element: node.element.clone(),
            member: node.member || (declared && !node.children.is_empty()),
            children: with_declared_fields(schema, below, &node.children),
        });
    }
    builder.build()
}
