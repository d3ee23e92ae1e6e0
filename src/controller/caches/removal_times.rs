//! When the removals of Syncs began, by the clock of this process.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::SyncResource;
use starling_core::clock_jumps::not_far_ahead;
use starling_core::ids::Uid;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;
use crate::controller::removal::removed_at;

/// The times at which the removals of the Syncs of each group began, by the UID of the Sync.
///
/// A Sync whose deletion no plan decided is not being removed yet: see [`removal`](crate::controller::removal).
///
/// The deletion timestamp of a Sync is a time of the API server. Compared with the clock of this process, it makes each
/// removal too late at once where that clock is ahead by `progressDeadline`, and never where it is behind. So a removal
/// begins when this process sees its deletion for the first time. One that was in progress when the process started is
/// as old as its deletion timestamp says: nothing else is known of it, as of all times from before a start (ADR 39).
#[derive(Debug, Default)]
pub struct RemovalTimes(Keyed<BTreeMap<Uid, Timestamp>>);

per_object!(RemovalTimes, 0);

impl RemovalTimes {
    /// Adds the Syncs of a group that are being removed, and forgets the others. None began far ahead of `now`: the
    /// clock may have been set back since.
    pub fn observe<'a>(
        &self,
        group: &ObjectKey,
        syncs: impl IntoIterator<Item = &'a SyncResource>,
        now: Timestamp,
    ) {
        let mut all = self.0.lock();
        let before = all.get(group);
        let since = |sync: &SyncResource| {
            let deleted_at = removed_at(sync)?;
            let uid = Uid::new(sync.metadata.uid.as_ref()?);
            let since = match before {
                None => deleted_at.min(now),
                Some(known) => known.get(&uid).map_or(now, |since| not_far_ahead(*since, now)),
            };
            Some((uid, since))
        };
        let current = syncs.into_iter().filter_map(since).collect();
        all.insert(group.clone(), current);
    }

    /// Returns when the removal of a Sync of a group began; `None`: it has not. A deletion that no pass over the group
    /// has seen yet began now.
    #[must_use]
    pub fn since(&self, group: &ObjectKey, sync: &SyncResource, now: Timestamp) -> Option<Timestamp> {
        let deleted_at = removed_at(sync)?;
        let all = self.0.lock();
        let Some(known) = all.get(group) else {
            return Some(deleted_at.min(now));
        };
        let uid = sync.metadata.uid.as_ref();
        let since = uid.and_then(|uid| known.get(uid.as_str()));
        Some(since.map_or(now, |since| not_far_ahead(*since, now)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_api::REMOVAL;

    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// A Sync with this UID that was deleted at a time of the API server.
    fn sync(uid: &str, deleted_at: Option<i64>) -> SyncResource {
        let deleted_at = deleted_at.map(|at| t(at).to_string());
        let metadata = json!({"name": uid, "namespace": "fleet", "uid": uid, "deletionTimestamp": deleted_at,
                "annotations": deleted_at.map(|at| json!({REMOVAL: at}))});
        let spec = json!({"clusterRef": {"name": "edge"}, "sourceRef": {"name": "web"}});
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    /// The clock of the process is an hour ahead, or behind: each removal was too late as soon as it began, or took an
    /// hour longer than `progressDeadline`.
    #[test]
    fn a_removal_begins_when_this_process_sees_it_whatever_the_clock_of_the_api_server_says() {
        let group = ObjectKey::new("fleet", "web");
        for off in [-3600, 0, 3600] {
            let times = RemovalTimes::default();
            times.observe(&group, &[sync("a", None)], t(0));
            assert_eq!(times.since(&group, &sync("a", None), t(5)), None);
            let going = sync("a", Some(10 + off));
            assert_eq!(times.since(&group, &going, t(11)), Some(t(11)), "not planned yet");
            times.observe(&group, std::slice::from_ref(&going), t(12));
            times.observe(&group, std::slice::from_ref(&going), t(20));
            assert_eq!(times.since(&group, &going, t(30)), Some(t(12)), "{off}");
        }
    }

    #[test]
    fn a_removal_from_before_the_start_is_as_old_as_the_api_server_says_and_not_in_the_future() {
        let group = ObjectKey::new("fleet", "web");
        for (deleted_at, since) in [(10, 10), (500, 100)] {
            let times = RemovalTimes::default();
            let going = sync("a", Some(deleted_at));
            assert_eq!(times.since(&group, &going, t(100)), Some(t(since)));
            times.observe(&group, std::slice::from_ref(&going), t(100));
            assert_eq!(times.since(&group, &going, t(150)), Some(t(since)));
        }
    }

    /// Guards against a slot that is taken for a year: the clock was wrong when the removal began, and was set back.
    #[test]
    fn a_removal_does_not_begin_in_the_future() {
        let (group, times, year) = (
            ObjectKey::new("fleet", "web"),
            RemovalTimes::default(),
            365 * 24 * 3600,
        );
        let going = sync("a", Some(1));
        times.observe(&group, &[], t(year));
        times.observe(&group, std::slice::from_ref(&going), t(year));
        assert_eq!(times.since(&group, &going, t(10)), Some(t(10)));
        times.observe(&group, std::slice::from_ref(&going), t(11));
        assert_eq!(times.since(&group, &going, t(30)), Some(t(11)));
    }

    #[test]
    fn a_sync_that_is_made_again_has_its_own_removal() {
        let group = ObjectKey::new("fleet", "web");
        let times = RemovalTimes::default();
        times.observe(&group, &[], t(0));
        times.observe(&group, &[sync("a", Some(1))], t(1));
        times.observe(&group, &[sync("b", None)], t(50));
        times.observe(&group, &[sync("b", Some(60))], t(60));
        assert_eq!(times.since(&group, &sync("b", Some(60)), t(61)), Some(t(60)));
    }
}
