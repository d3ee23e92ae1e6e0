//! Determines the clusters that leave a group: those that have a Sync of the group and are no longer selected.
//!
//! A single cluster that leaves is normal. Many clusters that leave at once indicate a mistake, a script that removed a
//! label, or an incomplete list, and all of their objects could be lost. So nothing follows from it without an
//! approval.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::{IntOrPercent, UnselectedClusters};

use crate::apply::ApprovedDigests;
use crate::deletion_budget::Left;
use crate::digest;
use crate::ids::ClusterName;

/// One cluster may always leave, whatever the limit.
const LEAST: usize = 1;

/// The clusters of a group.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    /// Clusters that have a Sync of the group.
    pub previous: &'a BTreeSet<ClusterName>,
    /// Clusters that are selected now.
    pub selected: &'a BTreeSet<ClusterName>,
    /// Clusters whose labels are unknown: they have not left.
    pub unknown: &'a BTreeSet<ClusterName>,
    /// The number or share of the previous clusters that may leave at once: `spec.maxUnselected`.
    pub allowed: IntOrPercent,
    /// The clusters that left a while ago and lost their objects. They count too: clusters that leave one after another
    /// would otherwise empty the group.
    pub recent: Left,
    /// The clusters whose leave was counted or approved and is under way. They leave one after another, and do not
    /// count again.
    pub going: &'a BTreeSet<ClusterName>,
    /// The group, which an approval is of.
    pub group: MembersOf<'a>,
    /// The digests of approved deselections: see [`deselection_digest`].
    pub approved: &'a ApprovedDigests,
}

/// The subject of an approval of clusters that leave, besides their names.
#[derive(Clone, Copy, Debug)]
pub struct MembersOf<'a> {
    /// The namespace of the group.
    pub namespace: &'a str,
    /// The name of the group.
    pub name: &'a str,
    /// The identities of the members that clusters with Syncs have, by name. One that has none was never applied to.
    pub identities: &'a BTreeMap<ClusterName, String>,
}

/// Clusters that leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deselection {
    /// The clusters that may leave; usually none.
    Free(BTreeSet<ClusterName>),
    /// Too many clusters leave at once, and that is approved. To be stored before the first of them leaves.
    Approved(BTreeSet<ClusterName>),
    /// Too many clusters leave at once.
    Held(HeldDeselection),
}

/// Clusters that left at once and require an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeselection {
    /// The names of the clusters.
    pub lost: BTreeSet<ClusterName>,
    /// The number of clusters that left a while ago.
    pub recent: usize,
    /// The number of clusters of the group before.
    pub of: usize,
    /// When fewer of those that left a while ago count; `None`: the clusters are too many whatever left before.
    pub until: Option<Timestamp>,
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
        recent,
        going,
        group,
        approved,
    } = members;
    let lost: BTreeSet<ClusterName> = previous
        .iter()
        .filter(|name| !selected.contains(*name) && !unknown.contains(*name))
        .cloned()
        .collect();
    let of = previous.len() + recent.clusters;
    let limit = allowed.of_rounded_down(of).max(LEAST);
    let others = lost.difference(going).count();
    let many = others > 0 && others + recent.clusters > limit;
    if !many {
        return Deselection::Free(lost);
    }
    let digest = deselection_digest(group, &lost);
    if approved.contain(&digest) {
        return Deselection::Approved(lost);
    }
    Deselection::Held(HeldDeselection {
        until: recent.until.filter(|_| others <= limit),
        recent: recent.clusters,
        lost,
        of,
        digest,
    })
}

/// Returns the digest over the clusters that leave a group, which an approval names. Another cluster may have the name
/// of one of them by the next time.
#[must_use]
pub fn deselection_digest(group: MembersOf<'_>, lost: &BTreeSet<ClusterName>) -> String {
    let MembersOf {
        namespace,
        name,
        identities,
    } = group;
    let lost: Vec<(&ClusterName, Option<&String>)> =
        lost.iter().map(|name| (name, identities.get(name))).collect();
    digest::of(&("deselection", namespace, name, lost))
}

