//! The objects of one virtual cluster: every version of them as far back as the log reaches.
//!
//! One counter numbers the writes. A table holds the newest objects of a resource and the log of its last writes; a
//! state of the past is the newest one with the later writes undone. A watcher is a place in the log and a signal, so
//! a slow one costs nothing: if the log has gone on without it, it has to begin again (410).

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

/// How much of the past is kept.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// Writes per resource.
    pub changes: usize,
    /// Bytes per resource of versions that are not the newest.
    pub bytes: usize,
}

impl Default for History {
    /// A watcher may be a thousand writes behind, which is ten times what Kubernetes' watch cache begins with; the
    /// bytes are for five thousand clusters on one machine.
    fn default() -> Self {
        Self {
            changes: 1024,
            bytes: 512 * 1024,
        }
    }
}

/// Names a table: the resource with its group, `deployments.apps`.
pub type TableName = Arc<str>;

/// The objects of one virtual cluster.
#[derive(Debug)]
pub struct Store {
    revision: u64,
    /// The revision that it began with: nothing is known of the writes before.
    began: u64,
    tables: HashMap<TableName, Table>,
    history: History,
    /// By the UID of an owner, who names it: table and key.
    owned: HashMap<Box<str>, BTreeSet<(TableName, Box<str>)>>,
    /// By UID, where an object is that is being deleted and has finalizers.
    waiting: HashMap<Box<str>, (TableName, Box<str>)>,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<Box<str>, Arc<Stored>>,
    log: Log,
    /// Tells watchers of the table's newest revision; made when the first one comes.
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

/// What of a table a list gives.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range<'a> {
    /// One namespace; none for all.
    pub namespace: Option<&'a str>,
    /// The first key; empty for the first there is.
    pub start: &'a str,
}

impl Store {
    /// Returns an empty store; the first write gets the revision after this one, and what was up to it is forgotten.
    pub fn new(revision: u64, history: History) -> Self {
        Self {
            revision,
            began: revision,
            tables: HashMap::new(),
            history,
            owned: HashMap::new(),
            waiting: HashMap::new(),
        }
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The newest version of an object.
    pub fn get(&self, table: &str, key: &str) -> Option<&Arc<Stored>> {
        self.tables.get(table)?.objects.get(key)
    }

    /// How many objects a table has.
    pub fn count(&self, table: &str) -> usize {
        self.tables.get(table).map_or(0, |table| table.objects.len())
    }

    /// The names of the tables with objects.
    pub fn tables(&self) -> impl Iterator<Item = &TableName> {
        self.tables
            .iter()
            .filter(|(_, table)| !table.objects.is_empty())
            .map(|(name, _)| name)
    }

    /// Puts back an object that was written in an earlier life of the store. Nobody is told.
    pub(crate) fn restore(&mut self, table: &TableName, stored: Stored) {
        let (key, stored) = (stored.head.key(), Arc::new(stored));
        self.index(table, &key, None, Some(&stored.head));
        self.table(table).objects.insert(key, stored);
    }

    fn table(&mut self, name: &TableName) -> &mut Table {
        let began = self.began;
        self.tables
            .entry(Arc::clone(name))
            .or_insert_with(|| Table::after_revision(began))
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

    /// Removes an object. What watchers see is its last version with the revision of the removal.
    pub fn remove(&mut self, table: &TableName, key: &str) -> Option<Arc<Stored>> {
        let previous = self.tables.get_mut(table)?.objects.remove(key)?;
        self.revision += 1;
        let last = Arc::new(previous.at_revision(self.revision));
        self.index(table, key, Some(&previous), None);
        self.record(table, Arc::clone(&last), Some(previous), true);
        Some(last)
    }

    /// Removes an object and returns its last version, which was never stored: watchers see the one before it.
    pub fn remove_as(&mut self, table: &TableName, object: &mut Value) -> Option<Arc<Stored>> {
        let key = Head::of(object).key();
        let seen = self.remove(table, &key)?;
        Some(Arc::new(Stored::new(object, seen.revision)))
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
            self.waiting.remove(&*previous.head.uid);
        }
        if let Some(head) = new.filter(|head| head.deleting.is_some() && !head.finalizers.is_empty()) {
            self.waiting
                .insert(head.uid.as_ref().into(), (Arc::clone(table), key.into()));
        }
        let before = previous.map(|stored| &*stored.head.owners).unwrap_or_default();
        let after = new.map(|head| &*head.owners).unwrap_or_default();
        for owner in before {
            if after.iter().any(|other| other.uid == owner.uid) {
                continue;
            }
            if let Some(set) = self.owned.get_mut(&owner.uid) {
                set.remove(&(Arc::clone(table), key.into()));
                if set.is_empty() {
                    self.owned.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            self.owned
                .entry(owner.uid.clone())
                .or_default()
                .insert((Arc::clone(table), key.into()));
        }
    }

    /// Who names an owner: tables and keys.
    pub fn dependents(&self, owner: &str) -> Vec<(TableName, Box<str>)> {
        self.owned.get(owner).into_iter().flatten().cloned().collect()
    }

    /// Where an owner is whose deletion waits for its dependents.
    pub(crate) fn find_uid_deleting(&self, uid: &str) -> Option<(TableName, Box<str>)> {
        self.waiting
            .get(uid)
            .map(|(table, key)| (Arc::clone(table), key.clone()))
    }

    /// The newest objects of a range, in order.
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

    /// The objects of a range as they were at a revision.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back so far.
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
            self.nothing_since(revision)?;
        }
        Ok(objects.into_values().collect())
    }

    /// An object as it was at a revision.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back so far.
    pub fn get_at(&self, table: &str, key: &str, revision: u64) -> Result<Option<Arc<Stored>>, Compacted> {
        let Some(table) = self.tables.get(table) else {
            return self.nothing_since(revision).map(|()| None);
        };
        let mut object = table.objects.get(key).cloned();
        for change in table.log.after(revision)?.rev() {
            if *change.object.head.key() == *key {
                object.clone_from(&change.previous);
            }
        }
        Ok(object)
    }

    /// The writes to a table after a revision, the oldest first, not more than `limit`.
    ///
    /// # Errors
    /// [`Compacted`] if the log does not reach back so far.
    pub fn changes(&self, table: &str, after: u64, limit: usize) -> Result<Vec<Change>, Compacted> {
        match self.tables.get(table) {
            Some(table) => Ok(table.log.after(after)?.take(limit).cloned().collect()),
            None => self.nothing_since(after).map(|()| Vec::new()),
        }
    }

    /// What is known of a table that has never been written to: nothing has happened since the store began.
    fn nothing_since(&self, revision: u64) -> Result<(), Compacted> {
        if revision < self.began {
            return Err(Compacted { oldest: self.began });
        }
        Ok(())
    }

    /// A signal that changes with each write to a table.
    pub fn signal(&mut self, table: &TableName) -> watch::Receiver<u64> {
        let revision = self.revision;
        self.table(table)
            .signal
            .get_or_insert_with(|| watch::channel(revision).0)
            .subscribe()
    }

    /// Wakes the watchers of all tables, so that they look at the world again.
    pub fn wake_all(&self) {
        for signal in self.tables.values().filter_map(|table| table.signal.as_ref()) {
            signal.send_replace(self.revision);
        }
    }

    /// Forgets the writes up to a revision.
    pub fn compact(&mut self, revision: u64) {
        for table in self.tables.values_mut() {
            table.log.compact(revision.min(self.revision));
        }
    }

    /// Forgets a table with everything in it, as if its resource had never been served.
    pub fn drop_table(&mut self, table: &str) {
        self.tables.remove(table);
    }
}
