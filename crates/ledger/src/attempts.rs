//! Attempts, written when they start and completed when they end.
//!
//! An attempt that is open when the ledger is opened was interrupted, because the process died. It is listed, so that
//! its Sync is reconciled first, and then closed as interrupted.

use std::fmt;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use starling_core::ids::{ClusterName, TargetDigest};

use super::admissions::{Admission, AdmissionKey};
use super::column::{Micros, clip, id, stored_as_text};
use super::{Ledger, LedgerError};

/// How many attempts of a Sync are kept: enough to show a pattern of failures, and a limit on disk use.
const KEPT: i64 = 20;

/// The reason of a failed attempt that sent nothing that changes the member.
pub const NOTHING_WRITTEN: &str = "NothingWritten";

/// The ID of an attempt within one ledger; later attempts have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(i64);

impl AttemptId {
    /// Creates the ID with this number.
    #[must_use]
    pub fn new(number: i64) -> Self {
        Self(number)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// The target is applied on the cluster.
    Succeeded,
    /// The attempt failed, with a reason.
    Failed,
    /// Stopped because of a newer target.
    Superseded,
    /// The process ended during the attempt; its progress is not known.
    Interrupted,
}

stored_as_text!(AttemptOutcome {
    Succeeded => "succeeded",
    Failed => "failed",
    Superseded => "superseded",
    Interrupted => "interrupted",
});

/// An attempt as it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Identity of the Sync: its namespace and name.
    pub sync_id: String,
    /// Namespace of the Sync.
    pub namespace: String,
    /// Name of the Sync.
    pub name: String,
    /// Name of the Cluster.
    pub cluster: ClusterName,
    /// Digest of the target.
    pub target: TargetDigest,
    /// The revision that is applied.
    pub revision: String,
    /// 1 for the first attempt at this target.
    pub number: u32,
    /// When it started; kept to the microsecond.
    pub started_at: Timestamp,
}

/// The number of objects by change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Did not exist before.
    pub created: u32,
    /// Existed and were changed.
    pub configured: u32,
    /// Did not change.
    pub unchanged: u32,
    /// Were pruned.
    pub deleted: u32,
    /// Could not be applied or pruned.
    pub failed: u32,
}

/// How an attempt ended, for [`Ledger::finish_attempt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEnd {
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Reason of the condition that was set with it.
    pub reason: String,
    /// For users; the first 512 bytes are kept.
    pub message: String,
    /// The changes.
    pub counts: ObjectCounts,
    /// When it ended; kept to the microsecond.
    pub ended_at: Timestamp,
}

/// A stored attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The ID.
    pub id: AttemptId,
    /// The attempt as started.
    pub attempt: Attempt,
    /// How it ended; none while it runs, or if the process died.
    pub end: Option<AttemptEnd>,
}

impl Ledger {
    /// Records that an attempt starts; must be called before the first request to the member. The newest 20 of a Sync
    /// are kept.
    ///
    /// # Errors
    /// If the attempt was not recorded.
    pub async fn begin_attempt(&self, attempt: &Attempt) -> Result<AttemptId, LedgerError> {
        let attempt = attempt.clone();
        let subject = format!("begin an attempt at Sync {}/{}", attempt.namespace, attempt.name);
        self.write(subject, move |connection| {
            Box::pin(async move {
                let id = insert(connection, &attempt).await?;
                prune(connection, &attempt.sync_id).await?;
                Ok(id)
            })
        })
        .await
    }

    /// Records how an attempt ended. Only the first end counts; returns whether this end was recorded.
    ///
    /// # Errors
    /// If the end was not recorded.
    pub async fn finish_attempt(&self, id: AttemptId, end: &AttemptEnd) -> Result<bool, LedgerError> {
        let mut end = end.clone();
        end.message = clip(&end.message).to_owned();
        self.write(format!("finish attempt {id}"), move |connection| {
            Box::pin(async move { update(connection, id, &end).await })
        })
        .await
    }

