//! Whether the management cluster was set back, by the numbers of its writes that members remember (ADR 40).
//!
//! Each process counts its writes in a *timeline* of its own, and stores the count in the management cluster before it
//! writes to a member. The inventory on the member has the number. A number that the management cluster does not know
//! was stored in a past that it lost. No later process reuses it, because no later process has the same timeline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::digest::hash64;

/// The longest name of a timeline.
const LONGEST: usize = 63;

/// The name of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline(String);

impl Timeline {
    /// Returns the timeline with a random text as its name.
    #[must_use]
    pub fn new(random: &str) -> Self {
        let hash = hash64(&[random]);
        Self(format!("{hash:016x}"))
    }
}

/// The number of one write to a member: an attempt, or the deletion of a Sync's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WriteNumber {
    timeline: String,
    number: u64,
}

/// A text that is not a write number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a write number, which has the form TIMELINE/NUMBER")]
pub struct NotAWriteNumber;

impl WriteNumber {
    /// Returns whether this number was taken after another one, as far as the two can be compared: numbers of different
    /// timelines cannot.
    #[must_use]
    pub fn is_later_than(&self, other: &Self) -> bool {
        self.timeline == other.timeline && self.number > other.number
    }

    /// Returns the next number of the same timeline.
    #[must_use]
    pub fn next(&self) -> Self {
        Self {
            timeline: self.timeline.clone(),
            number: self.number.saturating_add(1),
        }
    }
}

impl fmt::Display for WriteNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.timeline, self.number)
    }
}

impl FromStr for WriteNumber {
    type Err = NotAWriteNumber;

    fn from_str(text: &str) -> Result<Self, NotAWriteNumber> {
        let (timeline, number) = text.split_once('/').ok_or(NotAWriteNumber)?;
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=LONGEST).contains(&timeline.len()) || !timeline.chars().all(is_valid) {
            return Err(NotAWriteNumber);
        }
        Ok(Self {
            timeline: timeline.to_owned(),
            number: number.parse().map_err(|_| NotAWriteNumber)?,
        })
    }
}

impl TryFrom<String> for WriteNumber {
    type Error = NotAWriteNumber;

    fn try_from(text: String) -> Result<Self, NotAWriteNumber> {
        text.parse()
    }
}

impl From<WriteNumber> for String {
    fn from(number: WriteNumber) -> Self {
        number.to_string()
    }
}

/// The numbers that the management cluster knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownWrites {
    /// The last number of each timeline.
    #[serde(default)]
    taken: BTreeMap<String, u64>,
    /// Numbers of a lost past that a person released, as ranges with both ends, in order. A fleet has one number for
    /// each Sync, and most of them follow each other.
    #[serde(default)]
    released: BTreeMap<String, Vec<(u64, u64)>>,
}

impl KnownWrites {
    /// Returns whether a number that a member has is known.
    #[must_use]
    pub fn knows(&self, found: &WriteNumber) -> bool {
        let last = self.taken.get(&found.timeline);
        last.is_some_and(|last| found.number <= *last) || self.is_released(found)
    }

    fn is_released(&self, found: &WriteNumber) -> bool {
        let Some(ranges) = self.released.get(&found.timeline) else {
            return false;
        };
        let at = ranges.partition_point(|(_, last)| *last < found.number);
        ranges.get(at).is_some_and(|(first, _)| *first <= found.number)
    }

    /// Returns a number that `remembered` knows and these do not: they were set back since.
    #[must_use]
    pub fn lacks(&self, remembered: &Self) -> Option<WriteNumber> {
        let numbered = |timeline: &String, number: u64| WriteNumber {
            timeline: timeline.clone(),
            number,
        };
        let taken = remembered.taken.iter();
        let taken = taken.map(|(timeline, number)| numbered(timeline, *number));
        // A release is written as a whole, so the ends of its ranges stand for it.
        let released = remembered.released.iter().flat_map(|(timeline, ranges)| {
            let ends = ranges.iter().map(|(_, last)| *last);
            ends.map(|last| numbered(timeline, last))
        });
        taken.chain(released).find(|number| !self.knows(number))
    }

    /// Takes the next `count` numbers of a timeline, and returns the number before the first of them.
    pub fn take(&mut self, timeline: &Timeline, count: u64) -> WriteNumber {
        let last = self.taken.entry(timeline.0.clone()).or_default();
        let before = *last;
        *last = before.saturating_add(count);
        WriteNumber {
            timeline: timeline.0.clone(),
            number: before,
        }
    }

    /// Releases numbers of a lost past.
    pub fn release(&mut self, numbers: impl IntoIterator<Item = WriteNumber>) {
        let mut all: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for number in numbers {
            if !self.is_released(&number) {
                all.entry(number.timeline).or_default().insert(number.number);
            }
        }
        for (timeline, numbers) in all {
            let ranges = self.released.entry(timeline).or_default();
            ranges.extend(numbers.into_iter().map(|number| (number, number)));
            ranges.sort_unstable();
            ranges.dedup_by(|next, kept| {
                let follows = next.0 == kept.1.saturating_add(1);
                if follows {
                    kept.1 = next.1;
                }
                follows
            });
        }
    }
}

