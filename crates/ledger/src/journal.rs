//! The journal of rollouts: appended to, read, and truncated at its old end. [`starling_core::journal`] defines the
//! content of an entry, and verifies the chain.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteExecutor, SqliteRow};
use starling_core::ids::{GroupId, RolloutNumber};
use starling_core::journal::{Chain, ChainEnd, JournalEntry, hash};

use super::column::Micros;
use super::{Ledger, LedgerError};

/// How many rollouts of a group are kept: as many as in the table of rollouts.
const KEPT: i64 = 20;

/// Maximum bytes of all entries together. A rollout over 5,000 clusters writes about 15 MB, so this is a dozen of
/// those, or thousands of small ones, and a fraction of the smallest usual volume.
const MAX_BYTES: i64 = 256 << 20;

/// A new entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// Identity of the SyncGroup (`status.identity.id`).
    pub group_id: GroupId,
    /// Namespace of the SyncGroup.
    pub namespace: String,
    /// Name of the SyncGroup.
    pub name: String,
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// When the plan was made; kept to the microsecond.
    pub at: Timestamp,
    /// The content: a [`Body`](starling_core::journal::Body) in JSON.
    pub body: String,
    /// Whether the entry can be read without earlier ones.
    pub is_whole: bool,
}

/// The journal of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupJournal {
    /// Identity of the SyncGroup. A group that was recreated with the same name has another one.
    pub group_id: GroupId,
    /// Both ends of the chain.
    pub chain: Chain,
    /// The entries, the oldest first.
    pub entries: Vec<JournalEntry>,
}

