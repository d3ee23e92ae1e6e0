//! The errors of the data directory.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why the data directory of a server cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PersistError {
    /// Another process uses the directory.
    #[error("the directory {} is in use by another process: end it, or name another directory", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// A file or directory could not be created or locked.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// SQLite cannot open or read the file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: sqlx::Error,
    },
    /// This version cannot use the file. The file stays unchanged.
    #[error("cannot use {}: {why}. Restore a backup or choose another directory", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: Unusable,
    },
    /// A write is not on the disk. The server retries it until it ends.
    #[error("not written to disk: {0}")]
    Unwritten(Arc<WriteError>),
}

/// Why this version cannot use a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unusable {
    /// A newer version of the program wrote the file.
    #[error("a newer version of the program wrote it (schema {found}, this one knows {known})")]
    Newer {
        /// The schema version of the file.
        found: i32,
        /// The schema version of this program.
        known: i32,
    },
    /// Another program wrote the file.
    #[error("another program wrote it")]
    Foreign,
    /// The check of the file failed.
    #[error("it is damaged: {verdict}")]
    Damaged {
        /// The first finding of SQLite.
        verdict: String,
    },
    /// A part of the server's identity is missing or not text, or a count is not a number.
    #[error("{key:?} in the table meta is missing or invalid")]
    Meta {
        /// The key.
        key: String,
    },
    /// The seed is not a number.
    #[error("invalid seed {seed:?}")]
    Seed {
        /// The seed.
        seed: String,
    },
    /// The secret is missing or has another length.
    #[error("its secret does not have 32 bytes")]
    Secret,
    /// The address of the server is not one.
    #[error("invalid address {address:?}")]
    Address {
        /// The address.
        address: String,
    },
    /// The row of an object is not what this program writes.
    #[error("{resource} {key:?} of its cluster {cluster} is not what was written")]
    Object {
        /// The number of the cluster.
        cluster: i64,
        /// The table of the object.
        resource: String,
        /// The key of the object.
        key: String,
    },
}

/// Why a write is not on the disk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The server was closed before the write.
    #[error("the server is closed")]
    Closed,
    /// The server ended before the write was on the disk.
    #[error("the server has ended")]
    Ended,
    /// The last transaction failed.
    #[error(transparent)]
    Sqlite(#[from] sqlx::Error),
}
