//! Unconfirmed writes of groups: an error came back, or no answer at all.
//!
//! The next reconcile would plan from a cache that may lack a write of our own, and give its slot, or the number of its
//! rollout, away once more. So what may have been written is read anew first.

use std::collections::BTreeSet;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// The unconfirmed writes of each group.
#[derive(Debug, Default)]
pub struct UnconfirmedWrites(Keyed<BTreeSet<ObjectKey>>);

per_object!(UnconfirmedWrites, 0);

impl UnconfirmedWrites {
    /// Something of a group may have been written.
    pub fn add_group(&self, group: &ObjectKey) {
        self.0.lock().entry(group.clone()).or_default();
    }

    /// A Sync of a group may have been written.
    pub fn add_sync(&self, group: &ObjectKey, sync: ObjectKey) {
        self.0.lock().entry(group.clone()).or_default().insert(sync);
    }

    /// The Syncs of a group that have to be read again, and the group with them; `None`: every write is confirmed.
    #[must_use]
    pub fn of(&self, group: &ObjectKey) -> Option<BTreeSet<ObjectKey>> {
        self.0.get(group)
    }

    /// The writes of a group are confirmed, or known not to have been carried out.
    pub fn forget(&self, group: &ObjectKey) {
        self.0.forget(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_unconfirmed_until_it_was_read() {
        let (writes, group) = (UnconfirmedWrites::default(), ObjectKey::new("fleet", "shop"));
        let sync = ObjectKey::new("fleet", "shop-app-m1");
        assert_eq!(writes.of(&group), None);
        writes.add_group(&group);
        assert_eq!(writes.of(&group), Some(BTreeSet::new()));
        writes.add_sync(&group, sync.clone());
        writes.add_group(&group);
        for _ in 0..2 {
            assert_eq!(writes.of(&group), Some([sync.clone()].into()));
        }
        assert_eq!(writes.of(&ObjectKey::new("fleet", "other")), None);
        writes.forget(&group);
        assert_eq!(writes.of(&group), None);
    }
}
