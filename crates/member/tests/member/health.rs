//! Health checks: no write, and about one request for each kind.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::OWNER_LABEL;
use starling_core::health::Status;
use starling_core::object::{ObjectId, RenderedObject};
use starling_member::{HealthReport, Member, MemberConfig, MemberLimits};
use starling_testkit::{Fault, FaultProxy, Match};

use crate::world::{World, key, soon};

fn deployment(world: &World, name: &str) -> RenderedObject {
    let spec = json!({"spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
            {"name": "main", "image": "registry.example/app:1"}
        ]}},
    }});
    world.rendered("apps/v1", "Deployment", &world.namespace, name, spec)
}

fn deployments(world: &World) -> Api<Deployment> {
    Api::namespaced(world.other.clone(), &world.namespace)
}

/// Acts as the Deployment controller.
async fn set_status(world: &World, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    deployments(world)
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

fn available(count: u32) -> Value {
    json!({
        "observedGeneration": 1,
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": count, "availableReplicas": count,
        "conditions": [
            {"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ],
    })
}

async fn read(world: &World, member: &Member, keys: &BTreeSet<ObjectId>) -> HealthReport {
    member
        .read_health(&world.owner, keys, Timestamp::now(), soon())
        .await
}

/// Returns name and status of the objects, ordered by key.
fn statuses(report: &HealthReport) -> Vec<(&str, Status)> {
    assert!(
        report.interrupted.is_none() && report.failures.is_empty(),
        "{report:?}"
    );
    report
        .objects
        .iter()
        .map(|(key, read)| (key.name.as_str(), read.health.status))
        .collect()
}

#[tokio::test]
async fn few_objects_are_read_by_name_and_many_by_one_list() {
    let mut world = World::new("health").await;
    let names = ["a", "b", "c", "d", "gone", "unlabelled"];
    let objects = names.map(|name| deployment(&world, name));
    world.apply_ok(&objects).await;
    set_status(&world, "a", available(1)).await;
    set_status(&world, "b", available(0)).await;
    let failed = json!({"conditions": [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
    ]});
    set_status(&world, "c", failed).await;
    set_status(&world, "unlabelled", available(1)).await;

    let keys = |names: &[&str]| -> BTreeSet<ObjectId> {
        let key = |name: &&str| key("apps", "Deployment", &world.namespace, name);
        names.iter().map(key).collect()
    };
    let before = world.member.requests();
    let report = read(&world, &world.member, &keys(&["a", "b", "c"])).await;
    assert_eq!(
        statuses(&report),
        [
            ("a", Status::Current),
            ("b", Status::InProgress),
            ("c", Status::Failed)
        ]
    );
    assert_eq!(world.member.requests() - before, 3);
    let b = &report.objects[&key("apps", "Deployment", &world.namespace, "b")];
    assert_eq!(b.health.message, "Available: 0/1");
    let live = deployments(&world).get("b").await.unwrap();
    assert_eq!(Some(&b.resource_version), live.metadata.resource_version.as_ref());

    deployments(&world)
        .delete("gone", &DeleteParams::default())
        .await
        .unwrap();
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {OWNER_LABEL: null}}}));
    deployments(&world)
        .patch("unlabelled", &PatchParams::default(), &unlabel)
        .await
        .unwrap();
    let before = world.member.requests();
    let report = read(&world, &world.member, &keys(&names)).await;
    assert_eq!(
        statuses(&report),
        [
            ("a", Status::Current),
            ("b", Status::InProgress),
            ("c", Status::Failed),
            ("d", Status::InProgress),
            ("gone", Status::NotFound),
            ("unlabelled", Status::Current),
        ]
    );
    assert_eq!(
        world.member.requests() - before,
        3,
        "one list, and one request for each object missing from it"
    );
}

