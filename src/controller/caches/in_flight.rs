//! The clusters in flight of each group, which the limit of the installation counts together.
//!
//! A pass of a group reserves slots before it plans, since others plan at the same time, and then reports how many of
//! them it takes. No pass is planned on an unknown number: the caller counts the groups that this process has not
//! planned yet.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use starling_core::in_flight::{GroupInFlight, shares};
use starling_core::plan::InFlightAfter;

use crate::controller::keyed::PerObject;
use crate::controller::object_key::ObjectKey;

/// The clusters in flight of each group.
#[derive(Debug, Default)]
pub struct ClustersInFlight(Mutex<BTreeMap<ObjectKey, Counts>>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Clusters in flight after the last plan.
    in_flight: usize,
    /// Slots that a pass may take which is planning.
    reserved: usize,
    /// Clusters that wait for a slot of the installation.
    waiting: usize,
}

impl ClustersInFlight {
    /// Returns the groups among `all` that are not counted yet.
    #[must_use]
    pub fn unknown<'k>(&self, all: impl IntoIterator<Item = &'k ObjectKey>) -> Vec<ObjectKey> {
        let known = self.lock();
        let unknown = all.into_iter().filter(|key| !known.contains_key(*key));
        unknown.cloned().collect()
    }

    /// Counts a group that this process has not planned. A plan that came in between is right.
    pub fn estimate(&self, group: &ObjectKey, in_flight: usize) {
        self.lock().entry(group.clone()).or_insert(Counts {
            in_flight,
            ..Counts::default()
        });
    }

    /// Reserves the slots that a group may take of `limit`, until [`Self::end`]. How many it needs is not known.
    pub fn begin(&self, group: &ObjectKey, limit: usize) -> usize {
        let mut all = self.lock();
        all.entry(group.clone()).or_default().reserved = 0;
        let share = self::of(&all, limit, |key, counts| match key == group {
            true => limit,
            false => counts.waiting,
        });
        let free = share
            .into_iter()
            .find_map(|(key, share)| (key == *group).then_some(share))
            .unwrap_or_default();
        if let Some(counts) = all.get_mut(group) {
            counts.reserved = free;
        }
        free
    }

    /// Takes the counts after a plan, or of a group that cannot be planned. Returns the groups that wait and may take
    /// slots now.
    pub fn end(&self, group: &ObjectKey, after: InFlightAfter, limit: usize) -> Vec<ObjectKey> {
        let mut all = self.lock();
        all.insert(
            group.clone(),
            Counts {
                in_flight: after.in_flight,
                reserved: 0,
                waiting: after.waiting,
            },
        );
        next(&all, limit)
    }

    /// Removes a deleted group. Returns the groups that wait and may take slots now.
    pub fn remove(&self, group: &ObjectKey, limit: usize) -> Vec<ObjectKey> {
        let mut all = self.lock();
        all.remove(group);
        next(&all, limit)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Counts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next(all: &BTreeMap<ObjectKey, Counts>, limit: usize) -> Vec<ObjectKey> {
    let shares = of(all, limit, |_, counts| counts.waiting).into_iter();
    shares
        .filter_map(|(key, share)| (share > 0).then_some(key))
        .collect()
}

/// Returns the share of each group, where `waiting` is the number of its clusters that wait.
fn of(
    all: &BTreeMap<ObjectKey, Counts>,
    limit: usize,
    waiting: impl Fn(&ObjectKey, &Counts) -> usize,
) -> Vec<(ObjectKey, usize)> {
    let groups: Vec<GroupInFlight<'_>> = all
        .iter()
        .map(|(key, counts)| GroupInFlight {
            namespace: &key.namespace,
            name: &key.name,
            in_flight: counts.in_flight + counts.reserved,
            waiting: waiting(key, counts),
        })
        .collect();
    let shares = shares(limit, &groups);
    all.keys().cloned().zip(shares).collect()
}

impl PerObject for ClustersInFlight {
    fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool) {
        self.lock().retain(|key, _| keep(key));
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        self.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(in_flight: usize, waiting: usize) -> InFlightAfter {
        InFlightAfter {
            begun: 0,
            in_flight,
            waiting,
        }
    }

    #[test]
    fn tenant_two_passes_at_one_time_do_not_take_the_same_slot() {
        let counts = ClustersInFlight::default();
        let [web, shop] = ["web", "shop"].map(|name| ObjectKey::new("team", name));
        assert_eq!(counts.begin(&web, 4), 4);
        assert_eq!(counts.begin(&shop, 4), 0, "reserved");
        assert!(counts.end(&web, after(3, 0), 4).is_empty(), "nobody waits yet");
        let next = counts.end(&shop, after(0, 5), 4);
        assert_eq!(next, std::slice::from_ref(&shop), "one is free by now");
        assert_eq!(counts.begin(&shop, 4), 1);
        assert!(counts.end(&shop, after(1, 4), 4).is_empty());
        // Two of the other group are done.
        let next = counts.end(&web, after(1, 0), 4);
        assert_eq!(next, std::slice::from_ref(&shop));
        assert_eq!(counts.begin(&shop, 4), 2);
        counts.end(&shop, after(3, 2), 4);
        assert_eq!(counts.remove(&web, 4), [shop]);
    }

    #[test]
    fn tenant_a_group_that_was_not_planned_yet_counts_as_estimated() {
        let counts = ClustersInFlight::default();
        let [web, shop] = ["web", "shop"].map(|name| ObjectKey::new("team", name));
        assert_eq!(counts.unknown([&web, &shop]), [web.clone(), shop.clone()]);
        counts.estimate(&web, 3);
        assert_eq!(counts.begin(&shop, 4), 1);
        counts.end(&shop, after(0, 0), 4);
        counts.end(&web, after(0, 0), 4);
        // An estimate does not replace a plan.
        counts.estimate(&web, 3);
        assert_eq!(counts.begin(&shop, 4), 4);
    }
}
