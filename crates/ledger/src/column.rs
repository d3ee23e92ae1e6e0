//! The column types: times as microseconds, outcomes as text, and truncated texts.

use jiff::Timestamp;
use serde::Serialize;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteRow, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Row, Sqlite, Type};
use starling_core::ids::RolloutNumber;

use super::LedgerError;

/// Encodes rows as one JSON text: one statement for any number of them, which stays prepared.
///
/// # Errors
/// [`LedgerError::Encode`], with what the rows are.
pub(super) fn encode(subject: &'static str, rows: &(impl Serialize + ?Sized)) -> Result<String, LedgerError> {
    serde_json::to_string(rows).map_err(|source| LedgerError::Encode { subject, source })
}

/// A time as the ledger stores it: whole microseconds since 1970 UTC. An integer sorts without parsing and is the same
/// on every platform; finer fractions are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Micros(pub(super) Timestamp);

impl Type<Sqlite> for Micros {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(ty)
    }
}

impl Encode<'_, Sqlite> for Micros {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(self.0.as_microsecond(), buffer)
    }
}

impl Decode<'_, Sqlite> for Micros {
    fn decode(value: SqliteValueRef<'_>) -> Result<Self, BoxDynError> {
        let micros = <i64 as Decode<Sqlite>>::decode(value)?;
        Ok(Self(Timestamp::from_microsecond(micros)?))
    }
}

/// Stores an enum as one text for each variant. A column with another text is a read error.
///
/// Not derived: for sqlx's derive, cargo builds SQLite and most of sqlx a second time.
macro_rules! stored_as_text {
    ($enum:ty { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl ::sqlx::Type<::sqlx::Sqlite> for $enum {
            fn type_info() -> ::sqlx::sqlite::SqliteTypeInfo {
                <str as ::sqlx::Type<::sqlx::Sqlite>>::type_info()
            }

            fn compatible(ty: &::sqlx::sqlite::SqliteTypeInfo) -> bool {
                <str as ::sqlx::Type<::sqlx::Sqlite>>::compatible(ty)
            }
        }

        impl ::sqlx::Encode<'_, ::sqlx::Sqlite> for $enum {
            fn encode_by_ref(
                &self,
                buffer: &mut ::sqlx::sqlite::SqliteArgumentsBuffer,
            ) -> Result<::sqlx::encode::IsNull, ::sqlx::error::BoxDynError> {
                let text: &'static str = match self {
                    $(Self::$variant => $text,)+
                };
                ::sqlx::Encode::<::sqlx::Sqlite>::encode(text, buffer)
            }
        }

        impl ::sqlx::Decode<'_, ::sqlx::Sqlite> for $enum {
            fn decode(value: ::sqlx::sqlite::SqliteValueRef<'_>) -> Result<Self, ::sqlx::error::BoxDynError> {
                match <&str as ::sqlx::Decode<::sqlx::Sqlite>>::decode(value)? {
                    $($text => Ok(Self::$variant),)+
                    other => Err(format!("`{other}` is none of {:?}", [$($text),+]).into()),
                }
            }
        }
    };
}
pub(super) use stored_as_text;

/// Reads an identifier.
pub(super) fn id<T: From<String>>(row: &SqliteRow, index: usize) -> Result<T, sqlx::Error> {
    row.try_get::<String, _>(index).map(T::from)
}

/// Reads the number of a rollout from a column of texts.
pub(super) fn rollout_number(row: &SqliteRow, index: usize) -> Result<RolloutNumber, sqlx::Error> {
    let text: &str = row.try_get(index)?;
    text.parse().map_err(|source| sqlx::Error::ColumnDecode {
        index: index.to_string(),
        source: Box::new(source),
    })
}

/// Maximum bytes of a stored message or reason: one condition message of moderate length. The full text is in the log.
pub(super) const MAX_TEXT: usize = 512;

/// Truncates a text to at most [`MAX_TEXT`] bytes, between characters.
pub(super) fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, SqliteConnection};

    use super::super::{AdmissionOutcome, AttemptOutcome, RolloutOutcome};
    use super::*;

    async fn database() -> SqliteConnection {
        SqliteConnectOptions::new()
            .in_memory(true)
            .connect()
            .await
            .unwrap()
    }

    /// Asserts that each value is stored as its text, and each text is read as its value.
    async fn assert_texts<T>(pairs: &[(T, &str)])
    where
        T: for<'q> Encode<'q, Sqlite> + for<'r> Decode<'r, Sqlite>,
        T: Type<Sqlite> + Copy + PartialEq + std::fmt::Debug + Send + Unpin + 'static,
    {
        let mut database = database().await;
        for (value, text) in pairs {
            let written: String = sqlx::query_scalar("SELECT ?1")
                .bind(*value)
                .fetch_one(&mut database)
                .await
                .unwrap();
            assert_eq!(written, *text);
            let read: T = sqlx::query_scalar("SELECT ?1")
                .bind(*text)
                .fetch_one(&mut database)
                .await
                .unwrap();
            assert_eq!(read, *value);
        }
    }

    /// The texts are stored in existing ledgers, and are part of the statements and checks of the schema.
    #[tokio::test]
    async fn outcomes_are_stored_as_texts() {
        use AdmissionOutcome as Admission;
        use AttemptOutcome as Attempt;
        use RolloutOutcome as Rollout;
        assert_texts(&[
            (Rollout::Succeeded, "succeeded"),
            (Rollout::Superseded, "superseded"),
            (Rollout::Failed, "failed"),
            (Rollout::Abandoned, "abandoned"),
        ])
        .await;
        assert_texts(&[
            (Admission::Applied, "applied"),
            (Admission::Superseded, "superseded"),
            (Admission::Failed, "failed"),
            (Admission::Left, "left"),
        ])
        .await;
        assert_texts(&[
            (Attempt::Succeeded, "succeeded"),
            (Attempt::Failed, "failed"),
            (Attempt::Superseded, "superseded"),
            (Attempt::Interrupted, "interrupted"),
        ])
        .await;
    }

    #[tokio::test]
    async fn other_texts_and_types_are_refused() {
        let mut database = database().await;
        for (query, expected) in [
            ("SELECT 'Applied'", "`Applied` is none of"),
            ("SELECT 1", "is not compatible with SQL type"),
        ] {
            let error = sqlx::query_scalar::<_, AdmissionOutcome>(query)
                .fetch_one(&mut database)
                .await
                .unwrap_err();
            assert!(matches!(error, sqlx::Error::ColumnDecode { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn clip_cuts_between_characters() {
        assert_eq!(clip("short"), "short");
        let umlauts = format!("x{}", "ü".repeat(400));
        let cut = clip(&umlauts);
        assert_eq!(cut.len(), 511, "512 would split a character");
        assert!(umlauts.starts_with(cut));
        assert_eq!(clip(&"a".repeat(600)).len(), 512);
    }
}
