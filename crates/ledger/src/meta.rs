//! Single values by key.

use jiff::Timestamp;

use super::{Ledger, LedgerError};

impl Ledger {
    /// Sets a value. Keys are constants of the code; `opened_at` and `checked_at` are the ledger's own.
    ///
    /// # Errors
    /// If the value was not recorded.
    pub async fn set_meta(&self, key: &str, value: &str) -> Result<(), LedgerError> {
        self.put_meta(format!("set meta {key}"), key, value).await
    }

    async fn put_meta(&self, subject: String, key: &str, value: &str) -> Result<(), LedgerError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO meta (key, value) VALUES (?1, ?2)
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                )
                .bind(key)
                .bind(value)
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Commits a small write, which shows whether the ledger accepts writes.
    ///
    /// # Errors
    /// If the write was not committed: the disk is full or read-only, or another process locks the ledger.
    pub async fn check_writable(&self) -> Result<(), LedgerError> {
        let now = Timestamp::now().to_string();
        self.put_meta("record a check".to_owned(), "checked_at", &now)
            .await
    }

    /// The value of a key; none if it was never set.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn meta(&self, key: &str) -> Result<Option<String>, LedgerError> {
        sqlx::query_scalar("SELECT value FROM meta WHERE key = ?1")
            .bind(key)
            .fetch_optional(&self.readers)
            .await
            .map_err(|source| self.unread(format!("meta {key}"), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SQLite returns the code of a read-only file system for a connection that is only for queries.
    #[tokio::test]
    async fn a_ledger_that_is_read_only_is_not_writable_until_it_is_again() {
        let directory = tempfile::TempDir::new().unwrap();
        let (ledger, _) = Ledger::open(directory.path()).await.unwrap();
        ledger.check_writable().await.unwrap();
        let read_only = ledger.write("make it read-only".to_owned(), |connection| {
            Box::pin(async move {
                sqlx::query("PRAGMA query_only = ON").execute(connection).await?;
                Ok(())
            })
        });
        read_only.await.unwrap();
        let error = ledger.check_writable().await.unwrap_err();
        assert!(matches!(error, LedgerError::Commit { .. }), "{error:?}");
        // The next write has another connection.
        ledger.check_writable().await.unwrap();
        assert!(ledger.meta("checked_at").await.unwrap().is_some());
    }
}
