//! Admitted targets: the intents of a rollout, one row per entry and cluster, written before the effect.
//!
//! Every row ends as applied, superseded, failed with a reason, or left (the cluster is no longer selected). One entry
//! on one cluster never has more than one open row: recording a newer target ends the older row in the same
//! transaction.

use jiff::Timestamp;
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use starling_core::ids::{ClusterName, EntryName, GroupId, RolloutNumber, SyncName, TargetDigest};

use super::column::{Micros, clip, encode, id, rollout_number, stored_as_text};
use super::{Ledger, LedgerError};

/// How an admission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdmissionOutcome {
    /// The target is applied on the cluster.
    Applied,
    /// A newer target was admitted first.
    Superseded,
    /// The target failed; the reason is never empty.
    Failed,
    /// The cluster left the group before the target was done.
    Left,
}

stored_as_text!(AdmissionOutcome {
    Applied => "applied",
    Superseded => "superseded",
    Failed => "failed",
    Left => "left",
});

/// The key of an admission: one target of one entry on one cluster in one rollout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdmissionKey {
    /// Identity of the SyncGroup (`status.identity.id`).
    pub group_id: GroupId,
    /// The rollout that admitted the target.
    pub rollout: RolloutNumber,
    /// Name of the entry.
    pub entry: EntryName,
    /// Name of the Cluster.
    pub cluster: ClusterName,
    /// Digest of the target.
    pub target: TargetDigest,
}

/// An entry of a group on a cluster: it has at most one open admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOnCluster<'a> {
    /// Identity of the SyncGroup (`status.identity.id`).
    pub group_id: &'a GroupId,
    /// Name of the entry.
    pub entry: &'a EntryName,
    /// Name of the Cluster.
    pub cluster: &'a ClusterName,
}

/// A target that may be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The key.
    pub key: AdmissionKey,
    /// Namespace of the admitted Sync.
    pub sync_namespace: String,
    /// Name of the admitted Sync.
    pub sync_name: SyncName,
    /// The revision, as in the Sync's spec.
    pub revision: String,
    /// When it was admitted; kept to the microsecond.
    pub admitted_at: Timestamp,
}

/// A stored admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRecord {
    /// The admission as recorded.
    pub admission: Admission,
    /// Its end; none while it is in flight.
    pub end: Option<AdmissionEnd>,
    /// The reason, for users; may be empty.
    pub reason: String,
}

/// The end of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionEnd {
    /// How it ended.
    pub outcome: AdmissionOutcome,
    /// When it ended; kept to the microsecond.
    pub ended_at: Timestamp,
}

/// The columns of an admission in the statement that records it.
#[derive(Serialize)]
struct Columns<'a> {
    group_id: &'a str,
    /// The column is a text.
    rollout: String,
    entry: &'a str,
    cluster: &'a str,
    target: &'a str,
    sync_namespace: &'a str,
    sync_name: &'a str,
    revision: &'a str,
    admitted_at: i64,
}

impl Ledger {
    /// Records that targets are admitted; must be called before the Syncs are written. The last recorded admission is
    /// the newest, whatever its time, and ends every open older admission of its entry and cluster as superseded.
    ///
    /// Repeating a record changes nothing. A target that is in flight has the time of its last record. A target is in
    /// flight again if it is admitted again in the same rollout at another time, and had failed, or its cluster had
    /// left, or another target of this rollout was admitted in between. It is then the newest.
    ///
    /// # Errors
    /// If the admissions were not recorded; then none is recorded, and no Sync may be written.
    pub async fn record_admissions(&self, admissions: &[Admission]) -> Result<(), LedgerError> {
        let Some(first) = admissions.first() else {
            return Ok(());
        };
        let subject = format!(
            "record {} admissions of rollout {} of group {}",
            admissions.len(),
            first.key.rollout,
            first.key.group_id
        );
        let rows = encode_admissions(admissions)?;
        self.write(subject, move |connection| {
            Box::pin(async move {
                reopen(connection, &rows).await?;
                insert(connection, &rows).await?;
                supersede(connection, &rows).await
            })
        })
        .await
    }

