//! Single values by key.

use super::{Ledger, LedgerError};

impl Ledger {
    /// Sets a value. Keys are constants of the code; `opened_at` is the ledger's own.
    ///
    /// # Errors
    /// If the value was not recorded.
    pub async fn set_meta(&self, key: &str, value: &str) -> Result<(), LedgerError> {
        let subject = format!("set meta {key}");
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
