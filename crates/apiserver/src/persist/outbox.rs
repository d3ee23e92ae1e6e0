//! The queue of writes to the disk.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::{PersistError, WriteError};
use crate::store::{Stored, TableName};

/// The counters of a cluster after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The revision of the store.
    pub(crate) revision: u64,
    /// The position of the random generator.
    pub(crate) random: u64,
    /// The number of allocated cluster IPs.
    pub(crate) addresses: u32,
    /// The number of allocated node ports.
    pub(crate) ports: u32,
}

/// An object after a write.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) table: TableName,
    pub(crate) object: Arc<Stored>,
    pub(crate) removed: bool,
}

/// A record of the queue.
#[derive(Debug, Clone)]
pub(super) enum Record {
    /// A cluster was created.
    Created {
        cluster: u64,
        name: Box<str>,
        counters: Counters,
    },
    /// An object of a cluster was written or removed.
    Changed {
        cluster: u64,
        change: Change,
        counters: Counters,
    },
    /// A cluster was removed with all its objects.
    Removed {
        cluster: u64,
        name: Box<str>,
        /// The number of removed clusters of this name.
        removals: u64,
    },
    /// The server listens on this address.
    Address(SocketAddr),
}

/// The records that wait for the writer, and the progress of the writer.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    /// Wakes the writer.
    wake: Notify,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Pending {
    records: Vec<Record>,
    /// The number of the last record.
    last: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Progress {
    /// All records up to this number are on the disk.
    committed: u64,
    /// Why the last transaction failed; `None` if it did not.
    failure: Option<Arc<WriteError>>,
}

impl Queue {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records that are committed in one transaction; returns the number of the last one.
    pub(super) fn push(&self, records: impl IntoIterator<Item = Record>) -> u64 {
        let last = {
            let mut pending = self.pending();
            let before = pending.records.len();
            pending.records.extend(records);
            pending.last += (pending.records.len() - before) as u64;
            pending.last
        };
        self.wake.notify_one();
        last
    }

    /// Returns the number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.pending().last
    }

    /// Takes all records and the number of the last one; `None` once the queue is closed and empty.
    pub(super) async fn take(&self) -> Option<(Vec<Record>, u64)> {
        loop {
            {
                let mut pending = self.pending();
                if !pending.records.is_empty() {
                    return Some((std::mem::take(&mut pending.records), pending.last));
                }
                if pending.closed {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Closes the queue; the writer ends when it is empty.
    pub(super) fn close(&self) {
        self.pending().closed = true;
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.pending().closed
    }

    /// Marks the records up to a number as committed.
    pub(super) fn written(&self, committed: u64) {
        self.progress.send_replace(Progress {
            committed,
            failure: None,
        });
    }

    /// Sets the reason why records cannot be committed.
    pub(super) fn failure(&self, why: WriteError) {
        self.progress
            .send_modify(|progress| progress.failure = Some(Arc::new(why)));
    }

    /// Returns the number of the last record on the disk.
    fn committed(&self) -> u64 {
        self.progress.borrow().committed
    }

    /// Returns an error while records cannot be committed.
    fn check_failure(&self) -> Result<(), PersistError> {
        match &self.progress.borrow().failure {
            Some(why) => Err(PersistError::Unwritten(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Waits until a record is on the disk.
    pub(super) async fn wait(&self, number: u64) -> Result<(), PersistError> {
        if self.progress.borrow().committed >= number {
            return Ok(());
        }
        let mut progress = self.progress.subscribe();
        match progress
            .wait_for(|progress| progress.committed >= number || progress.failure.is_some())
            .await
            .as_deref()
        {
            Ok(progress) if progress.committed >= number => Ok(()),
            Ok(Progress {
                failure: Some(why), ..
            }) => Err(PersistError::Unwritten(Arc::clone(why))),
            _ => Err(PersistError::Unwritten(Arc::new(WriteError::Ended))),
        }
    }
}

/// The objects with writes that may not be on the disk yet, in the order of their records.
#[derive(Debug, Default)]
struct Uncommitted(Mutex<VecDeque<(u64, TableName, Box<str>)>>);

impl Uncommitted {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, TableName, Box<str>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the objects of records of which the last one has a number, and forgets those that are on the disk.
    fn add(&self, objects: Vec<(TableName, Box<str>)>, last: u64, committed: u64) {
        let mut known = self.lock();
        while known.front().is_some_and(|(number, ..)| *number <= committed) {
            known.pop_front();
        }
        known.extend(objects.into_iter().map(|(table, key)| (last, table, key)));
    }
}

/// The queue end of one cluster. The cluster's state owns it, so the order of records is that of the revisions.
#[derive(Debug)]
pub(crate) struct Outbox {
    cluster: u64,
    queue: Arc<Queue>,
    last: Arc<AtomicU64>,
    uncommitted: Arc<Uncommitted>,
    /// The writes of a cluster that is being created, held back until it is complete.
    held_back: Option<Vec<Record>>,
}

/// The handle to wait for the writes of one cluster.
#[derive(Debug)]
pub(crate) struct Durability {
    queue: Arc<Queue>,
    last: Arc<AtomicU64>,
    uncommitted: Arc<Uncommitted>,
}

impl Outbox {
    pub(super) fn new(cluster: u64, queue: Arc<Queue>, held_back: bool) -> (Self, Durability) {
        let last = Arc::new(AtomicU64::new(0));
        let uncommitted = Arc::new(Uncommitted::default());
        let durability = Durability {
            queue: Arc::clone(&queue),
            last: Arc::clone(&last),
            uncommitted: Arc::clone(&uncommitted),
        };
        let outbox = Self {
            cluster,
            queue,
            last,
            uncommitted,
            held_back: held_back.then(Vec::new),
        };
        (outbox, durability)
    }

    /// Queues a write.
    pub(crate) fn push(&mut self, change: Change, counters: Counters) {
        let record = Record::Changed {
            cluster: self.cluster,
            change,
            counters,
        };
        match &mut self.held_back {
            Some(held_back) => held_back.push(record),
            None => self.queue_records([record]),
        }
    }

    /// Queues the writes that were held back: the file has the cluster with its first objects, or not at all.
    pub(crate) fn release(&mut self, name: &str, counters: Counters) {
        let created = Record::Created {
            cluster: self.cluster,
            name: name.into(),
            counters,
        };
        let held_back = self.held_back.take().unwrap_or_default();
        self.queue_records(std::iter::once(created).chain(held_back));
    }

    /// Queues the removal of the cluster.
    pub(crate) fn remove(self, name: &str, removals: u64) {
        self.queue_records([Record::Removed {
            cluster: self.cluster,
            name: name.into(),
            removals,
        }]);
    }

    fn queue_records(&self, records: impl IntoIterator<Item = Record>) {
        let mut objects = Vec::new();
        let records = records.into_iter().inspect(|record| {
            if let Record::Changed { change, .. } = record {
                objects.push((Arc::clone(&change.table), change.object.head.key()));
            }
        });
        let last = self.queue.push(records);
        self.uncommitted.add(objects, last, self.queue.committed());
        self.last.store(last, Ordering::Release);
    }
}

impl Durability {
    /// Waits until all writes so far are on the disk.
    pub(crate) async fn wait(&self) -> Result<(), PersistError> {
        self.queue.wait(self.last.load(Ordering::Acquire)).await
    }

    /// Reports whether an object of a table, among those whose keys are chosen, has a write that is not on the disk.
    pub(crate) fn has_uncommitted(&self, table: &str, is_chosen: impl Fn(&str) -> bool) -> bool {
        let committed = self.queue.committed();
        let known = self.uncommitted.lock();
        let mut open = known.iter().filter(|(number, ..)| *number > committed);
        open.any(|(_, of, key)| **of == *table && is_chosen(key))
    }

    /// Returns an error while writes cannot be committed.
    pub(crate) fn check(&self) -> Result<(), PersistError> {
        self.queue.check_failure()
    }
}
