//! The deletion budget: how much one attempt may delete without an approval.

use crate::inventory::{Entry, Inventory};
use crate::object::ObjectId;

/// From [`LEAST`] objects on, a prune of more than this share of the inventory requires an approval. Deleting half of
/// an application is either intended or a mistake, and only a person can tell.
const PERCENT: usize = 50;
/// Fewer objects than this never exceed the budget by their share: a small application loses half of its objects
/// easily, and is quickly recreated.
const LEAST: usize = 10;
/// The number of objects that are named: as many as fit into a status.
const NAMED: usize = 10;

/// Deletions that require an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletions {
    /// The digest that an approval names: over the IDs of all objects to delete, in order. It excludes UIDs, so it is
    /// the same on all clusters that would lose the same objects.
    pub digest: String,
    /// The number of objects to delete.
    pub deletions: usize,
    /// The number of objects in the inventory, without those whose UID is unknown, when the first of the deletions was
    /// held.
    pub of: usize,
    /// The first objects to delete; those whose deletion deletes others (see [`takes_others_along`]) come first.
    pub objects: Vec<ObjectId>,
}

/// Returns the deletions if they exceed the budget and are not approved.
///
/// The share is that of the inventory when the first of the deletions was held. The objects of a new release are in
/// the inventory by the next attempt: a release that renames everything would then delete no more than half of it.
pub(super) fn exceeded(inventory: &Inventory, doomed: &[Entry], approved: &str) -> Option<HeldDeletions> {
    let now = inventory.iter().filter(|(_, uid)| !uid.is_empty()).count();
    let held = doomed.iter().filter_map(|entry| entry.listed.held_of);
    let of = held.min().map_or(now, |then| then.min(now));
    let many = doomed.len() >= LEAST && doomed.len() * 100 > of * PERCENT;
    if !many && !doomed.iter().any(|entry| takes_others_along(&entry.key)) {
        return None;
    }
    let digest = doomed.iter().cloned().collect::<Inventory>().digest();
    if is_approved(approved, &digest) {
        return None;
    }
    let mut objects: Vec<ObjectId> = doomed.iter().map(|entry| entry.key.clone()).collect();
    objects.sort_by_key(|key| (!takes_others_along(key), key.clone()));
    objects.truncate(NAMED);
    Some(HeldDeletions {
        digest,
        deletions: doomed.len(),
        of,
        objects,
    })
}

/// Reports whether the deletion of an object deletes things that are not in an inventory: the content of a namespace,
/// the objects of a kind, the data of a volume.
#[must_use]
pub fn takes_others_along(key: &ObjectId) -> bool {
    matches!(
        (key.group.as_str(), key.kind.as_str()),
        ("", "Namespace" | "PersistentVolume" | "PersistentVolumeClaim")
            | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

/// Reports whether the value of an annotation names a digest. Clusters of one group may lose different objects, so it
/// may name several digests, separated by commas or spaces.
#[must_use]
pub fn is_approved(annotation: &str, digest: &str) -> bool {
    annotation
        .split([',', ' ', '\n'])
        .any(|approved| approved == digest && !digest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Origin;

    fn entry(group: &str, kind: &str, number: usize, uid: &str) -> Entry {
        let key = ObjectId {
            group: group.into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: format!("o{number:03}"),
        };
        Entry::new(key, uid).with_origin(Origin::Created)
    }

    fn maps(numbers: std::ops::Range<usize>, uid: &str) -> Vec<Entry> {
        numbers
            .map(|number| entry("", "ConfigMap", number, uid))
            .collect()
    }

    fn inventory(entries: &[Entry]) -> Inventory {
        entries.iter().cloned().collect()
    }

    /// T31: more than half and at least ten, of the objects that are known to exist.
    #[test]
    fn t31_more_than_half_and_at_least_ten_require_an_approval() {
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
            let exceeded = exceeded(&inventory, &maps(0..doomed, "u"), "");
            assert_eq!(exceeded.is_some(), held, "{doomed} of {total}");
            if let Some(exceeded) = exceeded {
                assert_eq!(
                    (exceeded.deletions, exceeded.of, exceeded.objects.len()),
                    (doomed, total, 10)
                );
            }
        }
    }

    /// T31: one Namespace, CustomResourceDefinition or PersistentVolumeClaim is enough.
    #[test]
    fn t31_an_object_that_takes_others_along_always_requires_an_approval_and_comes_first() {
        for (group, kind, held) in [
            ("", "Namespace", true),
            ("", "PersistentVolumeClaim", true),
            ("apiextensions.k8s.io", "CustomResourceDefinition", true),
            ("", "PersistentVolume", true),
            ("", "Secret", false),
            ("example.test", "Namespace", false),
        ] {
            let special = entry(group, kind, 500, "u");
            let mut doomed = maps(0..3, "u");
            doomed.push(special.clone());
            let all = [maps(0..200, "u"), vec![special.clone()]].concat();
            let exceeded = exceeded(&inventory(&all), &doomed, "");
            assert_eq!(exceeded.is_some(), held, "{group}/{kind}");
            if let Some(exceeded) = exceeded {
                assert_eq!(exceeded.objects[0], special.key);
            }
        }
    }

    /// T31: an approval is for one list of objects, whatever their UIDs; another list voids it.
    #[test]
    fn t31_an_approval_is_bound_to_the_list() {
        let before = inventory(&maps(0..20, "u"));
        let held = exceeded(&before, &maps(0..15, "u"), "").unwrap();
        let elsewhere = inventory(&maps(0..20, "another"));
        assert_eq!(
            exceeded(&elsewhere, &maps(0..15, "another"), "").unwrap().digest,
            held.digest
        );
        let both = format!("sha256:0, {}", held.digest);
        for approved in [&held.digest, &both] {
            assert_eq!(exceeded(&before, &maps(0..15, "u"), approved), None);
            assert!(exceeded(&before, &maps(0..16, "u"), approved).is_some());
            assert!(exceeded(&before, &maps(1..16, "u"), approved).is_some());
        }
        assert!(exceeded(&before, &maps(0..15, "u"), &held.digest[..20]).is_some());
    }

    /// A claim that was never confirmed does not enlarge the inventory, and its object may exist nevertheless.
    #[test]
    fn claims_count_as_deletions_and_not_as_inventory() {
        let all = [maps(0..10, "u"), maps(10..40, "")].concat();
        assert!(exceeded(&inventory(&all), &maps(10..20, ""), "").is_some());
        assert!(exceeded(&inventory(&all), &maps(10..19, ""), "").is_none());
    }

    #[test]
    fn an_empty_digest_is_approved_by_nothing() {
        assert!(!is_approved("", ""));
        assert!(!is_approved("a,,b", ""));
        assert!(is_approved("a, b", "b"));
    }
}
