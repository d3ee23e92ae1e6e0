//! A comparator: an operator and a version that may end in wildcards.

use std::cmp::Ordering;

use semver::{Prerelease, Version};

use super::RangeError;
use super::version::{self, MAX_VERSION_LEN, Written, precedence};

/// The operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// None or `=`.
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterEqual,
    LessEqual,
    /// `~` or `~>`.
    Tilde,
    Caret,
}

/// The texts of the operators; a longer one comes before its prefix.
const SPELLINGS: [(&str, Op); 11] = [
    ("!=", Op::NotEqual),
    (">=", Op::GreaterEqual),
    ("=>", Op::GreaterEqual),
    ("<=", Op::LessEqual),
    ("=<", Op::LessEqual),
    ("~>", Op::Tilde),
    ("=", Op::Equal),
    (">", Op::Greater),
    ("<", Op::Less),
    ("~", Op::Tilde),
    ("^", Op::Caret),
];

impl Op {
    /// Parses an operator at the start of a text; no operator means [`Op::Equal`].
    pub(super) fn take(text: &str) -> (Self, &str) {
        SPELLINGS
            .iter()
            .find_map(|(spelling, op)| Some((*op, text.strip_prefix(spelling)?)))
            .unwrap_or((Self::Equal, text))
    }
}

/// The number of given parts of a version before the first wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    /// `*`, `x.1`
    Nothing,
    /// `1`, `1.x`
    Major,
    /// `1.2`, `1.2.*`
    Minor,
    /// `1.2.3`
    Patch,
}

/// An operator and its version.
#[derive(Clone, Debug)]
pub(super) struct Comparator {
    op: Op,
    given: Given,
    /// The version as written, with zeros for missing numbers.
    bound: Version,
}

impl Comparator {
    /// Interprets a version as written.
    pub(super) fn new(op: Op, written: Written<'_>) -> Result<Self, RangeError> {
        let given = match (written.major, written.minor, written.patch) {
            (major, _, _) if is_wildcard(major) => Given::Nothing,
            (_, None, _) => Given::Major,
            (_, Some(minor), _) if is_wildcard(minor) => Given::Major,
            (_, Some(_), None) => Given::Minor,
            (_, Some(_), Some(patch)) if is_wildcard(patch) => Given::Minor,
            (_, Some(_), Some(_)) => Given::Patch,
        };
        let len = bound_len(given, written);
        if len > MAX_VERSION_LEN {
            return Err(RangeError::VersionTooLong { len });
        }
        let number = |part: Option<&str>, wanted: bool| match part {
            Some(part) if wanted => version::number(part).ok_or_else(|| RangeError::Number {
                part: part.to_owned(),
                version: written.text.to_owned(),
            }),
            _ => Ok(0),
        };
        let mut bound = Version::new(
            number(Some(written.major), given != Given::Nothing)?,
            number(written.minor, matches!(given, Given::Minor | Given::Patch))?,
            number(written.patch, given == Given::Patch)?,
        );
        // The characters were checked before; only a leading zero can be wrong.
        bound.pre = Prerelease::new(written.pre.unwrap_or_default()).map_err(|_| RangeError::Prerelease {
            version: written.text.to_owned(),
        })?;
        Ok(Self { op, given, bound })
    }

    pub(super) fn names_prerelease(&self) -> bool {
        !self.bound.pre.is_empty()
    }

    /// Reports whether a version matches. Whether prereleases are admitted is decided by the group.
    pub(super) fn matches(&self, version: &Version) -> bool {
        let order = precedence(version, &self.bound);
        match self.op {
            Op::Equal if self.given == Given::Patch => order.is_eq(),
            Op::Equal | Op::Tilde => order.is_ge() && self.same_line(version),
            Op::NotEqual => self.differs(version, order),
            Op::Greater => match self.given {
                Given::Major => version.major > self.bound.major,
                Given::Minor => line(version) > line(&self.bound),
                Given::Nothing | Given::Patch => order.is_gt(),
            },
            Op::LessEqual => match self.given {
                Given::Major => version.major <= self.bound.major,
                // A single wildcard means 0.0.x here, as in the library.
                Given::Minor | Given::Nothing => line(version) <= line(&self.bound),
                Given::Patch => order.is_le(),
            },
            // The upper limit of a wildcard is ignored: `<1.x` is `<1.0.0`, `>=1.x` is `>=1.0.0`.
            Op::Less => order.is_lt(),
            Op::GreaterEqual => order.is_ge(),
            Op::Caret => order.is_ge() && self.compatible(version),
        }
    }

    /// Checks the upper limit of `~`: the same minor version, or the same major version if no minor version is given.
    fn same_line(&self, version: &Version) -> bool {
        match self.given {
            Given::Major => version.major == self.bound.major,
            // 0.0.0, given or not, has no upper limit.
            Given::Nothing | Given::Patch if numbers(&self.bound) == (0, 0, 0) => true,
            Given::Nothing | Given::Minor | Given::Patch => line(version) == line(&self.bound),
        }
    }

    /// Checks the upper limit of `^`: the first number that is not zero is the same.
    fn compatible(&self, version: &Version) -> bool {
        if self.bound.major > 0 || self.given == Given::Major {
            version.major == self.bound.major
        } else if self.bound.minor > 0 || self.given == Given::Minor {
            line(version) == line(&self.bound)
        } else {
            numbers(version) == numbers(&self.bound)
        }
    }

    /// Checks `!=`: the version is outside of the wildcard.
    fn differs(&self, version: &Version, order: Ordering) -> bool {
        match self.given {
            Given::Major => version.major != self.bound.major,
            // Within the line, a prerelease on either side is a difference unless both are the same.
            Given::Minor => line(version) != line(&self.bound) || version.pre != self.bound.pre,
            Given::Nothing | Given::Patch => order.is_ne(),
        }
    }
}

fn is_wildcard(part: &str) -> bool {
    matches!(part, "x" | "X" | "*")
}

/// Returns the major and minor version, which identify a release line.
fn line(version: &Version) -> (u64, u64) {
    (version.major, version.minor)
}

fn numbers(version: &Version) -> (u64, u64, u64) {
    (version.major, version.minor, version.patch)
}

/// Returns the length of the version in bytes, with zeros for missing numbers: the length that the library limits.
/// Build metadata is dropped with a wildcard, so it counts for a full version only.
fn bound_len(given: Given, written: Written<'_>) -> usize {
    let pre = written.pre.map_or(0, |pre| pre.len() + 1);
    let minor = written.minor.map_or(0, str::len);
    match given {
        Given::Nothing => "0.0.0".len() + pre,
        Given::Major => written.major.len() + ".0.0".len() + pre,
        Given::Minor => written.major.len() + 1 + minor + ".0".len() + pre,
        Given::Patch => written.text.len(),
    }
}
