//! The errors of the data folder.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why the data folder of a server cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PersistError {
    /// Another process uses the folder.
    #[error("the folder {} is in use by another process: end it, or name another folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or folder could not be created or locked.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
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
    #[error("cannot use {}: {why}. Restore a backup or choose another folder", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A write is not on the disk. The server retries it until it ends.
    #[error("not written to disk: {0}")]
    Unwritten(Arc<str>),
}
