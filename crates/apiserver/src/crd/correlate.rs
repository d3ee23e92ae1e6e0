//! The correlation of the values of a new object with those of the old one.
//!
//! Fields correlate by name and items of lists by their keys; items of other lists do not correlate. The rules are
//! those of the API server's `CorrelatedObject`.

use serde_json::{Map, Value};

use super::schema::Schema;

/// A value with its old value and their schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correlation<'a> {
    pub(super) new: &'a Value,
    pub(super) old: &'a Value,
    pub(super) schema: &'a Schema,
}

impl<'a> Correlation<'a> {
    /// Returns a field that both values have.
    pub(super) fn field(self, name: &str) -> Option<Self> {
        Some(Self {
            new: self.new.as_object()?.get(name)?,
            old: self.old.as_object()?.get(name)?,
            schema: self.schema.field(name)?,
        })
    }

    /// Returns an item of the new list whose keys match an item of the old list.
    pub(super) fn item(self, index: usize) -> Option<Self> {
        let new = self.new.as_array()?.get(index)?;
        let old = same_key(self.schema, self.old.as_array()?, new)?;
        Some(Self {
            new,
            old,
            schema: self.schema.items.as_deref()?,
        })
    }

    /// Returns whether the value is unchanged. Fields without a schema count as changed.
    pub(super) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if self.schema.list_type != "map" {
                    return new == old;
                }
                new.len() == old.len()
                    && (0..new.len()).all(|index| self.item(index).is_some_and(Self::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new
                        .keys()
                        .all(|name| self.field(name).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// Returns the item of a list that has the same keys as another item; `None` unless the list has keys.
pub(super) fn same_key<'a>(schema: &Schema, list: &'a [Value], item: &Value) -> Option<&'a Value> {
    if schema.list_type != "map" || schema.list_keys.is_empty() {
        return None;
    }
    let item = item.as_object()?;
    let same =
        |other: &Map<String, Value>| schema.list_keys.iter().all(|key| other.get(key) == item.get(key));
    list.iter().find(|other| other.as_object().is_some_and(same))
}
