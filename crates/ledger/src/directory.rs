//! The data directory: its lock, its files, and how a damaged ledger is moved aside.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::warn;

use super::LedgerError;

/// The suffixes of the files that SQLite keeps beside a database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The text between the name of the ledger and the time at which it was moved aside.
const ASIDE_SUFFIX: &str = ".corrupt-";

/// How many damaged ledgers are kept for inspection, so that a faulty disk is not filled by them.
const KEPT_ASIDE: usize = 3;

/// The paths of the files of a ledger.
#[derive(Clone, Debug)]
pub(super) struct Files {
    directory: PathBuf,
}

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

/// The lock of a directory, released on drop or when the process dies.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    file: File,
}

impl Drop for DirectoryLock {
    /// Unlocks the file before it is closed. A child process has a copy of it between fork and exec, and the lock ends
    /// with the last copy only.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            warn!(%error, "cannot unlock the data directory");
        }
    }
}

impl Files {
    /// Creates the directory if it is missing, readable by its owner only, and locks it.
    pub(super) async fn claim(directory: &Path) -> Result<(Self, DirectoryLock), LedgerError> {
        let failed = |action| {
            move |source| LedgerError::File {
                action,
                path: directory.to_owned(),
                source,
            }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("create"))?;
        if let Err(error) = std::fs::set_permissions(directory, Permissions::from_mode(0o700)) {
            // The root of a volume often has another owner; the files inside are still readable by their owner only.
            warn!(directory = %directory.display(), %error, "cannot restrict the data directory to its owner");
        }
        let files = Self {
            directory: directory.to_owned(),
        };
        let file = private_file(&files.directory.join("lock"))?;
        match lock_within(&file, LOCK_WAIT).await {
            Ok(()) => Ok((files, DirectoryLock { file })),
            Err(TryLockError::WouldBlock) => Err(LedgerError::InUse {
                directory: directory.to_owned(),
            }),
            Err(TryLockError::Error(source)) => Err(failed("lock")(source)),
        }
    }

    /// The database file.
    pub(super) fn database(&self) -> PathBuf {
        database_in(&self.directory)
    }

    /// Creates an empty database file if there is none, readable by its owner only: SQLite gives its other files the
    /// same mode. Must not be called while a connection is open: closing a file drops this process's locks on it.
    pub(super) fn ensure_database(&self) -> Result<(), LedgerError> {
        private_file(&self.database())?;
        self.sync_directory()
    }

    /// Whether there is no database. A log without its database is not empty.
    pub(super) fn is_empty(&self) -> bool {
        bytes_in(&self.database()) == 0 && bytes_in(&self.log()) == 0
    }

    /// Whether there is a write-ahead log without its database: its pages belong to a file that no longer exists.
    pub(super) fn has_orphaned_log(&self) -> bool {
        bytes_in(&self.database()) == 0 && bytes_in(&self.log()) > 0
    }

    /// Marks the ledger as damaged for the next opening, after SQLite found damage while the ledger was in use: a quick
    /// check does not detect an index that does not match its table.
    pub(super) fn mark_damaged(&self) {
        if let Err(error) = private_file(&self.marker()) {
            warn!(%error, "cannot mark the ledger as damaged");
        }
    }

    /// Whether damage was found since the last opening.
    pub(super) fn is_marked_damaged(&self) -> bool {
        self.marker().exists()
    }

    /// Moves the database and its companions to `ledger.db.corrupt-<unix time>` and returns that path.
    /// No connection may be open.
    pub(super) fn move_aside(&self, now: Timestamp) -> Result<PathBuf, LedgerError> {
        let aside = self.free_name(now)?;
        // The database first: if the process dies in between, the next opening detects the log without a database.
        for suffix in [""].into_iter().chain(COMPANIONS) {
            let from = append(&self.database(), suffix);
            match std::fs::rename(&from, append(&aside, suffix)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(LedgerError::File {
                        action: "move aside",
                        path: from,
                        source,
                    });
                }
            }
        }
        match std::fs::remove_file(self.marker()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(LedgerError::File {
                    action: "remove",
                    path: self.marker(),
                    source,
                });
            }
            _ => {}
        }
        self.drop_oldest_aside();
        self.sync_directory()?;
        Ok(aside)
    }

    fn log(&self) -> PathBuf {
        append(&self.database(), "-wal")
    }

    fn marker(&self) -> PathBuf {
        append(&self.database(), ".damaged")
    }

    /// Returns a name that sorts after all existing ones: two ledgers may be moved aside within a second, and the clock
    /// may go back.
    fn free_name(&self, now: Timestamp) -> Result<PathBuf, LedgerError> {
        let now = (now.as_second(), 0);
        let found = self.moved_aside().map_err(|source| LedgerError::File {
            action: "list",
            path: self.directory.clone(),
            source,
        })?;
        let last = found.into_keys().next_back();
        let (second, again) = match last {
            Some((second, again)) if (second, again) >= now => (second, again.saturating_add(1)),
            _ => now,
        };
        let suffix = if again == 0 {
            format!("{ASIDE_SUFFIX}{second}")
        } else {
            format!("{ASIDE_SUFFIX}{second}.{again}")
        };
        Ok(append(&self.database(), &suffix))
    }

    /// Returns the files of every ledger that was moved aside, the oldest first.
    fn moved_aside(&self) -> io::Result<BTreeMap<(i64, u32), Vec<PathBuf>>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            if let Some(order) = entry.file_name().to_str().and_then(aside_order) {
                found.entry(order).or_default().push(entry.path());
            }
        }
        Ok(found)
    }

    /// Deletes all but the newest damaged ledgers. A failure does not prevent the start.
    fn drop_oldest_aside(&self) {
        let Ok(found) = self.moved_aside() else {
            return;
        };
        let excess = found.len().saturating_sub(KEPT_ASIDE);
        for path in found.into_values().take(excess).flatten() {
            if let Err(error) = std::fs::remove_file(&path) {
                warn!(path = %path.display(), %error, "cannot delete an old damaged ledger");
            }
        }
    }

    /// Makes created and renamed files durable.
    fn sync_directory(&self) -> Result<(), LedgerError> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| LedgerError::File {
                action: "sync",
                path: self.directory.clone(),
                source,
            })
    }
}

/// The database file of a data directory.
pub(super) fn database_in(directory: &Path) -> PathBuf {
    directory.join("ledger.db")
}

/// Opens a file for writing, creates it if it is missing, and makes it readable by its owner only.
fn private_file(path: &Path) -> Result<File, LedgerError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)).map(|()| file))
        .map_err(|source| LedgerError::File {
            action: "create",
            path: path.to_owned(),
            source,
        })
}

/// The path with a suffix added to its last part.
fn append(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns the size of a file, as SQLite sees it: 0 if the file is missing or has a single byte, which SQLite writes
/// into an empty file on some systems.
fn bytes_in(path: &Path) -> u64 {
    match path.metadata() {
        Ok(metadata) if metadata.len() > 1 => metadata.len(),
        _ => 0,
    }
}

/// Returns when a file was moved aside, and its number within that second; none for any other file.
fn aside_order(name: &str) -> Option<(i64, u32)> {
    let rest = name.strip_prefix("ledger.db")?.strip_prefix(ASIDE_SUFFIX)?;
    let rest = COMPANIONS
        .iter()
        .find_map(|suffix| rest.strip_suffix(suffix))
        .unwrap_or(rest);
    match rest.split_once('.') {
        Some((second, again)) => Some((second.parse().ok()?, again.parse().ok()?)),
        None => Some((rest.parse().ok()?, 0)),
    }
}
