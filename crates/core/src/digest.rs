//! Digests over structured values.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// Returns `sha256:` and 64 hex digits over the JSON of `value`. Maps must be ordered, so that the same value has the
/// same digest; all digested types consist of structs, vectors and `BTreeMap`s.
#[must_use]
pub fn of<T: Serialize>(value: &T) -> String {
    // Serialising these types cannot fail (no non-string keys, no fallible `Serialize`). If it did, the empty text
    // would have a digest that equals no real one, which counts as a change and never as "done".
    let json = serde_json::to_vec(value).unwrap_or_default();
    of_bytes(&json)
}

/// Returns `sha256:` and 64 hex digits over bytes.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Returns the first 64 bits of a hash over `parts`, which are separated: ("ab", "c") differs from ("a", "bc").
#[must_use]
pub fn hash64(parts: &[&str]) -> u64 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let bytes = hasher.finalize();
    bytes
        .iter()
        .take(8)
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Returns the fraction of `span` that a hash gives, uniform over `0..span`. A longer one counts as five centuries.
#[must_use]
pub fn spread(span: std::time::Duration, hash: u64) -> std::time::Duration {
    let span = span.as_nanos().min(u64::MAX.into());
    let nanos = (span * u128::from(hash)) >> 64;
    std::time::Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
