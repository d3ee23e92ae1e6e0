//! The parsing of times and durations, as in Go and in kube-openapi's `strfmt`.

use std::sync::LazyLock;

use jiff::civil::Date;
use regex::Regex;

const NANOS: [(&str, i64); 9] = [
    // Longer units first, since some start with a shorter one.
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("", 0),
];

/// Parses `2006-01-02`.
pub(super) fn date(text: &str) -> Option<Date> {
    let bytes = text.as_bytes();
    let shape = bytes.len() == 10
        && bytes.iter().enumerate().all(|(place, byte)| match place {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    shape.then(|| text.parse().ok())?
}

/// Parses a duration in Go's form, or else in Scala's; returns nanoseconds.
pub(super) fn duration(text: &str) -> Option<i64> {
    go_duration(text).or_else(|| scala_duration(text))
}

/// Parses a duration such as `1h30m` or `-1.5s`.
fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|char: char| !char.is_ascii_digit() && char != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let (_, nanos) = NANOS
            .iter()
            .find(|(unit, nanos)| *nanos > 0 && tail.strip_prefix(unit).is_some_and(ends_unit))?;
        let unit_length = tail.find(|char: char| char.is_ascii_digit() || char == '.');
        rest = &tail[unit_length.unwrap_or(tail.len())..];
        total = total.checked_add(amount(number, *nanos)?)?;
    }
    let total = if negative { -total } else { total };
    i64::try_from(total).ok()
}

/// Returns whether a unit ends where the rest begins.
fn ends_unit(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(|char: char| char.is_ascii_digit() || char == '.')
}

/// Returns a number with an optional fraction, times a unit.
fn amount(number: &str, nanos: i64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| {
        if text.is_empty() {
            Some(0)
        } else {
            text.parse::<i128>().ok()
        }
    };
    // Beyond eighteen digits, a fraction is below a nanosecond of any unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = digits(whole)?.checked_mul(i128::from(nanos))?;
    whole.checked_add(digits(fraction)? * i128::from(nanos) / scale)
}

/// Parses a duration such as `22 ns` or `3 days`; text between the parts is ignored.
fn scala_duration(text: &str) -> Option<i64> {
    const DAY: i64 = 24 * 3_600 * 1_000_000_000;
    const UNITS: [(&[&str], i64); 8] = [
        (&["ns", "nano"], 1),
        (&["us", "µs", "micro"], 1_000),
        (&["ms", "milli"], 1_000_000),
        (&["s", "sec"], 1_000_000_000),
        (&["m", "min"], 60 * 1_000_000_000),
        (&["h", "hr", "hour"], 3_600 * 1_000_000_000),
        (&["d", "day"], DAY),
        (&["w", "wk", "week"], 7 * DAY),
    ];
    static PART: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"([0-9]+)\s*([A-Za-zµ]+)").ok());
    let mut total: i64 = 0;
    let mut found = false;
    for part in PART.as_ref()?.captures_iter(text) {
        let factor: i64 = part[1].parse().ok()?;
        let unit = part[2].to_lowercase();
        for (variants, nanos) in UNITS {
            let is_last = |variant: &str| variants.last() == Some(&variant);
            let named = variants
                .iter()
                .any(|variant| unit == *variant || is_last(variant) && unit.starts_with(variant));
            if named {
                found = true;
                total = total.wrapping_add(factor.wrapping_mul(nanos));
            }
        }
    }
    found.then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        for (text, nanos) in [
            ("1h30m", Some(5_400_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            ("1ms2us3ns", Some(1_002_003)),
            (".5m", Some(30_000_000_000)),
            ("0", Some(0)),
            ("3 days", Some(3 * 86_400 * 1_000_000_000)),
            ("1week", Some(7 * 86_400 * 1_000_000_000)),
            ("22 ns", Some(22)),
            ("5", None),
            ("9999999999999999999999999999999999999h", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(duration(text), nanos, "{text:?}");
        }
    }
}
