//! The journal of a group, for commands that tell of the past: read from the controller's folder, which needs no sign-in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::ledger::{GroupJournal, LedgerView, RolloutRecord};

/// How something is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

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

/// Rows under a headline, each column as wide as what is in it.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["A", "B"], ["long", "ü"], ["x", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "A     B\nlong  ü\nx\n");
    }
}
