//! The records that an attempt makes unconfirmed until its responses arrive.

use std::collections::{BTreeMap, BTreeSet};

use super::Record;
use crate::object::{ObjectId, RenderedSet};

/// Returns the records to store when an attempt begins, for the objects that it may write, repair or delete: without a
/// digest, so that no rendered object is taken for the one on the member.
///
/// A request without a response may have been executed, and a process may end between request and response. If the next
/// attempt applies an earlier target, such as after a rollback, the old record would match its render, and the object
/// would be skipped although the member has the newer one. The record is therefore unconfirmed on disk before the
/// request, and confirmed with the response, like an intent in a write-ahead log.
#[must_use]
pub fn unconfirmed_records(
    desired: &RenderedSet,
    records: &BTreeMap<ObjectId, Record>,
    drifted: &BTreeSet<ObjectId>,
) -> BTreeMap<ObjectId, Record> {
    let in_step: BTreeMap<&ObjectId, &str> = desired
        .objects
        .iter()
        .filter(|object| !drifted.contains(&object.key))
        .map(|object| (&object.key, object.digest.as_str()))
        .collect();
    let is_unconfirmed =
        |key: &ObjectId, record: &Record| in_step.get(key).is_none_or(|digest| *digest != record.digest);
    without_digest(records, is_unconfirmed)
}

/// Returns the records to store when a user requests a reconcile: all of them without a digest. Whatever becomes of the
/// attempt, no object counts as in step before it was compared.
#[must_use]
pub fn all_unconfirmed(records: &BTreeMap<ObjectId, Record>) -> BTreeMap<ObjectId, Record> {
    without_digest(records, |_, _| true)
}

fn without_digest(
    records: &BTreeMap<ObjectId, Record>,
    is_unconfirmed: impl Fn(&ObjectId, &Record) -> bool,
) -> BTreeMap<ObjectId, Record> {
    let unconfirmed = records
        .iter()
        .filter(|(key, record)| !record.digest.is_empty() && is_unconfirmed(key, record));
    unconfirmed
        .map(|(key, record)| {
            let record = Record {
                digest: String::new(),
                ..record.clone()
            };
            (key.clone(), record)
        })
        .collect()
}
