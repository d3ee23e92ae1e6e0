//! The comparison of JSON values, and their text in messages.
//!
//! Order and equality are those of structured-merge-diff's `value` package: an integer and a float of the same value
//! are equal. The texts are those of Go, since messages quote values in Go syntax and clients match on them.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Map, Number, Value};
use thiserror::Error;

/// A number as Go's decoder of objects represents it.
#[derive(Clone, Copy)]
enum Amount {
    Int(i64),
    Float(f64),
}

fn amount(number: &Number) -> Amount {
    // An integer beyond 64 bits is a float in Go as well.
    number
        .as_i64()
        .map_or_else(|| Amount::Float(number.as_f64().unwrap_or(0.0)), Amount::Int)
}

fn as_float(amount: Amount) -> f64 {
    match amount {
        // The same loss of precision as in Go, which compares floats here too.
        #[expect(clippy::cast_precision_loss, reason = "Go compares floats here")]
        Amount::Int(int) => int as f64,
        Amount::Float(float) => float,
    }
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    match (amount(left), amount(right)) {
        (Amount::Int(left), Amount::Int(right)) => left.cmp(&right),
        (left, right) => as_float(left)
            .partial_cmp(&as_float(right))
            .unwrap_or(Ordering::Equal),
    }
}

/// The rank of a type in the order: numbers, strings, booleans, lists, maps, null.
fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// Compares any two values.
pub(crate) fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => compare_lists(left, right),
        (Value::Object(left), Value::Object(right)) => compare_maps(left, right),
        (left, right) => rank(left).cmp(&rank(right)),
    }
}

fn compare_lists(left: &[Value], right: &[Value]) -> Ordering {
    left.iter()
        .zip(right)
        .map(|(left, right)| compare(left, right))
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

fn compare_maps(left: &Map<String, Value>, right: &Map<String, Value>) -> Ordering {
    left.iter()
        .zip(right)
        .map(|((left_key, left), (right_key, right))| {
            left_key.cmp(right_key).then_with(|| compare(left, right))
        })
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

/// Returns whether two values are equal; 1 and 1.0 are.
pub(crate) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right).is_eq(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|((left_key, left), (right_key, right))| left_key == right_key && equal(left, right))
        }
        (left, right) => left == right,
    }
}

/// Formats a value as part of a field path: `[name="web",port=80]`.
pub(crate) fn in_path(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Number(number) => plain_number(number),
        Value::String(text) => quoted(text),
        Value::Bool(bool) => bool.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(in_path).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| format!("{key}={}", in_path(value)))
            .collect(),
    }
}

/// Formats a value like Go's `%v`.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Number(number) => plain_number(number),
        Value::String(text) => text.clone(),
        Value::Bool(bool) => bool.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{key}:{}", plain(value)))
                .collect();
            format!("map[{}]", entries.join(" "))
        }
    }
}

/// Formats a value like Go's `%#v`.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Number(number) => plain_number(number),
        Value::String(text) => quoted(text),
        Value::Bool(bool) => bool.to_string(),
        Value::Array(items) => format!(
            "[]interface {{}}{{{}}}",
            items.iter().map(go_syntax).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", quoted(key), go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}

/// Returns the type of a value like Go's `%T`.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Number(number) => match amount(number) {
            Amount::Int(_) => "int64",
            Amount::Float(_) => "float64",
        },
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Encodes a value like Go's `json.Marshal`, which escapes the characters that are special in HTML.
pub(crate) fn go_json(value: &Value) -> String {
    let mut out = String::new();
    write_go_json(&mut out, value);
    out
}

fn write_go_json(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(bool) => out.push_str(if *bool { "true" } else { "false" }),
        Value::Number(number) => write_json_number(out, number),
        Value::String(text) => write_go_json_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_go_json(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (place, (name, value)) in map.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_go_json_string(out, name);
                out.push(':');
                write_go_json(out, value);
            }
            out.push('}');
        }
    }
}

