//! Replacements for functions of kube-cel whose results differ from those of Kubernetes.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Datelike, FixedOffset, TimeDelta, Timelike};
use regex::Regex;
use starling_cel::cel::extractors::{Arguments, This};
use starling_cel::cel::objects::ValueType;
use starling_cel::cel::{Context, ExecutionError, ResolveResult, Value};

use super::library;
use crate::crd::pattern;

/// The names of types, which `type(x)` returns.
pub(super) const TYPES: [&str; 11] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "uint",
];

/// The expressions that a thread caches; rules use few.
const CACHED_EXPRESSIONS: usize = 1024;

/// Returns a part of a time.
type Part = fn(&DateTime<FixedOffset>) -> i64;

/// The functions that return a part of a time.
const PARTS: [(&str, Part); 10] = [
    ("getFullYear", |time| i64::from(time.year())),
    ("getMonth", |time| i64::from(time.month0())),
    ("getDate", |time| i64::from(time.day())),
    ("getDayOfMonth", |time| i64::from(time.day0())),
    ("getDayOfWeek", |time| {
        i64::from(time.weekday().num_days_from_sunday())
    }),
    ("getDayOfYear", |time| i64::from(time.ordinal0())),
    ("getHours", |time| i64::from(time.hour())),
    ("getMinutes", |time| i64::from(time.minute())),
    ("getSeconds", |time| i64::from(time.second())),
    ("getMilliseconds", |time| {
        i64::from(time.timestamp_subsec_millis())
    }),
];

/// Registers the functions and the names of types, replacing existing ones.
pub(crate) fn register(context: &mut Context<'_>) {
    context.add_function("matches", matches);
    context.add_function("size", size);
    context.add_function("string", text_of);
    context.add_function("type", type_of);
    context.add_function("dyn", same);
    context.add_function("duration", duration);
    for (name, part) in PARTS {
        context.add_function(
            name,
            move |This(value): This<Value>, Arguments(zone): Arguments| {
                part_of_time(name, part, &value, &zone)
            },
        );
    }
    for name in TYPES {
        context.add_variable_from_value(name, type_value(name));
    }
}

fn no_overload() -> ExecutionError {
    ExecutionError::NoSuchOverload
}

fn text(text: impl Into<String>) -> Value {
    Value::String(Arc::new(text.into()))
}

/// Returns a type as a value: a string that no object can contain.
fn type_value(name: &str) -> Value {
    text(format!("\u{0}{name}"))
}

fn same(This(value): This<Value>) -> ResolveResult {
    Ok(value)
}

fn type_of(This(value): This<Value>) -> ResolveResult {
    let name = match value.type_of() {
        ValueType::Bool => "bool",
        ValueType::Bytes => "bytes",
        ValueType::Float => "double",
        ValueType::Duration => "duration",
        ValueType::Int => "int",
        ValueType::List => "list",
        ValueType::Map => "map",
        ValueType::Null => "null_type",
        ValueType::String => "string",
        ValueType::Timestamp => "timestamp",
        ValueType::UInt => "uint",
        ValueType::Function | ValueType::Opaque => "opaque",
    };
    Ok(type_value(name))
}

/// Converts a text to a duration, as Go's `time.ParseDuration` does: the same texts are refused, also durations that
/// exceed 64 bits of nanoseconds.
fn duration(This(value): This<Value>) -> ResolveResult {
    match value {
        Value::String(text) => parse_duration(&text)
            .map(|nanos| Value::Duration(TimeDelta::nanoseconds(nanos)))
            .ok_or_else(|| {
                let refused = "type conversion error from 'string' to 'google.protobuf.Duration'";
                ExecutionError::function_error("duration", refused)
            }),
        Value::Duration(_) => Ok(value),
        _ => Err(no_overload()),
    }
}

/// Returns the nanoseconds of a duration such as `-1h2.5m`.
fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: u64 = 0;
    loop {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = after.split_at(unit.unwrap_or(after.len()));
        total = total.checked_add(nanoseconds(value, unit)?)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    // The smallest duration has no positive counterpart.
    match (negative, i64::try_from(total)) {
        (true, Ok(nanos)) => Some(-nanos),
        (true, Err(_)) if total == i64::MIN.unsigned_abs() => Some(i64::MIN),
        (false, nanos) => nanos.ok(),
        (true, Err(_)) => None,
    }
}

/// Returns a number of units in nanoseconds. Fractions of nanoseconds are cut off.
fn nanoseconds(value: &str, unit: &str) -> Option<u64> {
    let unit: u64 = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Eighteen digits are more than the smallest fraction of an hour.
    let digits = &fraction[..fraction.len().min(18)];
    let part: u64 = if digits.is_empty() {
        0
    } else {
        digits.parse().ok()?
    };
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    let part = u64::try_from(u128::from(part) * u128::from(unit) / scale).ok()?;
    whole.checked_mul(unit)?.checked_add(part)
}

