//! Digests that are stored in status, annotations, records and approvals, of fixed values.
//!
//! A digest that moves with an upgrade rolls every cluster out again, forgets the kept releases, and makes approvals
//! name nothing. A field that is added to a template therefore has to be left out of the JSON while it has its default
//! (`skip_serializing_if`): the digests of templates without the field stay as they are. A failure of this test is
//! mended in the type, not here.

#![expect(
    clippy::unwrap_used,
    reason = "functions shared by the tests of a file are tests too"
)]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};
use starling_api::{IntOrPercent, SyncTemplate};
use starling_core::apply::budget::Confirmation;
use starling_core::apply::{ApprovedDigests, HeldDeletions};
use starling_core::deletion_budget::Left;
use starling_core::deletion_subject::{ApprovalScope, ApprovalSubject, DeletionCause};
use starling_core::digest::hash64;
use starling_core::gate::{GateId, Side};
use starling_core::ids::{ClusterName, InstallationId, RolloutNumber};
use starling_core::inventory::{Inventory, InventoryEntry, Listed};
use starling_core::membership::{Deselection, Members, MembersOf, deselection};
use starling_core::object::ObjectId;
use starling_core::target::{Owner, of_release, of_sync, owner};

const REVISION: &str = "main@sha1:6f1c4f9f0d2b7f3d8a55c1f0d7f4bb0c9a1e2d3c";

fn template(json: Value) -> SyncTemplate {
    serde_json::from_value(json).unwrap()
}

fn minimal() -> SyncTemplate {
    template(json!({"sourceRef": {"name": "shop"}}))
}

/// Every field with its default, as an API server with the definitions stores it.
fn defaults() -> SyncTemplate {
    template(json!({
        "sourceRef": {"name": "shop"}, "path": "./", "prune": true, "allowEmpty": false, "wait": true, "timeout": "5m",
        "interval": "10m", "retryInterval": "30s", "force": false, "conflicts": "Report", "deletionPolicy": "Orphan",
        "suspend": false,
    }))
}

/// Every field of the first version, with another value.
fn full() -> SyncTemplate {
    template(json!({
        "sourceRef": {"name": "shop"}, "path": "./clusters/eu", "targetNamespace": "shop",
        "substitute": {"REGION": "eu", "NAME": "$(cluster.name)"}, "prune": false, "allowEmpty": true, "wait": false,
        "timeout": "2m", "interval": "30m", "retryInterval": "10s", "force": true, "conflicts": "Override",
        "ignore": [{"paths": ["/spec/replicas"], "target": {"kind": "Deployment"}}], "dependsOn": [{"name": "crds"}],
        "serviceAccountName": "deployer", "decryption": {"provider": "sops", "secretRef": {"name": "age"}},
        "deletionPolicy": "Delete",
    }))
}

fn deselected() -> String {
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| ClusterName::from(*name))
            .collect::<BTreeSet<_>>()
    };
    let found = deselection(Members {
        previous: &names(&["eu", "us"]),
        selected: &names(&[]),
        unknown: &names(&[]),
        allowed: IntOrPercent::Percent(20),
        recent: Left::default(),
        going: &names(&[]),
        approved: &ApprovedDigests::default(),
        group: MembersOf {
            namespace: "fleet",
            name: "web",
            identities: &BTreeMap::from([("eu".into(), "uid".to_owned())]),
        },
    });
    match found {
        Deselection::Held(held) => held.digest,
        Deselection::Free(clusters) | Deselection::Approved(clusters) => format!("not held: {clusters:?}"),
    }
}

