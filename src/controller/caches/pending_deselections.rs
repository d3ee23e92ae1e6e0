//! Clusters that a group is about to deselect.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// Since when the same clusters are about to leave each group. They leave a moment later: labels that are changed one
/// by one by a script, and a list that is not complete, are so seen as what they are.
#[derive(Debug, Default)]
pub struct PendingDeselections(Keyed<Pending>);

per_object!(PendingDeselections, 0);

#[derive(Debug)]
struct Pending {
    clusters: BTreeSet<String>,
    since: Timestamp,
}

impl PendingDeselections {
    /// Since when just these clusters are about to leave.
    #[must_use]
    pub fn since(&self, group: &ObjectKey, leaving: &BTreeSet<String>, now: Timestamp) -> Timestamp {
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