/// Converts whole floats to integers, as storing does: Go writes 3.0 as 3.
pub fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_i64() => {
            let mut written = String::new();
            write_json_number(&mut written, number);
            if let Ok(int) = written.parse::<i64>() {
                *value = Value::from(int);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(fields) => fields.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

fn write_go_json_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

fn plain_number(number: &Number) -> String {
    match amount(number) {
        Amount::Int(int) => int.to_string(),
        Amount::Float(float) => go_float(float, -4, 6),
    }
}

/// Writes a number like Go's JSON encoders.
pub(crate) fn write_json_number(out: &mut String, number: &Number) {
    match amount(number) {
        Amount::Int(int) => {
            let _ = write!(out, "{int}");
        }
        Amount::Float(float) => {
            let text = go_float(float, -6, 21);
            // Go's JSON encoder writes e-9 where Go's `strconv` writes e-09.
            match text.strip_suffix(|c: char| c.is_ascii_digit()) {
                Some(head) if head.ends_with("e-0") => {
                    out.push_str(&head[..head.len() - 1]);
                    out.push_str(&text[head.len()..]);
                }
                _ => out.push_str(&text),
            }
        }
    }
}

/// Returns the shortest decimal form of a float, with an exponent below `10^low` and from `10^high` on.
fn go_float(float: f64, low: i32, high: i32) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float == 0.0 || (low..high).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Quotes a string like Go's `%q`.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            char if is_print(char) => out.push(char),
            char => {
                let code = u32::from(char);
                let _ = match code {
                    0..=0x7f => write!(out, "\\x{code:02x}"),
                    0x80..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// Returns what Go's `unicode.IsPrint` does, as far as Rust's standard library allows: unassigned characters and
/// separators beyond ASCII do not print.
pub(crate) fn is_print(char: char) -> bool {
    match char {
        ' '..='~' => true,
        char if char.is_ascii() => false,
        char => {
            char.is_alphanumeric()
                || !char.escape_debug().to_string().starts_with("\\u{") && !char.is_whitespace()
        }
    }
}

/// Returns the type of a value as Go's JSON decoder names it.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Why a text is not Base64, in the text of Go.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("illegal base64 data at input byte {at}")]
pub struct IllegalBase64 {
    /// The first byte that is wrong.
    at: usize,
}

impl IllegalBase64 {
    /// Returns the error of a text that cannot be decoded.
    pub(crate) fn new(text: &str, error: &base64::DecodeError) -> Self {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
            base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
                text.len() - text.len() % 4
            }
        };
        Self { at }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_go() {
        for (value, path, encoded) in [
            (json!(80), "80", "80"),
            (json!(80.0), "80", "80"),
            (json!(0.5), "0.5", "0.5"),
            (json!(-0.00001), "-1e-05", "-0.00001"),
            (json!(1e-9), "1e-09", "1e-9"),
            (json!(1e21), "1e+21", "1e+21"),
            (json!(123_456_789.5), "1.234567895e+08", "123456789.5"),
        ] {
            let Value::Number(number) = &value else {
                unreachable!()
            };
            let mut json = String::new();
            write_json_number(&mut json, number);
            assert_eq!(json, encoded, "{value} as JSON");
            assert_eq!(in_path(&value), path, "{value} in a path");
        }
    }

    #[test]
    fn an_integer_equals_the_float_of_the_same_value() {
        assert!(equal(&json!({"a": [1, 2.0]}), &json!({"a": [1.0, 2]})));
        assert!(!equal(&json!(1), &json!("1")));
        assert_eq!(compare(&json!(80), &json!(443.0)), Ordering::Less);
        assert_eq!(compare(&json!("80"), &json!(443)), Ordering::Greater);
    }

    #[test]
    fn strings_are_quoted_as_in_go() {
        assert_eq!(quoted("a\"b\\\n\u{1}é\u{200b}"), "\"a\\\"b\\\\\\n\\x01é\\u200b\"");
    }
}