/// The size of a string is its number of characters.
fn size(This(value): This<Value>) -> ResolveResult {
    let size = match &value {
        Value::List(items) => items.len(),
        Value::Map(map) => map.map.len(),
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return Err(no_overload()),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn text_of(This(value): This<Value>) -> ResolveResult {
    Ok(match value {
        Value::Bool(bool) => text(bool.to_string()),
        Value::Int(int) => text(int.to_string()),
        Value::UInt(int) => text(int.to_string()),
        Value::Float(float) => text(float.to_string()),
        Value::Timestamp(time) => {
            let seconds = time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
            let nanos = format!(".{:09}", time.timestamp_subsec_nanos());
            let fraction = nanos.trim_end_matches('0').trim_end_matches('.');
            // The date and the time of day take nineteen characters.
            let (head, zone) = seconds.split_at_checked(19).unwrap_or((&seconds, ""));
            text(format!("{head}{fraction}{zone}"))
        }
        Value::Duration(duration) => {
            let (seconds, nanos) = (duration.num_seconds(), duration.subsec_nanos().unsigned_abs());
            let sign = if seconds == 0 && duration.subsec_nanos() < 0 {
                "-"
            } else {
                ""
            };
            let fraction = format!(".{nanos:09}");
            text(format!(
                "{sign}{seconds}{}s",
                fraction.trim_end_matches('0').trim_end_matches('.')
            ))
        }
        Value::Bytes(bytes) => text(String::from_utf8(bytes.to_vec()).map_err(|_| {
            ExecutionError::function_error("string", "invalid UTF-8 in bytes, cannot convert to string")
        })?),
        value @ Value::String(_) => value,
        // Only kube-cel can format its own types, such as IP addresses.
        other => return library::text_of_opaque(other),
    })
}

/// `matches`, with Go regular expressions.
#[expect(clippy::needless_pass_by_value, reason = "kube-cel passes arguments by value")]
fn matches(This(text): This<Arc<String>>, expression: Arc<String>) -> Result<bool, ExecutionError> {
    thread_local! {
        static CACHE: std::cell::RefCell<HashMap<String, Option<Regex>>> = std::cell::RefCell::default();
    }
    CACHE.with_borrow_mut(|known| {
        if known.len() >= CACHED_EXPRESSIONS {
            known.clear();
        }
        if !known.contains_key(expression.as_str()) {
            known.insert(expression.to_string(), pattern::compile(&expression).ok());
        }
        match known.get(expression.as_str()) {
            Some(Some(regex)) => Ok(regex.is_match(&text)),
            _ => Err(ExecutionError::function_error(
                "matches",
                format!("error parsing regexp: `{expression}`"),
            )),
        }
    })
}

/// Returns a part of a time in a zone, UTC by default; of a duration, the whole duration in that unit.
fn part_of_time(name: &str, part: Part, value: &Value, arguments: &[Value]) -> ResolveResult {
    match (value, arguments) {
        (Value::Timestamp(time), []) => Ok(Value::Int(part(&time.to_utc().fixed_offset()))),
        (Value::Timestamp(time), [Value::String(zone)]) => {
            let offset = offset(zone, time)
                .ok_or_else(|| ExecutionError::function_error(name, format!("unknown time zone {zone}")))?;
            Ok(Value::Int(part(&time.with_timezone(&offset))))
        }
        (Value::Duration(duration), []) => Ok(Value::Int(match name {
            "getHours" => duration.num_hours(),
            "getMinutes" => duration.num_minutes(),
            "getSeconds" => duration.num_seconds(),
            "getMilliseconds" => duration.num_milliseconds(),
            _ => return Err(no_overload()),
        })),
        _ => Err(no_overload()),
    }
}

/// Returns the offset of a zone at a time; a zone is `+02:00` or a name.
fn offset(zone: &str, time: &DateTime<FixedOffset>) -> Option<FixedOffset> {
    if zone.contains(':') {
        let (negative, digits) = match zone.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, zone.strip_prefix('+').unwrap_or(zone)),
        };
        let (hours, minutes) = digits.split_once(':')?;
        let seconds =
            hours.parse::<i32>().ok()?.checked_mul(3600)? + minutes.parse::<i32>().ok()?.checked_mul(60)?;
        return FixedOffset::east_opt(if negative { -seconds } else { seconds });
    }
    let zone = jiff::tz::TimeZone::get(zone).ok()?;
    let moment = jiff::Timestamp::from_second(time.timestamp()).ok()?;
    FixedOffset::east_opt(zone.to_offset(moment).seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("1h2m3.5s", Some(3_723_500_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("-1\u{b5}s", Some(-1_000)),
            ("+2ms", Some(2_000_000)),
            ("2562047h", Some(9_223_369_200_000_000_000)),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("9223372036854775808ns", None),
            ("999999999h", None),
            ("", None),
            ("5", None),
            ("1 m", None),
            ("banana", None),
            (".s", None),
            ("1.2.3s", None),
            ("1d", None),
            ("1h-2m", None),
        ] {
            assert_eq!(parse_duration(text), nanos, "{text}");
        }
    }
}
