//! Orders the resource versions of an object.
//!
//! Since Kubernetes 1.35, a `resourceVersion` is a decimal number of any length, and clients may compare two versions
//! of one kind (KEP-5504). API servers on etcd have always used numbers. Versions of another server can only be tested
//! for equality.

use std::cmp::Ordering;

/// A resource version that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbered<'a> {
    /// Of two numbers without leading zeros, the longer one is greater, so no integer type limits them.
    digits: usize,
    text: &'a str,
}

impl<'a> Numbered<'a> {
    /// Parses a resource version. `None`: it is empty, or not a number as defined by KEP-5504.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let well_formed = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        (well_formed && !text.is_empty()).then_some(Self {
            digits: text.len(),
            text,
        })
    }
}

/// Compares two resource versions of one kind. `None`: it is unknown which one is newer.
#[must_use]
pub fn compare(version: &str, other: &str) -> Option<Ordering> {
    if version == other {
        return Some(Ordering::Equal);
    }
    Some(Numbered::parse(version)?.cmp(&Numbered::parse(other)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length_are_ordered_and_nothing_else_is() {
        let (longest_u64, one_more) = ("18446744073709551615", "18446744073709551616");
        let forty_digits = "1".repeat(40);
        for (version, other, order) in [
            ("9", "10", Some(Ordering::Less)),
            ("10", "9", Some(Ordering::Greater)),
            ("10", "10", Some(Ordering::Equal)),
            (longest_u64, one_more, Some(Ordering::Less)),
            (one_more, forty_digits.as_str(), Some(Ordering::Less)),
            // Equality needs no number.
            ("a9", "a9", Some(Ordering::Equal)),
            ("", "", Some(Ordering::Equal)),
            ("a9", "b1", None),
            ("9", "a9", None),
            ("", "9", None),
            ("09", "9", None),
            ("0", "1", None),
            ("-1", "1", None),
            ("+1", "2", None),
            ("1.5", "2", None),
            ("٣", "4", None),
        ] {
            assert_eq!(compare(version, other), order, "{version} {other}");
            assert_eq!(
                compare(other, version),
                order.map(Ordering::reverse),
                "{other} {version}"
            );
        }
    }
}
