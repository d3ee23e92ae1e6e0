//! The journal of a group, for commands that tell of the past: read from the controller's folder, which needs no sign-in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::ledger::{GroupJournal, LedgerView, RolloutRecord};

/// What a ledger knows of a group's past.
pub(super) struct Recorded {
    /// The journal of the newest group of that name.
    pub(super) journal: GroupJournal,
    /// Its rollouts, the newest first.
    pub(super) rollouts: Vec<RolloutRecord>,
}

impl Recorded {
    /// Reads it. A controller that is at work is not disturbed.
    pub(super) async fn read(data_dir: &Path, namespace: &str, group: &str) -> anyhow::Result<Self> {
        let (mut view, mut journals) = journals(data_dir, namespace, group).await?;
        let Some(journal) = journals.pop() else {
            bail!(
                "the ledger in {} has no journal of SyncGroup {namespace}/{group}",
                data_dir.display()
            );
        };
        let rollouts = view.rollouts(&journal.group_uid).await?;
        view.close().await;
        Ok(Self { journal, rollouts })
    }

    /// The revisions of a release, as `entry=revision`; `None`: no rollout of it is kept.
    pub(super) fn revisions(&self, release: &str) -> Option<&BTreeMap<String, String>> {
        let found = self
            .rollouts
            .iter()
            .find(|record| record.rollout.release == release);
        found.map(|record| &record.rollout.revisions)
    }
}

/// The journals of all groups that have or had a name, the newest group last.
pub(super) async fn journals(
    data_dir: &Path,
    namespace: &str,
    group: &str,
) -> anyhow::Result<(LedgerView, Vec<GroupJournal>)> {
    let folder = ledger_folder(data_dir);
    let mut view = LedgerView::open(&folder)
        .await
        .with_context(|| format!("--data-dir {}", data_dir.display()))?;
    let journals = view.journals(namespace, group).await?;
    Ok((view, journals))
}

/// The names of all groups of a namespace that a journal tells of.
pub(super) async fn names_of_groups(data_dir: &Path, namespace: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut view = LedgerView::open(&ledger_folder(data_dir))
        .await
        .with_context(|| format!("--data-dir {}", data_dir.display()))?;
    let names = view.groups(namespace).await?;
    view.close().await;
    Ok(names)
}

/// The folder of a controller, or of one in `starling server`, which has a folder in the server's.
fn ledger_folder(data_dir: &Path) -> PathBuf {
    let inner = data_dir.join("controller");
    if !data_dir.join("ledger.db").exists() && inner.join("ledger.db").exists() {
        return inner;
    }
    data_dir.to_owned()
}
