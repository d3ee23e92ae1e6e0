//! The deletion of a group: which of its clusters lose their Syncs next.
//!
//! A deleted group has no release and no rollout, so no gate judges it. Its clusters go in the order of its stages, in
//! their windows, and at most `maxConcurrency` at once (ADR 41).

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use crate::clock_jumps::ClockJumps;
use crate::plan::Strategy;
use crate::window::{Calendar, combined};

/// A group that is being deleted.
#[derive(Clone, Debug)]
pub struct DeletedGroup<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The policy for the objects of its Syncs.
    pub policy: DeletionPolicy,
    /// Whether the group is suspended.
    pub suspended: bool,
    /// Whether an operator paused the rollout of the group.
    pub paused: bool,
    /// The jumps of the clock: a clock that is set forward frees no slot.
    pub clock_jumps: &'a ClockJumps,
    /// The strategy of the group.
    pub strategy: &'a Strategy,
    /// The clusters with Syncs of the group, by name.
    pub clusters: BTreeMap<String, DeletedCluster>,
}

/// A cluster with Syncs of a group that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedCluster {
    /// The stage of the cluster: an index into [`Strategy::stages`].
    pub stage: usize,
    /// The windows that apply to the cluster: indexes into [`Strategy::windows`].
    pub windows: Vec<usize>,
    /// Whether the cluster is reachable. Nothing is in progress on one that is not, and nothing begins there: what was
    /// decided today would be deleted whenever it returns.
    pub reachable: bool,
    /// Whether a Sync there is abandoned, so that its objects stay if the cluster is unreachable.
    pub abandoned: bool,
    /// Whether the deletion of a Sync there has not begun.
    pub remaining: bool,
    /// Time at which the last deletion of a Sync there began; `None`: none has.
    pub deleting_since: Option<Timestamp>,
}

/// The next step of a group that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextDeletions {
    /// The clusters whose Syncs are deleted now.
    pub clusters: Vec<String>,
    /// The wait of the first of the other clusters.
    pub waits_for: Option<DeletionWait>,
    /// When time changes that.
    pub recheck_at: Option<Timestamp>,
}

/// The reason why a cluster of a deleted group waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionWait {
    /// The group is suspended.
    Suspended,
    /// An operator paused the rollout.
    Paused,
    /// The cluster is unreachable.
    Unreachable,
    /// An earlier stage has clusters.
    Stage(usize),
    /// No window is open for the cluster.
    Window,
    /// All slots are in use.
    Slot,
}

/// Returns the clusters whose Syncs are deleted next.
#[must_use]
pub fn next_deletions(group: &DeletedGroup<'_>) -> NextDeletions {
    let waiting = || group.clusters.iter().filter(|(_, cluster)| cluster.remaining);
    // Nothing is taken away from clusters whose objects stay.
    if group.policy == DeletionPolicy::Orphan {
        return NextDeletions {
            clusters: waiting().map(|(name, _)| name.clone()).collect(),
            ..NextDeletions::default()
        };
    }
    let mut next = NextDeletions::default();
    if group.suspended {
        next.waits_for = waiting().next().map(|_| DeletionWait::Suspended);
        return next;
    }
    if group.paused {
        next.waits_for = waiting().next().map(|_| DeletionWait::Paused);
        return next;
    }
    let limits = &group.strategy.limits;
    let slots = limits.max_concurrency.of_rounded_up(group.clusters.len()).max(1);
    let ends: Vec<Timestamp> = group
        .clusters
        .values()
        .filter_map(|one| ends_at(group, one))
        .collect();
    let mut free = slots.saturating_sub(ends.len());
    let may_begin = |cluster: &DeletedCluster| cluster.reachable || cluster.abandoned;
    let first = waiting().filter(|(_, cluster)| may_begin(cluster));
    let first = first.map(|(_, cluster)| cluster.stage).min();
    let in_earlier = |stage: usize| {
        let mut working = group.clusters.values();
        working.any(|cluster| cluster.stage < stage && ends_at(group, cluster).is_some())
    };
    let calendars: Vec<Calendar> = group
        .strategy
        .windows
        .iter()
        .map(|window| Calendar::of(window, group.now))
        .collect();
    let mut recheck = Vec::new();
    let mut away = false;
    for (name, cluster) in waiting() {
        let about = cluster.windows.iter().filter_map(|place| calendars.get(*place));
        let opening = combined(&about.collect::<Vec<_>>(), group.now);
        // A deletion that was interrupted is completed.
        if ends_at(group, cluster).is_some() {
            next.clusters.push(name.clone());
            continue;
        }
        let wait = if !may_begin(cluster) {
            away = true;
            continue;
        } else if Some(cluster.stage) != first || in_earlier(cluster.stage) {
            DeletionWait::Stage(cluster.stage)
        } else if !cluster.windows.is_empty() && !opening.is_open {
            recheck.extend(opening.changes_at.or(opening.known_until));
            DeletionWait::Window
        } else if free == 0 {
            DeletionWait::Slot
        } else {
            free -= 1;
            next.clusters.push(name.clone());
            continue;
        };
        next.waits_for.get_or_insert(wait);
    }
    if next.waits_for.is_some() {
        recheck.extend(ends);
    }
    if away {
        next.waits_for.get_or_insert(DeletionWait::Unreachable);
    }
    next.recheck_at = recheck.into_iter().filter(|at| *at > group.now).min();
    next
}