impl Ledger {
    /// Appends an entry to the chain of its group. The entries of the newest 20 rollouts of each group are kept, and at
    /// most 256 MiB of all groups together. Always whole rollouts are removed, the oldest first. A repetition appends
    /// the same entry again, which adds no information.
    ///
    /// # Errors
    /// If the entry was not recorded.
    pub async fn append_journal(&self, entry: &NewEntry) -> Result<(), LedgerError> {
        let entry = entry.clone();
        let subject = format!(
            "write the journal of rollout {} of {}/{}",
            entry.rollout, entry.namespace, entry.name
        );
        self.write(subject, move |connection| {
            Box::pin(async move {
                let is_new = append(connection, &entry).await?;
                if is_new {
                    cut_group(connection, &entry.group_id).await?;
                }
                if is_new || entry.is_whole {
                    cut_all(connection, MAX_BYTES).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Returns the entries of a group, starting with its newest whole entry.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn journal_tail(&self, group_id: &GroupId) -> Result<Vec<JournalEntry>, LedgerError> {
        let sql = "SELECT group_id, seq, namespace, name, rollout, at, entry, hash FROM journal
             WHERE group_id = ?1 AND seq >= (SELECT whole_seq FROM journal_rollouts WHERE group_id = ?1
             ORDER BY first_seq DESC LIMIT 1) ORDER BY seq";
        sqlx::query(sql)
            .bind(group_id.as_str())
            .try_map(|row| read(&row))
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.unread(format!("journal of group {group_id}"), source))
    }
}

/// Returns the journals of all groups that have or had a name, the newest group last.
pub(super) async fn journals(
    connection: &mut SqliteConnection,
    namespace: &str,
    name: &str,
) -> Result<Vec<GroupJournal>, sqlx::Error> {
    let sql = "SELECT group_id, cut_seq, cut_hash, last_seq, last_hash FROM journal_chains AS chain
         WHERE namespace = ?1 AND name = ?2
         ORDER BY (SELECT max(last_id) FROM journal_rollouts WHERE group_id = chain.group_id)";
    let found = sqlx::query(sql)
        .bind(namespace)
        .bind(name)
        .try_map(|row| Ok((group_id(&row)?, ends(&row, 1)?)))
        .fetch_all(&mut *connection)
        .await?;
    let mut journals = Vec::with_capacity(found.len());
    for (group_id, chain) in found {
        let entries = entries(&mut *connection, &group_id).await?;
        journals.push(GroupJournal {
            group_id,
            chain,
            entries,
        });
    }
    Ok(journals)
}

async fn entries(
    executor: impl SqliteExecutor<'_>,
    group_id: &GroupId,
) -> Result<Vec<JournalEntry>, sqlx::Error> {
    let sql = "SELECT group_id, seq, namespace, name, rollout, at, entry, hash FROM journal
         WHERE group_id = ?1 ORDER BY seq";
    sqlx::query(sql)
        .bind(group_id.as_str())
        .try_map(|row| read(&row))
        .fetch_all(executor)
        .await
}

fn group_id(row: &SqliteRow) -> Result<GroupId, sqlx::Error> {
    Ok(GroupId::new(row.try_get::<String, _>(0)?))
}

fn read(row: &SqliteRow) -> Result<JournalEntry, sqlx::Error> {
    Ok(JournalEntry {
        group_id: group_id(row)?,
        seq: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
        rollout: RolloutNumber::new(row.try_get(4)?),
        at: row.try_get::<Micros, _>(5)?.0,
        body: row.try_get(6)?,
        hash: row.try_get(7)?,
    })
}

fn ends(row: &SqliteRow, first: usize) -> Result<Chain, sqlx::Error> {
    Ok(Chain {
        cut: ChainEnd {
            seq: row.try_get(first)?,
            hash: row.try_get(first + 1)?,
        },
        newest: ChainEnd {
            seq: row.try_get(first + 2)?,
            hash: row.try_get(first + 3)?,
        },
    })
}

/// Appends an entry, and returns whether it is the first one of a rollout.
async fn append(connection: &mut SqliteConnection, new: &NewEntry) -> Result<bool, sqlx::Error> {
    let known =
        sqlx::query("SELECT cut_seq, cut_hash, last_seq, last_hash FROM journal_chains WHERE group_id = ?1")
            .bind(new.group_id.as_str())
            .try_map(|row| ends(&row, 0))
            .fetch_optional(&mut *connection)
            .await?;
    let newest = known.map_or_else(ChainEnd::beginning, |chain| chain.newest);
    let mut entry = JournalEntry {
        group_id: new.group_id.clone(),
        namespace: new.namespace.clone(),
        name: new.name.clone(),
        rollout: new.rollout,
        seq: newest.seq + 1,
        at: new.at,
        body: new.body.clone(),
        hash: String::new(),
    };
    entry.hash = hash(&newest.hash, &entry);
    let id = insert(connection, &entry).await?;
    sqlx::query(
        "INSERT INTO journal_chains (group_id, namespace, name, cut_seq, cut_hash, last_seq, last_hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (group_id) DO UPDATE
         SET last_seq = excluded.last_seq, last_hash = excluded.last_hash",
    )
    .bind(entry.group_id.as_str())
    .bind(&entry.namespace)
    .bind(&entry.name)
    .bind(newest.seq)
    .bind(&newest.hash)
    .bind(entry.seq)
    .bind(&entry.hash)
    .execute(&mut *connection)
    .await?;
    count(connection, &entry, new.is_whole, id).await
}

async fn insert(connection: &mut SqliteConnection, entry: &JournalEntry) -> Result<i64, sqlx::Error> {
    let done = sqlx::query(
        "INSERT INTO journal (group_id, seq, namespace, name, rollout, at, entry, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )
    .bind(entry.group_id.as_str())
    .bind(entry.seq)
    .bind(&entry.namespace)
    .bind(&entry.name)
    .bind(entry.rollout.get())
    .bind(Micros(entry.at))
    .bind(&entry.body)
    .bind(&entry.hash)
    .execute(connection)
    .await?;
    Ok(done.last_insert_rowid())
}

/// Adds an entry to its run: to the newest run of its group, if that has the same rollout number. After a restore of
/// the management cluster from a backup, numbers of rollouts may occur again.
async fn count(
    connection: &mut SqliteConnection,
    entry: &JournalEntry,
    is_whole: bool,
    id: i64,
) -> Result<bool, sqlx::Error> {
    let bytes = i64::try_from(entry.body.len()).unwrap_or(i64::MAX);
    let done = sqlx::query(
        "UPDATE journal_rollouts SET last_seq = ?3, last_id = ?4, bytes = bytes + ?5,
             whole_seq = iif(?6, ?3, whole_seq)
         WHERE group_id = ?1 AND rollout = ?2 AND last_seq = ?3 - 1",
    )
    .bind(entry.group_id.as_str())
    .bind(entry.rollout.get())
    .bind(entry.seq)
    .bind(id)
    .bind(bytes)
    .bind(is_whole)
    .execute(&mut *connection)
    .await?;
    if done.rows_affected() > 0 {
        return Ok(false);
    }
    sqlx::query(
        "INSERT INTO journal_rollouts (group_id, first_seq, rollout, last_seq, last_id, whole_seq, bytes)
         VALUES (?1, ?2, ?3, ?2, ?4, ?2, ?5)",
    )
    .bind(entry.group_id.as_str())
    .bind(entry.seq)
    .bind(entry.rollout.get())
    .bind(id)
    .bind(bytes)
    .execute(connection)
    .await?;
    Ok(true)
}

/// Removes all but the newest rollouts of a group.
async fn cut_group(connection: &mut SqliteConnection, group_id: &GroupId) -> Result<(), sqlx::Error> {
    let last: Option<i64> = sqlx::query_scalar(
        "SELECT last_seq FROM journal_rollouts WHERE group_id = ?1 ORDER BY first_seq DESC LIMIT 1 OFFSET ?2",
    )
    .bind(group_id.as_str())
    .bind(KEPT)
    .fetch_optional(&mut *connection)
    .await?;
    match last {
        Some(last) => cut(connection, group_id, last).await,
        None => Ok(()),
    }
}

/// Removes rollouts, the oldest first and the newest of each group last, until the rest has at most `bound` bytes. The
/// rollout that was written last is always kept.
async fn cut_all(connection: &mut SqliteConnection, bound: i64) -> Result<(), sqlx::Error> {
    let mut bytes: i64 = sqlx::query_scalar("SELECT coalesce(sum(bytes), 0) FROM journal_rollouts")
        .fetch_one(&mut *connection)
        .await?;
    while bytes > bound {
        let oldest: Option<(String, i64, i64)> = sqlx::query_as(
            "SELECT group_id, last_seq, bytes FROM journal_rollouts AS run
             WHERE last_id < (SELECT max(last_id) FROM journal_rollouts)
             ORDER BY first_seq = (SELECT max(first_seq) FROM journal_rollouts WHERE group_id = run.group_id), last_id
             LIMIT 1",
        )
        .fetch_optional(&mut *connection)
        .await?;
        let Some((group_id, last, weight)) = oldest else {
            break;
        };
        cut(connection, &GroupId::new(group_id), last).await?;
        bytes -= weight;
    }
    Ok(())
}

/// Removes the entries of a group up to a given one, and stores the hash with which the chain continues.
async fn cut(connection: &mut SqliteConnection, group_id: &GroupId, last: i64) -> Result<(), sqlx::Error> {
    for sql in [
        "UPDATE journal_chains SET cut_seq = ?2,
             cut_hash = (SELECT hash FROM journal WHERE group_id = ?1 AND seq = ?2) WHERE group_id = ?1",
        "DELETE FROM journal WHERE group_id = ?1 AND seq <= ?2",
        "DELETE FROM journal_rollouts WHERE group_id = ?1 AND last_seq <= ?2",
    ] {
        sqlx::query(sql)
            .bind(group_id.as_str())
            .bind(last)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use starling_core::journal::check_chain;

    use super::*;

    fn entry(group: &str, rollout: i64) -> NewEntry {
        NewEntry {
            group_id: group.into(),
            namespace: "shop".into(),
            name: group.into(),
            rollout: RolloutNumber::new(rollout),
            at: Timestamp::UNIX_EPOCH,
            body: format!("{{\"pad\": \"{}\"}}", "x".repeat(88)),
            is_whole: true,
        }
    }

    /// Returns the remaining rollouts of each group after a cut to a bound, and verifies the chains.
    async fn remaining(written: &[(&str, i64)], bound: i64) -> Vec<(String, Vec<i64>)> {
        let directory = tempfile::TempDir::new().unwrap();
        let (ledger, _) = Ledger::open(directory.path()).await.unwrap();
        for (group, rollout) in written {
            ledger.append_journal(&entry(group, *rollout)).await.unwrap();
        }
        let cut = ledger.write("cut".to_owned(), move |connection| {
            Box::pin(cut_all(connection, bound))
        });
        cut.await.unwrap();
        let mut remaining = Vec::new();
        for group in ["a", "b", "c"] {
            let found = ledger.write("read".to_owned(), move |connection| {
                Box::pin(async move { journals(connection, "shop", group).await })
            });
            for journal in found.await.unwrap() {
                assert_eq!(check_chain(&journal.chain, &journal.entries), []);
                let rollouts = journal.entries.iter().map(|entry| entry.rollout.get()).collect();
                remaining.push((group.to_owned(), rollouts));
            }
        }
        remaining
    }

    #[tokio::test]
    async fn the_oldest_complete_rollouts_are_removed_first_and_the_newest_of_each_group_last() {
        // A hundred bytes each.
        let written = [
            ("a", 1),
            ("b", 1),
            ("a", 2),
            ("c", 7),
            ("a", 2),
            ("b", 2),
            ("b", 2),
        ];
        let weight = i64::try_from(entry("a", 1).body.len()).unwrap();
        for (kept, expected) in [
            (7, [&[1, 2, 2][..], &[1, 2, 2], &[7]]),
            (6, [&[2, 2], &[1, 2, 2], &[7]]),
            (5, [&[2, 2], &[2, 2], &[7]]),
            // Then the rollout with the oldest write, although it is the newest of its group.
            (4, [&[2, 2], &[2, 2], &[]]),
            (3, [&[], &[2, 2], &[]]),
            (0, [&[], &[2, 2], &[]]),
        ] {
            let found: Vec<Vec<i64>> = remaining(&written, kept * weight)
                .await
                .into_iter()
                .map(|(_, rollouts)| rollouts)
                .collect();
            assert_eq!(found, expected, "{kept}");
        }
    }
}
