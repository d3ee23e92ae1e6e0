//! Durations in the notation of Go (`1m30s`), which every Kubernetes tool uses.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Pattern of the schema: one or more numbers with a unit of hours, minutes, seconds or milliseconds, each
/// number with at most nine digits before and after the point.
const PATTERN: &str = r"^([0-9]{1,9}(\.[0-9]{1,9})?(h|m|s|ms))+$";

/// The longest text.
const MAX_LENGTH: u32 = 64;
/// The longest duration: a year. Longer ones are used as if they were this long. The API server refuses them in new
/// specs, but an object may be older than the limit.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

/// [`LONGEST`], for [`at_most`].
pub(crate) const YEAR: &str = "8760h";
/// The longest timeout of one request or attempt, which occupies a worker or a slot, for [`at_most`].
pub(crate) const HOUR: &str = "1h";

/// A rule of the schema, as in `x-kubernetes-validations`.
#[derive(Serialize)]
pub(crate) struct Maximum {
    rule: String,
    message: String,
}

/// Returns the rule that limits a duration.
pub(crate) fn at_most(longest: &str) -> [Maximum; 1] {
    [Maximum {
        rule: format!("duration(self) <= duration('{longest}')"),
        message: format!("must be at most {longest}"),
    }]
}

/// Returns the rules that limit a duration from both sides.
pub(crate) fn between(shortest: &str, longest: &str) -> [Maximum; 2] {
    let [most] = at_most(longest);
    let least = Maximum {
        rule: format!("duration(self) >= duration('{shortest}')"),
        message: format!("must be at least {shortest}"),
    };
    [least, most]
}

/// A duration, written as `90s`, `1h30m` or `500ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(std::time::Duration);

/// A text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationError(String);

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a duration; write one such as 30s, 5m or 1h30m",
            self.0
        )
    }
}

impl std::error::Error for DurationError {}

impl Duration {
    /// Returns a duration of a number of seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    /// Returns the duration as a type of the standard library, at most a year.
    #[must_use]
    pub fn as_std(self) -> std::time::Duration {
        self.0.min(LONGEST)
    }

    /// Returns whether the duration is `0s`.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl From<std::time::Duration> for Duration {
    fn from(value: std::time::Duration) -> Self {
        Self(value)
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || DurationError(text.chars().take(40).collect());
        let mut rest = text;
        let mut nanos: u128 = 0;
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(bad)?;
            let (number, tail) = rest.split_at(end);
            let (unit, tail) = split_unit(tail).ok_or_else(bad)?;
            nanos += part(number, unit).ok_or_else(bad)?;
            rest = tail;
        }
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| bad())?;
        let subsec = u32::try_from(nanos % 1_000_000_000).map_err(|_| bad())?;
        Ok(Self(std::time::Duration::new(seconds, subsec)))
    }
}

/// Returns the nanoseconds of the unit that a text starts with, and the rest of the text.
fn split_unit(text: &str) -> Option<(u128, &str)> {
    // `ms` before `m`: the longer unit wins.
    [
        ("ms", 1_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
    ]
    .into_iter()
    .find_map(|(name, nanos)| text.strip_prefix(name).map(|tail| (nanos, tail)))
}

/// Returns the nanoseconds of one `number` of `unit`; `None` if the number is malformed or too long.
fn part(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 9 || fraction.len() > 9 || number.ends_with('.') {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    Some(whole * unit + fraction * unit / scale)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let millis = self.0.subsec_millis();
        if seconds == 0 && millis == 0 {
            return f.write_str("0s");
        }
        for (amount, unit) in [
            (seconds / 3600, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (millis.into(), "ms"),
        ] {
            if amount > 0 {
                write!(f, "{amount}{unit}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": MAX_LENGTH, "pattern": PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_what_go_prints() {
        for (text, millis, printed) in [
            ("0s", 0, "0s"),
            ("30s", 30_000, "30s"),
            ("90s", 90_000, "1m30s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1.5h", 5_400_000, "1h30m"),
            ("250ms", 250, "250ms"),
            ("10m0s", 600_000, "10m"),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.as_std().as_millis(), millis, "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn a_longer_duration_than_a_year_is_used_as_a_year() {
        let long: Duration = "999999999h".parse().unwrap();
        assert_eq!(long.as_std(), YEAR.parse::<Duration>().unwrap().as_std());
        assert_eq!(long.to_string(), "999999999h", "it is printed as it was written");
    }

    #[test]
    fn refuses_what_the_schema_refuses() {
        for text in [
            "",
            "5",
            "m",
            "-5m",
            "5 m",
            "1.m",
            ".5m",
            "5d",
            "99999999999h",
            "5mm",
        ] {
            assert!(text.parse::<Duration>().is_err(), "{text:?}");
        }
    }
}
