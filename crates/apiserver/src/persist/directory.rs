//! The data directory of a server and its lock.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

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
    pub(super) fn claim(path: &Path) -> Result<Self, PersistError> {
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
        match lock.try_lock() {
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
