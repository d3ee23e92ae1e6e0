//! Mutations of JSON that leave it JSON: other values at any place.

use bolero::TypeGenerator;
use serde_json::{Value, json};

/// A change of one node.
#[derive(Clone, Copy, Debug, TypeGenerator)]
pub(crate) enum Change {
    /// Replaces it by one of [`extremes`].
    Extreme(u16, u8),
    /// Replaces it by a copy of another node.
    Copy(u16, u16),
    /// Removes its first child.
    Remove(u16),
    /// Repeats its children under other names.
    Repeat(u16, u8),
}

/// Values that other values are mistaken for, and the ends of ranges.
fn extremes() -> [Value; 24] {
    [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!([]),
        json!({}),
        json!([[]]),
        json!("*"),
        json!("0%"),
        json!("101%"),
        json!("-5s"),
        json!("0s"),
        json!("99999999999h"),
        json!("9999-12-31T23:59:59.999999999Z"),
        json!("-009999-01-01T00:00:00Z"),
        json!("2026-02-30T25:61:61Z"),
        json!("sha256:"),
        json!("a\u{0}\u{feff}b"),
        json!("x".repeat(5000)),
    ]
}

pub(crate) fn mutate(value: &mut Value, change: Change) {
    let nodes = count(value);
    let place = |at: u16| usize::from(at) % nodes;
    match change {
        Change::Extreme(at, which) => {
            let all = extremes();
            let new = all.get(usize::from(which) % all.len()).cloned();
            if let (Some(node), Some(new)) = (nth(value, &mut place(at)), new) {
                *node = new;
            }
        }
        Change::Copy(at, from) => {
            let copy = nth(value, &mut place(from)).cloned();
            if let (Some(node), Some(copy)) = (nth(value, &mut place(at)), copy) {
                *node = copy;
            }
        }
        Change::Remove(at) => match nth(value, &mut place(at)) {
            Some(Value::Array(items)) if !items.is_empty() => drop(items.remove(0)),
            Some(Value::Object(fields)) => {
                let first = fields.keys().next().cloned();
                first.and_then(|name| fields.remove(&name));
            }
            _ => {}
        },
        Change::Repeat(at, times) => match nth(value, &mut place(at)) {
            Some(Value::Array(items)) => {
                let copies = items.clone();
                items.extend(copies.into_iter().cycle().take(usize::from(times)));
            }
            Some(Value::Object(fields)) => {
                let first = fields.values().next().cloned().unwrap_or_default();
                fields.extend((0..times).map(|n| (format!("more-{n}"), first.clone())));
            }
            _ => {}
        },
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns a node by its number, depth first.
fn nth<'v>(value: &'v mut Value, place: &mut usize) -> Option<&'v mut Value> {
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, place)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, place)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_reached_once() {
        let mut all = json!({"a": [1, {"b": 2}], "c": {}});
        let found: Vec<Value> = (0..count(&all))
            .map(|place| nth(&mut all.clone(), &mut place.clone()).cloned().unwrap())
            .collect();
        let expected = [
            all.clone(),
            json!([1, {"b": 2}]),
            json!(1),
            json!({"b": 2}),
            json!(2),
            json!({}),
        ];
        assert_eq!(found, expected);
        assert_eq!(nth(&mut all, &mut 6), None);
    }

    #[test]
    fn a_node_is_changed() {
        let before = json!({"a": [1, 2], "b": "x"});
        for (change, expected) in [
            (Change::Extreme(3, 10), json!({"a": [1, {}], "b": "x"})),
            (Change::Copy(4, 1), json!({"a": [1, 2], "b": [1, 2]})),
            (Change::Remove(0), json!({"b": "x"})),
            (Change::Repeat(1, 3), json!({"a": [1, 2, 1, 2, 1], "b": "x"})),
            (
                Change::Repeat(0, 1),
                json!({"a": [1, 2], "b": "x", "more-0": [1, 2]}),
            ),
        ] {
            let mut value = before.clone();
            mutate(&mut value, change);
            assert_eq!(value, expected, "{change:?}");
        }
    }
}
