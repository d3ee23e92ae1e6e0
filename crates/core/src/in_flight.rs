//! How the clusters that may be in flight in the whole installation are shared by groups and namespaces.
//!
//! A free slot goes to the namespace with the fewest clusters in flight, within it to the group with the fewest, among
//! those that wait. While several namespaces have groups, one of them has at most half of the slots: a slot that is
//! taken comes back only when its cluster is done, which may take as long as `progressDeadline`.

use std::collections::BTreeMap;

/// The clusters of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupInFlight<'a> {
    /// The namespace of the group.
    pub namespace: &'a str,
    /// The name of the group.
    pub name: &'a str,
    /// Clusters in flight, at least.
    pub in_flight: usize,
    /// Clusters that start as soon as the installation has a slot for them.
    pub waiting: usize,
}

/// Returns the number of slots that each group may take now, of those that wait, in the order of `groups`.
#[must_use]
pub fn shares(limit: usize, groups: &[GroupInFlight<'_>]) -> Vec<usize> {
    let mut of_namespace: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups {
        *of_namespace.entry(group.namespace).or_default() += group.in_flight;
    }
    let most = if of_namespace.len() > 1 {
        limit.div_ceil(2)
    } else {
        limit
    };
    let mut free = limit.saturating_sub(of_namespace.values().sum());
    let mut shares = vec![0; groups.len()];
    while free > 0 {
        let next = groups
            .iter()
            .enumerate()
            .filter_map(|(place, group)| {
                let share = shares.get(place)?;
                let namespace = *of_namespace.get(group.namespace)?;
                let waits = *share < group.waiting && namespace < most;
                waits.then_some((
                    namespace,
                    group.in_flight + share,
                    group.namespace,
                    group.name,
                    place,
                ))
            })
            .min();
        let Some((_, _, namespace, _, place)) = next else {
            break;
        };
        if let (Some(share), Some(namespace)) = (shares.get_mut(place), of_namespace.get_mut(namespace)) {
            *share += 1;
            *namespace += 1;
        }
        free -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(name: &'static str, in_flight: usize, waiting: usize) -> GroupInFlight<'static> {
        let (namespace, name) = name.split_once('/').unwrap();
        GroupInFlight {
            namespace,
            name,
            in_flight,
            waiting,
        }
    }

    #[test]
    fn tenant_slots_of_the_installation_are_shared_by_namespaces() {
        for (limit, groups, expected) in [
            (10, vec![group("a/x", 0, 100)], vec![10]),
            (10, vec![group("a/x", 10, 100)], vec![0]),
            // More are in flight than the limit, because it was lowered.
            (10, vec![group("a/x", 12, 100)], vec![0]),
            (10, vec![group("a/x", 0, 3)], vec![3]),
            // Two groups of one namespace.
            (10, vec![group("a/x", 0, 100), group("a/y", 0, 100)], vec![5, 5]),
            (10, vec![group("a/x", 8, 100), group("a/y", 0, 100)], vec![0, 2]),
            // Another namespace, whatever number of groups the first has.
            (
                10,
                vec![group("a/x", 0, 100), group("a/y", 0, 100), group("b/x", 0, 100)],
                vec![3, 2, 5],
            ),
            // Half of the slots stay free for a namespace that waits for nothing yet.
            (10, vec![group("a/x", 0, 100), group("b/x", 0, 0)], vec![5, 0]),
            (10, vec![group("a/x", 5, 100), group("b/x", 1, 9)], vec![0, 4]),
            (1, vec![group("a/x", 0, 1), group("b/x", 0, 1)], vec![1, 0]),
            (1, vec![group("a/x", 1, 1), group("b/x", 0, 1)], vec![0, 0]),
            // One slot is free, and the namespace with fewer gets it.
            (3, vec![group("a/x", 2, 1), group("b/x", 0, 1)], vec![0, 1]),
            (0, vec![group("a/x", 0, 1)], vec![0]),
        ] {
            assert_eq!(shares(limit, &groups), expected, "{limit} {groups:?}");
        }
    }

    proptest! {
        #[test]
        fn the_limit_holds_and_nothing_that_somebody_may_take_is_left(
            limit in 0..20_usize,
            sizes in proptest::collection::vec((0..3_usize, 0..6_usize, 0..6_usize), 0..8),
        ) {
            let names = ["a", "b", "c"];
            let groups: Vec<GroupInFlight<'_>> = sizes
                .iter()
                .map(|(namespace, in_flight, waiting)| GroupInFlight {
                    namespace: names[*namespace],
                    name: "g",
                    in_flight: *in_flight,
                    waiting: *waiting,
                })
                .collect();
            let shares = shares(limit, &groups);
            let before: usize = groups.iter().map(|group| group.in_flight).sum();
            let given: usize = shares.iter().sum();
            prop_assert!(before + given <= limit.max(before));
            let several = groups.iter().any(|group| group.namespace != groups[0].namespace);
            let most = if several { limit.div_ceil(2) } else { limit };
            for (group, share) in groups.iter().zip(&shares) {
                prop_assert!(*share <= group.waiting);
                let of_namespace: usize = groups
                    .iter()
                    .zip(&shares)
                    .filter(|(other, _)| other.namespace == group.namespace)
                    .map(|(other, share)| other.in_flight + share)
                    .sum();
                let is_full = before + given >= limit || of_namespace >= most;
                prop_assert!(*share == group.waiting || is_full);
            }
        }
    }
}
