//! The types of expressions, and which one a schema has.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::values::escape;
use crate::crd::schema::Schema;

/// The type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Type {
    /// A type that this checker does not know; every operation is allowed.
    Unknown,
    /// CEL's `dyn`.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    /// The type of types.
    OfTypes,
    List(Box<Type>),
    Map(Box<Type>, Box<Type>),
    Object(Arc<BTreeMap<String, Type>>),
}

/// Returns the type of a schema; `None` for a schema that rules cannot access.
pub(super) fn of_schema(schema: &Schema, of_resource: bool) -> Option<Type> {
    if schema.int_or_string {
        return Some(Type::Dyn);
    }
    let below = |schema: &Schema| of_schema(schema, schema.embedded);
    match (schema.ty.as_str(), schema.format.as_str()) {
        ("array", _) => Some(Type::List(Box::new(below(schema.items.as_deref()?)?))),
        ("object", _) => {
            if let Some(values) = schema.additional_schema() {
                return Some(Type::Map(Box::new(Type::String), Box::new(below(values)?)));
            }
            let mut fields: BTreeMap<String, Type> = schema
                .properties
                .iter()
                .filter_map(|(name, schema)| Some((escape(name)?.into_owned(), below(schema)?)))
                .collect();
            if of_resource {
                let text = |name: &str| (name.to_owned(), Type::String);
                let metadata = BTreeMap::from([text("name"), text("generateName")]);
                fields.extend([text("apiVersion"), text("kind")]);
                fields.insert("metadata".to_owned(), Type::Object(Arc::new(metadata)));
            }
            Some(Type::Object(Arc::new(fields)))
        }
        ("string", "byte") => Some(Type::Bytes),
        ("string", "duration") => Some(Type::Duration),
        ("string", "date" | "date-time") => Some(Type::Timestamp),
        ("string", _) => Some(Type::String),
        ("boolean", _) => Some(Type::Bool),
        ("number", _) => Some(Type::Double),
        ("integer", _) => Some(Type::Int),
        _ => None,
    }
}

impl Type {
    /// Returns whether the checker must allow every operation.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Unknown | Self::Dyn)
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Returns whether values of the two types can be compared for equality.
    pub(super) fn may_equal(&self, other: &Self) -> bool {
        match (self, other) {
            (left, right) if left.is_open() || right.is_open() => true,
            (Self::List(left), Self::List(right)) => left.may_equal(right),
            (Self::Map(_, left), Self::Map(_, right)) => left.may_equal(right),
            // A literal is a map, which may equal an object of the schema.
            (Self::Object(_), Self::Map(..)) | (Self::Map(..), Self::Object(_)) => true,
            // Null equals only wrapper and message types, which objects are not; comparing it is rare, so it is
            // allowed.
            (Self::Null, _) | (_, Self::Null) => true,
            (left, right) => left == right,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown | Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::OfTypes => f.write_str("type"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Object(_) => f.write_str("object"),
        }
    }
}

/// Returns the common type of several types, as far as it is known.
pub(super) fn common(types: &[Type]) -> Type {
    let mut known = types.iter().filter(|ty| **ty != Type::Unknown);
    match known.next() {
        Some(first) if known.all(|ty| ty == first) => first.clone(),
        Some(_) if types.contains(&Type::Dyn) => Type::Dyn,
        Some(_) => Type::Unknown,
        None => Type::Unknown,
    }
}
