//! A number or a percentage of clusters.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of clusters such as `5`, or a percentage such as `25%`. The caller decides what the percentage is
/// of, and how it rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntOrPercent {
    /// A number of clusters.
    Int(u32),
    /// A percentage, 0 to 100.
    Percent(u32),
}

/// A text that is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError(String);

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a limit; write a number such as 5 or a percentage from 0% to 100%",
            self.0
        )
    }
}

impl std::error::Error for LimitError {}

impl IntOrPercent {
    /// Returns the share of `total`, rounded up: for a limit that must not become 0 (`maxConcurrency`).
    #[must_use]
    pub fn of_rounded_up(self, total: usize) -> usize {
        match self {
            Self::Int(n) => n as usize,
            Self::Percent(p) => (total * p as usize).div_ceil(100),
        }
    }

    /// Returns the share of `total`, rounded down: for a limit that must not be exceeded (`maxFailures`,
    /// `maxUnavailable`).
    #[must_use]
    pub fn of_rounded_down(self, total: usize) -> usize {
        match self {
            Self::Int(n) => n as usize,
            Self::Percent(p) => total * p as usize / 100,
        }
    }
}

impl FromStr for IntOrPercent {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || LimitError(text.chars().take(40).collect());
        match text.strip_suffix('%') {
            Some(share) => match share.parse() {
                Ok(p) if p <= 100 => Ok(Self::Percent(p)),
                _ => Err(bad()),
            },
            None => text.parse().map(Self::Int).map_err(|_| bad()),
        }
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

impl Serialize for IntOrPercent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(n) => serializer.serialize_u32(*n),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrPercent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Int(u32),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Int(n) => Ok(Self::Int(n)),
            Raw::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for IntOrPercent {
    fn schema_name() -> Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // `pattern` applies to strings only, `minimum` and `maximum` to numbers only. Each percentage has one
        // spelling, so that `00%` cannot bypass a rule about `0%`. Without `nullable: false`, the schema rewriting
        // of kube sets it to true: a null would then be stored in place of the default, and the object could not
        // be decoded.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "nullable": false,
            "pattern": "^(100|[1-9]?[0-9])%$",
            "minimum": 0,
            "maximum": 1_000_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_for_concurrency_and_down_for_failures() {
        for (text, total, up, down) in [
            ("25%", 10, 3, 2),
            ("25%", 1, 1, 0),
            ("100%", 7, 7, 7),
            ("0%", 7, 0, 0),
            ("5", 3, 5, 5),
            ("1%", 1000, 10, 10),
        ] {
            let limit: IntOrPercent = text.parse().unwrap();
            assert_eq!(limit.of_rounded_up(total), up, "{text} of {total}");
            assert_eq!(limit.of_rounded_down(total), down, "{text} of {total}");
        }
    }

    #[test]
    fn reads_numbers_and_percentages_only() {
        assert_eq!(
            serde_json::from_str::<IntOrPercent>("3").unwrap(),
            IntOrPercent::Int(3)
        );
        assert_eq!(
            serde_json::from_str::<IntOrPercent>("\"3%\"").unwrap(),
            IntOrPercent::Percent(3)
        );
        for bad in ["-1", "\"101%\"", "\"x\"", "\"-1%\"", "1.5", "null"] {
            assert!(serde_json::from_str::<IntOrPercent>(bad).is_err(), "{bad}");
        }
    }
}
