//! The ledger: SQLite; the one module with SQL.
//!
//! It holds what would be a pity to forget but is nobody's truth: the exact queue, what was in flight, attempts one by
//! one, history, and a cache of what was applied. The truth is in the management API and on the members, so a lost
//! ledger costs time and history, never a deploy and never a delete. Three rules follow:
//!
//! - **A damaged file never stops the process.** [`Ledger::open`] checks it, moves it aside if it is unusable, and says
//!   so in [`Opened`]. A file of a newer version is treated the same way.
//! - **Intent first.** [`Ledger::record_admissions`] and [`Ledger::begin_attempt`] return when the row is on disk;
//!   only then may the effect begin. All writes can be repeated without harm.
//! - **No secrets.** No method takes an object's body. Reasons and messages are cut to 512 bytes; whoever writes
//!   them keeps credentials out.
//! - **What was decided stands.** The journal of rollouts is appended to, never changed, and cut only at its old end.
//!
//! Writes go through one task that commits whatever is queued in one transaction (`writer`); queries use a few
//! read-only connections and see everything that was acknowledged before they began. One process may have a folder's
//! ledger open; an advisory lock sees to it.

mod admissions;
mod attempts;
mod column;
mod database;
mod error;
mod folder;
mod journal;
mod look;
mod meta;
mod queue;
mod records;
mod rollouts;
mod writer;

use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnection;
use tracing::info;

pub use admissions::{Admission, AdmissionKey, AdmissionOutcome, AdmissionRecord};
pub use attempts::{Attempt, AttemptEnd, AttemptId, AttemptOutcome, AttemptRecord, ObjectCounts};
pub use error::LedgerError;
pub use journal::{GroupJournal, NewEntry};
pub use look::LedgerView;
pub use queue::{Due, QueueKey};
pub use rollouts::{ROLLOUTS_KEPT, Rollout, RolloutOutcome, RolloutRecord};
pub use writer::WriterStats;

use folder::Files;
use writer::Writer;

/// What [`Ledger::open`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Nothing: the ledger is new and empty.
    Fresh,
    /// A sound ledger.
    Existing,
    /// An unusable ledger, now at this path; the ledger is new and empty.
    MovedAside(PathBuf),
}

/// The ledger of one replica.
#[derive(Debug)]
pub struct Ledger {
    files: Files,
    readers: SqlitePool,
    writer: Writer,
    /// The last attempt that was begun before this process opened the ledger.
    last_attempt_before: AttemptId,
}

impl Ledger {
    /// Opens the ledger of a data folder, making both if they are missing, and claims the folder for this process.
    /// The check reads the whole file. Must be called within a tokio runtime; the writer's task runs there.
    ///
    /// # Errors
    /// [`LedgerError::InUse`] if another process has it open; [`LedgerError::File`] and [`LedgerError::Open`] if the
    /// folder or the disk does not let it. Damage is not an error.
    pub async fn open(folder: &Path) -> Result<(Self, Opened), LedgerError> {
        let (files, lock) = Files::claim(folder)?;
        let (mut connection, opened) = database::open(&files).await?;
        let last_attempt_before =
            attempts::last(&mut connection)
                .await
                .map_err(|source| LedgerError::Open {
                    path: files.database(),
                    source,
                })?;
        info!(folder = %folder.display(), ?opened, "the ledger is open");
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

    /// Waits for queries under way, writes everything queued, and gives the folder up. Later calls fail with
    /// [`LedgerError::Closed`]. A ledger that is dropped instead loses nothing that was acknowledged.
    pub async fn close(&self) {
        // The writer's connection goes last: the last one to leave empties the write-ahead log, and readers cannot.
        self.readers.close().await;
        self.writer.close().await;
    }

    /// How many transactions and operations were committed since the ledger was opened.
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

    /// The error of a query. Damage is remembered for the next start.
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