    /// Records how an admission ended. Only the first end counts, because the row may have been superseded meanwhile;
    /// returns whether this end was recorded. The first 512 bytes of the reason are kept.
    ///
    /// # Errors
    /// If the end was not recorded, or a failure comes without a reason.
    pub async fn settle_admission(
        &self,
        key: &AdmissionKey,
        outcome: AdmissionOutcome,
        reason: &str,
        ended_at: Timestamp,
    ) -> Result<bool, LedgerError> {
        let key = key.clone();
        let reason = clip(reason).to_owned();
        let subject = format!("settle the admission of {} on {}", key.entry, key.cluster);
        self.write(subject, move |connection| {
            Box::pin(async move { settle(connection, &key, outcome, &reason, ended_at).await })
        })
        .await
    }

    /// Records that a cluster left, or that an entry was removed from it: ends the open admission of the entry on the
    /// cluster, whatever its target, also one whose Sync was never written. Returns whether there was one.
    ///
    /// # Errors
    /// If the end was not recorded.
    pub async fn leave(&self, place: EntryOnCluster<'_>, ended_at: Timestamp) -> Result<bool, LedgerError> {
        let EntryOnCluster {
            group_id,
            entry,
            cluster,
        } = place;
        let subject = format!("end the admission of {entry} on {cluster}, which left");
        let slot = [group_id.as_str(), entry, cluster].map(str::to_owned);
        self.write(subject, move |connection| {
            Box::pin(async move {
                let [group_id, entry, cluster] = slot;
                let done = sqlx::query(
                    "UPDATE admissions SET outcome = ?4, ended_at = ?5
                     WHERE group_id = ?1 AND entry = ?2 AND cluster = ?3 AND outcome IS NULL",
                )
                .bind(group_id)
                .bind(entry.as_str())
                .bind(cluster.as_str())
                .bind(AdmissionOutcome::Left)
                .bind(Micros(ended_at))
                .execute(connection)
                .await?;
                Ok(done.rows_affected() > 0)
            })
        })
        .await
    }

    /// Returns the open admissions of a group, the oldest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn open_admissions(&self, group_id: &GroupId) -> Result<Vec<Admission>, LedgerError> {
        let rows = sqlx::query(
            "SELECT group_id, rollout, entry, cluster, target, sync_namespace, sync_name, revision, admitted_at,
                    outcome, ended_at, reason
             FROM admissions WHERE group_id = ?1 AND outcome IS NULL ORDER BY seq",
        )
        .bind(group_id.as_str())
        .try_map(|row| read(&row))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("open admissions of group {group_id}"), source))?;
        Ok(rows.into_iter().map(|record| record.admission).collect())
    }

    /// Every admission of a rollout, the oldest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn admissions(
        &self,
        group_id: &GroupId,
        rollout: RolloutNumber,
    ) -> Result<Vec<AdmissionRecord>, LedgerError> {
        sqlx::query(
            "SELECT group_id, rollout, entry, cluster, target, sync_namespace, sync_name, revision, admitted_at,
                    outcome, ended_at, reason
             FROM admissions WHERE group_id = ?1 AND rollout = ?2 ORDER BY seq",
        )
        .bind(group_id.as_str())
        .bind(rollout.to_string())
        .try_map(|row| read(&row))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("admissions of rollout {rollout}"), source))
    }
}

fn encode_admissions(admissions: &[Admission]) -> Result<String, LedgerError> {
    let rows: Vec<_> = admissions
        .iter()
        .map(
            |Admission {
                 key:
                     AdmissionKey {
                         group_id,
                         rollout,
                         entry,
                         cluster,
                         target,
                     },
                 sync_namespace,
                 sync_name,
                 revision,
                 admitted_at,
             }| Columns {
                group_id: group_id.as_str(),
                rollout: rollout.to_string(),
                entry,
                cluster,
                target,
                sync_namespace,
                sync_name,
                revision,
                admitted_at: admitted_at.as_microsecond(),
            },
        )
        .collect();
    encode("admissions", &rows)
}

