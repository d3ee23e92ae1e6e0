//! The adaptation of a set to a type that has changed since the set was created.

use crate::fields::{FieldSet, FieldSetBuilder, Node, PathElement};
use crate::schema::{Relation, Schema, Shape, Type, TypeId};

pub(super) fn reconcile(ty: &Type, set: &FieldSet) -> Option<FieldSet> {
    below(&ty.schema, ty.id, set)
}

/// Adapts the children of a position; `None` if nothing changes.
fn below(schema: &Schema, ty: TypeId, set: &FieldSet) -> Option<FieldSet> {
    let type_below = |element: &PathElement| match (schema.atom(ty).declared_shape(), element) {
        // A map of unknown content cannot have changed.
        (Shape::Map(map), _) if map.deduced => None,
        (Shape::Map(map), PathElement::Field(name)) => map.type_at(name),
        (Shape::Map(map), _) => map.element,
        (Shape::List(list), _) => Some(list.element),
        (Shape::Scalar(_) | Shape::Nothing, _) => None,
    };
    let changed: Vec<Option<FieldSet>> = set
        .nodes()
        .iter()
        .map(|node| node_below(schema, type_below(&node.element)?, node))
        .collect();
    if changed.iter().all(Option::is_none) {
        return None;
    }
    let mut builder = FieldSetBuilder::default();
    for (node, changed) in set.nodes().iter().zip(changed) {
        builder.push(match changed {
            None => node.clone(),
            Some(children) => Node {
                element: node.element.clone(),
                // An empty set means that the field has become atomic and is owned as a whole.
                member: node.member || children.is_empty(),
                children,
            },
        });
    }
    Some(builder.build())
}

fn node_below(schema: &Schema, ty: TypeId, node: &Node) -> Option<FieldSet> {
    if node.children.is_empty() {
        return None;
    }
    let atomic = match schema.atom(ty).declared_shape() {
        Shape::Map(map) => map.atomic && !map.deduced,
        Shape::List(list) => matches!(list.relation, Relation::Atomic),
        Shape::Scalar(_) | Shape::Nothing => false,
    };
    if atomic {
        return Some(FieldSet::new());
    }
    below(schema, ty, &node.children)
}
