//! Recorded data of a group: its journal and its rollouts, read from the data directory of a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use starling_ledger::{GroupJournal, LedgerError, LedgerView, RolloutRecord};

/// The journal and the rollouts of a group.
#[derive(Debug)]
pub struct Recorded {
    /// The journal of the newest group of that name.
    pub journal: GroupJournal,
    /// The rollouts of that group, newest first.
    pub rollouts: Vec<RolloutRecord>,
}

/// Reason why recorded data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The ledger cannot be opened.
    #[error("--data-dir {}", directory.display())]
    Open {
        /// The data directory.
        directory: PathBuf,
        /// The cause.
        #[source]
        source: LedgerError,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] LedgerError),
    /// The ledger has no journal of the group.
    #[error("no journal of SyncGroup {namespace}/{group} in the ledger of {}", directory.display())]
    NoJournal {
        /// Namespace of the group.
        namespace: String,
        /// Name of the group.
        group: String,
        /// The data directory.
        directory: PathBuf,
    },
}

impl Recorded {
    /// Reads the journal and the rollouts of a group. A running controller is not disturbed.
    ///
    /// # Errors
    /// [`RecordedError`].
    pub async fn read(directory: &Path, namespace: &str, group: &str) -> Result<Self, RecordedError> {
        let mut view = open(directory).await?;
        let mut journals = view.journals(namespace, group).await?;
        let Some(journal) = journals.pop() else {
            return Err(no_journal(directory, namespace, group));
        };
        let rollouts = view.rollouts(&journal.group_id).await?;
        view.close().await;
        Ok(Self { journal, rollouts })
    }

    /// The revisions of a release, by entry; `None`: no rollout of the release is kept.
    #[must_use]
    pub fn revisions(&self, release: &str) -> Option<&BTreeMap<String, String>> {
        let mut rollouts = self.rollouts.iter().map(|record| &record.rollout);
        let found = rollouts.find(|rollout| rollout.release == release);
        found.map(|rollout| &rollout.revisions)
    }
}

/// Reads the journals of all groups that have or had a name; that of the newest group is the last, and there is at
/// least one.
///
/// # Errors
/// [`RecordedError`].
pub async fn journals(
    directory: &Path,
    namespace: &str,
    group: &str,
) -> Result<Vec<GroupJournal>, RecordedError> {
    let mut view = open(directory).await?;
    let journals = view.journals(namespace, group).await?;
    view.close().await;
    if journals.is_empty() {
        return Err(no_journal(directory, namespace, group));
    }
    Ok(journals)
}

/// Reads the names of all groups of a namespace that have a journal.
///
/// # Errors
/// [`RecordedError`].
pub(super) async fn group_names(
    directory: &Path,
    namespace: &str,
) -> Result<BTreeSet<String>, RecordedError> {
    let mut view = open(directory).await?;
    let names = view.groups(namespace).await?;
    view.close().await;
    Ok(names)
}

async fn open(directory: &Path) -> Result<LedgerView, RecordedError> {
    LedgerView::open(&ledger_directory(directory))
        .await
        .map_err(|source| RecordedError::Open {
            directory: directory.to_owned(),
            source,
        })
}

fn no_journal(directory: &Path, namespace: &str, group: &str) -> RecordedError {
    RecordedError::NoJournal {
        namespace: namespace.to_owned(),
        group: group.to_owned(),
        directory: directory.to_owned(),
    }
}

/// The directory of the ledger: `starling server` has the data directory of its controller inside its own.
fn ledger_directory(directory: &Path) -> PathBuf {
    let inner = directory.join("controller");
    if !directory.join("ledger.db").exists() && inner.join("ledger.db").exists() {
        return inner;
    }
    directory.to_owned()
}
