//! Unconfirmed writes of groups: the response was an error, or none arrived.
//!
//! The cache may lack such a write, and the next reconcile would assign its slot, or the number of its rollout, a
//! second time. So the objects of unconfirmed writes are read again first.

use std::collections::BTreeSet;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The unconfirmed writes of each group.
#[derive(Debug, Default)]
pub struct UnconfirmedWrites(Keyed<BTreeSet<ObjectKey>>);

per_object!(UnconfirmedWrites, 0);

impl UnconfirmedWrites {
    /// Adds an unconfirmed write of the group itself.
    pub fn add_group(&self, group: &ObjectKey) {
        self.0.lock().entry(group.clone()).or_default();
    }

    /// Adds an unconfirmed write of a Sync of a group.
    pub fn add_sync(&self, group: &ObjectKey, sync: ObjectKey) {
        self.0.lock().entry(group.clone()).or_default().insert(sync);
    }

    /// Returns the Syncs of a group that have to be read again together with the group; `None` if every write is
    /// confirmed.
    #[must_use]
    pub fn of(&self, group: &ObjectKey) -> Option<BTreeSet<ObjectKey>> {
        self.0.get(group)
    }

    /// Removes the writes of a group, after they were confirmed or known not to have happened.
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
