//! What an attempt makes uncertain before it has an answer.

use std::collections::{BTreeMap, BTreeSet};

use super::Record;
use crate::object::{ObjectKey, RenderedSet};

/// The records that say nothing about the member any more once an attempt has begun, as they have to be kept from then on:
/// without a digest, so that no render is taken for what the member holds.
///
/// A request whose answer is lost may have been carried out, and a process may end between the two. If the next attempt is at an
/// earlier target, such as after a rollback, the old record would be that of its render, and the object be skipped although it is
/// the other's. So what an attempt may write, repair or delete is doubted on disk before it is sent, and known again with the
/// answer: an intent, as a write-ahead log has it.
#[must_use]
pub fn doubted(
    desired: &RenderedSet,
    records: &BTreeMap<ObjectKey, Record>,
    drifted: &BTreeSet<ObjectKey>,
) -> BTreeMap<ObjectKey, Record> {
    let in_step: BTreeMap<&ObjectKey, &str> = desired
        .objects
        .iter()
        .filter(|object| !drifted.contains(&object.key))
        .map(|object| (&object.key, object.digest.as_str()))
        .collect();
    let doubted = records.iter().filter(|(key, record)| {
        !record.digest.is_empty() && in_step.get(key).is_none_or(|digest| *digest != record.digest)
    });
    doubted
        .map(|(key, record)| {
            let record = Record {
                digest: String::new(),
                ..record.clone()
            };
            (key.clone(), record)
        })
        .collect()
}
