//! Writes for groups of which it is not known whether they were done: an error came back, or no answer at all.
//!
//! The next look would plan from a cache that may lack a write of our own, and give its slot, or the number of its rollout, away
//! once more. So what may have been written is read anew first.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use super::cache::ObjectKey;

/// What is not known, by group.
#[derive(Debug, Default)]
pub struct Unsure(Mutex<HashMap<ObjectKey, BTreeSet<ObjectKey>>>);

impl Unsure {
    /// Something of a group may have been written.
    pub fn add_group(&self, group: &ObjectKey) {
        self.lock().entry(group.clone()).or_default();
    }

    /// A Sync of a group may have been written.
    pub fn add_sync(&self, group: &ObjectKey, sync: ObjectKey) {
        self.lock().entry(group.clone()).or_default().insert(sync);
    }

    /// The Syncs of a group that are to be read anew, and the group with them; `None`: all is known.
    #[must_use]
    pub fn of(&self, group: &ObjectKey) -> Option<BTreeSet<ObjectKey>> {
        self.lock().get(group).cloned()
    }

    /// What there was to be known of a group is known.
    pub fn forget(&self, group: &ObjectKey) {
        self.lock().remove(group);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, BTreeSet<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_stays_so_until_it_was_read() {
        let (unsure, group) = (Unsure::default(), ObjectKey::new("fleet", "shop"));
        let sync = ObjectKey::new("fleet", "shop-app-m1");
        assert_eq!(unsure.of(&group), None);
        unsure.add_group(&group);
        assert_eq!(unsure.of(&group), Some(BTreeSet::new()));
        unsure.add_sync(&group, sync.clone());
        unsure.add_group(&group);
        for _ in 0..2 {
            assert_eq!(unsure.of(&group), Some([sync.clone()].into()));
        }
        assert_eq!(unsure.of(&ObjectKey::new("fleet", "other")), None);
        unsure.forget(&group);
        assert_eq!(unsure.of(&group), None);
    }
}
