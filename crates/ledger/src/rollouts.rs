//! Rollouts of groups: release, time and outcome.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteExecutor, SqliteRow};
use starling_core::ids::{GroupId, ReleaseDigest, RolloutNumber};

use super::admissions::AdmissionOutcome;
use super::column::{Micros, encode, id, rollout_number, stored_as_text};
use super::{Ledger, LedgerError};

/// How many rollouts of a group are kept: about a working week of a busy repository, and a limit on disk use.
pub const ROLLOUTS_KEPT: i64 = 20;

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RolloutOutcome {
    /// Every cluster has the release.
    Succeeded,
    /// A newer release replaced it.
    Superseded,
    /// Too many clusters failed.
    Failed,
    /// The rollout was abandoned: the group was deleted, suspended permanently, or lost its clusters.
    Abandoned,
}

stored_as_text!(RolloutOutcome {
    Succeeded => "succeeded",
    Superseded => "superseded",
    Failed => "failed",
    Abandoned => "abandoned",
});

/// A new rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Identity of the SyncGroup (`status.identity.id`).
    pub group_id: GroupId,
    /// Its number, which is unique within the group.
    pub id: RolloutNumber,
    /// Namespace of the SyncGroup.
    pub namespace: String,
    /// Name of the SyncGroup.
    pub name: String,
    /// Digest of the release.
    pub release: ReleaseDigest,
    /// Entry to revision.
    pub revisions: BTreeMap<String, String>,
    /// When it began; kept to the microsecond.
    pub started_at: Timestamp,
    /// How the previous rollout ends once this one is in the status of the group; `None` if there is no previous one.
    pub previous: Option<RolloutOutcome>,
}

/// A stored rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutRecord {
    /// The rollout as recorded.
    pub rollout: Rollout,
    /// Its end; none while it is in progress.
    pub end: Option<RolloutEnd>,
}

/// The end of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutEnd {
    /// How it ended.
    pub outcome: RolloutOutcome,
    /// When it ended; kept to the microsecond.
    pub ended_at: Timestamp,
}

impl Ledger {
    /// Records that a rollout begins. A repetition changes nothing, even if the rollout has ended since. An open
    /// rollout with the same ID and another release was an intent that never reached the status of the group; the new
    /// one replaces it. An ended rollout with the same ID that began earlier was lost with a restore of the management
    /// cluster; the new one replaces it, too. Returns whether anything changed. The newest 20 ended rollouts of a group
    /// are kept, with their admissions.
    ///
    /// # Errors
    /// If the rollout was not recorded.
    pub async fn begin_rollout(&self, rollout: &Rollout) -> Result<bool, LedgerError> {
        let rollout = rollout.clone();
        let revisions = encode("revisions of a rollout", &rollout.revisions)?;
        let subject = format!(
            "begin rollout {} of {}/{}",
            rollout.id, rollout.namespace, rollout.name
        );
        self.write(subject, move |connection| {
            Box::pin(async move {
                let new = insert(connection, &rollout, &revisions).await?;
                if new {
                    prune(connection, &rollout.group_id).await?;
                }
                Ok(new)
            })
        })
        .await
    }

