//! Parses a text into groups of comparators.

use super::comparator::{Comparator, Op};
use super::version::{Written, trim_start};
use super::{Group, MAX_GROUPS, MAX_RANGE_LEN, RangeError, hyphen};

/// Parses all groups of a range.
pub(super) fn groups(text: &str) -> Result<Vec<Group>, RangeError> {
    if text.len() > MAX_RANGE_LEN {
        return Err(RangeError::TooLong { len: text.len() });
    }
    let rewritten = hyphen::rewrite(text);
    let plain = rewritten.as_deref().unwrap_or(text);
    let alternatives: Vec<&str> = plain.split("||").collect();
    if alternatives.len() > MAX_GROUPS {
        return Err(RangeError::TooManyGroups {
            found: alternatives.len(),
        });
    }
    let groups: Result<Vec<Group>, RangeError> = alternatives
        .into_iter()
        .map(|group| comparators(group).map(Group))
        .collect();
    groups.map_err(|error| match error {
        RangeError::Empty { .. } => RangeError::Empty {
            range: text.to_owned(),
        },
        RangeError::DanglingComma { .. } => RangeError::DanglingComma {
            range: text.to_owned(),
        },
        // A comparator that is not in the text comes from a hyphen range.
        RangeError::Comparator { found } if !text.contains(&found) => RangeError::Hyphen {
            range: text.to_owned(),
        },
        other => other,
    })
}

/// Parses the comparators of one group: separated by spaces, or by one comma with or without spaces.
fn comparators(group: &str) -> Result<Vec<Comparator>, RangeError> {
    let mut comparators = Vec::new();
    let mut rest = trim_start(group);
    if rest.is_empty() {
        return Err(RangeError::Empty {
            range: group.to_owned(),
        });
    }
    while !rest.is_empty() {
        let (op, after_op) = Op::take(rest);
        let unreadable = || RangeError::Comparator {
            found: rest.to_owned(),
        };
        let (written, after) = Written::take(trim_start(after_op)).ok_or_else(unreadable)?;
        let next = trim_start(after);
        rest = match next.strip_prefix(',') {
            Some(behind) if trim_start(behind).is_empty() => {
                return Err(RangeError::DanglingComma {
                    range: group.to_owned(),
                });
            }
            Some(behind) => trim_start(behind),
            None if next.is_empty() || next.len() < after.len() => next,
            None => return Err(unreadable()),
        };
        comparators.push(Comparator::new(op, written)?);
    }
    Ok(comparators)
}