    /// Returns the attempts of a Sync, the newest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn attempts(&self, sync_id: &str) -> Result<Vec<AttemptRecord>, LedgerError> {
        sqlx::query(
            "SELECT id, sync_id, namespace, name, cluster, target, revision, number, started_at, outcome, ended_at,
                    reason, message, created, configured, unchanged, deleted, failed
             FROM attempts WHERE sync_id = ?1 ORDER BY id DESC",
        )
        .bind(sync_id)
        .try_map(|row| read(&row))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("attempts of Sync {sync_id}"), source))
    }

    /// Reports whether it is certain that no attempt has written to the member for an admission: the admission is
    /// recorded and open, and each attempt of the Sync at its target has ended without a write. A lost ledger has no
    /// record of the admission. Attempts of an earlier admission of the same target count too, since times of two
    /// admissions cannot be compared where the clock may jump.
    ///
    /// `attempted` is the start of the last attempt at the target, by the status of the Sync: a ledger that lacks it is
    /// older than the status, and proves nothing.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn nothing_written(
        &self,
        admission: &Admission,
        attempted: Option<Timestamp>,
    ) -> Result<bool, LedgerError> {
        let AdmissionKey {
            group_id,
            rollout,
            entry,
            cluster,
            target,
        } = &admission.key;
        let sync_id = format!("{}/{}", admission.sync_namespace, admission.sync_name);
        // An attempt that was deleted because of newer ones may have written.
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM admissions
                            WHERE group_id = ?1 AND rollout = ?2 AND entry = ?3 AND cluster = ?4 AND target = ?5
                              AND outcome IS NULL AND admitted_at = ?6)
                AND (SELECT count(*) < ?8 AND total(outcome IS NOT 'failed' OR reason <> ?9) = 0
                     FROM attempts WHERE sync_id = ?7 AND target = ?5)
                AND (?10 IS NULL
                     OR EXISTS (SELECT 1 FROM attempts WHERE sync_id = ?7 AND target = ?5 AND started_at = ?10))",
        )
        .bind(group_id.as_str())
        .bind(rollout.to_string())
        .bind(entry.as_str())
        .bind(cluster.as_str())
        .bind(target.as_str())
        .bind(Micros(admission.admitted_at))
        .bind(&sync_id)
        .bind(KEPT)
        .bind(NOTHING_WRITTEN)
        .bind(attempted.map(Micros))
        .fetch_one(&self.readers)
        .await
        .map_err(|source| self.unread(format!("attempts of Sync {sync_id}"), source))
    }

    /// Returns the attempts that an earlier process started and did not finish, the oldest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn interrupted_attempts(&self) -> Result<Vec<AttemptRecord>, LedgerError> {
        sqlx::query(
            "SELECT id, sync_id, namespace, name, cluster, target, revision, number, started_at, outcome, ended_at,
                    reason, message, created, configured, unchanged, deleted, failed
             FROM attempts WHERE outcome IS NULL AND id <= ?1 ORDER BY id",
        )
        .bind(self.last_attempt_before.0)
        .try_map(|row| read(&row))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread("interrupted attempts".to_owned(), source))
    }

    /// Ends these attempts as interrupted and returns their number. Attempts of this process are not changed.
    ///
    /// # Errors
    /// If the change was not recorded; then no attempt is ended.
    pub async fn close_interrupted(&self, ended_at: Timestamp) -> Result<u64, LedgerError> {
        let last = self.last_attempt_before;
        self.write("close interrupted attempts".to_owned(), move |connection| {
            Box::pin(async move {
                let done = sqlx::query(
                    "UPDATE attempts SET outcome = ?2, ended_at = ?3 WHERE outcome IS NULL AND id <= ?1",
                )
                .bind(last.0)
                .bind(AttemptOutcome::Interrupted)
                .bind(Micros(ended_at))
                .execute(connection)
                .await?;
                Ok(done.rows_affected())
            })
        })
        .await
    }
}

/// Returns the newest attempt, or an ID before all attempts.
pub(super) async fn last(connection: &mut SqliteConnection) -> Result<AttemptId, sqlx::Error> {
    let last = sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM attempts")
        .fetch_one(connection)
        .await?;
    Ok(AttemptId(last))
}

async fn insert(connection: &mut SqliteConnection, attempt: &Attempt) -> Result<AttemptId, sqlx::Error> {
    let Attempt {
        sync_id,
        namespace,
        name,
        cluster,
        target,
        revision,
        number,
        started_at,
    } = attempt;
    let done = sqlx::query(
        "INSERT INTO attempts (sync_id, namespace, name, cluster, target, revision, number, started_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )
    .bind(sync_id)
    .bind(namespace)
    .bind(name)
    .bind(cluster.as_str())
    .bind(target.as_str())
    .bind(revision)
    .bind(number)
    .bind(Micros(*started_at))
    .execute(connection)
    .await?;
    Ok(AttemptId(done.last_insert_rowid()))
}

/// Deletes all but the newest attempts. Open attempts are kept until they end.
async fn prune(connection: &mut SqliteConnection, sync_id: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM attempts WHERE sync_id = ?1 AND outcome IS NOT NULL AND id <=
         (SELECT id FROM attempts WHERE sync_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(sync_id)
    .bind(KEPT)
    .execute(connection)
    .await?;
    Ok(())
}

async fn update(
    connection: &mut SqliteConnection,
    id: AttemptId,
    end: &AttemptEnd,
) -> Result<bool, sqlx::Error> {
    let AttemptEnd {
        outcome,
        reason,
        message,
        counts,
        ended_at,
    } = end;
    let ObjectCounts {
        created,
        configured,
        unchanged,
        deleted,
        failed,
    } = counts;
    let done = sqlx::query(
        "UPDATE attempts SET outcome = ?2, ended_at = ?3, reason = ?4, message = ?5,
                created = ?6, configured = ?7, unchanged = ?8, deleted = ?9, failed = ?10
         WHERE id = ?1 AND outcome IS NULL",
    )
    .bind(id.0)
    .bind(outcome)
    .bind(Micros(*ended_at))
    .bind(reason)
    .bind(message)
    .bind(created)
    .bind(configured)
    .bind(unchanged)
    .bind(deleted)
    .bind(failed)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

fn read(row: &SqliteRow) -> Result<AttemptRecord, sqlx::Error> {
    let attempt = Attempt {
        sync_id: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
        cluster: id(row, 4)?,
        target: id(row, 5)?,
        revision: row.try_get(6)?,
        number: row.try_get(7)?,
        started_at: row.try_get::<Micros, _>(8)?.0,
    };
    let outcome: Option<AttemptOutcome> = row.try_get(9)?;
    let ended_at: Option<Micros> = row.try_get(10)?;
    let end = match outcome.zip(ended_at) {
        Some((outcome, Micros(ended_at))) => Some(AttemptEnd {
            outcome,
            reason: row.try_get(11)?,
            message: row.try_get(12)?,
            counts: ObjectCounts {
                created: row.try_get(13)?,
                configured: row.try_get(14)?,
                unchanged: row.try_get(15)?,
                deleted: row.try_get(16)?,
                failed: row.try_get(17)?,
            },
            ended_at,
        }),
        None => None,
    };
    Ok(AttemptRecord {
        id: AttemptId(row.try_get(0)?),
        attempt,
        end,
    })
}
