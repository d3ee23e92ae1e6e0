//! Rollouts of groups: which release was rolled when, and how it ended.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteExecutor, SqliteRow};

use super::column::{Micros, stored_as_word};
use super::{Ledger, LedgerError};

/// How many rollouts of a group are kept: about a working week of a busy repository, and a bound on the disk.
pub const ROLLOUTS_KEPT: i64 = 20;

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RolloutOutcome {
    /// Every cluster has the release.
    Succeeded,
    /// A newer release took its place.
    Superseded,
    /// Too many clusters failed.
    Failed,
    /// It was called off: the group was deleted, suspended for good, or lost its clusters.
    Abandoned,
}

stored_as_word!(RolloutOutcome {
    Succeeded => "succeeded",
    Superseded => "superseded",
    Failed => "failed",
    Abandoned => "abandoned",
});

/// A rollout as it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// `metadata.uid` of the SyncGroup.
    pub group_uid: String,
    /// Rollout ID; unique within the group.
    pub id: String,
    /// Namespace of the SyncGroup.
    pub namespace: String,
    /// Name of the SyncGroup.
    pub name: String,
    /// Digest of the release.
    pub release: String,
    /// Entry to revision.
    pub revisions: BTreeMap<String, String>,
    /// When it began; kept to the microsecond.
    pub started_at: Timestamp,
}

/// A rollout as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutRecord {
    /// How it began.
    pub rollout: Rollout,
    /// How and when it ended; none while it rolls.
    pub end: Option<(RolloutOutcome, Timestamp)>,
}

impl Ledger {
    /// Records that a rollout begins. Repeating it changes nothing, also if the rollout has ended since. An open one
    /// with the same ID and another release was an intent that never reached the group's status; the new one takes its
    /// place. Returns whether anything changed. Of rollouts that ended, a group keeps the newest 20, with their
    /// admissions.
    ///
    /// # Errors
    /// If the rollout was not recorded.
    pub async fn begin_rollout(&self, rollout: &Rollout) -> Result<bool, LedgerError> {
        let rollout = rollout.clone();
        let revisions = serde_json::to_string(&rollout.revisions).map_err(|source| LedgerError::Encode {
            subject: "revisions of a rollout",
            source,
        })?;
        let subject = format!(
            "begin rollout {} of {}/{}",
            rollout.id, rollout.namespace, rollout.name
        );
        self.write(subject, move |connection| {
            Box::pin(async move {
                let new = insert(connection, &rollout, &revisions).await?;
                if new {
                    prune(connection, &rollout.group_uid).await?;
                }
                Ok(new)
            })
        })
        .await
    }

    /// Records how a rollout ended. Only the first end counts; returns whether this was it.
    ///
    /// # Errors
    /// If the end was not recorded.
    pub async fn end_rollout(
        &self,
        group_uid: &str,
        id: &str,
        outcome: RolloutOutcome,
        ended_at: Timestamp,
    ) -> Result<bool, LedgerError> {
        let subject = format!("end rollout {id} of group {group_uid}");
        let (group_uid, id) = (group_uid.to_owned(), id.to_owned());
        self.write(subject, move |connection| {
            Box::pin(async move {
                let done = sqlx::query(
                    "UPDATE rollouts SET outcome = ?3, ended_at = ?4
                     WHERE group_uid = ?1 AND id = ?2 AND outcome IS NULL",
                )
                .bind(group_uid)
                .bind(id)
                .bind(outcome)
                .bind(Micros(ended_at))
                .execute(connection)
                .await?;
                Ok(done.rows_affected() > 0)
            })
        })
        .await
    }

    /// The rollouts of a group, the newest first.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn rollouts(&self, group_uid: &str) -> Result<Vec<RolloutRecord>, LedgerError> {
        of_group(&self.readers, group_uid)
            .await
            .map_err(|source| self.unread(format!("rollouts of group {group_uid}"), source))
    }

    /// Forgets a group that was deleted: its rollouts and admissions, also open ones.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn forget_group(&self, group_uid: &str) -> Result<(), LedgerError> {
        let subject = format!("forget group {group_uid}");
        let group_uid = group_uid.to_owned();
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM rollouts WHERE group_uid = ?1")
                    .bind(&group_uid)
                    .execute(&mut *connection)
                    .await?;
                sqlx::query("DELETE FROM admissions WHERE group_uid = ?1")
                    .bind(&group_uid)
                    .execute(&mut *connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }
}

/// The rollouts of a group, the newest first.
pub(super) async fn of_group(
    executor: impl SqliteExecutor<'_>,
    group_uid: &str,
) -> Result<Vec<RolloutRecord>, sqlx::Error> {
    sqlx::query(
        "SELECT group_uid, id, namespace, name, release, revisions, started_at, outcome, ended_at
         FROM rollouts WHERE group_uid = ?1 ORDER BY seq DESC",
    )
    .bind(group_uid)
    .try_map(|row| read(&row))
    .fetch_all(executor)
    .await
}

async fn insert(
    connection: &mut SqliteConnection,
    rollout: &Rollout,
    revisions: &str,
) -> Result<bool, sqlx::Error> {
    let Rollout {
        group_uid,
        id,
        namespace,
        name,
        release,
        revisions: _,
        started_at,
    } = rollout;
    let done = sqlx::query(
        "INSERT INTO rollouts (group_uid, id, namespace, name, release, revisions, started_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (group_uid, id) DO UPDATE
         SET release = excluded.release, revisions = excluded.revisions, started_at = excluded.started_at
         WHERE outcome IS NULL AND release <> excluded.release",
    )
    .bind(group_uid)
    .bind(id)
    .bind(namespace)
    .bind(name)
    .bind(release)
    .bind(revisions)
    .bind(Micros(*started_at))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Drops what is older than the newest rollouts. What has not ended stays: it must still end as something.
async fn prune(connection: &mut SqliteConnection, group_uid: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM rollouts WHERE group_uid = ?1 AND outcome IS NOT NULL AND seq <=
         (SELECT seq FROM rollouts WHERE group_uid = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(group_uid)
    .bind(ROLLOUTS_KEPT)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM admissions WHERE group_uid = ?1 AND outcome IS NOT NULL AND rollout NOT IN
         (SELECT id FROM rollouts WHERE group_uid = ?1)",
    )
    .bind(group_uid)
    .execute(&mut *connection)
    .await?;
    Ok(())
}

fn read(row: &SqliteRow) -> Result<RolloutRecord, sqlx::Error> {
    let revisions: String = row.try_get(5)?;
    let revisions =
        serde_json::from_str(&revisions).map_err(|source| sqlx::Error::Decode(Box::new(source)))?;
    let rollout = Rollout {
        group_uid: row.try_get(0)?,
        id: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
        release: row.try_get(4)?,
        revisions,
        started_at: row.try_get::<Micros, _>(6)?.0,
    };
    let outcome: Option<RolloutOutcome> = row.try_get(7)?;
    let ended_at: Option<Micros> = row.try_get(8)?;
    Ok(RolloutRecord {
        rollout,
        end: outcome.zip(ended_at.map(|at| at.0)),
    })
}
