//! Who leaves a group: clusters that have a Sync of it and are no longer selected.
//!
//! One cluster that leaves is an everyday matter. Many that leave at once are a slip of the hand, a label that a script took
//! away, or a list that was not complete; what follows from it can be the loss of everything on them. So then nothing
//! follows until a person approves.

use std::collections::BTreeSet;

use starling_api::IntOrPercent;

use crate::apply::budget::is_approved;
use crate::digest;

/// One cluster may always leave, whatever is allowed.
const LEAST: usize = 1;

/// What a group knows about who is in it.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    /// Clusters that have a Sync of the group.
    pub previous: &'a BTreeSet<String>,
    /// Clusters that are selected now.
    pub selected: &'a BTreeSet<String>,
    /// Clusters of which that cannot be told: they have not left.
    pub unknown: &'a BTreeSet<String>,
    /// How many of the previous ones may leave at once: `spec.maxUnselected`.
    pub allowed: IntOrPercent,
    /// The digests of departures that a person approved: see [`is_approved`].
    pub approved: &'a str,
}

/// Clusters that leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// These may go; often none.
    Free(BTreeSet<String>),
    /// Too many at once.
    Held(HeldDeparture),
}

/// Clusters that left at once, and wait for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeparture {
    /// Their names.
    pub lost: BTreeSet<String>,
    /// How many clusters the group had.
    pub of: usize,
    /// What an approval names: a digest over the names.
    pub digest: String,
}

/// Decides who leaves.
#[must_use]
pub fn departure(members: Members<'_>) -> Departure {
    let Members {
        previous,
        selected,
        unknown,
        allowed,
        approved,
    } = members;
    let lost: BTreeSet<String> = previous
        .iter()
        .filter(|name| !selected.contains(*name) && !unknown.contains(*name))
        .cloned()
        .collect();
    let many = lost.len() > allowed.of_rounded_down(previous.len()).max(LEAST);
    let digest = digest::of(&("departure", &lost));
    if !many || is_approved(approved, &digest) {
        return Departure::Free(lost);
    }
    Departure::Held(HeldDeparture {
        lost,
        of: previous.len(),
        digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<usize>) -> BTreeSet<String> {
        range.map(|number| format!("c{number:03}")).collect()
    }

    fn leave(of: usize, lost: usize, unknown: &BTreeSet<String>, approved: &str) -> Departure {
        departure(Members {
            previous: &names(0..of),
            selected: &names(lost..of + 5),
            unknown,
            allowed: IntOrPercent::Percent(20),
            approved,
        })
    }

    /// T33: half of the list, all of it, a label typo.
    #[test]
    fn t33_many_at_once_are_held_and_few_are_free() {
        let none = BTreeSet::new();
        for (of, lost, held) in [
            (500, 500, true),
            (500, 250, true),
            (500, 101, true),
            (500, 100, false),
            (10, 2, false),
            (10, 3, true),
            (9, 2, true),
            (2, 2, true),
            (2, 1, false),
            (1, 1, false),
            (3, 0, false),
            (0, 0, false),
        ] {
            match leave(of, lost, &none, "") {
                Departure::Free(free) => assert!(!held && free == names(0..lost), "{lost} of {of}"),
                Departure::Held(hold) => {
                    assert!(held, "{lost} of {of}");
                    assert_eq!((hold.lost.len(), hold.of), (lost, of));
                }
            }
        }
    }

    #[test]
    fn how_many_may_leave_is_set() {
        for (allowed, of, lost, held) in [
            (IntOrPercent::Int(3), 100, 3, false),
            (IntOrPercent::Int(3), 100, 4, true),
            (IntOrPercent::Int(0), 5, 1, false),
            (IntOrPercent::Int(0), 5, 2, true),
            (IntOrPercent::Percent(100), 5, 5, false),
            (IntOrPercent::Percent(50), 5, 3, true),
        ] {
            let found = departure(Members {
                previous: &names(0..of),
                selected: &names(lost..of),
                unknown: &BTreeSet::new(),
                allowed,
                approved: "",
            });
            assert_eq!(
                matches!(found, Departure::Held(_)),
                held,
                "{lost} of {of}, {allowed}"
            );
        }
    }

    #[test]
    fn t33_what_cannot_be_told_has_not_left() {
        assert_eq!(leave(5, 5, &names(0..5), ""), Departure::Free(BTreeSet::new()));
        assert_eq!(leave(5, 5, &names(1..5), ""), Departure::Free(names(0..1)));
    }

    #[test]
    fn t33_an_approval_is_for_these_clusters() {
        let none = BTreeSet::new();
        let Departure::Held(held) = leave(10, 5, &none, "") else {
            panic!("not held")
        };
        assert_eq!(leave(10, 5, &none, &held.digest), Departure::Free(names(0..5)));
        assert!(matches!(leave(10, 6, &none, &held.digest), Departure::Held(_)));
        assert!(matches!(leave(10, 4, &none, &held.digest), Departure::Held(_)));
    }
}
