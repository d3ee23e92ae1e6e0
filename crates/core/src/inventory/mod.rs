//! The inventory: the objects that a Sync has on its member.
//!
//! The inventory is the only proof of what may be pruned, so it is stored on the member itself (see [`format`]). An
//! entry has the UID of its object: an object with the same name that another owner creates later is not ours. It also
//! has what only the moment shows and a deletion has to know later: whether the object was there before Starling, how
//! many objects the Sync had when the deletion of this one was first held, and when a grace before it began.

pub mod format;
pub mod shards;

use std::collections::BTreeMap;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::ids::Uid;
use crate::object::ObjectId;

/// One object of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryEntry {
    /// The ID of the object.
    pub key: ObjectId,
    /// The recorded properties of the object.
    pub listed: Listed,
}

impl InventoryEntry {
    /// Returns an entry with a UID (empty from the claim until the response) and nothing else that is known.
    #[must_use]
    pub fn new(key: ObjectId, uid: impl Into<Uid>) -> Self {
        let listed = Listed {
            uid: uid.into(),
            ..Listed::default()
        };
        Self { key, listed }
    }

    /// Returns the same entry with an origin.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.listed.origin = origin;
        self
    }
}

/// The properties of one object that an inventory records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The UID of the object that was applied; empty from the claim until the response.
    pub uid: Uid,
    /// The origin of the object.
    pub origin: Origin,
    /// The number of objects when the deletion of this one was first held; `None`: it is not held.
    pub held_of: Option<usize>,
    /// The time at which the object was first not rendered, in whole seconds; `None`: no grace before its deletion has
    /// begun.
    pub left_at: Option<Timestamp>,
}

/// The origin of an object of an inventory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Not known yet: the object is claimed, and the response to its first apply is missing.
    #[default]
    Unknown,
    /// The first apply created it.
    Created,
    /// The object existed before the first apply.
    Adopted,
}

impl Listed {
    /// Takes over what is known of the object now. What is not known now stays, unless it was about another object of
    /// that name.
    fn update(&mut self, now: Self) {
        let is_another = !now.uid.is_empty() && !self.uid.is_empty() && now.uid != self.uid;
        if is_another || now.origin != Origin::Unknown {
            self.origin = now.origin;
        }
        if !now.uid.is_empty() {
            self.uid = now.uid;
        }
        if now.held_of.is_some() {
            self.held_of = now.held_of;
        }
        if now.left_at.is_some() {
            self.left_at = now.left_at;
        }
    }
}

/// The objects that a Sync has on one member, ordered by ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    entries: BTreeMap<ObjectId, Listed>,
}

impl Inventory {
    /// Returns an inventory without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry, or adds what it says to what is known. A known UID is only replaced by another known UID.
    pub fn insert(&mut self, entry: InventoryEntry) {
        self.entries.entry(entry.key).or_default().update(entry.listed);
    }

    /// Records of how many objects an object is held back from deletion; `None`: it is no longer held.
    pub fn hold(&mut self, key: &ObjectId, of: Option<usize>) {
        if let Some(listed) = self.entries.get_mut(key) {
            listed.held_of = of;
        }
    }

    /// Records that an object is not deleted with the others: as one that was there before Starling, it is given up.
    pub fn adopt(&mut self, key: &ObjectId) {
        if let Some(listed) = self.entries.get_mut(key) {
            listed.origin = Origin::Adopted;
        }
    }

    /// Records when the grace before the deletion of an object began; `None`: the object is wanted.
    pub fn set_left_at(&mut self, key: &ObjectId, at: Option<Timestamp>) {
        if let Some(listed) = self.entries.get_mut(key) {
            listed.left_at = at;
        }
    }

    /// Removes an entry. Returns whether it was listed.
    pub fn remove(&mut self, key: &ObjectId) -> bool {
        self.entries.remove(key).is_some()
    }

    /// Returns the UID of an object of this inventory; `Some("")`: claimed, not confirmed.
    #[must_use]
    pub fn uid(&self, key: &ObjectId) -> Option<&Uid> {
        self.entries.get(key).map(|listed| &listed.uid)
    }

