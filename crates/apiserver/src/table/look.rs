//! Looking at an object: values by their path, and what is printed if there are none.

use jiff::Timestamp;
use serde_json::Value;

use super::duration;
use crate::object::times;

/// What cells say of what is not there.
pub(super) const NONE: &str = "<none>";
/// What cells say of what has not been set.
pub(super) const UNSET: &str = "<unset>";
/// What cells say of what cannot be known.
pub(super) const UNKNOWN: &str = "<unknown>";

/// An object, or a part of one, at a time.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    object: &'a Value,
    now: Timestamp,
}

impl<'a> Look<'a> {
    pub(super) fn new(object: &'a Value, now: Timestamp) -> Self {
        Self { object, now }
    }

    pub(super) fn object(&self) -> &'a Value {
        self.object
    }

    /// The value at a path such as `spec.replicas`, if there is one.
    pub(super) fn at(&self, path: &str) -> Option<&'a Value> {
        path.split('.')
            .try_fold(self.object, |value, step| value.get(step))
            .filter(|value| !value.is_null())
    }

    /// A text; empty if there is none.
    pub(super) fn text(&self, path: &str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// A text, or something else in its place.
    pub(super) fn text_or(&self, path: &str, other: &'a str) -> &'a str {
        match self.text(path) {
            "" => other,
            text => text,
        }
    }

    /// A number; 0 if there is none.
    pub(super) fn number(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    /// Whether something is true.
    pub(super) fn flag(&self, path: &str) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A quantity; `0` if there is none.
    pub(super) fn quantity(&self, path: &str) -> &'a str {
        self.text_or(path, "0")
    }

    /// The items of a list.
    pub(super) fn items(&self, path: &str) -> impl DoubleEndedIterator<Item = Look<'a>> + ExactSizeIterator {
        let now = self.now;
        self.at(path)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(move |object| Look { object, now })
    }

    /// The texts of a list.
    pub(super) fn texts(&self, path: &str) -> Vec<&'a str> {
        self.at(path)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// How many items or fields there are.
    pub(super) fn count(&self, path: &str) -> i64 {
        let count = match self.at(path) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(fields)) => fields.len(),
            _ => 0,
        };
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// The status of a condition; none if there is no such condition.
    pub(super) fn condition(&self, path: &str, ty: &str) -> Option<&'a str> {
        self.items(path)
            .find(|condition| condition.text("type") == ty)
            .map(|condition| condition.text("status"))
    }

    /// The name.
    pub(super) fn name(&self) -> Value {
        Value::from(self.text("metadata.name"))
    }

    /// How old the object is.
    pub(super) fn age(&self) -> Value {
        Value::from(self.since("metadata.creationTimestamp"))
    }

    /// The time at a path.
    pub(super) fn time(&self, path: &str) -> Option<Timestamp> {
        times::parse(self.text(path))
    }

    /// How long ago the time at a path was.
    pub(super) fn since(&self, path: &str) -> String {
        self.time(path)
            .map_or_else(|| UNKNOWN.to_owned(), |time| self.ago(time))
    }

    /// How long ago a time was.
    pub(super) fn ago(&self, time: Timestamp) -> String {
        duration::human(self.now.duration_since(time))
    }

    /// Whether the object is being deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.at("metadata.deletionTimestamp").is_some()
    }
}
