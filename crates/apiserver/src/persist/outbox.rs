//! Writes on their way to the disk, in order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::PersistError;
use crate::store::{Stored, TableName};

/// What a cluster counts, after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The revision of its store.
    pub(crate) revision: u64,
    /// The place of its generator.
    pub(crate) random: u64,
    /// Addresses of Services that have been given.
    pub(crate) addresses: u32,
    /// Ports of nodes that have been given.
    pub(crate) ports: u32,
}

/// One object after a write.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) table: TableName,
    pub(crate) object: Arc<Stored>,
    pub(crate) removed: bool,
}

/// Something to be written down.
#[derive(Debug, Clone)]
pub(super) enum Record {
    /// A cluster has been made.
    Made {
        cluster: u64,
        name: Box<str>,
        counters: Counters,
    },
    /// An object of a cluster was written.
    Changed {
        cluster: u64,
        change: Change,
        counters: Counters,
    },
    /// A cluster has been removed with everything in it.
    Removed { cluster: u64 },
    /// The server listens there.
    Address(SocketAddr),
}

/// What waits for the writer, and what the writer has done.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    /// Wakes the writer.
    wake: Notify,
    done: watch::Sender<Done>,
}

#[derive(Debug, Default)]
struct Pending {
    records: Vec<Record>,
    /// The number of the last record.
    last: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Done {
    /// All records up to this number are on the disk.
    upto: u64,
    /// Why those behind it are not, as far as that was tried.
    trouble: Option<Arc<str>>,
}

impl Queue {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records, which are written in one transaction, and returns the number of the last one.
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

    /// The number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.pending().last
    }

    /// Takes everything, with the number of its last record; none once it is closed and empty.
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

    /// Lets the writer end.
    pub(super) fn close(&self) {
        self.pending().closed = true;
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.pending().closed
    }

    /// Says that everything up to a record is on the disk.
    pub(super) fn written(&self, upto: u64) {
        self.done.send_replace(Done { upto, trouble: None });
    }

    /// Says why nothing more gets to the disk.
    pub(super) fn trouble(&self, why: &str) {
        self.done.send_modify(|done| done.trouble = Some(Arc::from(why)));
    }

    /// Why nothing gets to the disk, if so.
    fn is_in_trouble(&self) -> Result<(), PersistError> {
        match &self.done.borrow().trouble {
            Some(why) => Err(PersistError::Unwritten(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Waits until a record is on the disk.
    pub(super) async fn wait(&self, number: u64) -> Result<(), PersistError> {
        if self.done.borrow().upto >= number {
            return Ok(());
        }
        let mut done = self.done.subscribe();
        match done
            .wait_for(|done| done.upto >= number || done.trouble.is_some())
            .await
            .as_deref()
        {
            Ok(done) if done.upto >= number => Ok(()),
            Ok(Done {
                trouble: Some(why), ..
            }) => Err(PersistError::Unwritten(Arc::clone(why))),
            _ => Err(PersistError::Unwritten("the server has ended".into())),
        }
    }
}

/// Where the writes of one cluster go. Held with its state, so their order is that of the revisions.
#[derive(Debug)]
pub(crate) struct Outbox {
    cluster: u64,
    queue: Arc<Queue>,
    last: Arc<AtomicU64>,
    /// The first writes of a cluster that is being made.
    held: Option<Vec<Record>>,
}

/// How to wait for the writes of one cluster.
#[derive(Debug)]
pub(crate) struct Durability {
    queue: Arc<Queue>,
    last: Arc<AtomicU64>,
}

impl Outbox {
    pub(super) fn new(cluster: u64, queue: Arc<Queue>, held: bool) -> (Self, Durability) {
        let last = Arc::new(AtomicU64::new(0));
        let durability = Durability {
            queue: Arc::clone(&queue),
            last: Arc::clone(&last),
        };
        let outbox = Self {
            cluster,
            queue,
            last,
            held: held.then(Vec::new),
        };
        (outbox, durability)
    }

    /// Hands a write on.
    pub(crate) fn push(&mut self, change: Change, counters: Counters) {
        let record = Record::Changed {
            cluster: self.cluster,
            change,
            counters,
        };
        match &mut self.held {
            Some(held) => held.push(record),
            None => self.hand_on([record]),
        }
    }

    /// Hands on what has been held: the cluster is there, with its first objects or not at all.
    pub(crate) fn release(&mut self, name: &str, counters: Counters) {
        let made = Record::Made {
            cluster: self.cluster,
            name: name.into(),
            counters,
        };
        let held = self.held.take().unwrap_or_default();
        self.hand_on(std::iter::once(made).chain(held));
    }

    /// Hands on that the cluster has been removed.
    pub(crate) fn remove(self) {
        self.hand_on([Record::Removed {
            cluster: self.cluster,
        }]);
    }

    fn hand_on(&self, records: impl IntoIterator<Item = Record>) {
        self.last.store(self.queue.push(records), Ordering::Release);
    }
}

impl Durability {
    /// Waits until what has been written so far is on the disk.
    pub(crate) async fn wait(&self) -> Result<(), PersistError> {
        self.queue.wait(self.last.load(Ordering::Acquire)).await
    }

    /// Refuses while nothing gets to the disk.
    pub(crate) fn check(&self) -> Result<(), PersistError> {
        self.queue.is_in_trouble()
    }
}
