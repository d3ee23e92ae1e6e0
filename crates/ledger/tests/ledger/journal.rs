//! The journal: a chain on disk, truncated at its old end only, and readable beside the process that writes it.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use starling_core::journal::{BEGINNING, Broken, check_chain};
use starling_ledger::{GroupJournal, LedgerError, LedgerView};
use tempfile::TempDir;

use crate::build::*;

async fn journal(folder: &Path, group: &str) -> GroupJournal {
    let mut view = LedgerView::open(folder).await.unwrap();
    let mut found = view.journals("shop", group).await.unwrap();
    view.close().await;
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn rollouts(journal: &GroupJournal) -> Vec<i64> {
    journal.entries.iter().map(|entry| entry.rollout.get()).collect()
}

#[tokio::test]
async fn chains_are_separate_and_continue_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for (group, rollout) in [("a", 1), ("b", 1), ("a", 1), ("b", 2)] {
        ledger.append_journal(&mk_entry(group, rollout)).await.unwrap();
    }
    // While the process has the ledger open.
    assert_eq!(rollouts(&journal(folder.path(), "a").await), [1, 1]);
    ledger.close().await;
    let (ledger, _) = open(folder.path()).await;
    ledger.append_journal(&mk_entry("a", 2)).await.unwrap();
    for (group, expected) in [("a", vec![1, 1, 2]), ("b", vec![1, 2])] {
        let journal = journal(folder.path(), group).await;
        assert_eq!(rollouts(&journal), expected);
        assert_eq!(check_chain(&journal.chain, &journal.entries), []);
        let numbers: Vec<i64> = journal.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(numbers, (1..=expected.len() as i64).collect::<Vec<_>>());
        assert_eq!(journal.chain.cut.hash, BEGINNING);
        assert_eq!(journal.entries[0].at, at(1));
    }
    ledger.close().await;
    // After the process has closed it.
    assert_eq!(rollouts(&journal(folder.path(), "b").await), [1, 2]);
}

#[tokio::test]
async fn the_newest_rollouts_are_kept_and_the_chain_is_valid_after_a_cut() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for rollout in 1..=25 {
        for _ in 0..3 {
            ledger.append_journal(&mk_entry("a", rollout)).await.unwrap();
        }
        let journal = journal(folder.path(), "a").await;
        assert_eq!(check_chain(&journal.chain, &journal.entries), []);
    }
    let journal = journal(folder.path(), "a").await;
    let kept: Vec<i64> = (6..=25).flat_map(|rollout| [rollout; 3]).collect();
    assert_eq!(rollouts(&journal), kept);
    assert_eq!(journal.chain.cut.seq, 15);
    ledger.close().await;
}

#[tokio::test]
async fn the_tail_starts_with_the_newest_whole_entry() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    assert_eq!(ledger.journal_tail(&group("a")).await.unwrap(), []);
    for (rollout, is_whole) in [(1, true), (1, false), (1, true), (1, false), (1, false)] {
        let mut entry = mk_entry("a", rollout);
        entry.is_whole = is_whole;
        ledger.append_journal(&entry).await.unwrap();
    }
    let tail = |entries: Vec<starling_core::journal::JournalEntry>| {
        entries.into_iter().map(|entry| entry.seq).collect::<Vec<_>>()
    };
    assert_eq!(tail(ledger.journal_tail(&group("a")).await.unwrap()), [3, 4, 5]);
    ledger.append_journal(&mk_entry("a", 2)).await.unwrap();
    assert_eq!(tail(ledger.journal_tail(&group("a")).await.unwrap()), [6]);
    ledger.close().await;
}

/// A user with access to the file can change it on purpose, but not by accident.
#[tokio::test]
async fn an_entry_that_is_edited_in_the_file_is_found() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    for rollout in [1, 1, 2, 2] {
        ledger.append_journal(&mk_entry("a", rollout)).await.unwrap();
    }
    ledger.close().await;
    let mut file = SqliteConnectOptions::new()
        .filename(folder.path().join("ledger.db"))
        .connect()
        .await
        .unwrap();
    let edit = "UPDATE journal SET entry = '{}' WHERE seq = 3";
    let refused = sqlx::query(edit)
        .execute(&mut file)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("the journal is append-only"), "{refused}");
    sqlx::query("DROP TRIGGER journal_is_append_only")
        .execute(&mut file)
        .await
        .unwrap();
    sqlx::query(edit).execute(&mut file).await.unwrap();
    file.close().await.unwrap();
    let journal = journal(folder.path(), "a").await;
    assert_eq!(
        check_chain(&journal.chain, &journal.entries),
        [Broken::Altered { seq: 3 }]
    );
}

#[tokio::test]
async fn a_view_creates_nothing() {
    let folder = TempDir::new().unwrap();
    let error = LedgerView::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, LedgerError::NoLedger { .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
