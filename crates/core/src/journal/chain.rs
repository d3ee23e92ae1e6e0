//! The hash chain over the journal entries of a group.

use sha2::{Digest, Sha256};

use super::JournalEntry;

/// The hash before the first entry.
pub const BEGINNING: &str = "starling journal 1";

/// One end of a chain: the number and the hash of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    /// The number of the entry; 0: before the first entry.
    pub seq: i64,
    /// The hash of the entry.
    pub hash: String,
}

impl ChainEnd {
    /// Returns the end before the first entry.
    #[must_use]
    pub fn beginning() -> Self {
        Self {
            seq: 0,
            hash: BEGINNING.to_owned(),
        }
    }
}

/// The ends of a chain, which are recorded outside of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The last entry that was deleted because of its age.
    pub cut: ChainEnd,
    /// The newest entry.
    pub newest: ChainEnd,
}

/// A place where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Entries are missing.
    #[error("entries {from} to {to} are missing")]
    Missing {
        /// The first missing entry.
        from: i64,
        /// The last missing entry.
        to: i64,
    },
    /// An entry is at the wrong position.
    #[error("entry {seq} follows entry {before}")]
    OutOfOrder {
        /// The entry.
        seq: i64,
        /// The entry before it.
        before: i64,
    },
    /// An entry, or the one before it, was changed after it was written.
    #[error("entry {seq} was altered: its hash does not match")]
    Altered {
        /// The entry.
        seq: i64,
    },
    /// The newest entry is not the one that was written last.
    #[error("the newest entry is {found}, but entry {written} was written last: one of the two was altered")]
    OtherNewest {
        /// The newest entry.
        found: i64,
        /// The entry that was written last.
        written: i64,
    },
}

impl Broken {
    /// Returns the entry that this is about.
    #[must_use]
    pub fn seq(&self) -> i64 {
        match self {
            Self::Missing { from, .. } => *from,
            Self::OutOfOrder { seq, .. } | Self::Altered { seq } => *seq,
            Self::OtherNewest { found, written } => *found.max(written),
        }
    }
}

/// Returns the hash of an entry, whatever hash it has. Texts are separated by their lengths.
#[must_use]
pub fn hash(before: &str, entry: &JournalEntry) -> String {
    let JournalEntry {
        group_id,
        namespace,
        name,
        rollout,
        seq,
        at,
        body,
        hash: _,
    } = entry;
    let numbers = [
        rollout.to_string(),
        seq.to_string(),
        at.as_microsecond().to_string(),
    ];
    let mut hasher = Sha256::new();
    let texts = [before, group_id.as_str(), namespace, name].into_iter();
    for text in texts
        .chain(numbers.iter().map(String::as_str))
        .chain([body.as_str()])
    {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    hex::encode(hasher.finalize())
}

/// Returns every place where a chain is broken. The check continues from the actual entry, so that one break is not
/// reported several times.
#[must_use]
pub fn check_chain(chain: &Chain, entries: &[JournalEntry]) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut before = chain.cut.clone();
    for entry in entries {
        let next = before.seq + 1;
        if entry.seq < next {
            broken.push(Broken::OutOfOrder {
                seq: entry.seq,
                before: before.seq,
            });
        } else if entry.seq > next {
            broken.push(Broken::Missing {
                from: next,
                to: entry.seq - 1,
            });
        } else if entry.hash != hash(&before.hash, entry) {
            broken.push(Broken::Altered { seq: entry.seq });
        }
        before = ChainEnd {
            seq: entry.seq,
            hash: entry.hash.clone(),
        };
    }
    if before != chain.newest {
        broken.push(if before.seq < chain.newest.seq {
            Broken::Missing {
                from: before.seq + 1,
                to: chain.newest.seq,
            }
        } else {
            Broken::OtherNewest {
                found: before.seq,
                written: chain.newest.seq,
            }
        });
    }
    broken
}
