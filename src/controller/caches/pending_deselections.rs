//! Pending deselections: clusters that are about to leave a group.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_core::ids::ClusterName;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The time since which the same clusters are about to leave each group. They leave after a short wait, so that labels
/// that a script changes one by one count together, and an incomplete list has no effect.
#[derive(Debug, Default)]
pub struct PendingDeselections(Keyed<Pending>);

per_object!(PendingDeselections, 0);

#[derive(Debug)]
struct Pending {
    clusters: BTreeSet<ClusterName>,
    since: Timestamp,
}

impl PendingDeselections {
    /// Returns the time since which exactly these clusters are about to leave.
    #[must_use]
    pub fn since(&self, group: &ObjectKey, leaving: &BTreeSet<ClusterName>, now: Timestamp) -> Timestamp {
        let mut known = self.0.lock();
        if leaving.is_empty() {
            known.remove(group);
            return now;
        }
        match known.get(group) {
            // A clock that was set back would keep the clusters until it reaches the old time again.
            Some(pending) if pending.clusters == *leaving && pending.since <= now => pending.since,
            Some(_) | None => {
                let pending = Pending {
                    clusters: leaving.clone(),
                    since: now,
                };
                known.insert(group.clone(), pending);
                now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against clusters that do not leave for a day: the clock was wrong when they were deselected, and was set
    /// back.
    #[test]
    fn a_clock_that_is_set_back_does_not_keep_the_clusters() {
        let (pending, group) = (PendingDeselections::default(), ObjectKey::new("fleet", "web"));
        let t = |second| Timestamp::from_second(second).unwrap();
        let leaving = BTreeSet::from(["a".into()]);
        assert_eq!(pending.since(&group, &leaving, t(86_400)), t(86_400));
        assert_eq!(pending.since(&group, &leaving, t(86_401)), t(86_400));
        assert_eq!(pending.since(&group, &leaving, t(10)), t(10));
        assert_eq!(pending.since(&group, &leaving, t(12)), t(10));
    }
}
