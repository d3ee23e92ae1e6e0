//! One comparator: an operator and a version that may end in wildcards.

use std::cmp::Ordering;

use semver::{Prerelease, Version};

use super::RangeError;
use super::version::{self, MAX_VERSION_LEN, Written, precedence};

/// How a version relates to the one written.
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

/// Spellings of the operators; a longer one stands before its prefix.
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
    /// Takes an operator off the front of a text; no operator means [`Op::Equal`].
    pub(super) fn take(text: &str) -> (Self, &str) {
        SPELLINGS
            .iter()
            .find_map(|(spelling, op)| Some((*op, text.strip_prefix(spelling)?)))
            .unwrap_or((Self::Equal, text))
    }
}

/// How many numbers of a version are given before the first wildcard.
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

/// An operator and what it compares with.
#[derive(Clone, Debug)]
pub(super) struct Comparator {
    op: Op,
    given: Given,
    /// The version written, with zeros for what is not given.
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
        // The characters are those of a prerelease already; only a leading zero is left to go wrong.
        bound.pre = Prerelease::new(written.pre.unwrap_or_default()).map_err(|_| RangeError::Prerelease {
            version: written.text.to_owned(),
        })?;
        Ok(Self { op, given, bound })
    }

    pub(super) fn names_prerelease(&self) -> bool {
        !self.bound.pre.is_empty()
    }

    /// Says whether a version fits. Whether prereleases are wanted at all is a matter of the group.
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
                // A lone wildcard is 0.0.x here, of all things.
                Given::Minor | Given::Nothing => line(version) <= line(&self.bound),
                Given::Patch => order.is_le(),
            },
            // The upper end of a wildcard is not looked at: `<1.x` is `<1.0.0`, `>=1.x` is `>=1.0.0`.
            Op::Less => order.is_lt(),
            Op::GreaterEqual => order.is_ge(),
            Op::Caret => order.is_ge() && self.compatible(version),
        }
    }

    /// The upper end of `~`: the minor version stays, or the major one if no minor version is given.
    fn same_line(&self, version: &Version) -> bool {
        match self.given {
            Given::Major => version.major == self.bound.major,
            // 0.0.0, given or not, has no upper end.
            Given::Nothing | Given::Patch if numbers(&self.bound) == (0, 0, 0) => true,
            Given::Nothing | Given::Minor | Given::Patch => line(version) == line(&self.bound),
        }
    }

    /// The upper end of `^`: the first number that is not zero stays.
    fn compatible(&self, version: &Version) -> bool {
        if self.bound.major > 0 || self.given == Given::Major {
            version.major == self.bound.major
        } else if self.bound.minor > 0 || self.given == Given::Minor {
            line(version) == line(&self.bound)
        } else {
            numbers(version) == numbers(&self.bound)
        }
    }

    /// `!=`: outside of what the wildcard covers.
    fn differs(&self, version: &Version, order: Ordering) -> bool {
        match self.given {
            Given::Major => version.major != self.bound.major,
            // Within the line, a prerelease on either side still makes a difference unless it is the same one.
            Given::Minor => line(version) != line(&self.bound) || version.pre != self.bound.pre,
            Given::Nothing | Given::Patch => order.is_ne(),
        }
    }
}

fn is_wildcard(part: &str) -> bool {
    matches!(part, "x" | "X" | "*")
}

/// Major and minor version: what a release line is called after.
fn line(version: &Version) -> (u64, u64) {
    (version.major, version.minor)
}

fn numbers(version: &Version) -> (u64, u64, u64) {
    (version.major, version.minor, version.patch)
}

/// Length of the bound once zeros stand for what is not given, in bytes; this is what the library limits.
/// Build metadata goes with the wildcard, so it counts for a full version only.
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