/// The Deployment is available with what another owner wrote, so this one does not know whether its own would be.
#[tokio::test]
async fn an_object_that_another_owner_took_is_not_healthy() {
    let mut world = World::new("health-taken").await;
    let names = ["kept", "taken", "d1", "d2"];
    let objects = names.map(|name| deployment(&world, name));
    world.apply_ok(&objects).await;
    for name in ["kept", "taken"] {
        set_status(&world, name, available(1)).await;
    }
    let other = "fedcba9876543210fedcba9876543210";
    let take = Patch::Merge(json!({"metadata": {"labels": {OWNER_LABEL: other}}}));
    {
        deployments(&world)
            .patch("taken", &PatchParams::default(), &take)
            .await
    }
    .unwrap();

    for read_together in [&names[..2], &names[..]] {
        let keys = { read_together.iter() }
            .map(|name| key("apps", "Deployment", &world.namespace, name))
            .collect();
        let report = read(&world, &world.member, &keys).await;
        let found: Vec<_> = { statuses(&report).into_iter() }
            .filter(|(name, _)| ["kept", "taken"].contains(name))
            .collect();
        assert_eq!(found, [("kept", Status::Current), ("taken", Status::Unknown)]);
    }
}

/// Complete objects are listed in small pages; all pages are read.
#[tokio::test]
async fn a_list_of_several_pages_is_read_to_its_end() {
    let mut world = World::new("health-pages").await;
    let names: Vec<String> = (0..130).map(|n| format!("d{n:03}")).collect();
    let objects: Vec<RenderedObject> = names.iter().map(|name| deployment(&world, name)).collect();
    world.apply_ok(&objects).await;
    set_status(&world, "d129", available(1)).await;
    let keys: BTreeSet<ObjectId> = objects.iter().map(|object| object.key.clone()).collect();
    let before = world.member.requests();
    let report = read(&world, &world.member, &keys).await;
    assert_eq!(world.member.requests() - before, 2);
    let statuses = statuses(&report);
    assert_eq!(statuses.len(), 130);
    let healthy: Vec<_> = statuses
        .iter()
        .filter(|(_, status)| *status == Status::Current)
        .collect();
    assert_eq!(healthy, [&("d129", Status::Current)]);
}

#[tokio::test]
async fn an_unserved_kind_has_no_objects_and_a_failing_kind_affects_no_other() {
    let mut world = World::new("kinds").await;
    let web = deployment(&world, "web");
    world.apply_ok(std::slice::from_ref(&web)).await;
    set_status(&world, "web", available(1)).await;
    let unserved = key("ghosts.example.com", "Ghost", &world.namespace, "g");
    let job = key("batch", "Job", &world.namespace, "j");
    let keys: BTreeSet<ObjectId> = [web.key.clone(), unserved.clone(), job.clone()].into();
    assert_eq!(
        statuses(&read(&world, &world.member, &keys).await),
        [
            ("web", Status::Current),
            ("j", Status::NotFound),
            ("g", Status::NotFound)
        ]
    );

    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    let config = MemberConfig::from_kubeconfig(&proxy.kubeconfig_yaml()).unwrap();
    let member = Member::connect(config, MemberLimits::default()).unwrap();
    proxy.on(
        Match::any().path_contains("/jobs"),
        Fault::status(http::StatusCode::FORBIDDEN),
    );
    let report = read(&world, &member, &keys).await;
    let failed: Vec<_> = report
        .failures
        .iter()
        .map(|(kind, _)| kind.kind.as_str())
        .collect();
    assert_eq!(failed, ["Job"]);
    assert!(!report.objects.contains_key(&job) && report.interrupted.is_none());
    assert_eq!(report.objects[&web.key].health.status, Status::Current);
    assert_eq!(report.objects[&unserved].health.status, Status::NotFound);
}

/// The drift check returns the versions, so that a changed version triggers a health check.
#[tokio::test]
async fn a_drift_check_returns_the_versions_of_objects_whose_health_counts() {
    let mut world = World::new("versions").await;
    let web = deployment(&world, "web");
    let map = world.map("settings", &json!({"k": "1"}));
    world.apply_ok(&[web.clone(), map]).await;
    let first = world.find_drift().await.versions;
    assert_eq!(first.keys().collect::<Vec<_>>(), [&web.key]);
    assert_eq!(first[&web.key], world.records[&web.key].resource_version);
    set_status(&world, "web", available(1)).await;
    let report = world.find_drift().await;
    assert!(report.drifted.is_empty(), "a status is no drift: {report:?}");
    assert_ne!(report.versions[&web.key], first[&web.key]);
}
