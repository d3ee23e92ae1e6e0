//! Grants of deletions: what was counted or approved, and may still be in progress (ADR 42).
//!
//! A grant is of a list of objects. What else leaves git at the same target is asked for on its own, and so is an
//! object of a list that was only counted and requires an approval since.

use std::collections::BTreeSet;

use starling_api::{DeletionGrant, Deletions};

use crate::digest::hash64;
use crate::object::ObjectId;

/// A longer list is not stored, since the status of a Sync would grow by more than 80 kB for each of its two lists.
/// The rest of it is asked for again after an interruption.
const MOST: usize = 10_000;
/// The hexadecimal digits of a hash.
const DIGITS: usize = 8;

/// The deletions of a Sync at one target that were allowed before, and may not be complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Hashes of all objects.
    list: BTreeSet<u32>,
    /// Hashes of those that a person approved.
    approved: BTreeSet<u32>,
}

/// Deletions that are about to be allowed.
#[derive(Clone, Copy, Debug)]
pub struct NewGrant<'a> {
    /// [`DeletionGrant::target`].
    pub target: &'a str,
    /// All objects that are to be deleted, with those that are deleted already.
    pub list: &'a [ObjectId],
    /// The number of objects that the Sync has afterwards.
    pub remaining: usize,
    /// The digest of the list if a person approved it.
    pub approved: Option<&'a str>,
}

impl Granted {
    /// Returns the deletions that were allowed for this target.
    #[must_use]
    pub fn of(deletions: Option<&Deletions>, target: &str) -> Self {
        let grant = deletions.and_then(|deletions| deletions.grant.as_ref());
        let grant = grant.filter(|grant| grant.target == target);
        grant.map_or_else(Self::default, |grant| Self {
            list: read(&grant.list),
            approved: read(&grant.approved),
        })
    }

    /// Reports whether the deletion of an object was counted or approved.
    #[must_use]
    pub fn has(&self, key: &ObjectId) -> bool {
        self.list.contains(&hash(key))
    }

    /// Reports whether a person approved the deletion of an object.
    #[must_use]
    pub fn is_approved(&self, key: &ObjectId) -> bool {
        self.approved.contains(&hash(key))
    }

    /// Returns the grant of a list that continues these deletions. What was approved stays approved.
    #[must_use]
    pub fn continued(&self, new: NewGrant<'_>) -> DeletionGrant {
        let NewGrant {
            target,
            list,
            remaining,
            approved,
        } = new;
        let stored = if list.len() > MOST { &[] } else { list };
        let is_approved = |key: &&ObjectId| approved.is_some() || self.is_approved(key);
        DeletionGrant {
            target: target.to_owned(),
            objects: narrow(list.len()),
            remaining: Some(narrow(remaining)),
            list: write(stored.iter()),
            approved: write(stored.iter().filter(is_approved)),
            digest: approved.unwrap_or_default().to_owned(),
        }
    }
}

/// Returns the number of objects that a Sync has, or will have after deletions that are in progress. Its inventory has
/// the deleted objects until the attempt has ended.
#[must_use]
pub fn objects_after(inventory: usize, deletions: Option<&Deletions>) -> usize {
    let grant = deletions.and_then(|deletions| deletions.grant.as_ref());
    let Some(grant) = grant else {
        return inventory;
    };
    let remaining = grant.remaining.map(|remaining| remaining as usize);
    remaining
        .unwrap_or_else(|| inventory.saturating_sub(grant.objects as usize))
        .min(inventory)
}

fn hash(key: &ObjectId) -> u32 {
    let ObjectId {
        group,
        kind,
        namespace,
        name,
    } = key;
    let hash = hash64(&[group, kind, namespace, name]);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}

fn write<'a>(keys: impl Iterator<Item = &'a ObjectId>) -> String {
    let hashes: BTreeSet<u32> = keys.map(hash).collect();
    hashes.iter().map(|hash| format!("{hash:08x}")).collect()
}

fn read(text: &str) -> BTreeSet<u32> {
    let hashes = text.as_bytes().chunks(DIGITS);
    let hashes = hashes.filter_map(|hash| u32::from_str_radix(std::str::from_utf8(hash).ok()?, 16).ok());
    hashes.collect()
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<usize>) -> Vec<ObjectId> {
        let key = |number| ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: format!("o{number:05}"),
        };
        range.map(key).collect()
    }

    fn stored(grant: DeletionGrant) -> Deletions {
        Deletions {
            grant: Some(grant),
            ..Deletions::default()
        }
    }

    fn new<'a>(list: &'a [ObjectId], approved: Option<&'a str>) -> NewGrant<'a> {
        NewGrant {
            target: "t",
            list,
            remaining: 3,
            approved,
        }
    }

    #[test]
    fn a_grant_is_of_its_list_and_target() {
        let list = keys(0..50);
        let deletions = stored(Granted::default().continued(new(&list, None)));
        let granted = Granted::of(Some(&deletions), "t");
        assert!(
            list.iter()
                .all(|key| granted.has(key) && !granted.is_approved(key))
        );
        assert!(!keys(50..90).iter().any(|key| granted.has(key)));
        assert_eq!(Granted::of(Some(&deletions), "another"), Granted::default());
        assert_eq!(Granted::of(None, "t"), Granted::default());
    }

    #[test]
    fn what_was_approved_stays_approved_and_nothing_else_does() {
        let deletions = stored(Granted::default().continued(new(&keys(0..4), Some("d"))));
        let granted = Granted::of(Some(&deletions), "t");
        let list = keys(3..9);
        let deletions = stored(granted.continued(new(&list, None)));
        let granted = Granted::of(Some(&deletions), "t");
        let approved: Vec<bool> = list.iter().map(|key| granted.is_approved(key)).collect();
        assert_eq!(approved, [true, false, false, false, false, false]);
        assert!(list.iter().all(|key| granted.has(key)));
        assert!(!granted.has(&keys(0..1)[0]), "it is gone");
    }

    /// A status must not grow without bounds, and an unknown list allows nothing.
    #[test]
    fn a_list_that_is_too_long_or_unreadable_is_asked_for_again() {
        let list = keys(0..MOST + 1);
        let grant = Granted::default().continued(new(&list, Some("d")));
        assert_eq!((grant.list.as_str(), grant.objects), ("", 10_001));
        let full = Granted::default().continued(new(&list[1..], None));
        assert!(full.list.len() <= MOST * DIGITS);
        let unreadable = stored(DeletionGrant {
            list: "zzzzzzzz\u{e4}\u{e4}\u{e4}".into(),
            target: "t".into(),
            objects: 7,
            ..DeletionGrant::default()
        });
        assert_eq!(Granted::of(Some(&unreadable), "t"), Granted::default());
    }

    #[test]
    fn deletions_in_progress_are_not_there_any_more() {
        let grant = |objects, remaining| {
            stored(DeletionGrant {
                objects,
                remaining,
                ..DeletionGrant::default()
            })
        };
        for (inventory, deletions, after) in [
            (200, None, 200),
            (200, Some(grant(30, Some(170))), 170),
            (200, Some(grant(200, Some(0))), 0),
            // 30 are replaced.
            (200, Some(grant(30, Some(200))), 200),
            (150, Some(grant(30, Some(170))), 150),
            // Of an earlier version.
            (200, Some(grant(30, None)), 170),
            (10, Some(grant(30, None)), 0),
        ] {
            assert_eq!(objects_after(inventory, deletions.as_ref()), after);
        }
    }
}
