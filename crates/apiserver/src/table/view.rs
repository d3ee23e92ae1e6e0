//! A view of an object for printing: values by their path, with defaults for missing ones.

use jiff::Timestamp;
use serde_json::Value;

use super::duration;
use crate::object::times;

/// The cell of a missing value.
pub(super) const NONE: &str = "<none>";
/// The cell of a value that is not set.
pub(super) const UNSET: &str = "<unset>";
/// The cell of a value that is unknown.
pub(super) const UNKNOWN: &str = "<unknown>";

/// An object, or a part of it, at the time of the request.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    object: &'a Value,
    now: Timestamp,
}

impl<'a> View<'a> {
    pub(super) fn new(object: &'a Value, now: Timestamp) -> Self {
        Self { object, now }
    }

    pub(super) fn object(&self) -> &'a Value {
        self.object
    }

    /// Returns the value at a path such as `spec.replicas`.
    pub(super) fn at(&self, path: &str) -> Option<&'a Value> {
        path.split('.')
            .try_fold(self.object, |value, step| value.get(step))
            .filter(|value| !value.is_null())
    }

    /// Returns a string; empty if it is missing.
    pub(super) fn text(&self, path: &str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns a string, or another one if it is missing.
    pub(super) fn text_or(&self, path: &str, other: &'a str) -> &'a str {
        match self.text(path) {
            "" => other,
            text => text,
        }
    }

    /// Returns an integer; 0 if it is missing.
    pub(super) fn number(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    /// Returns whether a boolean is true.
    pub(super) fn flag(&self, path: &str) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or_default()
    }

    /// Returns a quantity; `0` if it is missing.
    pub(super) fn quantity(&self, path: &str) -> &'a str {
        self.text_or(path, "0")
    }

    /// Returns the items of a list.
    pub(super) fn items(&self, path: &str) -> impl DoubleEndedIterator<Item = View<'a>> + ExactSizeIterator {
        let now = self.now;
        self.at(path)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(move |object| View { object, now })
    }

    /// Returns the strings of a list.
    pub(super) fn texts(&self, path: &str) -> Vec<&'a str> {
        self.at(path)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// Returns the number of items of a list or fields of a map.
    pub(super) fn count(&self, path: &str) -> i64 {
        let count = match self.at(path) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(fields)) => fields.len(),
            _ => 0,
        };
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// Returns the status of a condition; `None` if the condition is missing.
    pub(super) fn condition(&self, path: &str, ty: &str) -> Option<&'a str> {
        self.items(path)
            .find(|condition| condition.text("type") == ty)
            .map(|condition| condition.text("status"))
    }

    /// Returns the name of the object.
    pub(super) fn name(&self) -> Value {
        Value::from(self.text("metadata.name"))
    }

    /// Returns the age of the object.
    pub(super) fn age(&self) -> Value {
        Value::from(self.age_at("metadata.creationTimestamp"))
    }

    /// Returns the time at a path.
    pub(super) fn time(&self, path: &str) -> Option<Timestamp> {
        times::parse(self.text(path))
    }

    /// Returns the age of the time at a path.
    pub(super) fn age_at(&self, path: &str) -> String {
        self.time(path)
            .map_or_else(|| UNKNOWN.to_owned(), |time| self.age_since(time))
    }

    /// Returns the age of a time.
    pub(super) fn age_since(&self, time: Timestamp) -> String {
        duration::human(self.now.duration_since(time))
    }

    /// Returns whether the object is being deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.at("metadata.deletionTimestamp").is_some()
    }
}