/// Deletes the ended rows of targets that are admitted again, so that their new rows are the newest. A repetition has
/// the same time. A target that was applied and is still the newest stays done. An older rollout reopens nothing.
async fn reopen(connection: &mut SqliteConnection, rows: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM admissions WHERE seq IN (
             SELECT old.seq FROM json_each(?1) AS new JOIN admissions AS old
                 ON old.group_id = new.value ->> 'group_id' AND old.rollout = new.value ->> 'rollout'
                AND old.entry = new.value ->> 'entry' AND old.cluster = new.value ->> 'cluster'
                AND old.target = new.value ->> 'target'
             WHERE old.outcome IS NOT NULL AND old.admitted_at <> new.value ->> 'admitted_at'
               AND (old.outcome IN ('failed', 'left') OR EXISTS (
                 SELECT 1 FROM admissions AS newer
                 WHERE newer.group_id = old.group_id AND newer.entry = old.entry
                   AND newer.cluster = old.cluster AND newer.seq > old.seq))
               AND NOT EXISTS (
                 SELECT 1 FROM admissions AS newer
                 WHERE newer.group_id = old.group_id AND newer.entry = old.entry
                   AND newer.cluster = old.cluster AND newer.seq > old.seq
                   AND newer.rollout <> old.rollout))",
    )
    .bind(rows)
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds new rows, in the given order. The row of a target that is in flight gets the new time.
async fn insert(connection: &mut SqliteConnection, rows: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO admissions (group_id, rollout, entry, cluster, target,
                                 sync_namespace, sync_name, revision, admitted_at)
         SELECT value ->> 'group_id', value ->> 'rollout', value ->> 'entry', value ->> 'cluster',
                value ->> 'target', value ->> 'sync_namespace', value ->> 'sync_name',
                value ->> 'revision', value ->> 'admitted_at'
         FROM json_each(?1) WHERE true ORDER BY key
         ON CONFLICT (group_id, rollout, entry, cluster, target) DO UPDATE SET admitted_at = excluded.admitted_at
         WHERE outcome IS NULL",
    )
    .bind(rows)
    .execute(connection)
    .await?;
    Ok(())
}

/// Ends every open row that is not the newest of its entry and cluster.
async fn supersede(connection: &mut SqliteConnection, rows: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE admissions SET outcome = 'superseded', ended_at = newer.admitted_at,
                reason = 'target ' || newer.target || ' of rollout ' || newer.rollout || ' was admitted'
         FROM admissions AS newer
         WHERE admissions.outcome IS NULL
           AND admissions.group_id IN (SELECT value ->> 'group_id' FROM json_each(?1))
           AND newer.seq = (
             SELECT max(last.seq) FROM admissions AS last
             WHERE last.group_id = admissions.group_id AND last.entry = admissions.entry
               AND last.cluster = admissions.cluster)
           AND newer.seq > admissions.seq",
    )
    .bind(rows)
    .execute(connection)
    .await?;
    Ok(())
}

async fn settle(
    connection: &mut SqliteConnection,
    key: &AdmissionKey,
    outcome: AdmissionOutcome,
    reason: &str,
    ended_at: Timestamp,
) -> Result<bool, sqlx::Error> {
    let AdmissionKey {
        group_id,
        rollout,
        entry,
        cluster,
        target,
    } = key;
    let done = sqlx::query(
        "UPDATE admissions SET outcome = ?6, reason = ?7, ended_at = ?8
         WHERE group_id = ?1 AND rollout = ?2 AND entry = ?3 AND cluster = ?4 AND target = ?5
           AND outcome IS NULL",
    )
    .bind(group_id.as_str())
    .bind(rollout.to_string())
    .bind(entry.as_str())
    .bind(cluster.as_str())
    .bind(target.as_str())
    .bind(outcome)
    .bind(reason)
    .bind(Micros(ended_at))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

fn read(row: &SqliteRow) -> Result<AdmissionRecord, sqlx::Error> {
    let key = AdmissionKey {
        group_id: id(row, 0)?,
        rollout: rollout_number(row, 1)?,
        entry: id(row, 2)?,
        cluster: id(row, 3)?,
        target: id(row, 4)?,
    };
    let admission = Admission {
        key,
        sync_namespace: row.try_get(5)?,
        sync_name: id(row, 6)?,
        revision: row.try_get(7)?,
        admitted_at: row.try_get::<Micros, _>(8)?.0,
    };
    let outcome: Option<AdmissionOutcome> = row.try_get(9)?;
    let ended_at: Option<Micros> = row.try_get(10)?;
    Ok(AdmissionRecord {
        admission,
        end: outcome
            .zip(ended_at)
            .map(|(outcome, Micros(ended_at))| AdmissionEnd { outcome, ended_at }),
        reason: row.try_get(11)?,
    })
}
