//! The limit of a prune without an approval: its share of a Sync within a window of time, and the kinds whose
//! deletion deletes others. The deletion budgets of all paths are in [`crate::deletion_budget`].

use std::collections::BTreeSet;

use crate::deletion_budget::{Earlier, Excess};
use crate::digest;
use crate::inventory::{Entry, Inventory};
use crate::object::{GroupKind, ObjectId};

/// From [`LEAST`] objects on, a prune of more than this share of the inventory requires an approval. Deleting half of
/// an application is either intended or a mistake, and only a person can tell.
const PERCENT: usize = 50;
/// Fewer objects than this never exceed the budget by their share: a small application loses half of its objects
/// easily, and is quickly recreated.
const LEAST: usize = 10;
/// The number of objects that are named: as many as fit into a status.
const NAMED: usize = 10;

/// The kinds and objects that are deleted only after an approval, besides the kinds that always are
/// ([`takes_others_along`]).
#[derive(Clone, Copy, Debug)]
pub struct Confirmation<'a> {
    /// The kinds that an operator added, because their deletion deletes others: `--confirm-deletion-of`.
    pub kinds: &'a BTreeSet<GroupKind>,
    /// Objects whose annotation on the member asks for it.
    pub objects: &'a BTreeSet<ObjectId>,
}

/// No kinds, and no objects.
static NO_KINDS: BTreeSet<GroupKind> = BTreeSet::new();
static NO_OBJECTS: BTreeSet<ObjectId> = BTreeSet::new();

impl Default for Confirmation<'static> {
    fn default() -> Self {
        Self {
            kinds: &NO_KINDS,
            objects: &NO_OBJECTS,
        }
    }
}

impl Confirmation<'_> {
    /// Reports whether the deletion of an object deletes others.
    #[must_use]
    pub fn takes_others_along(&self, key: &ObjectId) -> bool {
        takes_others_along(key) || self.is_added(key)
    }

    /// Reports whether a prune of an object requires an approval.
    #[must_use]
    pub fn is_required(&self, key: &ObjectId) -> bool {
        self.takes_others_along(key) || self.objects.contains(key)
    }

    /// Reports whether the object requires an approval also if its Sync is deleted: the deletion policy is an approval
    /// of what Starling knows, and not of what people protect.
    #[must_use]
    pub fn is_required_at_the_end(&self, key: &ObjectId) -> bool {
        self.is_added(key) || self.objects.contains(key)
    }

    fn is_added(&self, key: &ObjectId) -> bool {
        self.kinds.contains(&GroupKind {
            group: key.group.clone(),
            kind: key.kind.clone(),
        })
    }
}

/// A text that does not name a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a kind; write GROUP/KIND, such as cluster.x-k8s.io/Cluster, or core/Secret")]
pub struct KindError {
    text: String,
}

/// Reads a kind as `GROUP/KIND`, with the group `core` for kinds without one.
///
/// # Errors
/// [`KindError`]: another form, or names that no kind has.
pub fn read_kind(text: &str) -> Result<GroupKind, KindError> {
    let bad = || KindError {
        text: text.to_owned(),
    };
    let (group, kind) = text.split_once('/').ok_or_else(bad)?;
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_kind =
        kind.starts_with(|c: char| c.is_ascii_uppercase()) && kind.chars().all(|c| c.is_ascii_alphanumeric());
    if !is_kind || !group.split('.').all(is_label) {
        return Err(bad());
    }
    Ok(GroupKind {
        group: if group == "core" {
            String::new()
        } else {
            group.to_owned()
        },
        kind: kind.to_owned(),
    })
}