/// Returns when a cluster that loses its Syncs gives its slot back at the latest; `None`: it has none.
fn ends_at(group: &DeletedGroup<'_>, cluster: &DeletedCluster) -> Option<Timestamp> {
    let since = cluster.deleting_since.filter(|_| cluster.reachable)?;
    let ends = group
        .clock_jumps
        .due(since, group.strategy.limits.progress_deadline)?;
    (ends > group.now).then_some(ends)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use starling_api::RolloutStrategy;

    use super::*;
    use crate::plan::ReadStrategy;

    static NO_JUMPS: ClockJumps = ClockJumps::none();

    fn t(seconds: i64) -> Timestamp {
        // A Tuesday at 22:13:20 UTC.
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn strategy(strategy: Value) -> Strategy {
        let strategy: RolloutStrategy = serde_json::from_value(strategy).unwrap();
        ReadStrategy::new(&strategy).unwrap().strategy
    }

    /// Five clusters, `a` and `b` in the first of two stages.
    fn group(strategy: &Strategy) -> DeletedGroup<'_> {
        let clusters = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)].map(|(name, stage)| {
            let cluster = DeletedCluster {
                stage,
                reachable: true,
                remaining: true,
                ..DeletedCluster::default()
            };
            (name.to_owned(), cluster)
        });
        DeletedGroup {
            now: t(0),
            policy: DeletionPolicy::Delete,
            suspended: false,
            paused: false,
            clock_jumps: &NO_JUMPS,
            strategy,
            clusters: clusters.into(),
        }
    }

    fn staged() -> Strategy {
        strategy(json!({"maxConcurrency": 2, "progressDeadline": "5m",
            "stages": [{"name": "canary", "clusterSelector": {}}]}))
    }

    fn begin(group: &mut DeletedGroup<'_>, names: &[&str]) {
        for name in names {
            let cluster = group.clusters.get_mut(*name).unwrap();
            (cluster.remaining, cluster.deleting_since) = (false, Some(group.now));
        }
    }

    fn next(group: &DeletedGroup<'_>) -> (Vec<String>, Option<DeletionWait>) {
        let next = next_deletions(group);
        (next.clusters, next.waits_for)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn clusters_go_in_the_order_of_stages_and_in_slots() {
        let strategy = staged();
        let mut group = group(&strategy);
        let stage = Some(DeletionWait::Stage(1));
        assert_eq!(next(&group), (names(&["a", "b"]), stage));
        begin(&mut group, &["a", "b"]);
        assert_eq!(next(&group), (vec![], stage));
        group.clusters.remove("a");
        assert_eq!(next(&group), (vec![], stage), "b is still in the stage before");
        group.clusters.remove("b");
        assert_eq!(next(&group), (names(&["c", "d"]), Some(DeletionWait::Slot)));
        begin(&mut group, &["c", "d"]);
        group.clusters.remove("c");
        assert_eq!(next(&group), (names(&["e"]), None));
    }

    #[test]
    fn a_cluster_that_does_not_end_or_cannot_be_reached_stops_nothing() {
        let strategy = staged();
        let mut group = group(&strategy);
        begin(&mut group, &["a", "b"]);
        assert_eq!(next_deletions(&group).recheck_at, Some(t(300)));
        group.now = t(300);
        assert_eq!(next(&group).0, names(&["c", "d"]));
        group.now = t(10);
        assert_eq!(next(&group).0, names(&[]));
        for name in ["a", "b"] {
            group.clusters.get_mut(name).unwrap().reachable = false;
        }
        assert_eq!(next(&group).0, names(&["c", "d"]));
    }

    #[test]
    fn an_interrupted_deletion_is_completed_in_its_slot() {
        let strategy = staged();
        let mut group = group(&strategy);
        begin(&mut group, &["a", "b"]);
        group.clusters.get_mut("b").unwrap().remaining = true;
        assert_eq!(next(&group), (names(&["b"]), Some(DeletionWait::Stage(1))));
    }

    #[test]
    fn a_suspended_group_deletes_nothing_and_orphans_everything() {
        let strategy = staged();
        let mut group = group(&strategy);
        group.suspended = true;
        assert_eq!(next(&group), (vec![], Some(DeletionWait::Suspended)));
        group.policy = DeletionPolicy::Orphan;
        assert_eq!(next(&group), (names(&["a", "b", "c", "d", "e"]), None));
    }

    #[test]
    fn a_paused_rollout_deletes_nothing() {
        let strategy = staged();
        let mut group = group(&strategy);
        group.paused = true;
        assert_eq!(next(&group), (vec![], Some(DeletionWait::Paused)));
    }

    #[test]
    fn a_cluster_that_is_unreachable_is_not_begun_and_stops_no_stage() {
        let strategy = staged();
        let mut group = group(&strategy);
        for name in ["a", "b"] {
            group.clusters.get_mut(name).unwrap().reachable = false;
        }
        assert_eq!(next(&group), (names(&["c", "d"]), Some(DeletionWait::Slot)));
        for name in ["c", "d", "e"] {
            group.clusters.remove(name);
        }
        assert_eq!(next(&group), (vec![], Some(DeletionWait::Unreachable)));
        group.clusters.get_mut("a").unwrap().abandoned = true;
        assert_eq!(next(&group), (names(&["a"]), Some(DeletionWait::Unreachable)));
    }

    /// The clock was set forward by an hour, and back again: no slot is free because of that.
    #[test]
    fn a_clock_that_jumps_frees_no_slot() {
        let strategy = staged();
        let mut jumps = ClockJumps::none();
        jumps.observe(t(5), t(3605), std::time::Duration::ZERO);
        let mut group = group(&strategy);
        group.clock_jumps = &jumps;
        begin(&mut group, &["a", "b"]);
        group.now = t(3610);
        assert_eq!(next(&group), (vec![], Some(DeletionWait::Stage(1))));
        assert_eq!(next_deletions(&group).recheck_at, Some(t(3900)));
    }

    #[test]
    fn a_closed_window_delays_its_clusters_only() {
        let strategy = strategy(json!({"maxConcurrency": 9, "windows": [
            {"deny": "Tue 20:00-23:00", "timeZone": "UTC"}]}));
        assert_eq!(strategy.windows.len(), 1);
        let mut group = group(&strategy);
        for cluster in group.clusters.values_mut() {
            cluster.stage = 0;
        }
        group.clusters.get_mut("c").unwrap().windows = vec![0];
        let found = next_deletions(&group);
        assert_eq!(found.clusters, names(&["a", "b", "d", "e"]));
        assert_eq!(found.waits_for, Some(DeletionWait::Window));
        // At 23:00.
        assert_eq!(found.recheck_at, Some(t(2800)));
    }
}
