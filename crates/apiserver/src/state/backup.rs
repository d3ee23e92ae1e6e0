//! Backups of a cluster, as of etcd: its state can be set back to one.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use jiff::Timestamp;

use super::State;
use crate::journal::Verb;
use crate::kinds::Registry;
use crate::persist::Counters;
use crate::rbac::own_groups;
use crate::store::{Range, Stored, TableName};
use crate::write::{NO_EXTRA, Validation, Write};

/// The field manager and user of the journal entries that a restore adds.
pub const RESTORED_BY: &str = "etcd";

/// By how much a restore makes the revision larger.
const BUMP: u64 = 1000;

/// The objects and counters of a cluster at a moment.
#[derive(Debug, Clone)]
pub struct Backup {
    counters: Counters,
    objects: BTreeMap<(TableName, Box<str>), Arc<Stored>>,
}

impl State {
    /// Returns a backup of the current state.
    pub fn backup(&self) -> Backup {
        let mut objects = BTreeMap::new();
        for table in self.store.tables() {
            for stored in self.store.list(table, Range::default()) {
                objects.insert((Arc::clone(table), stored.head.key()), Arc::clone(stored));
            }
        }
        Backup {
            counters: self.counters(),
            objects,
        }
    }

    /// Sets the objects back to a backup; all watches end. The journal gets an entry for each object that differs.
    ///
    /// `bump` continues with a larger revision and without a history, as `etcdutl snapshot restore --bump-revision
    /// --mark-compacted` does; otherwise the revision is that of the backup. Names and UIDs do not repeat.
    pub fn set_back(&mut self, backup: &Backup, bump: bool, now: Timestamp) {
        let before = self.backup();
        let mut counters = backup.counters;
        if bump {
            counters.revision = self.store.revision() + BUMP;
        }
        let objects = { backup.objects.iter() }
            .map(|((table, _), stored)| (table.as_ref().into(), Stored::clone(stored)))
            .collect();
        let journal = self.journal.take();
        let mut restored = Self::restored(&counters, objects, self.store.history(), journal);
        restored.random = self.random.clone();
        restored.outbox = self.outbox.take();
        if self.policy.is_some() {
            restored.enforce_rbac();
        }
        let replaced = mem::replace(self, restored);
        self.record_differences(&before, backup, &replaced.registry, now);
    }

    fn record_differences(
        &mut self,
        before: &Backup,
        after: &Backup,
        served_before: &Registry,
        now: Timestamp,
    ) {
        let write = Write {
            manager: RESTORED_BY,
            user: RESTORED_BY,
            uid: "",
            groups: own_groups(),
            extra: &NO_EXTRA,
            dry_run: false,
            validation: Validation::Ignore,
            force: false,
            now,
            subresource: "",
        };
        let keys: BTreeSet<_> = before.objects.keys().chain(after.objects.keys()).collect();
        for key in keys {
            let (old, new) = (before.objects.get(key), after.objects.get(key));
            let Some(stored) = new.or(old).filter(|_| old != new) else {
                continue;
            };
            let resource = { self.registry.of_table(&key.0) }.or_else(|| served_before.of_table(&key.0));
            let Some(resource) = resource else { continue };
            let verb = if new.is_some() { Verb::Apply } else { Verb::Delete };
            self.persist(&resource, stored, verb == Verb::Delete);
            self.record(&resource, stored, &write, verb);
        }
    }
}