/// Deletions that require an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletions {
    /// The digest that an approval names: over the target that replaces the objects and the IDs of all objects to
    /// delete, in order. It excludes UIDs, so it is the same on all clusters that would lose the same objects.
    pub digest: String,
    /// The number of objects to delete.
    pub deletions: usize,
    /// The number of objects in the inventory, without those whose UID is unknown, when the first of the deletions was
    /// held.
    pub of: usize,
    /// The first objects to delete; those that require an approval of their own (see [`Confirmation`]) come first.
    pub objects: Vec<ObjectId>,
    /// The deletion budget that the deletions exceed; `None`: they require an approval whatever the budgets are.
    pub excess: Option<Excess>,
}

impl HeldDeletions {
    /// Describes deletions that are held.
    #[must_use]
    pub fn new(
        target: &str,
        doomed: &[Entry],
        of: usize,
        confirmation: Confirmation<'_>,
        excess: Option<Excess>,
    ) -> Self {
        let mut objects: Vec<ObjectId> = doomed.iter().map(|entry| entry.key.clone()).collect();
        objects.sort_by_key(|key| (!confirmation.is_required(key), key.clone()));
        objects.truncate(NAMED);
        Self {
            digest: digest_of(target, doomed),
            deletions: doomed.len(),
            of,
            objects,
            excess,
        }
    }
}

/// The approvals of deletions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Approval<'a> {
    /// The target that replaces the deleted objects: see [`digest_of`].
    pub target: &'a str,
    /// The digests of approved deletions: see [`is_approved`].
    pub approved: &'a str,
}

/// Returns the digest of a list of deletions that an approval names. `target` is what replaces the objects: the release
/// of a group, the target of a Sync without a group, or [`ENDING`](crate::deletion_approval::ENDING).
#[must_use]
pub fn digest_of(target: &str, doomed: &[Entry]) -> String {
    let list = doomed.iter().cloned().collect::<Inventory>().digest();
    digest::of(&("deletions", target, list))
}

