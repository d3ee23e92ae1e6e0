//! Version ranges with the semantics of Masterminds/semver v3, the library behind `spec.ref.semver` of Flux.
//!
//! `semver::VersionReq` accepts other ranges and gives some of the same ranges another meaning (`1.2.3` is `^1.2.3`
//! there, and a list needs commas), so a Source migrated from Flux would roll out another version. Here a range has its
//! meaning in Flux: `tests/oracle` runs the Go library, and `tests/range_oracle.rs` compares every result.
//!
//! A range is a list of groups joined by `||`; a group is a list of comparators, separated by spaces or commas, that
//! must all match. Unexpected results of the library are kept:
//!
//! - `~0.0.0` is every version from 0.0.0 on, while `^*` is 0.0.0 alone, `!=*` all but 0.0.0, `<=*` only 0.0.x.
//! - A prerelease in one comparator admits all prereleases to its group: `>=1.0.0-0` matches 2.0.0-rc.1.
//! - `1.0 - 2.0` matches 2.0.7 (it becomes `>=1.0, <=2.0`, and `<=2.0` means 2.0.x). After another comparator it needs
//!   a comma: `!=1.5.0, 1.0 - 2.0`.
//! - What follows the first `x` is ignored: `1.x.7` is `1.x`.
//! - Leading zeros in a number are dropped (`01.2` is 1.2.0); in a prerelease they are an error.

mod comparator;
mod hyphen;
mod parse;
mod version;

use std::fmt;
use std::str::FromStr;

use semver::Version;

use comparator::Comparator;
pub use version::{MAX_VERSION_LEN, is_full_version, parse_version, precedence};

/// The longest range in bytes; the limit of the Go library.
pub const MAX_RANGE_LEN: usize = 512;
/// The most groups between `||`; the limit of the Go library.
pub const MAX_GROUPS: usize = 32;

/// The reason why a text is not a range, and the valid forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Longer than [`MAX_RANGE_LEN`].
    #[error("the range has {len} bytes, at most {MAX_RANGE_LEN} are allowed")]
    TooLong {
        /// The length in bytes.
        len: usize,
    },
    /// More than [`MAX_GROUPS`] alternatives.
    #[error("the range has {found} alternatives joined by `||`, at most {MAX_GROUPS} are allowed")]
    TooManyGroups {
        /// The number of alternatives.
        found: usize,
    },
    /// An empty range, or one that is empty on one side of `||`.
    #[error("a comparator is missing in {range:?}: each side of `||` needs one, and `*` means every release")]
    Empty {
        /// The range as written.
        range: String,
    },
    /// A comma without a comparator after it.
    #[error("a comparator is missing after a comma in {range:?}")]
    DanglingComma {
        /// The range as written.
        range: String,
    },
    /// Something that is not an operator and a version.
    #[error(
        "{found:?} is not a comparator: one of = != > >= < <= ~ ^ (or none) and a version such as 1.2.3, 1.2 or 1.x \
         is expected"
    )]
    Comparator {
        /// The text from the position that cannot be parsed.
        found: String,
    },
    /// A hyphen range at an invalid position.
    #[error(
        "the hyphen range in {range:?} is not usable: it takes two plain versions, `1.0 - 2.0`, and a comma \
         separates it from a comparator before it"
    )]
    Hyphen {
        /// The range as written.
        range: String,
    },
    /// A part of a version that is neither a number nor a wildcard, or a number of more than 64 bits.
    #[error("{part:?} in {version:?} is neither a number below 2^64 nor one of x, X, *")]
    Number {
        /// The part between two dots.
        part: String,
        /// The version.
        version: String,
    },
    /// A numeric part of a prerelease with a leading zero.
    #[error("the prerelease in {version:?} has a number with a leading zero: write `rc.1`, not `rc.01`")]
    Prerelease {
        /// The version.
        version: String,
    },
    /// A single version longer than [`MAX_VERSION_LEN`].
    #[error("a version in the range has {len} bytes, at most {MAX_VERSION_LEN} are allowed")]
    VersionTooLong {
        /// The length in bytes.
        len: usize,
    },
}

/// A parsed range with its text.
#[derive(Clone, Debug)]
pub struct Range {
    text: String,
    /// The groups, of which any may match; never empty.
    groups: Vec<Group>,
}

