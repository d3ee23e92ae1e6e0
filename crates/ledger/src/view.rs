//! A read-only view of the ledger of a controller that may be running, without the lock of the directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use starling_core::ids::GroupId;

use super::database::BUSY;
use super::journal::{GroupJournal, journals};
use super::rollouts::{self, RolloutRecord};
use super::{LedgerError, directory};

/// A read-only ledger. All reads are from one snapshot: later writes are not visible.
#[derive(Debug)]
pub struct LedgerView {
    connection: SqliteConnection,
    path: PathBuf,
}

impl LedgerView {
    /// Opens the ledger of a data directory for reading, even if another process has it open. Nothing is created, moved
    /// or repaired.
    ///
    /// # Errors
    /// [`LedgerError::NoLedger`] if there is none; [`LedgerError::Open`] if it cannot be read.
    pub async fn open(data_directory: &Path) -> Result<Self, LedgerError> {
        let path = directory::database_in(data_directory);
        if !path.is_file() {
            return Err(LedgerError::NoLedger {
                directory: data_directory.to_owned(),
            });
        }
        let failed = |source| LedgerError::Open {
            path: path.clone(),
            source,
        };
        let mut connection = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(false)
            .read_only(true)
            .busy_timeout(BUSY)
            .connect()
            .await
            .map_err(failed)?;
        sqlx::query("BEGIN")
            .execute(&mut connection)
            .await
            .map_err(failed)?;
        Ok(Self { connection, path })
    }

    /// Returns the journals of all groups that have or had a name, the newest group last.
    ///
    /// # Errors
    /// If the query failed, for example because a version without a journal wrote the ledger.
    pub async fn journals(&mut self, namespace: &str, name: &str) -> Result<Vec<GroupJournal>, LedgerError> {
        journals(&mut self.connection, namespace, name)
            .await
            .map_err(|source| LedgerError::Read {
                subject: format!("the journal of {namespace}/{name} in {}", self.path.display()),
                source,
            })
    }

    /// The names of all groups of a namespace that have or had a journal.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn groups(&mut self, namespace: &str) -> Result<BTreeSet<String>, LedgerError> {
        let names: Vec<String> = sqlx::query_scalar("SELECT name FROM journal_chains WHERE namespace = ?1")
            .bind(namespace)
            .fetch_all(&mut self.connection)
            .await
            .map_err(|source| LedgerError::Read {
                subject: format!("the journals of namespace {namespace} in {}", self.path.display()),
                source,
            })?;
        Ok(names.into_iter().collect())
    }

    /// The rollouts of a group, the newest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn rollouts(&mut self, group_id: &GroupId) -> Result<Vec<RolloutRecord>, LedgerError> {
        rollouts::of_group(&mut self.connection, group_id)
            .await
            .map_err(|source| LedgerError::Read {
                subject: format!("the rollouts of group {group_id} in {}", self.path.display()),
                source,
            })
    }

    /// Closes the ledger.
    pub async fn close(self) {
        self.connection.close().await.ok();
    }
}
