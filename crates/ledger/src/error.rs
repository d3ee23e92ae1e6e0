//! Errors of the ledger.

use std::path::PathBuf;
use std::sync::Arc;

/// SQLite's primary result codes that are distinguished (<https://sqlite.org/rescode.html>).
const GENERIC: i32 = 1;
const NO_MEMORY: i32 = 7;
const READ_ONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANNOT_OPEN: i32 = 14;
const NOT_A_DATABASE: i32 = 26;

/// An error of the ledger. After any of them but `Closed` the next call tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another process, or another part of this one, has the directory's ledger open.
    #[error("the ledger in {} is in use by another process", directory.display())]
    InUse {
        /// The data directory.
        directory: PathBuf,
    },
    /// There is no ledger to read.
    #[error("no ledger in {}: --data-dir must be the data directory of the controller", directory.display())]
    NoLedger {
        /// The data directory.
        directory: PathBuf,
    },
    /// A file or directory of the ledger could not be created, moved or locked.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, such as `lock`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The database could not be opened, for a reason that is not damage: permissions, a full disk.
    #[error("cannot open the ledger {}", path.display())]
    Open {
        /// The database file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: sqlx::Error,
    },
    /// A new database is unusable: the disk does not keep the data, or the program has a bug.
    #[error("the fresh ledger {} is unusable: {reason}", path.display())]
    Unusable {
        /// The database file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// One operation failed and was rolled back; the other operations of the transaction are not affected.
    #[error("ledger: cannot {operation}")]
    Write {
        /// The operation, with its object.
        operation: String,
        /// Why it failed.
        #[source]
        source: sqlx::Error,
    },
    /// The whole transaction failed, so none of its operations is recorded. Every caller gets this error.
    #[error("ledger: cannot {operation}: the transaction was not committed")]
    Commit {
        /// The operation, with its object.
        operation: String,
        /// Why it failed; shared by all callers of the transaction.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A query failed, or a row has a value that no version of Starling writes.
    #[error("ledger: cannot read {subject}")]
    Read {
        /// The data that was read.
        subject: String,
        /// Why it failed.
        #[source]
        source: sqlx::Error,
    },
    /// A value could not be written as JSON.
    #[error("ledger: cannot encode {subject}")]
    Encode {
        /// The value.
        subject: &'static str,
        /// Why it failed.
        #[source]
        source: serde_json::Error,
    },
    /// The ledger was closed. No later call will succeed.
    #[error("the ledger is closed")]
    Closed,
}

impl LedgerError {
    /// Whether the disk is full: no new effects until a write succeeds again.
    #[must_use]
    pub fn is_storage_full(&self) -> bool {
        self.database()
            .is_some_and(|error| result_code(error) == Some(FULL))
    }

    /// Whether the database is damaged. The next start moves it aside.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        self.database().is_some_and(is_corrupt)
    }

    fn database(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Open { source, .. } | Self::Write { source, .. } | Self::Read { source, .. } => {
                Some(source)
            }
            Self::Commit { source, .. } => Some(source),
            Self::InUse { .. }
            | Self::NoLedger { .. }
            | Self::File { .. }
            | Self::Unusable { .. }
            | Self::Encode { .. }
            | Self::Closed => None,
        }
    }
}

/// Whether SQLite reports that the file is damaged.
pub(super) fn is_corrupt(error: &sqlx::Error) -> bool {
    matches!(result_code(error), Some(CORRUPT | NOT_A_DATABASE))
}

/// Whether the error is a storage fault and not an error of the operation. Then the connection is not used any more,
/// because SQLite may have rolled back the whole transaction.
pub(super) fn is_storage_fault(error: &sqlx::Error) -> bool {
    match result_code(error) {
        Some(code) => {
            matches!(
                code,
                NO_MEMORY | READ_ONLY | IO | CORRUPT | FULL | CANNOT_OPEN | NOT_A_DATABASE
            )
        }
        None => matches!(error, sqlx::Error::WorkerCrashed | sqlx::Error::Io(_)),
    }
}

/// Whether an error while opening means that the file is not a valid ledger. The statements of an opening are fixed, so
/// even a generic error (no such column, unsupported format), an undecodable value or a header that forbids writing can
/// only come from the file.
pub(super) fn is_damage_at_open(error: &sqlx::Error) -> bool {
    match result_code(error) {
        Some(code) => matches!(code, GENERIC | READ_ONLY | CORRUPT | NOT_A_DATABASE),
        None => matches!(
            error,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound
        ),
    }
}

/// The primary result code: the lowest byte of the extended one.
fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|extended| extended & 0xff)
}
