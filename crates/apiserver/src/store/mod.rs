//! The objects of one virtual cluster: their current versions, and earlier ones as far back as the log reaches.
//!
//! One counter, the revision, numbers all writes. A table holds the current objects of a resource and the log of its
//! last writes; an earlier state is the current one with the later writes undone. A watch is a position in the log
//! and a signal, so a slow watch costs nothing: if the log no longer reaches back to its position, it has to start
//! again (410).

mod log;
mod stored;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

pub use log::{Change, ChangeKind, Compacted};
pub use stored::Stored;

use crate::object::Head;
use log::Log;

/// How much history a store keeps.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// The number of writes per resource.
    pub changes: usize,
    /// The size in bytes, per resource, of versions that are not current.
    pub bytes: usize,
}

impl Default for History {
    /// A watch may be a thousand writes behind, ten times the initial size of Kubernetes' watch cache; the size
    /// allows for five thousand clusters on one machine.
    fn default() -> Self {
        Self {
            changes: 1024,
            bytes: 512 * 1024,
        }
    }
}

/// The name of a table: the resource with its group, such as `deployments.apps`.
pub type TableName = Arc<str>;

/// The objects of one virtual cluster.
#[derive(Debug)]
pub struct Store {
    revision: u64,
    /// The revision at which the store started; earlier writes are unknown.
    started_at: u64,
    /// Ordered, so that watches wake in an order that does not depend on the process: see [`Self::wake_all`].
    tables: BTreeMap<TableName, Table>,
    history: History,
    /// The dependents (table and key) of each owner, by the UID of the owner.
    dependents_by_owner: HashMap<Box<str>, BTreeSet<(TableName, Box<str>)>>,
    /// The objects (table and key) that are being deleted and have finalizers, by UID.
    finalizing: HashMap<Box<str>, (TableName, Box<str>)>,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<Box<str>, Arc<Stored>>,
    log: Log,
    /// Sends the current revision of the table to its watches; created for the first watch.
    signal: Option<watch::Sender<u64>>,
}

impl Table {
    fn after_revision(revision: u64) -> Self {
        Self {
            log: Log::after_revision(revision),
            ..Self::default()
        }
    }
}

/// The part of a table that a list returns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range<'a> {
    /// The namespace; `None` for all.
    pub namespace: Option<&'a str>,
    /// The first key; empty for the beginning.
    pub start: &'a str,
}

impl Store {
    /// Returns an empty store whose first write gets the revision after the given one; earlier writes are unknown.
    pub fn new(revision: u64, history: History) -> Self {
        Self {
            revision,
            started_at: revision,
            tables: BTreeMap::new(),
            history,
            dependents_by_owner: HashMap::new(),
            finalizing: HashMap::new(),
        }
    }

    /// Returns the revision of the last write.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns how much history the store keeps.
    pub(crate) fn history(&self) -> History {
        self.history
    }

    /// Returns the current version of an object.
    pub fn get(&self, table: &str, key: &str) -> Option<&Arc<Stored>> {
        self.tables.get(table)?.objects.get(key)
    }

    /// Returns the number of objects in a table.
    pub fn count(&self, table: &str) -> usize {
        self.tables.get(table).map_or(0, |table| table.objects.len())
    }

    /// Returns the names of the tables that have objects.
    pub fn tables(&self) -> impl Iterator<Item = &TableName> {
        self.tables
            .iter()
            .filter(|(_, table)| !table.objects.is_empty())
            .map(|(name, _)| name)
    }

    /// Adds an object that was read from the disk, without notifying watches.
    pub(crate) fn restore(&mut self, table: &TableName, stored: Stored) {
        let (key, stored) = (stored.head.key(), Arc::new(stored));
        self.index(table, &key, None, Some(&stored.head));
        self.table(table).objects.insert(key, stored);
    }

    fn table(&mut self, name: &TableName) -> &mut Table {
        let started_at = self.started_at;
        self.tables
            .entry(Arc::clone(name))
            .or_insert_with(|| Table::after_revision(started_at))
    }

    /// Writes an object, which gets the next revision.
    pub fn put(&mut self, table: &TableName, object: &mut Value) -> Arc<Stored> {
        self.revision += 1;
        let stored = Arc::new(Stored::new(object, self.revision));
        let key = stored.head.key();
        let previous = self.table(table).objects.insert(key.clone(), Arc::clone(&stored));
        self.index(table, &key, previous.as_deref(), Some(&stored.head));
        self.record(table, Arc::clone(&stored), previous, false);
        stored
    }

    /// Removes an object. Watches see its last version with the revision of the removal.
    pub fn remove(&mut self, table: &TableName, key: &str) -> Option<Arc<Stored>> {
        let previous = self.tables.get_mut(table)?.objects.remove(key)?;
        self.revision += 1;
        let last = Arc::new(previous.at_revision(self.revision));
        self.index(table, key, Some(&previous), None);
        self.record(table, Arc::clone(&last), Some(previous), true);
        Some(last)
    }

    /// Removes an object and returns its given last version, which was never stored: watches see the stored version.
    pub fn remove_as(&mut self, table: &TableName, object: &mut Value) -> Option<Arc<Stored>> {
        let key = Head::of(object).key();
        let kind_for = self.remove(table, &key)?;
        Some(Arc::new(Stored::new(object, kind_for.revision)))
    }

    fn record(
        &mut self,
        table: &TableName,
        object: Arc<Stored>,
        previous: Option<Arc<Stored>>,
        removed: bool,
    ) {
        let Some(table) = self.tables.get_mut(table) else {
            return;
        };
        table.log.push(
            Change {
                revision: self.revision,
                object,
                previous,
                removed,
            },
            self.history,
        );
        if let Some(signal) = &table.signal {
            signal.send_replace(self.revision);
        }
    }