/// Returns since when clusters are out of the selection: the time in status, or now. A time that lies ahead does not
/// count: the clock was wrong when it was written, and the cluster would stay for as long as it lies ahead.
#[must_use]
pub fn unselected_since(
    before: &[UnselectedClusters],
    lost: &BTreeSet<ClusterName>,
    now: Timestamp,
) -> BTreeMap<ClusterName, Timestamp> {
    let recorded = before.iter().filter_map(|group| {
        let since: Timestamp = group.since.parse().ok()?;
        Some((since.min(now), &group.clusters))
    });
    let mut times = BTreeMap::new();
    for (since, clusters) in recorded {
        for cluster in clusters.iter().filter_map(|cluster| lost.get(cluster.as_str())) {
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
pub fn unselected_status(since: &BTreeMap<ClusterName, Timestamp>) -> Vec<UnselectedClusters> {
    let mut groups: BTreeMap<Timestamp, Vec<String>> = BTreeMap::new();
    for (cluster, time) in since {
        groups.entry(*time).or_default().push(cluster.to_string());
    }
    let groups = groups.into_iter().map(|(since, clusters)| UnselectedClusters {
        since: since.to_string(),
        clusters,
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_api::Deletions;

    use super::*;
    use crate::deletion_budget::{count_left, left};

    static NONE: BTreeMap<ClusterName, String> = BTreeMap::new();
    const SHOP: MembersOf<'static> = MembersOf {
        namespace: "fleet",
        name: "shop",
        identities: &NONE,
    };

    fn names(range: std::ops::Range<usize>) -> BTreeSet<ClusterName> {
        range.map(|number| format!("c{number:03}").into()).collect()
    }

    fn leave(of: usize, lost: usize, unknown: &BTreeSet<ClusterName>, approved: &str) -> Deselection {
        deselection(Members {
            previous: &names(0..of),
            selected: &names(lost..of + 5),
            unknown,
            allowed: IntOrPercent::Percent(20),
            recent: Left::default(),
            going: &BTreeSet::new(),
            approved: &ApprovedDigests::of_annotation(approved),
            group: SHOP,
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
                Deselection::Approved(_) => panic!("nothing is approved"),
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
                recent: Left::default(),
                going: &BTreeSet::new(),
                approved: &ApprovedDigests::default(),
                group: SHOP,
            });
            assert_eq!(
                matches!(found, Deselection::Held(_)),
                held,
                "{lost} of {of}, {allowed}"
            );
        }
    }

    #[test]
    fn clusters_that_left_a_while_ago_count() {
        for (of, lost, recent, held) in [
            (4, 1, 1, true),
            (9, 1, 1, false),
            (9, 1, 2, true),
            (9, 0, 5, false),
        ] {
            let found = deselection(Members {
                previous: &names(0..of),
                selected: &names(lost..of),
                unknown: &BTreeSet::new(),
                allowed: IntOrPercent::Percent(20),
                recent: Left {
                    clusters: recent,
                    until: Some(Timestamp::UNIX_EPOCH),
                },
                going: &BTreeSet::new(),
                approved: &ApprovedDigests::default(),
                group: SHOP,
            });
            let is_held = matches!(found, Deselection::Held(_));
            assert_eq!(is_held, held, "{lost} of {of} after {recent}");
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
        assert_eq!(
            leave(10, 5, &none, &held.digest),
            Deselection::Approved(names(0..5))
        );
        assert!(matches!(leave(10, 6, &none, &held.digest), Deselection::Held(_)));
        assert!(matches!(leave(10, 4, &none, &held.digest), Deselection::Held(_)));
    }

    /// Guards against an approval that passes for another group, or for another cluster of the same name.
    #[test]
    fn an_approval_is_of_one_group_and_of_the_clusters_and_not_of_their_names() {
        let (lost, identities) = (names(0..2), BTreeMap::from([("c000".into(), "uid-1".to_owned())]));
        let known = MembersOf {
            identities: &identities,
            ..SHOP
        };
        let rebuilt = BTreeMap::from([("c000".into(), "uid-2".to_owned())]);
        let digest = deselection_digest(known, &lost);
        assert_eq!(deselection_digest(known, &lost), digest);
        for other in [
            MembersOf { name: "web", ..known },
            MembersOf {
                namespace: "other",
                ..known
            },
            MembersOf {
                identities: &rebuilt,
                ..known
            },
            SHOP,
        ] {
            assert_ne!(deselection_digest(other, &lost), digest, "{other:?}");
        }
    }

    #[test]
    fn the_grace_is_counted_from_the_recorded_time_until_a_cluster_returns() {
        let t = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|name| ClusterName::from(*name))
                .collect::<BTreeSet<_>>()
        };
        let begun = unselected_since(&[], &set(&["a", "b"]), t(0));
        let status = unselected_status(&begun);
        assert_eq!(status.len(), 1, "one time: {status:?}");
        // The controller was restarted, `b` has returned, and `c` leaves.
        let later = unselected_since(&status, &set(&["a", "c"]), t(60));
        let expected = [("a".into(), t(0)), ("c".into(), t(60))];
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
        let lost = BTreeSet::from(["a".into()]);
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

    /// Clusters leave in slots: those that are left of an approved list are another list.
    #[test]
    fn the_rest_of_an_approved_list_leaves_and_others_do_not() {
        let going = names(0..5);
        let recent = Left {
            clusters: 1,
            until: None,
        };
        for (lost, held) in [(1..5, false), (4..5, false), (4..6, true)] {
            let previous = names(1..10);
            let lost = names(lost);
            let found = deselection(Members {
                previous: &previous,
                selected: &previous.difference(&lost).cloned().collect(),
                unknown: &BTreeSet::new(),
                allowed: IntOrPercent::Percent(10),
                recent,
                going: &going,
                approved: &ApprovedDigests::default(),
                group: SHOP,
            });
            assert_eq!(matches!(found, Deselection::Held(_)), held, "{lost:?}");
        }
    }

    /// A leave that was counted and then failed, or that waits for a slot, is repeated: its clusters are lost and were
    /// counted, but they are the same clusters.
    #[test]
    fn a_leave_that_is_repeated_counts_once() {
        let window = Duration::from_secs(3600);
        let now: Timestamp = "2026-07-01T08:00:00Z".parse().unwrap();
        for (of, lost) in [(4, 1), (15, 3), (500, 100)] {
            let mut deletions = Deletions::default();
            for attempt in 0..3 {
                for cluster in names(0..lost) {
                    let going = deletions.leaving.iter().map(ClusterName::from).collect();
                    let found = deselection(Members {
                        previous: &names(0..of),
                        selected: &names(lost..of),
                        unknown: &BTreeSet::new(),
                        allowed: IntOrPercent::Percent(20),
                        recent: left(window, &deletions.counts, now),
                        going: &going,
                        approved: &ApprovedDigests::default(),
                        group: SHOP,
                    });
                    assert_eq!(
                        found,
                        Deselection::Free(names(0..lost)),
                        "{cluster} in attempt {attempt}"
                    );
                    count_left(&mut deletions, &cluster, window, of, now.into());
                }
            }
            assert_eq!(left(window, &deletions.counts, now).clusters, lost);
        }
    }
}
