//! Persistence: clusters, their objects and counters, and the server's identity, in one SQLite file.
//!
//! The state of a cluster stays in memory and stays synchronous. Each committed write goes into an [`Outbox`], in
//! order; one task takes all queued writes and commits them in one transaction, for all clusters together. The HTTP
//! layer delays a response until everything that it may show is on the disk: a write, a read of another client's
//! write, an event of a watch. So no client ever sees a write that a crash loses, and a resource version never names
//! two states.
//!
//! The file is the source of truth. The server refuses a file that is damaged, or that another program or a newer
//! version wrote, and leaves it unchanged.
//!
//! The file does not hold the history of objects (watches from before a restart get 410, as after a compaction),
//! journals, faults, or health rules.

mod database;
mod directory;
mod error;
mod outbox;
mod writer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;

pub use error::{PersistError, Unusable, WriteError};
pub(crate) use outbox::{Change, Counters, Durability, Outbox};

use database::Database;
use directory::Directory;
use outbox::{Queue, Record};

/// The identity of a server, which stays the same as long as its file exists.
#[derive(Clone)]
pub(crate) struct Identity {
    /// The key of all tokens.
    pub(crate) secret: [u8; 32],
    /// The seed of names and UIDs.
    pub(crate) seed: u64,
    /// The certificate of the authority, as PEM.
    pub(crate) certificate: String,
    /// The key of the authority, as PEM.
    pub(crate) key: String,
}

/// A stored cluster.
pub(crate) struct StoredCluster {
    pub(crate) id: u64,
    pub(crate) name: Box<str>,
    pub(crate) counters: Counters,
    /// The objects, each with the name of its table.
    pub(crate) objects: Vec<(Box<str>, crate::store::Stored)>,
}

/// The content of a file that was opened.
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) clusters: Vec<StoredCluster>,
    /// The number of removed clusters of each name.
    pub(crate) removals: BTreeMap<Box<str>, u64>,
    pub(crate) file: File,
}

/// The open file of a server. Queued writes are still committed after it is dropped.
pub(crate) struct File {
    queue: Arc<Queue>,
    /// The number of the next cluster; no number is used twice.
    next: AtomicU64,
    address: Mutex<Option<SocketAddr>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl File {
    /// Opens the file of a directory and locks the directory; creates both if they are missing. `identity` returns the
    /// identity of a new file.
    pub(crate) async fn open<E: From<PersistError>>(
        directory: &Path,
        identity: impl FnOnce() -> Result<Identity, E>,
    ) -> Result<Opened, E> {
        let directory = Directory::claim(directory).await?;
        let mut database = Database::open(&directory).await?;
        if database.is_new() {
            database.create(&identity()?).await?;
        }
        let identity = database.identity().await?;
        let address = database.address().await?;
        let removals = database.removals().await?;
        let (clusters, next) = database.clusters().await?;
        let queue = Arc::new(Queue::default());
        let writer = writer::start(database, directory, Arc::clone(&queue));
        Ok(Opened {
            identity,
            clusters,
            removals,
            file: Self {
                queue,
                next: AtomicU64::new(next),
                address: Mutex::new(address),
                writer: Mutex::new(Some(writer)),
            },
        })
    }

    /// Returns the number of a new cluster.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the outbox of a cluster and the handle to wait for its writes. The outbox of a `new` cluster holds its
    /// writes back until [`Outbox::release`].
    pub(crate) fn outbox(&self, cluster: u64, new: bool) -> (Outbox, Durability) {
        Outbox::new(cluster, Arc::clone(&self.queue), new)
    }

    /// Waits until all writes so far are on the disk.
    pub(crate) async fn durable(&self) -> Result<(), PersistError> {
        self.queue.wait(self.queue.last()).await
    }

    /// Returns the address that the server last listened on.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the address that the server listens on.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if known.replace(address) != Some(address) {
            self.queue.push([Record::Address(address)]);
        }
    }

    /// Commits the queued writes, closes the file and unlocks the directory. Later writes fail.
    pub(crate) async fn close(&self) {
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && let Err(error) = writer.await
        {
            tracing::error!(%error, "the writer of the embedded API server did not end by itself");
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.queue.close();
    }
}
