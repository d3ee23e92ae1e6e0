//! What the ledger forgets of objects that the management cluster no longer has.

use std::collections::BTreeSet;

use jiff::Timestamp;
use sqlx::sqlite::SqliteConnection;
use starling_core::ids::{ClusterId, GroupId};

use super::column::{Micros, encode};
use super::{Ledger, LedgerError};

/// Everything that exists on the management cluster. What is missing here counts as deleted, so a list that may be
/// incomplete is not for this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// The identities of the groups.
    pub groups: BTreeSet<GroupId>,
    /// The IDs of the Syncs, as attempts have them.
    pub syncs: BTreeSet<String>,
    /// The identities of the clusters.
    pub clusters: BTreeSet<ClusterId>,
}

/// The numbers of forgotten rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Rollouts of deleted groups.
    pub rollouts: u64,
    /// Admissions of deleted groups.
    pub admissions: u64,
    /// Attempts of deleted Syncs.
    pub attempts: u64,
    /// Member records of clusters that were removed.
    pub records: u64,
}

impl Ledger {
    /// Deletes the history of groups and Syncs that do not exist, if it ended before `ended_before`, and the member
    /// records of clusters that do not exist. What is open stays.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn forget_deleted(
        &self,
        existing: &Existing,
        ended_before: Timestamp,
    ) -> Result<Forgotten, LedgerError> {
        let Existing {
            groups,
            syncs,
            clusters,
        } = existing;
        let groups = encode("identities of groups", groups)?;
        let syncs = encode("IDs of Syncs", syncs)?;
        let clusters = encode("identities of clusters", clusters)?;
        self.write("forget deleted objects".to_owned(), move |connection| {
            Box::pin(async move {
                Ok(Forgotten {
                    rollouts: delete(&mut *connection, OLD_ROLLOUTS, &groups, Some(ended_before)).await?,
                    admissions: delete(&mut *connection, OLD_ADMISSIONS, &groups, Some(ended_before)).await?,
                    attempts: delete(&mut *connection, OLD_ATTEMPTS, &syncs, Some(ended_before)).await?,
                    records: {
                        delete(&mut *connection, RECORD_ATTEMPTS, &clusters, None).await?;
                        delete(&mut *connection, RECORDS, &clusters, None).await?
                    },
                })
            })
        })
        .await
    }
}

const OLD_ROLLOUTS: &str = "DELETE FROM rollouts WHERE outcome IS NOT NULL AND ended_at < ?2 \
                            AND group_id NOT IN (SELECT value FROM json_each(?1))";
const OLD_ADMISSIONS: &str = "DELETE FROM admissions WHERE outcome IS NOT NULL AND ended_at < ?2 \
                              AND group_id NOT IN (SELECT value FROM json_each(?1))";
const OLD_ATTEMPTS: &str = "DELETE FROM attempts WHERE outcome IS NOT NULL AND ended_at < ?2 \
                            AND sync_id NOT IN (SELECT value FROM json_each(?1))";
const RECORDS: &str = "DELETE FROM applied_objects WHERE cluster_id NOT IN (SELECT value FROM json_each(?1))";
const RECORD_ATTEMPTS: &str =
    "DELETE FROM record_attempts WHERE cluster_id NOT IN (SELECT value FROM json_each(?1))";

async fn delete(
    connection: &mut SqliteConnection,
    statement: &'static str,
    existing: &str,
    ended_before: Option<Timestamp>,
) -> Result<u64, sqlx::Error> {
    let query = sqlx::query(statement).bind(existing);
    let query = match ended_before {
        Some(time) => query.bind(Micros(time)),
        None => query,
    };
    Ok(query.execute(connection).await?.rows_affected())
}
