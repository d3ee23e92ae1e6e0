//! The deletion budget: how much one render may take away before a person is asked.

use crate::inventory::{Entry, Inventory};
use crate::object::ObjectKey;

/// A prune of more than this share of the inventory waits for a person, from [`LEAST`] objects on. Half of what runs
/// is a rebuilt application, or a mistake; which of the two, only a person knows.
const PERCENT: usize = 50;
/// Fewer objects than this are never held for their share: half of a small application is gone quickly, and is made anew
/// quickly.
const LEAST: usize = 10;
/// Objects that a hold names: as many as a status has room for.
const NAMED: usize = 10;

/// Deletions that wait for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletions {
    /// What an approval names: a digest over the keys of all objects to delete, in order. UIDs are no part of it, so it
    /// is the same on all clusters that would lose the same.
    pub digest: String,
    /// How many objects would be deleted.
    pub deletions: usize,
    /// How many objects the inventory has, those without a known UID left out.
    pub of: usize,
    /// The first of them; those that take others along (see [`takes_others_along`]) come first.
    pub objects: Vec<ObjectKey>,
}

/// Why these deletions wait; `None`: they are within the budget, or approved.
pub(super) fn hold(inventory: &Inventory, doomed: &[Entry], approved: &str) -> Option<HeldDeletions> {
    let of = inventory.iter().filter(|(_, uid)| !uid.is_empty()).count();
    let many = doomed.len() >= LEAST && doomed.len() * 100 > of * PERCENT;
    if !many && !doomed.iter().any(|entry| takes_others_along(&entry.key)) {
        return None;
    }
    let digest = doomed.iter().cloned().collect::<Inventory>().digest();
    if is_approved(approved, &digest) {
        return None;
    }
    let mut objects: Vec<ObjectKey> = doomed.iter().map(|entry| entry.key.clone()).collect();
    objects.sort_by_key(|key| (!takes_others_along(key), key.clone()));
    objects.truncate(NAMED);
    Some(HeldDeletions {
        digest,
        deletions: doomed.len(),
        of,
        objects,
    })
}

/// Whether the deletion of an object deletes what is not in any inventory: what lives in a namespace, the objects of a
/// kind, the data of a volume.
#[must_use]
pub fn takes_others_along(key: &ObjectKey) -> bool {
    matches!(
        (key.group.as_str(), key.kind.as_str()),
        ("", "Namespace" | "PersistentVolumeClaim") | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

/// Whether an annotation's value names a digest. Clusters of one group may lose different objects, so it may name
/// several, between commas or spaces.
#[must_use]
pub fn is_approved(annotation: &str, digest: &str) -> bool {
    annotation
        .split([',', ' ', '\n'])
        .any(|approved| approved == digest && !digest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(group: &str, kind: &str, number: usize, uid: &str) -> Entry {
        Entry {
            key: ObjectKey {
                group: group.into(),
                kind: kind.into(),
                namespace: "shop".into(),
                name: format!("o{number:03}"),
            },
            uid: uid.into(),
        }
    }

    fn maps(numbers: std::ops::Range<usize>, uid: &str) -> Vec<Entry> {
        numbers
            .map(|number| entry("", "ConfigMap", number, uid))
            .collect()
    }

    fn inventory(entries: &[Entry]) -> Inventory {
        entries.iter().cloned().collect()
    }

    /// T31: more than half and at least ten, counted against what is known to be there.
    #[test]
    fn t31_more_than_half_and_at_least_ten_are_held() {
        for (total, doomed, held) in [
            (200, 100, false),
            (200, 101, true),
            (200, 60, false),
            (18, 9, false),
            (9, 9, false),
            (10, 10, true),
            (18, 10, true),
            (20, 10, false),
        ] {
            let inventory = inventory(&maps(0..total, "u"));
            let hold = hold(&inventory, &maps(0..doomed, "u"), "");
            assert_eq!(hold.is_some(), held, "{doomed} of {total}");
            if let Some(hold) = hold {
                assert_eq!((hold.deletions, hold.of, hold.objects.len()), (doomed, total, 10));
            }
        }
    }

    /// T31: one Namespace, CustomResourceDefinition or PersistentVolumeClaim is enough.
    #[test]
    fn t31_what_takes_others_along_is_always_held_and_named_first() {
        for (group, kind, held) in [
            ("", "Namespace", true),
            ("", "PersistentVolumeClaim", true),
            ("apiextensions.k8s.io", "CustomResourceDefinition", true),
            ("", "PersistentVolume", false),
            ("", "Secret", false),
            ("example.test", "Namespace", false),
        ] {
            let special = entry(group, kind, 500, "u");
            let mut doomed = maps(0..3, "u");
            doomed.push(special.clone());
            let all = [maps(0..200, "u"), vec![special.clone()]].concat();
            let hold = hold(&inventory(&all), &doomed, "");
            assert_eq!(hold.is_some(), held, "{group}/{kind}");
            if let Some(hold) = hold {
                assert_eq!(hold.objects[0], special.key);
            }
        }
    }

    /// T31: an approval is for one list of objects, whatever their UIDs; another list voids it.
    #[test]
    fn t31_an_approval_is_bound_to_the_list() {
        let before = inventory(&maps(0..20, "u"));
        let held = hold(&before, &maps(0..15, "u"), "").unwrap();
        let elsewhere = inventory(&maps(0..20, "another"));
        assert_eq!(
            hold(&elsewhere, &maps(0..15, "another"), "").unwrap().digest,
            held.digest
        );
        let both = format!("sha256:0, {}", held.digest);
        for approved in [&held.digest, &both] {
            assert_eq!(hold(&before, &maps(0..15, "u"), approved), None);
            assert!(hold(&before, &maps(0..16, "u"), approved).is_some());
            assert!(hold(&before, &maps(1..16, "u"), approved).is_some());
        }
        assert!(hold(&before, &maps(0..15, "u"), &held.digest[..20]).is_some());
    }

    /// A claim that was never confirmed does not make the inventory larger, and its object may be there all the same.
    #[test]
    fn claims_count_as_deletions_and_not_as_inventory() {
        let all = [maps(0..10, "u"), maps(10..40, "")].concat();
        assert!(hold(&inventory(&all), &maps(10..20, ""), "").is_some());
        assert!(hold(&inventory(&all), &maps(10..19, ""), "").is_none());
    }

    #[test]
    fn an_empty_digest_is_approved_by_nothing() {
        assert!(!is_approved("", ""));
        assert!(!is_approved("a,,b", ""));
        assert!(is_approved("a, b", "b"));
    }
}
