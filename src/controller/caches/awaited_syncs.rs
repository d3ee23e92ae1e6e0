//! Groups with an admission in the ledger whose Sync was not written.
//!
//! The next pass usually writes the Sync. If its cluster leaves first, there is no Sync whose removal would end the
//! admission, so each pass of these groups compares the open admissions with the Syncs.

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The groups whose ledger has admissions without a Sync.
#[derive(Debug, Default)]
pub struct AwaitedSyncs(Keyed<()>);

per_object!(AwaitedSyncs, 0);

impl AwaitedSyncs {
    /// Records whether a group has such an admission.
    pub fn set(&self, group: &ObjectKey, awaits_sync: bool) {
        if awaits_sync {
            self.0.set(group, ());
        } else {
            self.0.forget(group);
        }
    }

    /// Reports whether a group has such an admission.
    #[must_use]
    pub fn is_set(&self, group: &ObjectKey) -> bool {
        self.0.get(group).is_some()
    }
}