    /// Records how a rollout ended. Only the first end counts; returns whether this end was recorded.
    ///
    /// # Errors
    /// If the end was not recorded.
    pub async fn end_rollout(
        &self,
        group_id: &GroupId,
        id: RolloutNumber,
        outcome: RolloutOutcome,
        ended_at: Timestamp,
    ) -> Result<bool, LedgerError> {
        let subject = format!("end rollout {id} of group {group_id}");
        let (group_id, id) = (group_id.as_str().to_owned(), id.to_string());
        self.write(subject, move |connection| {
            Box::pin(async move {
                let done = sqlx::query(
                    "UPDATE rollouts SET outcome = ?3, ended_at = ?4
                     WHERE group_id = ?1 AND id = ?2 AND outcome IS NULL",
                )
                .bind(group_id)
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
    pub async fn rollouts(&self, group_id: &GroupId) -> Result<Vec<RolloutRecord>, LedgerError> {
        of_group(&self.readers, group_id)
            .await
            .map_err(|source| self.unread(format!("rollouts of group {group_id}"), source))
    }

    /// Ends what is open of groups that no longer exist: rollouts as abandoned, admissions as left. Their history
    /// stays. `groups` has the identity of every group that exists.
    ///
    /// # Errors
    /// If the ends were not recorded.
    pub async fn abandon_others(
        &self,
        groups: &BTreeSet<GroupId>,
        ended_at: Timestamp,
    ) -> Result<(), LedgerError> {
        let groups = encode("identities of groups", groups)?;
        self.write("abandon deleted groups".into(), move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE rollouts SET outcome = ?2, ended_at = ?3
                     WHERE outcome IS NULL AND group_id NOT IN (SELECT value FROM json_each(?1))",
                )
                .bind(&groups)
                .bind(RolloutOutcome::Abandoned)
                .bind(Micros(ended_at))
                .execute(&mut *connection)
                .await?;
                sqlx::query(
                    "UPDATE admissions SET outcome = ?2, ended_at = ?3
                     WHERE outcome IS NULL AND group_id NOT IN (SELECT value FROM json_each(?1))",
                )
                .bind(&groups)
                .bind(AdmissionOutcome::Left)
                .bind(Micros(ended_at))
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
    group_id: &GroupId,
) -> Result<Vec<RolloutRecord>, sqlx::Error> {
    sqlx::query(
        "SELECT group_id, id, namespace, name, release, revisions, started_at, outcome, ended_at, previous
         FROM rollouts WHERE group_id = ?1 ORDER BY seq DESC",
    )
    .bind(group_id.as_str())
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
        group_id,
        id,
        namespace,
        name,
        release,
        revisions: _,
        started_at,
        previous,
    } = rollout;
    // The number of a rollout that has ended begins again after a restore of the management cluster. The lost rollout
    // goes as a whole, so that the new one is the newest.
    sqlx::query(
        "DELETE FROM rollouts WHERE group_id = ?1 AND id = ?2 AND outcome IS NOT NULL AND started_at < ?3",
    )
    .bind(group_id.as_str())
    .bind(id.to_string())
    .bind(Micros(*started_at))
    .execute(&mut *connection)
    .await?;
    let done = sqlx::query(
        "INSERT INTO rollouts (group_id, id, namespace, name, release, revisions, started_at, previous)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (group_id, id) DO UPDATE
         SET release = excluded.release, revisions = excluded.revisions, started_at = excluded.started_at,
             previous = excluded.previous
         WHERE outcome IS NULL AND (release <> excluded.release OR started_at <> excluded.started_at
                                   OR previous IS NOT excluded.previous)",
    )
    .bind(group_id.as_str())
    .bind(id.to_string())
    .bind(namespace)
    .bind(name)
    .bind(release.as_str())
    .bind(revisions)
    .bind(Micros(*started_at))
    .bind(*previous)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Deletes all but the newest rollouts. Rollouts that have not ended are kept until they end.
async fn prune(connection: &mut SqliteConnection, group_id: &GroupId) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM rollouts WHERE group_id = ?1 AND outcome IS NOT NULL AND seq <=
         (SELECT seq FROM rollouts WHERE group_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(group_id.as_str())
    .bind(ROLLOUTS_KEPT)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM admissions WHERE group_id = ?1 AND outcome IS NOT NULL AND rollout NOT IN
         (SELECT id FROM rollouts WHERE group_id = ?1)",
    )
    .bind(group_id.as_str())
    .execute(&mut *connection)
    .await?;
    Ok(())
}

fn read(row: &SqliteRow) -> Result<RolloutRecord, sqlx::Error> {
    let revisions: String = row.try_get(5)?;
    let revisions =
        serde_json::from_str(&revisions).map_err(|source| sqlx::Error::Decode(Box::new(source)))?;
    let rollout = Rollout {
        group_id: id(row, 0)?,
        id: rollout_number(row, 1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
        release: id(row, 4)?,
        revisions,
        started_at: row.try_get::<Micros, _>(6)?.0,
        previous: row.try_get(9)?,
    };
    let outcome: Option<RolloutOutcome> = row.try_get(7)?;
    let ended_at: Option<Micros> = row.try_get(8)?;
    Ok(RolloutRecord {
        rollout,
        end: outcome
            .zip(ended_at)
            .map(|(outcome, Micros(ended_at))| RolloutEnd { outcome, ended_at }),
    })
}
