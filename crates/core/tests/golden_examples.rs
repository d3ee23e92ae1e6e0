//! Digests of the documents of the contract: the targets, the releases and the approvals of its SyncGroups and Syncs.
//!
//! `golden_digests` has fixed values; here the documents are those that users write. A field that is added to the
//! templates moves none of these digests while it has its default. A failure is mended in the type, unless the document
//! itself was changed.

#![expect(
    clippy::unwrap_used,
    reason = "functions shared by the tests of a file are tests too"
)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use starling_api::{SyncGroup, SyncGroupSpec, SyncSpec, SyncTemplate};
use starling_core::expand::{ClusterFacts, resolve};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::ids::{InstallationId, Uid};
use starling_core::target::{group_id, of_release, of_spec, of_sync};

const REVISION: &str = "main@sha1:6f1c4f9f0d2b7f3d8a55c1f0d7f4bb0c9a1e2d3c";

const DOCUMENTS: [(&str, &str); 3] = [
    (
        "all-fields",
        include_str!("../../../tests/contract/all-fields.yaml"),
    ),
    (
        "git-to-clusters",
        include_str!("../../../tests/contract/git-to-clusters.yaml"),
    ),
    (
        "staged-rollout",
        include_str!("../../../tests/contract/staged-rollout.yaml"),
    ),
];

fn cluster() -> ClusterFacts {
    ClusterFacts {
        name: "eu-1".into(),
        labels: BTreeMap::from([("region".to_owned(), "eu".to_owned())]),
        annotations: BTreeMap::new(),
    }
}

fn target(template: &SyncTemplate) -> String {
    of_sync(REVISION, &resolve(template, &cluster()).unwrap()).into_string()
}

fn approval<'a>(templates: impl Iterator<Item = (&'a str, &'a SyncTemplate)>) -> String {
    let entries: Vec<EntryBuild<'_>> = templates
        .map(|(name, template)| EntryBuild {
            values: Default::default(),
            name,
            template: template.clone(),
            commit: None,
            builds: BTreeSet::from(["sha256:00".to_owned()]),
        })
        .collect();
    fingerprint::of_release(&entries)
}

/// The targets, the release and the approval of a group.
fn of_group(spec: &SyncGroupSpec) -> Vec<(String, String)> {
    let entries = || {
        spec.syncs
            .iter()
            .map(|entry| (entry.name.as_str(), &entry.template))
    };
    let release: Vec<_> = entries()
        .map(|(name, template)| (name, REVISION, template))
        .collect();
    let targets = entries().map(|(name, template)| (format!("target of {name}"), target(template)));
    let mut digests: Vec<(String, String)> = targets.collect();
    digests.push(("release".into(), of_release(&release).into_string()));
    digests.push(("approval".into(), approval(entries())));
    digests
}

fn digests(documents: &str) -> Vec<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(documents).unwrap();
    let mut found = Vec::new();
    for document in &documents {
        let digests = match document["kind"].as_str() {
            Some("SyncGroup") => of_group(&serde_json::from_value(document["spec"].clone()).unwrap()),
            Some("Sync") => {
                let spec: SyncSpec = serde_json::from_value(document["spec"].clone()).unwrap();
                vec![("target".to_owned(), of_spec(&spec).unwrap().into_string())]
            }
            _ => Vec::new(),
        };
        let (kind, name) = (&document["kind"], &document["metadata"]["name"]);
        let digests = digests.into_iter();
        found.extend(
            digests.map(|(what, digest)| format!("{kind} {name}: {what}: {digest}").replace('"', "")),
        );
    }
    found
}

#[test]
fn digests_of_the_contract_do_not_move() {
    let found: Vec<String> = DOCUMENTS
        .iter()
        .flat_map(|(file, text)| {
            digests(text)
                .into_iter()
                .map(move |digest| format!("{file}: {digest}"))
        })
        .collect();
    assert_eq!(found, GOLDEN);
}

/// The identity of a group is stored in status, labels and the ledger.
#[test]
fn the_identity_of_a_group_does_not_move() {
    assert_eq!(
        group_id(
            &InstallationId::new("installation"),
            "fleet",
            "web",
            &Uid::new("5a1ee3c4-9d3f-4b52-8f5e-000000000001")
        )
        .as_str(),
        GROUP_ID
    );
}

/// Each field of a template with its default, and, where a field has parts, the parts that have a default.
fn defaults() -> Vec<(&'static str, Value, Value)> {
    let with = |field: &'static str, value: Value| (field, json!({}), json!({field: value}));
    let parts =
        |field: &'static str, short: Value, long: Value| (field, json!({field: short}), json!({field: long}));
    vec![
        with("path", json!("./")),
        with("targetNamespace", json!("")),
        with("substitute", json!({})),
        with("prune", json!(true)),
        with("pruneGrace", json!("0s")),
        with("allowEmpty", json!(false)),
        with("wait", json!(true)),
        with("timeout", json!("5m")),
        with("interval", json!("10m")),
        with("retryInterval", json!("30s")),
        with("force", json!(false)),
        with("conflicts", json!("Report")),
        with("ignore", json!([])),
        parts(
            "ignore",
            json!([{"paths": ["/spec/replicas"]}]),
            json!([{"paths": ["/spec/replicas"], "target": null}]),
        ),
        parts(
            "ignore",
            json!([{"paths": ["/a"], "target": {"kind": "Deployment"}}]),
            json!([{"paths": ["/a"], "target": {"kind": "Deployment", "group": "", "version": "",
                "namespace": "", "name": ""}}]),
        ),
        with("dependsOn", json!([])),
        with("serviceAccountName", json!("")),
        with("decryption", json!(null)),
        parts(
            "decryption",
            json!({"secretRef": {"name": "age"}}),
            json!({"provider": "sops", "secretRef": {"name": "age"}}),
        ),
        with("deletionPolicy", json!("Orphan")),
        with("suspend", json!(false)),
    ]
}