fn inventory() -> String {
    let object = |kind: &str, name: &str| InventoryEntry {
        key: ObjectId {
            group: String::new(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
        },
        listed: Listed::default(),
    };
    [object("ConfigMap", "settings"), object("Secret", "token")]
        .into_iter()
        .collect::<Inventory>()
        .digest()
}

fn held_deletions() -> String {
    let entry = |kind: &str, name: &str| {
        let key = ObjectId {
            group: String::new(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        InventoryEntry::new(key, "uid")
    };
    let doomed = [entry("ConfigMap", "settings"), entry("Secret", "token")];
    let confirmation = Confirmation {
        kinds: &BTreeSet::new(),
        objects: &BTreeSet::new(),
    };
    let scope = ApprovalScope {
        namespace: "fleet",
        group: "web",
        name: "app",
    };
    let subject = ApprovalSubject::new(scope, DeletionCause::ClusterUnselected, "sha256:release", "uid");
    HeldDeletions::new(subject, &doomed, 3, confirmation, None).digest
}

fn gate_key() -> String {
    let gate = GateId {
        group_id: "81cec152f5af231b1ce2edefc7058c5a".into(),
        rollout: RolloutNumber::new(8),
        stage: "canary".into(),
        side: Side::Before,
        index: 1,
        begun_at: Timestamp::from_millisecond(1_800_000_000_123).unwrap(),
    };
    gate.key()
}

#[test]
fn stored_digests_do_not_move() {
    let (first, second) = (minimal(), full());
    let installation = InstallationId::new("installation");
    let of_entry = Owner::Entry {
        group: "web",
        entry: "app",
    };
    let found = [
        ("target, minimal", of_sync(REVISION, &first).into_string()),
        ("target, all fields", of_sync(REVISION, &second).into_string()),
        (
            "release",
            of_release(&[("app", REVISION, &first), ("infra", REVISION, &second)]).into_string(),
        ),
        (
            "owner of an entry",
            owner(&installation, "fleet", of_entry).into_string(),
        ),
        (
            "owner alone",
            owner(&installation, "fleet", Owner::Alone { sync: "web" }).into_string(),
        ),
        ("deselection", deselected()),
        ("inventory", inventory()),
        ("hash", hash64(&["cluster-uid", "release"]).to_string()),
        ("approval of deletions", held_deletions()),
        ("key of a gate", gate_key()),
        (
            "origin of a revision",
            starling_core::digest::of(&"https://git.example.com/shop.git"),
        ),
    ];
    let found: Vec<String> = found
        .iter()
        .map(|(name, digest)| format!("{name}: {digest}"))
        .collect();
    assert_eq!(found, GOLDEN);
}

#[test]
fn a_field_that_is_set_to_its_default_is_no_change() {
    assert_eq!(of_sync(REVISION, &defaults()), of_sync(REVISION, &minimal()));
}

const GOLDEN: [&str; 11] = [
    "target, minimal: sha256:152391252069843ff6936eafe37613f37805cbd00b65bcd7718ec7048de9b5cb",
    "target, all fields: sha256:a38bea484bde30fb6fc1aa4c3a2576fc896f03e5ee53fd98eb3fc8a232132b1b",
    "release: sha256:4f3d8fabe11788e4814d87772b592ad21bd21b6639dfa5e91d91d78ee56fee59",
    "owner of an entry: 81cec152f5af231b1ce2edefc7058c5a",
    "owner alone: 571c3127ce492bc3b284a137ef02e86b",
    "deselection: sha256:f989891dc657308759decfc882fbb1d38722003e847c0976f9ec170dfd4e2b4f",
    "inventory: sha256:a70edc6cf0c75ea788b7be1760437f82ee98fea565172a1e7bab0558be37eeff",
    "hash: 13971820372112967413",
    "approval of deletions: sha256:a8503600417f192b0810091c20feaba0eccb32df43b837b8f5f4020848443e4f",
    "key of a gate: e43818a9dd1cfed5ee1eed66e9d0269ba93cff8a2b2540c4bbdf499614c34d14",
    "origin of a revision: sha256:e4edca026c5c9616f15d9f429faf84394ebaa642b94a895a32aaf745ae7f4ca8",
];