    /// Reports whether the object is listed, with or without a UID.
    #[must_use]
    pub fn contains(&self, key: &ObjectId) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over IDs and UIDs in the order of IDs.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Uid)> {
        self.entries.iter().map(|(key, listed)| (key, &listed.uid))
    }

    /// Returns the entry of an object.
    #[must_use]
    pub fn entry(&self, key: &ObjectId) -> Option<InventoryEntry> {
        let listed = self.entries.get(key)?.clone();
        Some(InventoryEntry {
            key: key.clone(),
            listed,
        })
    }

    /// Returns the entries in the order of IDs.
    pub fn entries(&self) -> impl Iterator<Item = InventoryEntry> + '_ {
        self.entries.iter().map(|(key, listed)| InventoryEntry {
            key: key.clone(),
            listed: listed.clone(),
        })
    }

    /// Returns the entries of both. If both have a UID, that of `other` is the newer one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.extend(other.entries());
        all
    }

    /// Returns the entries that `other` does not have.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let only_here = self.entries.iter().filter(|(key, _)| !other.contains(key));
        Self {
            entries: only_here
                .map(|(key, listed)| (key.clone(), listed.clone()))
                .collect(),
        }
    }

    /// Reports whether both inventories list the same objects with the same holds and graces, whatever their UIDs:
    /// nothing has to be stored before the first write.
    #[must_use]
    pub fn claims_the_same(&self, other: &Self) -> bool {
        let claim = |(key, listed): (_, &Listed)| (key, listed.held_of, listed.left_at);
        let (ours, theirs) = (self.entries.iter(), other.entries.iter());
        ours.map(claim).eq(theirs.map(claim))
    }

    /// Returns `sha256:` and 64 hex digits over the IDs, in order. It excludes UIDs, so that clusters with the same
    /// objects have the same digest.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for key in self.entries.keys() {
            for part in [&key.group, &key.kind, &key.namespace, &key.name] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part.as_bytes());
            }
        }
        format!("sha256:{}", hex::encode(hash.finalize()))
    }
}

impl Extend<InventoryEntry> for Inventory {
    fn extend<I: IntoIterator<Item = InventoryEntry>>(&mut self, entries: I) {
        for entry in entries {
            self.insert(entry);
        }
    }
}

impl FromIterator<InventoryEntry> for Inventory {
    fn from_iter<I: IntoIterator<Item = InventoryEntry>>(entries: I) -> Self {
        let mut inventory = Self::new();
        inventory.extend(entries);
        inventory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, uid: &str) -> InventoryEntry {
        let key = ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        InventoryEntry::new(key, uid)
    }

    fn inventory(entries: &[(&str, &str)]) -> Inventory {
        entries.iter().map(|(name, uid)| entry(name, uid)).collect()
    }

    #[test]
    fn a_claim_does_not_forget_a_known_uid() {
        let mut inventory = inventory(&[("a", "u1")]);
        inventory.insert(entry("a", ""));
        assert_eq!(inventory.uid(&entry("a", "").key), Some(&"u1".into()));
        inventory.insert(entry("a", "u2"));
        assert_eq!(inventory.uid(&entry("a", "").key), Some(&"u2".into()));
    }

    #[test]
    fn union_and_difference_go_by_key() {
        let left = inventory(&[("a", "1"), ("b", "2")]);
        let right = inventory(&[("b", ""), ("c", "3")]);
        assert_eq!(
            left.union(&right),
            inventory(&[("a", "1"), ("b", "2"), ("c", "3")])
        );
        assert_eq!(left.difference(&right), inventory(&[("a", "1")]));
        assert!(left.claims_the_same(&inventory(&[("a", ""), ("b", "")])));
        assert!(!left.claims_the_same(&right));
        let mut held = left.clone();
        held.hold(&entry("a", "").key, Some(2));
        assert!(!left.claims_the_same(&held));
    }

    #[test]
    fn the_digest_excludes_uids_and_distinguishes_sets() {
        let known = inventory(&[("a", "1"), ("b", "2")]);
        let claimed = inventory(&[("b", ""), ("a", "")]);
        assert_eq!(known.digest(), claimed.digest());
        assert!(known.digest().starts_with("sha256:") && known.digest().len() == 71);
        assert_ne!(known.digest(), inventory(&[("ab", "")]).digest());
        assert_ne!(known.digest(), Inventory::new().digest());
    }
}