    fn index(&mut self, table: &TableName, key: &str, previous: Option<&Stored>, new: Option<&Head>) {
        if let Some(previous) = previous {
            self.finalizing.remove(&*previous.head.uid);
        }
        if let Some(head) = new.filter(|head| head.deleting.is_some() && !head.finalizers.is_empty()) {
            self.finalizing
                .insert(head.uid.as_ref().into(), (Arc::clone(table), key.into()));
        }
        let before = previous.map(|stored| &*stored.head.owners).unwrap_or_default();
        let after = new.map(|head| &*head.owners).unwrap_or_default();
        for owner in before {
            if after.iter().any(|other| other.uid == owner.uid) {
                continue;
            }
            if let Some(set) = self.dependents_by_owner.get_mut(&owner.uid) {
                set.remove(&(Arc::clone(table), key.into()));
                if set.is_empty() {
                    self.dependents_by_owner.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            self.dependents_by_owner
                .entry(owner.uid.clone())
                .or_default()
                .insert((Arc::clone(table), key.into()));
        }
    }

    /// Returns the dependents of an owner: tables and keys.
    pub fn dependents(&self, owner: &str) -> Vec<(TableName, Box<str>)> {
        self.dependents_by_owner
            .get(owner)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Returns the table and key of an object that is being deleted and has finalizers.
    pub(crate) fn find_finalizing(&self, uid: &str) -> Option<(TableName, Box<str>)> {
        self.finalizing
            .get(uid)
            .map(|(table, key)| (Arc::clone(table), key.clone()))
    }

    /// Returns the current objects of a range, in order.
    pub fn list<'a>(
        &'a self,
        table: &str,
        range: Range<'a>,
    ) -> impl Iterator<Item = &'a Arc<Stored>> + use<'a> {
        let prefix = range.namespace.map(|namespace| format!("{namespace}/"));
        let start = match &prefix {
            Some(prefix) if range.start < prefix.as_str() => prefix.clone(),
            _ => range.start.to_owned(),
        };
        self.tables
            .get(table)
            .map(|table| {
                table
                    .objects
                    .range::<str, _>((Bound::Included(start.as_str()), Bound::Unbounded))
            })
            .into_iter()
            .flatten()
            .take_while(move |(key, _)| {
                prefix
                    .as_ref()
                    .is_none_or(|prefix| key.starts_with(prefix.as_str()))
            })
            .map(|(_, stored)| stored)
    }

    /// Returns the objects of a range at an earlier revision.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back to the revision.
    pub fn list_at(
        &self,
        table: &str,
        range: Range<'_>,
        revision: u64,
    ) -> Result<Vec<Arc<Stored>>, Compacted> {
        let mut objects: BTreeMap<Box<str>, Arc<Stored>> = self
            .list(table, range)
            .map(|stored| (stored.head.key(), Arc::clone(stored)))
            .collect();
        let prefix = range.namespace.map(|namespace| format!("{namespace}/"));
        if let Some(table) = self.tables.get(table) {
            for change in table.log.after(revision)?.rev() {
                let key = change.object.head.key();
                let inside = prefix
                    .as_ref()
                    .is_none_or(|prefix| key.starts_with(prefix.as_str()))
                    && *key >= *range.start;
                if !inside {
                    continue;
                }
                match &change.previous {
                    Some(previous) => objects.insert(key, Arc::clone(previous)),
                    None => objects.remove(&key),
                };
            }
        } else {
            self.check_history(revision)?;
        }
        Ok(objects.into_values().collect())
    }

    /// Returns an object at an earlier revision.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back to the revision.
    pub fn get_at(&self, table: &str, key: &str, revision: u64) -> Result<Option<Arc<Stored>>, Compacted> {
        let Some(table) = self.tables.get(table) else {
            return self.check_history(revision).map(|()| None);
        };
        let mut object = table.objects.get(key).cloned();
        for change in table.log.after(revision)?.rev() {
            if *change.object.head.key() == *key {
                object.clone_from(&change.previous);
            }
        }
        Ok(object)
    }

    /// Returns the writes to a table after a revision, the oldest first, at most `limit`.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back to the revision.
    pub fn changes(&self, table: &str, after: u64, limit: usize) -> Result<Vec<Change>, Compacted> {
        match self.tables.get(table) {
            Some(table) => Ok(table.log.after(after)?.take(limit).cloned().collect()),
            None => self.check_history(after).map(|()| Vec::new()),
        }
    }

    /// Checks that the history of a table without any write reaches back to a revision.
    fn check_history(&self, revision: u64) -> Result<(), Compacted> {
        if revision < self.started_at {
            return Err(Compacted {
                oldest: self.started_at,
            });
        }
        Ok(())
    }

    /// Returns a signal that changes with each write to a table.
    pub fn signal(&mut self, table: &TableName) -> watch::Receiver<u64> {
        let revision = self.revision;
        self.table(table)
            .signal
            .get_or_insert_with(|| watch::channel(revision).0)
            .subscribe()
    }

    /// Wakes the watches of all tables in the order of the tables, so that they check their state.
    pub fn wake_all(&self) {
        for signal in self.tables.values().filter_map(|table| table.signal.as_ref()) {
            signal.send_replace(self.revision);
        }
    }

    /// Removes the writes up to a revision from the logs.
    pub fn compact(&mut self, revision: u64) {
        for table in self.tables.values_mut() {
            table.log.compact(revision.min(self.revision));
        }
    }

    /// Removes a table with its objects and its log.
    pub fn drop_table(&mut self, table: &str) {
        self.tables.remove(table);
    }
}
