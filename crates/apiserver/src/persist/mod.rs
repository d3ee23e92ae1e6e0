//! What survives the process: clusters, their objects and counters, and the server's identity, in one SQLite file.
//!
//! The state of a cluster stays in memory and stays synchronous. Each write that it commits goes into an [`Outbox`], in
//! order; one task takes whatever has come and commits it in one transaction, for all clusters together. HTTP holds an
//! answer until everything that it may show is on the disk: a write, a read of what another has just written, an event
//! of a watch. So nobody has ever seen what a crash takes back, and revisions never mean two things.
//!
//! The file is the truth. One that is damaged, or of another program or a newer version, is refused and left as it is.
//!
//! Not in the file: the past (watches from before a restart get 410, as after a compaction), journals, faults, and
//! rules of health.

mod database;
mod error;
mod folder;
mod outbox;
mod writer;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;

pub use error::PersistError;
pub(crate) use outbox::{Change, Counters, Durability, Outbox};

use database::Database;
use folder::Folder;
use outbox::{Queue, Record};

/// What a server is, to those who know it: it stays the same for as long as its file does.
#[derive(Clone)]
pub(crate) struct Identity {
    /// What tokens are made of.
    pub(crate) secret: [u8; 32],
    /// Where names and UIDs come from.
    pub(crate) seed: u64,
    /// The authority, as PEM.
    pub(crate) certificate: String,
    /// Its key, as PEM.
    pub(crate) key: String,
}

/// A cluster as it was written down.
pub(crate) struct Kept {
    pub(crate) id: u64,
    pub(crate) name: Box<str>,
    pub(crate) counters: Counters,
    /// Tables and objects.
    pub(crate) objects: Vec<(Box<str>, crate::store::Stored)>,
}

/// What a file held when it was opened.
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) clusters: Vec<Kept>,
    pub(crate) file: File,
}

/// The open file of a server. When it is dropped, what is queued is still written.
pub(crate) struct File {
    queue: Arc<Queue>,
    /// The number of the next cluster. None is given twice.
    next: AtomicU64,
    address: Mutex<Option<SocketAddr>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl File {
    /// Opens the file of a folder, making both if they are missing, and claims the folder. `identity` is asked who the
    /// server is to be if the file is new.
    pub(crate) async fn open<E: From<PersistError>>(
        folder: &Path,
        identity: impl FnOnce() -> Result<Identity, E>,
    ) -> Result<Opened, E> {
        let folder = Folder::claim(folder)?;
        let mut database = Database::open(&folder).await?;
        if database.is_new() {
            database.create(&identity()?).await?;
        }
        let identity = database.identity().await?;
        let address = database.address().await?;
        let (clusters, next) = database.clusters().await?;
        let queue = Arc::new(Queue::default());
        let writer = writer::start(database, folder, Arc::clone(&queue));
        Ok(Opened {
            identity,
            clusters,
            file: Self {
                queue,
                next: AtomicU64::new(next),
                address: Mutex::new(address),
                writer: Mutex::new(Some(writer)),
            },
        })
    }

    /// The number of a cluster that is to be made.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Where the writes of a cluster go, and how to wait for them. A cluster that is `new` keeps them to itself until
    /// it is released.
    pub(crate) fn outbox(&self, cluster: u64, new: bool) -> (Outbox, Durability) {
        Outbox::new(cluster, Arc::clone(&self.queue), new)
    }

    /// Waits until everything that has been written is on the disk.
    pub(crate) async fn durable(&self) -> Result<(), PersistError> {
        self.queue.wait(self.queue.last()).await
    }

    /// The address that the server last listened on.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down the address that the server listens on.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if known.replace(address) != Some(address) {
            self.queue.push([Record::Address(address)]);
        }
    }

    /// Writes what is queued, closes the file and gives the folder up. What is written later fails.
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
