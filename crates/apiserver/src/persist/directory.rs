//! The data directory of a server and its lock.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::PersistError;

/// A directory that only this process uses, until this value is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Drop for Directory {
    /// Unlocks the file before it is closed. A child process has a copy of it between fork and exec, and the lock ends
    /// with the last copy only.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "cannot unlock the data directory");
        }
    }
}

impl Directory {
    /// Creates the directory if it is missing, with access for its owner only, and locks it.
    pub(super) async fn claim(path: &Path) -> Result<Self, PersistError> {
        let failed = |action| {
            move |source| PersistError::File {
                action,
                path: path.to_owned(),
                source,
            }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed("create"))?;
        let lock = private_file(&path.join("lock"))?;
        match lock_within(&lock, LOCK_WAIT).await {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(PersistError::InUse {
                    directory: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        // SQLite creates its other files with the mode of this one, which holds keys.
        private_file(&path.join(NAME))?;
        // The entry of a new file has to survive a power failure too.
        File::open(path)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("sync"))?;
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    /// Returns the path of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(NAME)
    }
}

const NAME: &str = "apiserver.db";

/// How long the lock is waited for. A process that was killed leaves it to its children that are between fork and exec,
/// and on a busy machine the next process may start before they have run.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The time between two attempts to lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);

async fn lock_within(file: &File, wait: Duration) -> Result<(), TryLockError> {
    let deadline = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                tokio::time::sleep(LOCK_RETRY).await;
            }
            result => return result,
        }
    }
}

/// Opens or creates a file with access for its owner only.
fn private_file(path: &Path) -> Result<File, PersistError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)).map(|()| file))
        .map_err(|source| PersistError::File {
            action: "create",
            path: path.to_owned(),
            source,
        })
}
