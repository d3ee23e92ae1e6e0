//! What can go wrong with the file of a server.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why the file of a server cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PersistError {
    /// Another process has it open.
    #[error("the folder {} is in use by another process: end it, or name another folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or folder could not be made or locked.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// SQLite does not open or read it.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: sqlx::Error,
    },
    /// It is not what this version writes. It is left as it is.
    #[error("{} cannot be used: {why}. Put a copy of it back, or name another folder", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// A write is not on the disk. It is tried again for as long as the server runs.
    #[error("not written to disk: {0}")]
    Unwritten(Arc<str>),
}