/// The finding that the management cluster was set back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreFinding {
    /// The number that the management cluster does not know.
    pub number: WriteNumber,
    /// The place of the finding, such as a cluster.
    pub witness: String,
    /// When it was found.
    pub time: Timestamp,
}

impl fmt::Display for RestoreFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the management cluster was set back to an earlier state: {} has its write {}, which it does not know (found \
             at {}). Nothing is written to any cluster. To see what would be written, and to continue: starling \
             release-restore",
            self.witness, self.number, self.time
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> WriteNumber {
        text.parse().unwrap()
    }

    fn known(taken: &[(&str, u64)], released: &[&str]) -> KnownWrites {
        let taken = taken.iter();
        let mut known = KnownWrites {
            taken: taken
                .map(|(timeline, number)| ((*timeline).to_owned(), *number))
                .collect(),
            released: BTreeMap::new(),
        };
        known.release(released.iter().map(|text| number(text)));
        known
    }

    #[test]
    fn a_number_is_known_up_to_the_last_one_of_its_timeline() {
        // The backup has the first process at 15; the second process began after the restore.
        let hub = known(&[("a", 15), ("b", 900)], &["a/18"]);
        for (found, is_known) in [
            ("a/1", true),
            ("a/15", true),
            // Lost, however many writes there were since.
            ("a/16", false),
            ("a/17", false),
            // A person released this one alone.
            ("a/18", true),
            ("a/19", false),
            ("b/900", true),
            ("b/901", false),
            // A timeline that the backup never had: also a second management cluster with the same installation ID.
            ("c/1", false),
        ] {
            assert_eq!(hub.knows(&number(found)), is_known, "{found}");
        }
        assert!(!KnownWrites::default().knows(&number("a/1")));
    }

    #[test]
    fn a_process_notices_that_what_it_stored_is_gone() {
        let remembered = known(&[("a", 15), ("b", 3)], &["x/7"]);
        for (stored, lost) in [
            (remembered.clone(), None),
            // Another process went on, and a person released more.
            (known(&[("a", 15), ("b", 4), ("c", 1)], &["x/7", "x/8"]), None),
            (known(&[("a", 15), ("b", 2)], &["x/7"]), Some("b/3")),
            (known(&[("a", 15)], &["x/7"]), Some("b/3")),
            (known(&[("a", 14), ("b", 9)], &["x/7"]), Some("a/15")),
            // The backup is from before the release.
            (known(&[("a", 15), ("b", 3)], &[]), Some("x/7")),
            (known(&[], &[]), Some("a/15")),
        ] {
            assert_eq!(stored.lacks(&remembered), lost.map(number), "{stored:?}");
        }
    }

    #[test]
    fn each_writer_gets_a_number_of_its_own() {
        let mut writes = known(&[("a", 15)], &[]);
        let b = Timeline("b".into());
        let (first, second) = (writes.take(&b, 3), writes.take(&b, 1));
        assert_eq!((first, second.next()), (number("b/0"), number("b/4")));
        assert_ne!(Timeline::new("one"), Timeline::new("two"));
        assert!(writes.knows(&number("b/4")) && !writes.knows(&number("b/5")));
        writes.release([number("x/7")]);
        assert!(writes.knows(&number("x/7")) && !writes.knows(&number("x/6")));
    }

    #[test]
    fn released_numbers_that_follow_each_other_are_stored_as_one_range() {
        let mut writes = known(&[], &["a/7", "a/5", "b/1", "a/6"]);
        writes.release(["a/9", "a/10", "a/6"].map(number));
        let ranges = BTreeMap::from([
            ("a".to_owned(), vec![(5, 7), (9, 10)]),
            ("b".to_owned(), vec![(1, 1)]),
        ]);
        assert_eq!(writes.released, ranges);
        writes.release([number("a/8")]);
        assert_eq!(writes.released["a"], [(5, 10)]);
        for (found, is_known) in [("a/4", false), ("a/5", true), ("a/10", true), ("a/11", false)] {
            assert_eq!(writes.knows(&number(found)), is_known, "{found}");
        }
    }

    #[test]
    fn the_stored_form_is_stable() {
        let writes = known(&[("a", 15)], &["x/7"]);
        let text = r#"{"taken":{"a":15},"released":{"x":[[7,7]]}}"#;
        assert_eq!(serde_json::to_string(&writes).unwrap(), text);
        assert_eq!(serde_json::from_str::<KnownWrites>(text).unwrap(), writes);
        assert_eq!(
            serde_json::from_str::<KnownWrites>("{}").unwrap(),
            KnownWrites::default()
        );
        for text in ["", "a", "a/", "/1", "A/1", "a b/1", "a/-1", "a/1/2", "a/x"] {
            assert_eq!(text.parse::<WriteNumber>(), Err(NotAWriteNumber), "{text:?}");
        }
    }
}
