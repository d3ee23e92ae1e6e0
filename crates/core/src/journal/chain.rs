//! The chain of hashes over the entries of a group.

use sha2::{Digest, Sha256};

use super::Entry;

/// What stands for the hash before the first entry of all.
pub const BEGINNING: &str = "starling journal 1";

/// One end of a chain: a number and a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of an entry; 0: before the first.
    pub seq: i64,
    /// Its hash.
    pub hash: String,
}

impl End {
    /// Before the first entry of all.
    #[must_use]
    pub fn beginning() -> Self {
        Self {
            seq: 0,
            hash: BEGINNING.to_owned(),
        }
    }
}

/// What is known of a chain beside its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The last entry that was cut off because it was old enough.
    pub cut: End,
    /// The newest entry.
    pub newest: End,
}

/// Where a chain does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Entries are not there.
    #[error("entries {from} to {to} are missing")]
    Missing {
        /// The first.
        from: i64,
        /// The last.
        to: i64,
    },
    /// An entry stands where it does not belong.
    #[error("entry {seq} stands behind entry {before}")]
    OutOfOrder {
        /// The entry.
        seq: i64,
        /// The one before it.
        before: i64,
    },
    /// An entry, or the one before it, is not what it was when it was written.
    #[error("entry {seq} is not what was written there: its hash does not fit")]
    Altered {
        /// The entry.
        seq: i64,
    },
    /// The newest entry is not the one that was written last.
    #[error(
        "the newest entry is {found}, and the last that was written is {written}: one of the two was changed"
    )]
    OtherNewest {
        /// The newest that is there.
        found: i64,
        /// The one that was written last.
        written: i64,
    },
}

impl Broken {
    /// The entry that it is about.
    #[must_use]
    pub fn seq(&self) -> i64 {
        match self {
            Self::Missing { from, .. } => *from,
            Self::OutOfOrder { seq, .. } | Self::Altered { seq } => *seq,
            Self::OtherNewest { found, written } => *found.max(written),
        }
    }
}

/// The hash of an entry, whatever it carries as such. Texts are kept apart by their lengths.
#[must_use]
pub fn hash(before: &str, entry: &Entry) -> String {
    let Entry {
        group_uid,
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
    let texts = [before, group_uid, namespace, name].into_iter();
    for text in texts
        .chain(numbers.iter().map(String::as_str))
        .chain([body.as_str()])
    {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    hex::encode(hasher.finalize())
}

/// Every place where a chain does not hold; after each it goes on from what is there, so that one is not reported as many.
#[must_use]
pub fn check_chain(chain: &Chain, entries: &[Entry]) -> Vec<Broken> {
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
        before = End {
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