fn group(fields: &Value) -> SyncGroupSpec {
    let mut entry = json!({"name": "app", "sourceRef": {"name": "shop"}});
    entry
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(json!({"clusterSelector": {}, "syncs": [entry]})).unwrap()
}

/// Guards against a field that rolls every fleet out again once a tool, or a definition, writes its default.
#[test]
fn a_field_with_its_default_moves_no_digest() {
    for (field, without, with) in defaults() {
        assert_eq!(
            of_group(&group(&without)),
            of_group(&group(&with)),
            "{field}: {without} and {with}"
        );
    }
}

/// A field that is added to the templates must be in [`defaults`], or be shown to move digests on purpose.
#[test]
fn every_field_of_a_template_is_tested_with_its_default() {
    let definitions = starling_api::definitions();
    let definition = definitions
        .iter()
        .find(|definition| definition.spec.names.kind == "SyncGroup")
        .unwrap();
    let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
    let pointer = "/openAPIV3Schema/properties/spec/properties/syncs/items/properties";
    let fields: BTreeSet<String> = schema
        .pointer(pointer)
        .unwrap()
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let tested: BTreeSet<String> = defaults()
        .into_iter()
        .map(|(field, ..)| field.to_owned())
        .chain(["name", "sourceRef"].map(str::to_owned))
        .collect();
    assert_eq!(fields, tested);
}

/// The fields of the first version are written with their defaults. A later one must not be: releases that an earlier
/// version stored do not have it, and their digests were computed without it.
#[test]
fn a_later_field_is_left_out_while_it_has_its_default() {
    let template = &group(&json!({})).syncs[0].template;
    let written = serde_json::to_value(template).unwrap();
    let written: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(written, FIRST_FIELDS);
}

/// What is not part of a template takes no part in a release: a change of the strategy, of the selector or of the
/// budgets restarts nothing.
#[test]
fn fields_of_a_group_beside_its_entries_move_no_digest() {
    let documents: Vec<Value> = serde_saphyr::from_multiple(DOCUMENTS[0].1).unwrap();
    let full = documents
        .iter()
        .find(|document| document["kind"] == "SyncGroup")
        .unwrap();
    let full: SyncGroup = serde_json::from_value(full.clone()).unwrap();
    let bare = json!({"clusterSelector": {}, "syncs": full.spec.syncs});
    let bare: SyncGroupSpec = serde_json::from_value(bare).unwrap();
    assert_ne!(bare, full.spec);
    assert_eq!(of_group(&bare), of_group(&full.spec));
}

const FIRST_FIELDS: [&str; 12] = [
    "allowEmpty",
    "conflicts",
    "deletionPolicy",
    "force",
    "interval",
    "path",
    "prune",
    "retryInterval",
    "sourceRef",
    "suspend",
    "timeout",
    "wait",
];
const GROUP_ID: &str = "d1f6b6f185aa5d765a747e38b2f804e9";
const GOLDEN: [&str; 12] = [
    "all-fields: Sync all-fields: target: sha256:988deccfb27b9a24fb180b520dfd25fced32becb817ea43462c2e9aa7b303dba",
    "all-fields: SyncGroup all-fields: target of app: sha256:d19c878eb786c578b9ab71f97a703608a14f3194dd615524645dba8230dd4ce5",
    "all-fields: SyncGroup all-fields: release: sha256:499eae72fec09ee1dff86d4cf27c4cc51d79d15bde73edba6d226f16dc187ee4",
    "all-fields: SyncGroup all-fields: approval: sha256:a17beb6b5f3efa93304fa2328504d9e295cae7b7755d421ce96f58c452afc0c5",
    "git-to-clusters: SyncGroup shop: target of app: sha256:f794d06204f86efeb0e494166d86f4433c7e22336e1206e003354554072283f9",
    "git-to-clusters: SyncGroup shop: release: sha256:de5376249ca14048cd2aa5631e9849ff466fadcff35e319362fb2f9c5ab29f77",
    "git-to-clusters: SyncGroup shop: approval: sha256:73090df6864b7d6389bc6d1806660fb1614068fcaf40f27893bc42519be96253",
    "git-to-clusters: Sync shop-app-eu-1: target: sha256:cd030bc87abd9bde8609911dd05c404af7556178f6e025acac622a178f5c826d",
    "staged-rollout: SyncGroup shop-train: target of crds: sha256:b2e721de0188fa6014f4c5bf2a1c5e401d1c075c2dab702dbd2e89af3152fc8c",
    "staged-rollout: SyncGroup shop-train: target of app: sha256:c23971f7ea66dcb51d10ac7823a750fba0ec73c4bb0da4332657acf279cb3aaf",
    "staged-rollout: SyncGroup shop-train: release: sha256:1b8088c3017e990b4508d9a52b325170ae028782caca08ae82e845dd7b02b91a",
    "staged-rollout: SyncGroup shop-train: approval: sha256:40cfb12fdf46cc1519b57751882d61a8bcbf98b0d41070637a7d784b2e1f6957",
];
