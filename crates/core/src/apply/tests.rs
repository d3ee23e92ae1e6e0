use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::inventory::Origin;
use crate::object::Directives;

const KINDS: [(&str, &str, &str); 5] = [
    ("apiextensions.k8s.io", "CustomResourceDefinition", ""),
    ("", "Namespace", ""),
    ("rbac.authorization.k8s.io", "ClusterRole", ""),
    ("", "ConfigMap", "shop"),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "",
    ),
];

pub(super) fn key(number: u8) -> ObjectId {
    let (group, kind, namespace) = KINDS[usize::from(number) % KINDS.len()];
    ObjectId {
        group: group.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: format!("o{number}"),
    }
}

pub(super) fn desired(objects: &BTreeMap<u8, u8>) -> RenderedSet {
    let mut objects: Vec<_> = objects
        .iter()
        .map(|(number, content)| RenderedObject {
            key: key(*number),
            api_version: "v1".into(),
            body: Bytes::from(format!("{{\"content\":{content}}}")),
            digest: format!("sha256:{content}"),
            directives: Directives::default(),
        })
        .collect();
    objects.sort_by_key(|object| Phase::of(&object.key));
    RenderedSet {
        digest: String::new(),
        objects,
        secrets: Default::default(),
    }
}

fn record(content: u8, uid: &str) -> Record {
    Record {
        digest: format!("sha256:{content}"),
        resource_version: "7".into(),
        fields_digest: "f".into(),
        fields_time: "2026-01-01T00:00:00Z".into(),
        uid: uid.into(),
        management: ManagementState::default(),
    }
}

pub(super) fn entry(number: u8, uid: &str) -> InventoryEntry {
    InventoryEntry::new(key(number), uid).with_origin(Origin::Created)
}

/// The input of a plan, owned.
#[derive(Clone, Debug)]
struct World {
    inventory: Inventory,
    desired: RenderedSet,
    records: BTreeMap<ObjectId, Record>,
    drifted: BTreeSet<ObjectId>,
    kept: BTreeMap<ObjectId, String>,
    compare: bool,
    siblings: SiblingObjects,
    begun: BTreeSet<ObjectId>,
    grace: Grace<'static>,
    /// The approved deletions.
    approved: ApprovedDigests,
    options: Options,
}

static NONE: BTreeSet<ObjectId> = BTreeSet::new();

impl World {
    fn plan(&self) -> ApplyPlan<'_> {
        let observed = ApplyInput {
            inventory: &self.inventory,
            desired: &self.desired,
            records: &self.records,
            drifted: &self.drifted,
            kept: &self.kept,
            compare: self.compare,
            guard: Guard {
                siblings: &self.siblings,
                begun: &self.begun,
                gone: &NONE,
                earlier: crate::deletion_budget::Earlier::default(),
                confirmation: budget::Confirmation::default(),
                grace: self.grace,
                approval: ApprovedDeletions {
                    subject: crate::deletion_subject::ApprovalSubject::default(),
                    digests: &self.approved,
                },
            },
        };
        plan(observed, self.options)
    }

    /// The world after the blocked deletions are approved.
    fn approve(self) -> Self {
        let approved = match self.plan().prune_blocker {
            Some(PruneBlocker::Budget(held)) => [held.digest].into_iter().collect(),
            _ => ApprovedDigests::default(),
        };
        Self { approved, ..self }
    }

    /// The world after every step and every delete of its plan succeeded.
    fn executed(&self) -> Self {
        let plan = self.plan();
        let mut next = Self {
            inventory: plan.claim.clone(),
            drifted: BTreeSet::new(),
            ..self.clone()
        };
        for step in plan.apply.iter().flat_map(|(_, steps)| steps) {
            let uid = format!("uid of {}", step.object.key);
            let entry = InventoryEntry::new(step.object.key.clone(), uid.clone());
            next.inventory.insert(entry.with_origin(Origin::Created));
            let record = Record {
                digest: step.object.digest.clone(),
                uid: uid.into(),
                ..record(0, "")
            };
            next.records.insert(step.object.key.clone(), record);
        }
        let pruned = plan.prune.iter().flat_map(|(_, entries)| entries);
        for entry in pruned.chain(&plan.handed_over) {
            next.inventory.remove(&entry.key);
            next.records.remove(&entry.key);
        }
        next
    }
}

