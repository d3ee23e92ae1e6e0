//! The limit of a prune without an approval: its share of a Sync within a window of time, and the kinds whose
//! deletion deletes others. The deletion budgets of all paths are in [`crate::deletion_budget`].

use std::collections::BTreeSet;

use super::approved::ApprovedDeletions;
use crate::deletion_budget::{Earlier, Excess};
use crate::deletion_subject::ApprovalSubject;
use crate::inventory::{Inventory, InventoryEntry};
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

/// Writes a kind as [`read_kind`] reads it.
#[must_use]
pub fn write_kind(kind: &GroupKind) -> String {
    let group = if kind.group.is_empty() {
        "core"
    } else {
        &kind.group
    };
    format!("{group}/{}", kind.kind)
}

/// Deletions that require an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletions {
    /// The digest that an approval names: over the subject of the deletions and the IDs of all objects to delete, in
    /// order. It excludes UIDs, so it is the same on all clusters that would lose the same objects by one decision.
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
        subject: ApprovalSubject<'_>,
        to_delete: &[InventoryEntry],
        of: usize,
        confirmation: Confirmation<'_>,
        excess: Option<Excess>,
    ) -> Self {
        let mut objects: Vec<ObjectId> = to_delete.iter().map(|entry| entry.key.clone()).collect();
        objects.sort_by_key(|key| (!confirmation.is_required(key), key.clone()));
        objects.truncate(NAMED);
        Self {
            digest: subject.digest(to_delete),
            deletions: to_delete.len(),
            of,
            objects,
            excess,
        }
    }
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
    to_delete: &[InventoryEntry],
    remaining: usize,
    earlier: Earlier<'_>,
    confirmation: Confirmation<'_>,
    approval: ApprovedDeletions<'_>,
) -> Option<HeldDeletions> {
    // The rest of a prune that was allowed for this target and was interrupted is not decided again.
    let is_granted = |key: &ObjectId| earlier.granted.is_some_and(|granted| granted.has(key));
    let is_approved_before = |key: &ObjectId| earlier.granted.is_some_and(|granted| granted.is_approved(key));
    let new = to_delete.iter().filter(|entry| !is_granted(&entry.key)).count();
    // An object that was only counted may require an approval since.
    let asks =
        |entry: &InventoryEntry| confirmation.is_required(&entry.key) && !is_approved_before(&entry.key);
    let now = inventory.iter().filter(|(_, uid)| !uid.is_empty()).count();
    let held = to_delete.iter().filter_map(|entry| entry.listed.held_of);
    let of = held.min().map_or(now, |then| then.min(now));
    let is_many = |number: usize, of: usize| number >= LEAST && number * 100 > of * PERCENT;
    let start = of.max(earlier.of);
    let lost = start.saturating_sub(remaining);
    let many = is_many(new, of) || new > 0 && is_many(lost.min(new + earlier.deleted), start);
    if !many && !to_delete.iter().any(asks) {
        return None;
    }
    let held = HeldDeletions::new(approval.subject, to_delete, of, confirmation, None);
    (!approval.digests.contain(&held.digest)).then_some(held)
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

#[cfg(test)]
mod tests {
    use super::super::ApprovedDigests;
    use starling_api::Deletions;

    use super::*;
    use crate::deletion_grant::{Granted, NewGrant};
    use crate::deletion_subject::{ApprovalScope, DeletionCause};
    use crate::inventory::Origin;

    fn entry(group: &str, kind: &str, number: usize, uid: &str) -> InventoryEntry {
        let key = ObjectId {
            group: group.into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: format!("o{number:03}"),
        };
        InventoryEntry::new(key, uid).with_origin(Origin::Created)
    }

    fn maps(numbers: std::ops::Range<usize>, uid: &str) -> Vec<InventoryEntry> {
        numbers
            .map(|number| entry("", "ConfigMap", number, uid))
            .collect()
    }

    fn exceeded(
        inventory: &Inventory,
        to_delete: &[InventoryEntry],
        approved: &str,
    ) -> Option<HeldDeletions> {
        super::exceeded(
            inventory,
            to_delete,
            inventory.iter().count().saturating_sub(to_delete.len()),
            Earlier::default(),
            Confirmation::default(),
            ApprovedDeletions {
                subject: ApprovalSubject::default(),
                digests: &ApprovedDigests::of_annotation(approved),
            },
        )
    }

    fn inventory(entries: &[InventoryEntry]) -> Inventory {
        entries.iter().cloned().collect()
    }

    /// T31: more than half and at least ten, of the objects that are known to exist.
    #[test]
    fn t31_more_than_half_and_at_least_ten_require_an_approval() {
        for (total, to_delete, held) in [
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
            let exceeded = exceeded(&inventory, &maps(0..to_delete, "u"), "");
            assert_eq!(exceeded.is_some(), held, "{to_delete} of {total}");
            if let Some(exceeded) = exceeded {
                assert_eq!(
                    (exceeded.deletions, exceeded.of, exceeded.objects.len()),
                    (to_delete, total, 10)
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
            let mut to_delete = maps(0..3, "u");
            to_delete.push(special.clone());
            let all = [maps(0..200, "u"), vec![special.clone()]].concat();
            let exceeded = exceeded(&inventory(&all), &to_delete, "");
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
        let to_delete = maps(0..15, "u");
        let all = inventory(&maps(0..20, "u"));
        let under = |target, approved: &str| {
            let subject = ApprovalSubject::new(ApprovalScope::default(), DeletionCause::Prune, target, "m1");
            let digests = &ApprovedDigests::of_annotation(approved);
            let approval = ApprovedDeletions { subject, digests };
            super::exceeded(
                &all,
                &to_delete,
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
            let to_delete = [maps(0..3, "u"), vec![special.clone()]].concat();
            let all = inventory(&[maps(0..200, "u"), vec![special.clone()]].concat());
            let held = super::exceeded(
                &all,
                &to_delete,
                200,
                Earlier::default(),
                confirmation,
                ApprovedDeletions::default(),
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

    fn granted(list: &[InventoryEntry], approved: Option<&str>) -> Granted {
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
        let is_held = |to_delete: &[InventoryEntry], granted: &Granted, confirmation: Confirmation<'_>| {
            let earlier = Earlier {
                deleted: 50,
                of: 200,
                granted: Some(granted),
            };
            let remaining = 200 - to_delete.len();
            super::exceeded(
                &all,
                to_delete,
                remaining,
                earlier,
                confirmation,
                ApprovedDeletions::default(),
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
        for (left, to_delete, earlier, held) in [
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
                &maps(0..to_delete, "u"),
                left - to_delete,
                earlier,
                Confirmation::default(),
                ApprovedDeletions::default(),
            );
            assert_eq!(found.is_some(), held, "{to_delete} of {left} after {earlier:?}");
        }
        // Each release replaced two of 20 objects: in its inventory are the old and the new ones.
        let replaced = |to_delete| {
            let inventory = inventory(&maps(0..20 + to_delete, "u"));
            let to_delete = maps(0..to_delete, "u");
            super::exceeded(
                &inventory,
                &to_delete,
                20,
                earlier(30, 20),
                Confirmation::default(),
                ApprovedDeletions::default(),
            )
        };
        assert!(replaced(2).is_none());
        assert!(replaced(21).is_some(), "all of them at once");
    }
}