/// Returns the deletions if they exceed the budget and are not approved.
///
/// The share is that of the inventory when the first of the deletions was held. The objects of a new release are in
/// the inventory by the next attempt: a release that renames everything would then delete no more than half of it.
/// Objects that were deleted within the window count too, with the inventory at its start: commits that remove half of
/// the rest, one after another, would otherwise remove everything. Of those, objects that were replaced by others do
/// not count; `remaining` objects stay or are created.
pub(super) fn exceeded(
    inventory: &Inventory,
    doomed: &[Entry],
    remaining: usize,
    earlier: Earlier<'_>,
    confirmation: Confirmation<'_>,
    approval: Approval<'_>,
) -> Option<HeldDeletions> {
    // What remains of a prune that was allowed for this target and was interrupted is not decided again.
    let is_granted = |key: &ObjectId| earlier.granted.is_some_and(|granted| granted.has(key));
    let is_approved_before = |key: &ObjectId| earlier.granted.is_some_and(|granted| granted.is_approved(key));
    let new = doomed.iter().filter(|entry| !is_granted(&entry.key)).count();
    // An object that was only counted may require an approval since.
    let asks = |entry: &Entry| confirmation.is_required(&entry.key) && !is_approved_before(&entry.key);
    let now = inventory.iter().filter(|(_, uid)| !uid.is_empty()).count();
    let held = doomed.iter().filter_map(|entry| entry.listed.held_of);
    let of = held.min().map_or(now, |then| then.min(now));
    let is_many = |number: usize, of: usize| number >= LEAST && number * 100 > of * PERCENT;
    let start = of.max(earlier.of);
    let lost = start.saturating_sub(remaining);
    let many = is_many(new, of) || new > 0 && is_many(lost.min(new + earlier.deleted), start);
    if !many && !doomed.iter().any(asks) {
        return None;
    }
    let held = HeldDeletions::new(approval.target, doomed, of, confirmation, None);
    (!is_approved(approval.approved, &held.digest)).then_some(held)
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
    use starling_api::Deletions;

    use super::*;
    use crate::deletion_grant::{Granted, NewGrant};
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

    fn exceeded(inventory: &Inventory, doomed: &[Entry], approved: &str) -> Option<HeldDeletions> {
        super::exceeded(
            inventory,
            doomed,
            inventory.iter().count().saturating_sub(doomed.len()),
            Earlier::default(),
            Confirmation::default(),
            Approval {
                target: "t",
                approved,
            },
        )
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

    /// An approval is of one target: the same objects leave another release for another reason.
    #[test]
    fn an_approval_is_bound_to_the_target() {
        let doomed = maps(0..15, "u");
        assert_ne!(digest_of("r1", &doomed), digest_of("r2", &doomed));
        assert_ne!(digest_of("r1", &doomed), digest_of("r1", &doomed[1..]));
        let all = inventory(&maps(0..20, "u"));
        let under = |target, approved: &str| {
            let approval = Approval { target, approved };
            super::exceeded(
                &all,
                &doomed,
                5,
                Earlier::default(),
                Confirmation::default(),
                approval,
            )
        };
        let digest = under("r1", "").unwrap().digest;
        assert_eq!(under("r1", &digest), None);
        assert!(under("r2", &digest).is_some());
    }

    /// A claim that was never confirmed does not enlarge the inventory, and its object may exist nevertheless.
    #[test]
    fn claims_count_as_deletions_and_not_as_inventory() {
        let all = [maps(0..10, "u"), maps(10..40, "")].concat();
        assert!(exceeded(&inventory(&all), &maps(10..20, ""), "").is_some());
        assert!(exceeded(&inventory(&all), &maps(10..19, ""), "").is_none());
    }

    /// An operator's own kinds, and objects that ask for it, are as a Namespace.
    #[test]
    fn added_kinds_and_objects_that_ask_require_an_approval_and_come_first() {
        let cluster = entry("cluster.x-k8s.io", "Cluster", 500, "u");
        let asks = entry("", "Secret", 501, "u");
        let kinds = [read_kind("cluster.x-k8s.io/Cluster").unwrap()].into();
        let objects = [asks.key.clone()].into();
        let confirmation = Confirmation {
            kinds: &kinds,
            objects: &objects,
        };
        for (special, at_the_end) in [
            (cluster, true),
            (asks, true),
            (entry("", "Namespace", 1, "u"), false),
        ] {
            let doomed = [maps(0..3, "u"), vec![special.clone()]].concat();
            let all = inventory(&[maps(0..200, "u"), vec![special.clone()]].concat());
            let held = super::exceeded(
                &all,
                &doomed,
                200,
                Earlier::default(),
                confirmation,
                Approval::default(),
            )
            .unwrap();
            assert_eq!(held.objects[0], special.key);
            assert_eq!(confirmation.is_required_at_the_end(&special.key), at_the_end);
        }
        assert_eq!(
            exceeded(&inventory(&maps(0..200, "u")), &maps(0..3, "u"), ""),
            None
        );
    }

    #[test]
    fn a_kind_is_read_with_its_group() {
        let read = |text| read_kind(text).map(|kind| (kind.group, kind.kind));
        assert_eq!(read("core/Secret"), Ok((String::new(), "Secret".into())));
        assert_eq!(
            read("ceph.rook.io/CephCluster"),
            Ok(("ceph.rook.io".into(), "CephCluster".into()))
        );
        for bad in [
            "",
            "Cluster",
            "/Cluster",
            "a/b/C",
            "cluster.x-k8s.io/",
            "x.io/cluster",
            "x..io/C",
            "X.io/C",
            "x.io/v1/C",
            "-x/C",
        ] {
            assert!(
                read_kind(bad).unwrap_err().to_string().contains("GROUP/KIND"),
                "{bad}"
            );
        }
    }

    fn granted(list: &[Entry], approved: Option<&str>) -> Granted {
        let list: Vec<ObjectId> = list.iter().map(|entry| entry.key.clone()).collect();
        let grant = Granted::default().continued(NewGrant {
            target: "t",
            list: &list,
            remaining: 0,
            approved,
        });
        let deletions = Deletions {
            grant: Some(grant),
            ..Deletions::default()
        };
        Granted::of(Some(&deletions), "t")
    }

    /// A grant was a number: as many other objects of the same target went without an approval.
    #[test]
    fn a_grant_is_of_its_objects_and_covers_no_others() {
        let all = inventory(&maps(0..200, "u"));
        let namespace = entry("", "Namespace", 500, "u");
        let is_held = |doomed: &[Entry], granted: &Granted, confirmation: Confirmation<'_>| {
            let earlier = Earlier {
                deleted: 50,
                of: 200,
                granted: Some(granted),
            };
            let remaining = 200 - doomed.len();
            super::exceeded(
                &all,
                doomed,
                remaining,
                earlier,
                confirmation,
                Approval::default(),
            )
            .is_some()
        };
        let none = Confirmation::default();
        let counted = granted(&maps(0..50, "u"), None);
        // One of the list is stuck, and the grace of others has ended.
        assert!(!is_held(&maps(49..50, "u"), &counted, none));
        assert!(!is_held(&maps(49..90, "u"), &counted, none));
        assert!(is_held(
            &[maps(49..90, "u"), vec![namespace.clone()]].concat(),
            &counted,
            none
        ));
        assert!(
            is_held(&maps(49..150, "u"), &counted, none),
            "more than half of 200"
        );
        // The annotation was set on an object of the list that is stuck.
        let objects = [maps(49..50, "u")[0].key.clone()].into();
        let asking = Confirmation {
            objects: &objects,
            ..none
        };
        assert!(is_held(&maps(49..50, "u"), &counted, asking));
        let approved = granted(&[maps(0..50, "u"), vec![namespace.clone()]].concat(), Some("d"));
        assert!(!is_held(&maps(49..50, "u"), &approved, asking));
        assert!(!is_held(std::slice::from_ref(&namespace), &approved, none));
        let another = entry("", "Namespace", 501, "u");
        assert!(is_held(&[namespace, another], &approved, none));
    }

    /// Each prune deletes no more than half of what the one before left.
    #[test]
    fn prunes_within_the_window_add_up() {
        let earlier = |deleted, of| Earlier {
            deleted,
            of,
            granted: None,
        };
        let granted = granted(&maps(0..11, "u"), None);
        for (left, doomed, earlier, held) in [
            (100, 1, earlier(100, 200), true),
            (150, 50, earlier(50, 200), false),
            (150, 51, earlier(50, 200), true),
            (12, 5, earlier(5, 17), true),
            (12, 4, earlier(5, 17), false),
            // An application that has grown since.
            (400, 100, earlier(100, 200), false),
            (
                20,
                11,
                Earlier {
                    granted: Some(&granted),
                    ..earlier(20, 40)
                },
                false,
            ),
            (
                20,
                12,
                Earlier {
                    granted: Some(&granted),
                    ..earlier(20, 40)
                },
                true,
            ),
        ] {
            let inventory = inventory(&maps(0..left, "u"));
            let found = super::exceeded(
                &inventory,
                &maps(0..doomed, "u"),
                left - doomed,
                earlier,
                Confirmation::default(),
                Approval::default(),
            );
            assert_eq!(found.is_some(), held, "{doomed} of {left} after {earlier:?}");
        }
        // Each release replaced two of 20 objects: in its inventory are the old and the new ones.
        let replaced = |doomed| {
            let inventory = inventory(&maps(0..20 + doomed, "u"));
            let doomed = maps(0..doomed, "u");
            super::exceeded(
                &inventory,
                &doomed,
                20,
                earlier(30, 20),
                Confirmation::default(),
                Approval::default(),
            )
        };
        assert!(replaced(2).is_none());
        assert!(replaced(21).is_some(), "all of them at once");
    }

    #[test]
    fn an_empty_digest_is_approved_by_nothing() {
        assert!(!is_approved("", ""));
        assert!(!is_approved("a,,b", ""));
        assert!(is_approved("a, b", "b"));
    }
}