fn options() -> impl Strategy<Value = Options> {
    any::<(bool, bool, bool)>().prop_map(|(prune, allow_empty, conflicts_override)| Options {
        prune,
        allow_empty,
        conflicts_override,
    })
}

fn worlds() -> impl Strategy<Value = World> {
    (
        btree_map(0_u8..12, option::of(Just("uid")), 0..10),
        btree_map(0_u8..12, 0_u8..3, 0..10),
        btree_map(0_u8..12, 0_u8..3, 0..10),
        btree_set(0_u8..12, 0..4),
        option::weighted(0.9, btree_set(0_u8..12, 0..4)),
        options(),
    )
        .prop_map(|(inventory, wanted, records, drifted, siblings, options)| World {
            inventory: inventory
                .into_iter()
                .map(|(n, uid)| entry(n, uid.unwrap_or_default()))
                .collect(),
            desired: desired(&wanted),
            records: records
                .into_iter()
                .map(|(n, content)| (key(n), record(content, "uid")))
                .collect(),
            drifted: drifted.into_iter().map(key).collect(),
            kept: BTreeMap::new(),
            compare: false,
            begun: BTreeSet::new(),
            siblings: siblings.map_or(SiblingObjects::Unknown("no answer".into()), |keys| {
                SiblingObjects::Known(keys.into_iter().map(key).collect())
            }),
            grace: Grace::none(),
            approved: ApprovedDigests::default(),
            options,
        })
}

fn approved_worlds() -> impl Strategy<Value = World> {
    worlds().prop_map(World::approve)
}

