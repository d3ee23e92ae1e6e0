//! How values stand in the columns: times as microseconds, texts cut to their limit.

use jiff::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Sqlite, Type};

/// A time as the ledger stores it: whole microseconds since 1970 UTC. An integer sorts without parsing and is the same
/// on every platform; what is finer than a microsecond is dropped.
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

/// The longest message or reason that is stored, in bytes: one condition message of moderate length. What is longer
/// stands in the log.
pub(super) const LONGEST_TEXT: usize = 512;

/// The beginning of a text, at most [`LONGEST_TEXT`] bytes, cut between characters.
pub(super) fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}

#[cfg(test)]
mod tests {
    use super::*;

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
