//! The time of the next reconcile of each object, so that a restart neither skips nor hurries a reconcile.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::column::{Micros, encode};
use super::{Ledger, LedgerError};

/// What errors name.
const SUBJECT: &str = "the queue";

/// An object of the management cluster that waits for a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct QueueKey {
    /// Kind, such as `Sync`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// An object and the time of its next reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The object.
    pub key: QueueKey,
    /// Not before this time; kept to the microsecond.
    pub at: Timestamp,
}

impl Ledger {
    /// Sets when objects are due, and replaces earlier times. Of two entries for one object, the later one wins.
    ///
    /// # Errors
    /// If the times were not recorded; then none is recorded.
    pub async fn save_due(&self, entries: &[Due]) -> Result<(), LedgerError> {
        if entries.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = entries
            .iter()
            .map(|Due { key, at }| (&key.kind, &key.namespace, &key.name, at.as_microsecond()))
            .collect();
        let rows = encode(SUBJECT, &rows)?;
        self.write(
            format!("queue {}", named(entries.iter().map(|due| &due.key))),
            move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO queue (kind, namespace, name, due_at)
                     SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1) WHERE true
                     ON CONFLICT (kind, namespace, name) DO UPDATE SET due_at = excluded.due_at",
                    )
                    .bind(rows)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            },
        )
        .await
    }

    /// Removes objects; unknown ones are ignored.
    ///
    /// # Errors
    /// If the removal was not recorded; then none is removed.
    pub async fn remove_due(&self, keys: &[QueueKey]) -> Result<(), LedgerError> {
        if keys.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = keys
            .iter()
            .map(|key| (&key.kind, &key.namespace, &key.name))
            .collect();
        let rows = encode(SUBJECT, &rows)?;
        self.write(
            format!("remove {} from the queue", named(keys.iter())),
            move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "DELETE FROM queue WHERE (kind, namespace, name) IN
                     (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1))",
                    )
                    .bind(rows)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            },
        )
        .await
    }

    /// Returns all waiting objects, the most urgent first.
    ///
    /// # Errors
    /// If the query failed. At start-up, the caller then reconciles all objects, as with a new ledger.
    pub async fn load_queue(&self) -> Result<Vec<Due>, LedgerError> {
        sqlx::query("SELECT kind, namespace, name, due_at FROM queue ORDER BY due_at, kind, namespace, name")
            .try_map(|row: SqliteRow| {
                let key = QueueKey {
                    kind: row.try_get(0)?,
                    namespace: row.try_get(1)?,
                    name: row.try_get(2)?,
                };
                Ok(Due {
                    key,
                    at: row.try_get::<Micros, _>(3)?.0,
                })
            })
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.unread("the queue".to_owned(), source))
    }
}

/// Returns the first object and the number of others.
fn named<'a>(mut keys: impl ExactSizeIterator<Item = &'a QueueKey>) -> String {
    let others = keys.len().saturating_sub(1);
    match keys.next() {
        Some(key) if others > 0 => format!("{key} and {others} others"),
        Some(key) => key.to_string(),
        None => "nothing".to_owned(),
    }
}