proptest! {
    #[test]
    fn only_what_is_in_the_inventory_and_not_desired_is_pruned(world in prop_oneof![worlds(), approved_worlds()]) {
        let wanted: BTreeSet<_> = world.desired.objects.iter().map(|object| &object.key).collect();
        let plan = world.plan();
        for entry in plan.prune.iter().flat_map(|(_, entries)| entries) {
            prop_assert!(!wanted.contains(&entry.key));
            prop_assert_eq!(world.inventory.uid(&entry.key), Some(&entry.listed.uid));
        }
        let handed_over: BTreeSet<_> = plan.handed_over.iter().map(|entry| &entry.key).collect();
        let is_left = |key| !wanted.contains(key) && !handed_over.contains(key);
        let held = world.inventory.iter().any(|(key, _)| is_left(key)) && plan.prune.is_empty();
        prop_assert_eq!(plan.prune_blocker.is_some(), held);
    }

    #[test]
    fn objects_of_other_syncs_are_handed_over_and_not_pruned(world in approved_worlds()) {
        let plan = world.plan();
        let pruned = || plan.prune.iter().flat_map(|(_, entries)| entries);
        match &world.siblings {
            SiblingObjects::Known(keys) => {
                prop_assert!(pruned().all(|entry| !keys.contains(&entry.key)));
                prop_assert!(plan.handed_over.iter().all(|entry| keys.contains(&entry.key)));
            }
            SiblingObjects::Unknown(_) => {
                prop_assert_eq!(pruned().count(), 0);
                prop_assert!(plan.handed_over.is_empty());
            }
        }
    }

    #[test]
    fn objects_that_take_others_along_are_pruned_only_if_approved(world in worlds()) {
        let plan = world.plan();
        let mut pruned = plan.prune.iter().flat_map(|(_, entries)| entries);
        prop_assert!(pruned.all(|entry| !budget::takes_others_along(&entry.key)));
    }

    #[test]
    fn an_empty_render_prunes_nothing(world in worlds()) {
        let mut world = world;
        world.desired.objects.clear();
        world.options.allow_empty = false;
        prop_assert!(world.plan().prune.is_empty());
        prop_assert!(world.plan().claim == world.inventory);
    }

    #[test]
    fn prune_off_prunes_nothing(world in worlds()) {
        let world = World { options: Options { prune: false, ..world.options }, ..world };
        prop_assert!(world.plan().prune.is_empty());
    }

    #[test]
    fn every_object_is_applied_or_skipped_once_in_the_order_of_phases(world in worlds()) {
        let plan = world.plan();
        let applied = plan.apply.iter().flat_map(|(_, steps)| steps).map(|step| &step.object.key);
        let mut planned: Vec<_> = applied.chain(plan.skipped.iter().copied()).collect();
        planned.sort();
        let mut wanted: Vec<_> = world.desired.objects.iter().map(|object| &object.key).collect();
        wanted.sort();
        prop_assert_eq!(planned, wanted);
        prop_assert!(plan.apply.is_sorted_by(|a, b| a.0 < b.0));
        prop_assert!(plan.prune.is_sorted_by(|a, b| a.0 < b.0));
        for (step, entries) in &plan.prune {
            prop_assert!(entries.iter().all(|entry| DeletionStep::of(&entry.key) == *step));
        }
    }

    #[test]
    fn the_claim_contains_the_inventory_and_everything_wanted(world in worlds()) {
        let claim = world.plan().claim;
        prop_assert!(world.inventory.difference(&claim).is_empty());
        prop_assert!(world.desired.objects.iter().all(|object| claim.contains(&object.key)));
    }

    #[test]
    fn force_needs_a_confirmed_entry_or_the_override(world in worlds()) {
        for step in world.plan().apply.iter().flat_map(|(_, steps)| steps) {
            let confirmed = world.inventory.uid(&step.object.key).is_some_and(|uid| {
                !uid.is_empty() || world.records.contains_key(&step.object.key)
            });
            prop_assert_eq!(step.force, confirmed || world.options.conflicts_override);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_plan(world in worlds()) {
        let same = world.clone();
        prop_assert_eq!(format!("{:?}", world.plan()), format!("{:?}", same.plan()));
    }

    #[test]
    fn an_unconfirmed_write_is_written_again(
        world in approved_worlds(),
        done in btree_set(0_u8..12, 0..12),
        then in btree_map(0_u8..12, 0_u8..3, 0..10),
    ) {
        let plan = world.plan();
        // The objects on the member: as recorded, except for what the attempt did before its responses were lost.
        let mut member: BTreeMap<ObjectId, String> = world
            .records
            .iter()
            .filter(|(key, _)| !world.drifted.contains(*key))
            .map(|(key, record)| (key.clone(), record.digest.clone()))
            .collect();
        let done: BTreeSet<_> = done.into_iter().map(key).collect();
        for step in plan.apply.iter().flat_map(|(_, steps)| steps).filter(|step| done.contains(&step.object.key)) {
            member.insert(step.object.key.clone(), step.object.digest.clone());
        }
        for entry in plan.prune.iter().flat_map(|(_, entries)| entries).filter(|entry| done.contains(&entry.key)) {
            member.remove(&entry.key);
        }
        let unconfirmed = unconfirmed_records(&world.desired, &world.records, &world.drifted);
        prop_assert!(plan.skipped.iter().all(|key| !unconfirmed.contains_key(*key)));
        let mut next = World {
            inventory: plan.claim.clone(),
            desired: desired(&then),
            drifted: BTreeSet::new(),
            ..world.clone()
        };
        next.records.extend(unconfirmed);
        for key in next.plan().skipped {
            let wanted = next.desired.objects.iter().find(|object| object.key == *key);
            prop_assert_eq!(member.get(key), wanted.map(|object| &object.digest), "{}", key);
        }
    }

    #[test]
    fn after_a_plan_is_executed_the_next_one_is_empty(world in approved_worlds()) {
        let next = world.executed();
        let plan = next.plan();
        prop_assert!(plan.apply.is_empty(), "{:?}", plan.apply);
        prop_assert!(plan.prune.is_empty() && plan.handed_over.is_empty());
        prop_assert!(plan.claim == next.inventory);
        prop_assert_eq!(plan.skipped.len(), next.desired.objects.len());
    }
}

#[test]
fn what_others_need_to_go_goes_after_them() {
    let id = |group: &str, kind: &str, namespace: &str| ObjectId {
        group: group.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: "x".into(),
    };
    let in_order = [
        // The operator runs their finalizers, with its permissions, and its webhook admits that.
        id("shop.example.com", "Order", "shop"),
        id("cluster.x-k8s.io", "Cluster", "shop"),
        id("shop.example.com", "Fleet", ""),
        id(
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration",
            "",
        ),
        id("apps", "Deployment", "shop"),
        id("", "Secret", "shop"),
        id("rbac.authorization.k8s.io", "ClusterRole", ""),
        id("apiextensions.k8s.io", "CustomResourceDefinition", ""),
        id("", "Namespace", ""),
    ];
    let steps: Vec<DeletionStep> = in_order.iter().map(DeletionStep::of).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    let distinct: BTreeSet<DeletionStep> = steps.into_iter().collect();
    assert_eq!(distinct.len(), 6);
}

#[test]
fn what_was_there_before_is_relinquished_of_where_its_deletion_deletes_others() {
    let named = |name: &str, origin| {
        let key = ObjectId {
            group: String::new(),
            kind: "Namespace".into(),
            namespace: String::new(),
            name: name.into(),
        };
        InventoryEntry::new(key, "u").with_origin(origin)
    };
    let namespace = |origin| named("shop", origin);
    let map = |origin| InventoryEntry::new(key(9), "u").with_origin(origin);
    for (entry, relinquished) in [
        (namespace(Origin::Created), false),
        (namespace(Origin::Adopted), true),
        // The response to its first apply is missing.
        (namespace(Origin::Unknown), true),
        // All Syncs of the cluster would lose their inventories.
        (named("starling-system", Origin::Created), true),
        (map(Origin::Created), false),
        (map(Origin::Adopted), false),
    ] {
        let objects = [(1, 1)].into();
        let world = World {
            inventory: [entry.clone(), self::entry(1, "u")].into_iter().collect(),
            desired: desired(&objects),
            records: BTreeMap::new(),
            drifted: BTreeSet::new(),
            kept: BTreeMap::new(),
            compare: false,
            siblings: SiblingObjects::nothing(),
            begun: BTreeSet::new(),
            grace: Grace::none(),
            approved: ApprovedDigests::default(),
            options: Options {
                prune: true,
                ..Options::default()
            },
        };
        let plan = world.plan();
        assert_eq!(!plan.relinquished.is_empty(), relinquished, "{entry:?}");
        let is_pruned = !plan.prune.is_empty() || plan.prune_blocker.is_some();
        assert_eq!(is_pruned, !relinquished, "{entry:?}");
    }
}

#[test]
fn the_reason_follows_from_inventory_record_and_drift() {
    let wanted = BTreeMap::from([(3, 1)]);
    let none = Inventory::new();
    let claimed: Inventory = [entry(3, "")].into_iter().collect();
    let confirmed: Inventory = [entry(3, "u")].into_iter().collect();
    let (same, other) = (Some(record(1, "u")), Some(record(2, "u")));
    // (inventory, record, drifted) and the reason; None is "skipped".
    let cases = [
        (&none, None, false, Some((ApplyReason::New, false))),
        (&none, None, true, Some((ApplyReason::New, false))),
        (&none, same.clone(), false, None),
        (&none, same.clone(), true, Some((ApplyReason::Drifted, false))),
        (&none, other.clone(), false, Some((ApplyReason::Changed, false))),
        (&claimed, None, false, Some((ApplyReason::New, false))),
        (&claimed, same.clone(), false, Some((ApplyReason::Unknown, true))),
        (&claimed, other.clone(), false, Some((ApplyReason::Changed, true))),
        (&confirmed, None, false, Some((ApplyReason::Unknown, true))),
        (&confirmed, same.clone(), false, None),
        (&confirmed, same, true, Some((ApplyReason::Drifted, true))),
        (&confirmed, other, true, Some((ApplyReason::Changed, true))),
        (
            &confirmed,
            Some(record(1, "another")),
            false,
            Some((ApplyReason::Unknown, true)),
        ),
    ];
    for (number, (inventory, record, drifted, expected)) in cases.into_iter().enumerate() {
        let world = World {
            inventory: inventory.clone(),
            desired: desired(&wanted),
            records: record.into_iter().map(|record| (key(3), record)).collect(),
            drifted: drifted.then(|| key(3)).into_iter().collect(),
            kept: BTreeMap::new(),
            compare: false,
            siblings: SiblingObjects::nothing(),
            begun: BTreeSet::new(),
            grace: Grace::none(),
            approved: ApprovedDigests::default(),
            options: Options::default(),
        };
        let plan = world.plan();
        let step = plan
            .apply
            .first()
            .map(|(_, steps)| (steps[0].reason, steps[0].force));
        assert_eq!(step, expected, "case {number}");
        assert_eq!(
            plan.skipped.len(),
            usize::from(expected.is_none()),
            "case {number}"
        );
    }
}

/// Guards against overriding a reported conflict: the claim that is written before the first attempt must not make the
/// second attempt force.
#[test]
fn a_failed_first_apply_does_not_force_the_second() {
    let world = World {
        inventory: Inventory::new(),
        desired: desired(&BTreeMap::from([(3, 1)])),
        records: BTreeMap::new(),
        drifted: BTreeSet::new(),
        kept: BTreeMap::new(),
        compare: false,
        siblings: SiblingObjects::nothing(),
        begun: BTreeSet::new(),
        grace: Grace::none(),
        approved: ApprovedDigests::default(),
        options: Options::default(),
    };
    let second = World {
        inventory: world.plan().claim,
        ..world.clone()
    };
    let plan = second.plan();
    assert_eq!(
        (plan.apply[0].1[0].reason, plan.apply[0].1[0].force),
        (ApplyReason::New, false)
    );
}

#[test]
fn a_lost_inventory_takes_back_rendered_objects_and_prunes_nothing_else() {
    let world = World {
        inventory: Inventory::new(),
        desired: desired(&BTreeMap::from([(3, 1)])),
        records: BTreeMap::from([(key(3), record(1, "u3")), (key(8), record(1, "u8"))]),
        drifted: BTreeSet::new(),
        kept: BTreeMap::new(),
        compare: false,
        siblings: SiblingObjects::nothing(),
        begun: BTreeSet::new(),
        grace: Grace::none(),
        approved: ApprovedDigests::default(),
        options: Options {
            prune: true,
            allow_empty: true,
            ..Options::default()
        },
    };
    let plan = world.plan();
    assert!(plan.apply.is_empty() && plan.prune.is_empty());
    let known = InventoryEntry::new(key(3), "u3");
    assert_eq!(plan.claim, [known].into_iter().collect());
}

/// A world with one desired object, 3, which is in the inventory and has this record.
fn confirmed(record: Record) -> World {
    World {
        inventory: [entry(3, "u")].into_iter().collect(),
        desired: desired(&BTreeMap::from([(3, 1)])),
        records: BTreeMap::from([(key(3), record)]),
        drifted: BTreeSet::new(),
        kept: BTreeMap::new(),
        compare: false,
        siblings: SiblingObjects::nothing(),
        begun: BTreeSet::new(),
        grace: Grace::none(),
        approved: ApprovedDigests::default(),
        options: Options {
            prune: true,
            ..Options::default()
        },
    }
}

#[test]
fn a_requested_reconcile_compares_objects_that_are_in_step_by_their_records() {
    let reason = |world: &World| {
        let plan = world.plan();
        plan.apply.first().map(|(_, steps)| steps[0].reason)
    };
    // The desired object has content 1.
    let mut world = confirmed(record(1, "u"));
    assert_eq!(reason(&world), None);
    world.compare = true;
    assert_eq!(reason(&world), Some(ApplyReason::Unknown));
    world.records = all_unconfirmed(&world.records);
    world.compare = false;
    assert_eq!(
        reason(&world),
        Some(ApplyReason::Changed),
        "whatever became of that attempt"
    );
    world.compare = true;
    assert_eq!(reason(&world), Some(ApplyReason::Changed));
    world.records = BTreeMap::from([(key(3), record(1, "u"))]);
    world.drifted = BTreeSet::from([key(3)]);
    assert_eq!(
        reason(&world),
        Some(ApplyReason::Drifted),
        "what is known to differ is not read first"
    );
}

#[test]
fn an_excluded_object_is_neither_written_nor_pruned_and_stays_in_the_inventory() {
    let there = ManagementState {
        left_alone: true,
        ..ManagementState::default()
    };
    let by_hand = confirmed(Record {
        management: there,
        ..record(2, "u")
    });
    let mut in_git = confirmed(record(2, "u"));
    in_git.desired.objects[0].directives.left_alone = true;
    in_git.drifted.insert(key(3));
    for world in [&by_hand, &in_git] {
        let plan = world.plan();
        assert_eq!(plan.left_alone, [&key(3)]);
        assert!(plan.apply.is_empty() && plan.prune.is_empty() && plan.skipped.is_empty());
        assert_eq!(plan.claim, world.inventory);
    }
    // The drift check that finds it deleted, or without the annotation, reports it as drifted.
    let gone = World {
        drifted: BTreeSet::from([key(3)]),
        ..by_hand
    };
    assert_eq!(gone.plan().apply.len(), 1);
    // Not claimed either: a claim would look like an object that was applied.
    let new = World {
        inventory: Inventory::new(),
        records: BTreeMap::new(),
        ..in_git
    };
    assert!(new.plan().claim.is_empty());
}

#[test]
fn an_object_of_another_owner_is_neither_written_nor_claimed() {
    let mut world = confirmed(record(2, "u"));
    world.kept = BTreeMap::from([(key(3), "Sync a".to_owned())]);
    let plan = world.plan();
    assert_eq!(plan.kept, [(&key(3), "Sync a")]);
    assert!(plan.apply.is_empty() && plan.prune.is_empty());
    assert_eq!(plan.claim, world.inventory);
    world.inventory = Inventory::new();
    world.records.clear();
    assert!(world.plan().claim.is_empty());
}

#[test]
fn a_step_has_the_state_of_the_claim() {
    let claim = |world: &World| format!("{:?}", world.plan().apply[0].1[0].claim);
    let mut world = confirmed(record(2, "u"));
    let confirmed = format!("{:?}", Claim::Confirmed("u"));
    assert_eq!(claim(&world), confirmed);
    let records = std::mem::take(&mut world.records);
    assert_eq!(claim(&world), confirmed, "from the inventory");
    world.inventory = [entry(3, "")].into_iter().collect();
    assert_eq!(claim(&world), format!("{:?}", Claim::Unconfirmed));
    world.records = records;
    assert_eq!(claim(&world), confirmed, "the record has the answer");
    world.records.clear();
    world.inventory = Inventory::new();
    assert_eq!(claim(&world), format!("{:?}", Claim::New));
}

#[test]
fn verdicts() {
    let live = |uid, owner, owner_is_applied| {
        Some(Live {
            uid,
            owner,
            owner_is_applied,
            prune_disabled: false,
        })
    };
    let delete = |uid: &str| PruneVerdict::Delete { uid: uid.into() };
    let cases = [
        ("u", None, PruneVerdict::Gone),
        ("", None, PruneVerdict::Gone),
        ("u", live("u", Some("me"), true), delete("u")),
        ("u", live("u", None, false), delete("u")),
        ("u", live("u", Some("other"), true), PruneVerdict::HandedOver),
        ("u", live("v", Some("me"), true), PruneVerdict::Foreign),
        ("u", live("", Some("me"), true), PruneVerdict::Foreign),
        ("", live("v", Some("me"), true), delete("v")),
        ("", live("v", Some("me"), false), PruneVerdict::Foreign),
        ("", live("v", None, true), PruneVerdict::Foreign),
        ("", live("v", Some("other"), true), PruneVerdict::HandedOver),
        ("", live("", Some("me"), true), PruneVerdict::Foreign),
    ];
    for (uid, live, expected) in cases {
        assert_eq!(
            prune_verdict(&entry(3, uid), live, &OwnerLabel::new("me")),
            expected,
            "{uid:?} {live:?}"
        );
    }
}

/// `starling.dev/prune: disabled` keeps our objects; it does not make objects of other owners ours.
#[test]
fn a_protected_object_is_released_and_not_deleted() {
    let live = |uid, owner| {
        Some(Live {
            uid,
            owner: Some(owner),
            owner_is_applied: true,
            prune_disabled: true,
        })
    };
    let verdict = |live| prune_verdict(&entry(3, "u"), live, &OwnerLabel::new("me"));
    assert_eq!(verdict(live("u", "me")), PruneVerdict::Protected);
    assert_eq!(verdict(live("v", "me")), PruneVerdict::Foreign);
    assert_eq!(verdict(live("u", "other")), PruneVerdict::HandedOver);
}

/// Guards against a second approval, and a grace, of what is being deleted already.
#[test]
fn nothing_is_decided_about_an_object_that_is_being_deleted() {
    let namespace = ObjectId {
        group: String::new(),
        kind: "Namespace".into(),
        namespace: String::new(),
        name: "shop".into(),
    };
    let created = |key: &ObjectId| InventoryEntry::new(key.clone(), "u").with_origin(Origin::Created);
    let mut world = World {
        inventory: (1..30)
            .map(key)
            .chain([namespace.clone()])
            .map(|key| created(&key))
            .collect(),
        desired: desired(&(1..30).map(|number| (number, 0)).collect()),
        records: BTreeMap::new(),
        drifted: BTreeSet::new(),
        kept: BTreeMap::new(),
        compare: false,
        begun: BTreeSet::new(),
        siblings: SiblingObjects::nothing(),
        grace: Grace::none(),
        approved: ApprovedDigests::default(),
        options: Options {
            prune: true,
            ..Options::default()
        },
    };
    let pruned = |world: &World| -> Vec<ObjectId> {
        let plan = world.plan();
        let entries = plan.prune.iter().flat_map(|(_, entries)| entries);
        entries.map(|entry| entry.key.clone()).collect()
    };
    assert!(matches!(
        world.plan().prune_blocker,
        Some(PruneBlocker::Budget(_))
    ));
    assert_eq!(pruned(&world), []);
    world.begun.insert(namespace.clone());
    world.grace.length = std::time::Duration::from_secs(3600);
    assert_eq!(
        (world.plan().prune_blocker, pruned(&world)),
        (None, vec![namespace.clone()])
    );
    // Others are held, and it stays what it is.
    world.grace.length = std::time::Duration::ZERO;
    world.desired = desired(&BTreeMap::from([(1, 0)]));
    assert!(matches!(world.plan().prune_blocker, Some(PruneBlocker::Budget(held)) if held.deletions == 28));
    assert_eq!(pruned(&world), [namespace]);
}
