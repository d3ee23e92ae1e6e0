//! Field paths and their elements.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::value;

/// An element of a path: from a map or a list to one of its values.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of a map; `f:` on the wire.
    Field(Arc<str>),
    /// An item of an associative list by its keys, sorted by name; `k:` on the wire.
    Key(Arc<[(Arc<str>, Value)]>),
    /// A member of a set; `v:` on the wire.
    Value(Arc<Value>),
    /// An index of a list; `i:` on the wire.
    Index(i64),
}

impl PathElement {
    /// Returns the element of a field.
    pub fn field(name: impl Into<Arc<str>>) -> Self {
        Self::Field(name.into())
    }

    /// Returns the element of an item by its keys, in any order.
    pub fn key(keys: impl IntoIterator<Item = (impl Into<Arc<str>>, Value)>) -> Self {
        let mut keys: Vec<(Arc<str>, Value)> = keys
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect();
        keys.sort_by(|(left, _), (right, _)| left.cmp(right));
        Self::Key(keys.into())
    }

    /// Returns the rank of a type of element in the order of elements.
    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => compare_keys(left, right),
            (Self::Value(left), Self::Value(right)) => value::compare(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            (left, right) => left.rank().cmp(&right.rank()),
        }
    }
}

fn compare_keys(left: &[(Arc<str>, Value)], right: &[(Arc<str>, Value)]) -> Ordering {
    left.iter()
        .zip(right)
        .map(|((left_name, left), (right_name, right))| {
            left_name
                .cmp(right_name)
                .then_with(|| value::compare(left, right))
        })
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// Formats the element as in the API server's messages: `.replicas`, `[name="web"]`, `[="finalizer"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (i, (name, value)) in keys.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={}", value::in_path(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", value::in_path(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The path from an object to a field.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

impl Path {
    /// Returns a path of named fields.
    pub fn of_fields(names: &[&str]) -> Self {
        Self(names.iter().map(|name| PathElement::field(*name)).collect())
    }
}

/// Formats the path as in the API server's messages: `.spec.containers[name="web"].image`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_match_the_servers_messages() {
        let path = Path(vec![
            PathElement::field("spec"),
            PathElement::key([("protocol", json!("TCP")), ("port", json!(80))]),
            PathElement::Value(Arc::new(json!("a\"b"))),
            PathElement::Index(3),
        ]);
        assert_eq!(path.to_string(), r#".spec[port=80,protocol="TCP"][="a\"b"][3]"#);
    }

    #[test]
    fn elements_are_in_the_order_of_the_wire() {
        let steps = [
            PathElement::field("a"),
            PathElement::field("b"),
            PathElement::key([("port", json!(80))]),
            PathElement::key([("port", json!(443))]),
            PathElement::key([("port", json!(443)), ("protocol", json!("TCP"))]),
            PathElement::key([("port", json!("80"))]),
            PathElement::Value(Arc::new(json!(9))),
            PathElement::Value(Arc::new(json!("1"))),
            PathElement::Index(2),
            PathElement::Index(10),
        ];
        assert!(steps.is_sorted());
    }
}
