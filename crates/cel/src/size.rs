//! The size of values, in units of cost.

use kube_cel::cel::Value;
use kube_cel::cel::objects::Key;

/// How many bytes of text cost one unit; Kubernetes: `StringTraversalCostFactor` of 0.1.
const BYTES_PER_UNIT: usize = 10;

/// Returns the cost of visiting or copying a value: each element at every depth, and its text.
///
/// The interpreter copies each element of a list, also where CEL shares them, so an element that occurs twice counts
/// twice.
pub(crate) fn of(value: &Value) -> u64 {
    match value {
        Value::List(items) => items.iter().fold(1, |sum, item| sum.saturating_add(of(item))),
        Value::Map(map) => map.map.iter().fold(1, |sum: u64, (key, value)| {
            sum.saturating_add(of_key(key)).saturating_add(of(value))
        }),
        Value::String(text) => of_text(text.len()),
        Value::Bytes(bytes) => of_text(bytes.len()),
        _ => 1,
    }
}

fn of_key(key: &Key) -> u64 {
    match key {
        Key::String(text) => of_text(text.len()),
        _ => 1,
    }
}

/// Returns the cost of a text.
pub(crate) fn of_text(bytes: usize) -> u64 {
    1 + units(bytes / BYTES_PER_UNIT)
}

/// Returns a length as units.
pub(crate) fn units(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