impl Range {
    /// Parses a range.
    ///
    /// # Errors
    /// [`RangeError`] exactly where the Go library rejects the range, with a text that says what is valid.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        let groups = parse::groups(text)?;
        Ok(Self {
            text: text.to_owned(),
            groups,
        })
    }

    /// Reports whether a version is in the range. Build metadata is ignored.
    #[must_use]
    pub fn matches(&self, version: &Version) -> bool {
        self.groups.iter().any(|group| group.matches(version))
    }

    /// Reports whether a part of the range names a prerelease; otherwise none is ever in the range.
    #[must_use]
    pub fn names_prerelease(&self) -> bool {
        self.groups.iter().any(Group::names_prerelease)
    }

    /// Returns the range as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        Self::parse(text)
    }
}

/// Ranges are equal if their texts are; `1.x` and `^1` are two ranges with one meaning.
impl PartialEq for Range {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Range {}

/// Comparators that must all match; never empty.
#[derive(Clone, Debug)]
struct Group(Vec<Comparator>);

impl Group {
    fn matches(&self, version: &Version) -> bool {
        (version.pre.is_empty() || self.names_prerelease()) && self.0.iter().all(|c| c.matches(version))
    }

    fn names_prerelease(&self) -> bool {
        self.0.iter().any(Comparator::names_prerelease)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_say_what_is_wrong_and_what_is_valid() {
        let a_lot = "1 ".repeat(257);
        let groups = "1||".repeat(32) + "1";
        let long = format!("1.2.3-{}", "a".repeat(300));
        for (range, wanted) in [
            (&a_lot[..], "the range has 514 bytes, at most 512 are allowed"),
            (&groups, "33 alternatives joined by `||`, at most 32"),
            (
                &long,
                "a version in the range has 306 bytes, at most 256 are allowed",
            ),
            (
                "",
                "a comparator is missing in \"\": each side of `||` needs one, and `*` means every release",
            ),
            ("1.x || ", "a comparator is missing in \"1.x || \""),
            ("1.x,", "a comparator is missing after a comma in \"1.x,\""),
            ("1 - 2,", "a comparator is missing after a comma in \"1 - 2,\""),
            ("1 - 2 || latest", "\"latest\" is not a comparator"),
            ("1 - 2 - 3", "\"- 3\" is not a comparator"),
            (">=1.0 - 2.0", "the hyphen range in \">=1.0 - 2.0\" is not usable"),
            (
                "latest",
                "\"latest\" is not a comparator: one of = != > >= < <= ~ ^ (or none) and a version such as",
            ),
            (">=1.0 ==2.0 <3", "\"==2.0 <3\" is not a comparator"),
            ("1.2.3.4", "\"1.2.3.4\" is not a comparator"),
            (
                "!=1.5.0 1.0 - 2.0",
                "the hyphen range in \"!=1.5.0 1.0 - 2.0\" is not usable",
            ),
            ("1.0 - <2.0", "\"- <2.0\" is not a comparator"),
            (
                "1.xx",
                "\"xx\" in \"1.xx\" is neither a number below 2^64 nor one of x, X, *",
            ),
            (
                "^18446744073709551616",
                "\"18446744073709551616\" in \"18446744073709551616\" is neither a number",
            ),
            (
                "1.2.3-rc.01",
                "the prerelease in \"1.2.3-rc.01\" has a number with a leading zero",
            ),
            ("1\u{7}", "\"1\\u{7}\" is not a comparator"),
        ] {
            let error = Range::parse(range).unwrap_err().to_string();
            assert!(error.contains(wanted), "{range:?}: {error}");
        }
    }

    #[test]
    fn keeps_its_text() {
        let range: Range = " >=1.2.0 <2.0.0".parse().unwrap();
        assert_eq!(range.to_string(), " >=1.2.0 <2.0.0");
        assert_ne!(Range::parse("1.x").unwrap(), Range::parse("^1").unwrap());
        assert!(!range.names_prerelease());
        assert!(Range::parse("1 || >2-0").unwrap().names_prerelease());
    }

    proptest! {
        /// The corpus of the oracle consists of texts that resemble ranges; this test is about all other texts.
        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-3xv*.|<>=!~^, +a\u{e9}-]{0,40}", version in "[0-3xv.+a-]{0,12}") {
            if let (Ok(range), Some(version)) = (Range::parse(&text), parse_version(&version)) {
                let prerelease = !version.pre.is_empty();
                prop_assert!(!(prerelease && !range.names_prerelease() && range.matches(&version)));
            }
        }
    }
}
