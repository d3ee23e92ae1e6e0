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
            Some(pending) if pending.clusters == *leaving => pending.since,
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
