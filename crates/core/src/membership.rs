//! Determines the clusters that leave a group: those that have a Sync of the group and are no longer selected.
//!
//! A single cluster that leaves is normal. Many clusters that leave at once indicate a mistake, a script that removed a
//! label, or an incomplete list, and all of their objects could be lost. So nothing follows from it without an
//! approval.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::{IntOrPercent, UnselectedClusters};

use crate::apply::budget::is_approved;
use crate::digest;

/// One cluster may always leave, whatever the limit.
const LEAST: usize = 1;

/// The clusters of a group.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    /// Clusters that have a Sync of the group.
    pub previous: &'a BTreeSet<String>,
    /// Clusters that are selected now.
    pub selected: &'a BTreeSet<String>,
    /// Clusters whose labels are unknown: they have not left.
    pub unknown: &'a BTreeSet<String>,
    /// The number or share of the previous clusters that may leave at once: `spec.maxUnselected`.
    pub allowed: IntOrPercent,
    /// The digests of approved deselections: see [`is_approved`].
    pub approved: &'a str,
}

/// Clusters that leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deselection {
    /// The clusters that may leave; usually none.
    Free(BTreeSet<String>),
    /// Too many clusters leave at once.
    Held(HeldDeselection),
}

/// Clusters that left at once and require an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeselection {
    /// The names of the clusters.
    pub lost: BTreeSet<String>,
    /// The number of clusters of the group before.
    pub of: usize,
    /// The digest over the names, which an approval names.
    pub digest: String,
}

/// Decides which clusters leave.
#[must_use]
pub fn deselection(members: Members<'_>) -> Deselection {
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
    let digest = digest::of(&("deselection", &lost));
    if !many || is_approved(approved, &digest) {
        return Deselection::Free(lost);
    }
    Deselection::Held(HeldDeselection {
        lost,
        of: previous.len(),
        digest,
    })
}

/// Returns since when clusters are out of the selection: the time in status, or now. A time that lies ahead does not
/// count: the clock was wrong when it was written, and the cluster would stay for as long as it lies ahead.
#[must_use]
pub fn unselected_since(
    before: &[UnselectedClusters],
    lost: &BTreeSet<String>,
    now: Timestamp,
) -> BTreeMap<String, Timestamp> {
    let recorded = before.iter().filter_map(|group| {
        let since: Timestamp = group.since.parse().ok()?;
        Some((since.min(now), &group.clusters))
    });
    let mut times = BTreeMap::new();
    for (since, clusters) in recorded {
        for cluster in clusters.iter().filter(|cluster| lost.contains(*cluster)) {
            // The longest grace, if a cluster is named twice.
            let known = times.entry(cluster.clone()).or_insert(since);
            *known = since.max(*known);
        }
    }
    for cluster in lost {
        times.entry(cluster.clone()).or_insert(now);
    }
    times
}

/// Returns the times of [`unselected_since`] as status records them.
#[must_use]
pub fn unselected_status(since: &BTreeMap<String, Timestamp>) -> Vec<UnselectedClusters> {
    let mut groups: BTreeMap<Timestamp, Vec<String>> = BTreeMap::new();
    for (cluster, time) in since {
        groups.entry(*time).or_default().push(cluster.clone());
    }
    let groups = groups.into_iter().map(|(since, clusters)| UnselectedClusters {
        since: since.to_string(),
        clusters,
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<usize>) -> BTreeSet<String> {
        range.map(|number| format!("c{number:03}")).collect()
    }

    fn leave(of: usize, lost: usize, unknown: &BTreeSet<String>, approved: &str) -> Deselection {
        deselection(Members {
            previous: &names(0..of),
            selected: &names(lost..of + 5),
            unknown,
            allowed: IntOrPercent::Percent(20),
            approved,
        })
    }

    /// T33: half of the list, all of it, a label typo.
    #[test]
    fn t33_many_at_once_are_held_and_few_may_leave() {
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
                Deselection::Free(free) => assert!(!held && free == names(0..lost), "{lost} of {of}"),
                Deselection::Held(hold) => {
                    assert!(held, "{lost} of {of}");
                    assert_eq!((hold.lost.len(), hold.of), (lost, of));
                }
            }
        }
    }

    #[test]
    fn the_limit_is_configurable() {
        for (allowed, of, lost, held) in [
            (IntOrPercent::Int(3), 100, 3, false),
            (IntOrPercent::Int(3), 100, 4, true),
            (IntOrPercent::Int(0), 5, 1, false),
            (IntOrPercent::Int(0), 5, 2, true),
            (IntOrPercent::Percent(100), 5, 5, false),
            (IntOrPercent::Percent(50), 5, 3, true),
        ] {
            let found = deselection(Members {
                previous: &names(0..of),
                selected: &names(lost..of),
                unknown: &BTreeSet::new(),
                allowed,
                approved: "",
            });
            assert_eq!(
                matches!(found, Deselection::Held(_)),
                held,
                "{lost} of {of}, {allowed}"
            );
        }
    }

    #[test]
    fn t33_an_unknown_cluster_has_not_left() {
        assert_eq!(leave(5, 5, &names(0..5), ""), Deselection::Free(BTreeSet::new()));
        assert_eq!(leave(5, 5, &names(1..5), ""), Deselection::Free(names(0..1)));
    }

    #[test]
    fn t33_an_approval_is_for_these_clusters() {
        let none = BTreeSet::new();
        let Deselection::Held(held) = leave(10, 5, &none, "") else {
            panic!("not held")
        };
        assert_eq!(leave(10, 5, &none, &held.digest), Deselection::Free(names(0..5)));
        assert!(matches!(leave(10, 6, &none, &held.digest), Deselection::Held(_)));
        assert!(matches!(leave(10, 4, &none, &held.digest), Deselection::Held(_)));
    }

    #[test]
    fn the_grace_is_counted_from_the_recorded_time_until_a_cluster_returns() {
        let t = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>()
        };
        let begun = unselected_since(&[], &set(&["a", "b"]), t(0));
        let status = unselected_status(&begun);
        assert_eq!(status.len(), 1, "one time: {status:?}");
        // The controller was restarted, `b` has returned, and `c` leaves.
        let later = unselected_since(&status, &set(&["a", "c"]), t(60));
        let expected = [("a".to_owned(), t(0)), ("c".to_owned(), t(60))];
        assert_eq!(later, BTreeMap::from(expected));
        let status = unselected_status(&later);
        let again = unselected_since(&status, &set(&["a", "b", "c"]), t(90));
        assert_eq!(again["b"], t(90), "counted anew");
        assert_eq!(
            unselected_status(&unselected_since(&status, &set(&[]), t(90))),
            []
        );
    }

    #[test]
    fn a_recorded_time_ahead_or_without_sense_counts_as_now() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let lost = BTreeSet::from(["a".to_owned()]);
        let recorded = |since: &str| UnselectedClusters {
            since: since.to_owned(),
            clusters: vec!["a".to_owned()],
        };
        for since in ["2999-01-01T00:00:00Z", "", "yesterday"] {
            let times = unselected_since(&[recorded(since)], &lost, now);
            assert_eq!(times["a"], now, "{since:?}");
        }
        let twice = [recorded("2026-01-01T00:00:00Z"), recorded("2026-01-02T00:00:00Z")];
        let times = unselected_since(&twice, &lost, now);
        assert_eq!(times["a"].to_string(), "2026-01-02T00:00:00Z");
    }
}
