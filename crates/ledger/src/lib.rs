//! The ledger: SQLite; the only package of Starling with SQL.
//!
//! The ledger stores useful state that is not authoritative: the exact queue, admissions in flight, attempts, history,
//! and a cache of applied objects. The authoritative state is in the management cluster and on the members, so a lost
//! ledger costs time and history, but never causes an apply or a deletion. The rules:
//!
//! - **A damaged file never stops the process.** [`Ledger::open`] checks it, moves it aside if it is unusable, and says
//!   so in [`Opened`]. A file of a newer version is treated the same way.
//! - **Intent first.** [`Ledger::record_admissions`] and [`Ledger::begin_attempt`] return when the row is on disk; only
//!   then may the effect begin. All writes are idempotent.
//! - **No secrets.** No method takes the body of an object. Reasons and messages are truncated to 512 bytes; callers
//!   must not pass credentials in them.
//! - **Decisions are immutable.** The journal of rollouts is append-only, and is truncated only at its old end.
//!
//! Writes go through one task that commits all queued operations in one transaction (`writer`). Queries use a few
//! read-only connections and see everything that was acknowledged before they began. An advisory lock ensures that only
//! one process has the ledger of a directory open.

mod admissions;
mod attempts;
mod column;
mod database;
mod directory;
mod error;
mod journal;
mod meta;
mod queue;
mod records;
mod retention;
mod rollouts;
mod view;
mod writer;

use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnection;
use tracing::info;

pub use admissions::{
    Admission, AdmissionEnd, AdmissionKey, AdmissionOutcome, AdmissionRecord, EntryOnCluster,
};
pub use attempts::{
    Attempt, AttemptEnd, AttemptId, AttemptOutcome, AttemptRecord, NOTHING_WRITTEN, ObjectCounts,
};
pub use error::LedgerError;
pub use journal::{GroupJournal, NewEntry};
pub use queue::{Due, QueueKey};
pub use retention::{Existing, Forgotten};
pub use rollouts::{ROLLOUTS_KEPT, Rollout, RolloutEnd, RolloutOutcome, RolloutRecord};
pub use view::LedgerView;
pub use writer::WriterStats;

use directory::Files;
use writer::Writer;

/// The findings of [`Ledger::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// No ledger: a new, empty one was created.
    Fresh,
    /// A valid ledger.
    Existing,
    /// An unusable ledger, now at this path; a new, empty one was created.
    MovedAside(PathBuf),
}

/// The ledger of one replica.
#[derive(Debug)]
pub struct Ledger {
    files: Files,
    readers: SqlitePool,
    writer: Writer,
    /// The last attempt that started before this process opened the ledger.
    last_attempt_before: AttemptId,
}

impl Ledger {
    /// Opens the ledger of a data directory, creates both if they are missing, and locks the directory for this
    /// process. The check reads the whole file. Must be called within a tokio runtime, in which the task of the writer
    /// runs.
    ///
    /// # Errors
    /// [`LedgerError::InUse`] if another process has the ledger open; [`LedgerError::File`] and [`LedgerError::Open`]
    /// for errors of the directory or the disk. Damage is not an error.
    pub async fn open(directory: &Path) -> Result<(Self, Opened), LedgerError> {
        let (files, lock) = Files::claim(directory).await?;
        let (mut connection, opened) = database::open(&files).await?;
        let last_attempt_before =
            attempts::last(&mut connection)
                .await
                .map_err(|source| LedgerError::Open {
                    path: files.database(),
                    source,
                })?;
        info!(directory = %directory.display(), ?opened, "the ledger is open");
        let writer = Writer::start(connection, files.clone(), lock);
        Ok((
            Self {
                readers: database::readers(&files),
                files,
                writer,
                last_attempt_before,
            },
            opened,
        ))
    }

    /// Waits for running queries, writes everything queued, and unlocks the directory. Later calls fail with
    /// [`LedgerError::Closed`]. A ledger that is dropped instead loses nothing that was acknowledged.
    pub async fn close(&self) {
        // The connection of the writer is closed last: the last connection empties the write-ahead log, which readers
        // cannot.
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Returns the number of committed transactions and operations since the ledger was opened.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        self.writer.stats()
    }

    /// Runs an operation in the writer; see [`Writer::submit`].
    async fn write<T, F>(&self, subject: String, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
    {
        self.writer.submit(subject, work).await
    }

    /// Returns the error of a query. Damage is recorded for the next start.
    fn unread(&self, subject: String, source: sqlx::Error) -> LedgerError {
        if matches!(source, sqlx::Error::PoolClosed) {
            return LedgerError::Closed;
        }
        if error::is_corrupt(&source) {
            self.files.mark_damaged();
        }
        LedgerError::Read { subject, source }
    }
}
