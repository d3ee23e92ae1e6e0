//! Objects that a member refuses: each is named, and the others are applied.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_core::object::RenderedObject;
use starling_member::{ApplyOutcome, MemberError};
use starling_testkit::wait;
use tokio::sync::Mutex;

use crate::world::World;

const TIMEOUT: Duration = Duration::from_secs(30);

fn names(outcome: &ApplyOutcome) -> Vec<&str> {
    let applied = outcome.applied.iter();
    applied.map(|one| one.key.name.as_str()).collect()
}

/// T62: the webhook of one kind does not respond.
#[tokio::test]
async fn t62_a_dead_admission_webhook_fails_only_its_kind_which_is_applied_later() {
    let mut world = World::new("t62").await;
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(world.other.clone());
    // No server listens on port 1.
    let hook = json!({"metadata": {"name": "t62"}, "webhooks": [{
        "name": "t62.example.test", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 2,
        "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE", "UPDATE"]}],
    }]});
    let hook: ValidatingWebhookConfiguration = serde_json::from_value(hook).unwrap();
    hooks.create(&PostParams::default(), &hook).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.other.clone(), &world.namespace);
    let probe: Secret = serde_json::from_value(json!({"metadata": {"name": "probe"}})).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait::until(TIMEOUT, "the webhook active", async || {
        secrets.create(&dry_run, &probe).await.is_err()
    })
    .await
    .unwrap();

    let secret = json!({"stringData": {"k": "v"}});
    let objects = [
        world.map("a", &json!({"k": "1"})),
        world.rendered("v1", "Secret", &world.namespace, "s", secret),
    ];
    let outcome = world.apply(&objects).await;
    let [(failed, MemberError::Server { code: 500, .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(failed.name, "s");
    assert_eq!(names(&outcome), ["a"]);

    hooks.delete("t62", &DeleteParams::default()).await.unwrap();
    let shared = Mutex::new(world);
    wait::until(TIMEOUT, "the secret applied", async || {
        shared.lock().await.apply(&objects).await.is_complete()
    })
    .await
    .unwrap();
    let mut world = shared.into_inner();
    assert!(secrets.get("s").await.is_ok());
    assert_eq!(
        world.apply_ok(&objects).await,
        Vec::<String>::new(),
        "no failed state is kept"
    );
}

/// T63: too large, too much metadata, an invalid value, an unknown kind.
#[tokio::test]
async fn t63_oversized_invalid_and_unknown_objects_are_named_and_the_others_are_applied() {
    let mut world = World::new("t63").await;
    let large = "x".repeat(1_600 * 1024);
    let mut annotated = world.map("annotated", &json!({}));
    let mut body: Value = serde_json::from_slice(&annotated.body).unwrap();
    body["metadata"]["annotations"] = json!({"note": "x".repeat(300 * 1024)});
    annotated.body = body.to_string().into();
    let objects = [
        world.map("large", &json!({"k": large})),
        annotated,
        world.rendered(
            "v1",
            "Service",
            &world.namespace,
            "enum",
            json!({"spec": {"type": "Sometimes", "ports": [{"port": 80}]}}),
        ),
        world.rendered(
            "t63.example.test/v1",
            "Missing",
            &world.namespace,
            "unknown",
            json!({"spec": {}}),
        ),
        world.map("a", &json!({"k": "1"})),
    ];
    let outcome = world.apply(&objects).await;
    let failures: Vec<_> = outcome
        .failures
        .iter()
        .map(|(key, error)| {
            let error = match error {
                MemberError::Invalid { message, .. } => message.clone(),
                other => other.to_string(),
            };
            (key.name.as_str(), error)
        })
        .collect();
    let expected = [
        ("annotated", "metadata.annotations: Too long"),
        ("large", "Too long"),
        ("enum", "spec.type: Unsupported value: \"Sometimes\""),
        (
            "unknown",
            "the cluster has no kind Missing in t63.example.test/v1",
        ),
    ];
    assert_eq!(failures.len(), expected.len(), "{failures:?}");
    for ((name, error), (expected_name, words)) in failures.iter().zip(expected) {
        assert!(
            *name == expected_name && error.contains(words) && error.len() < 600,
            "{name}: {error}"
        );
    }
    assert_eq!(names(&outcome), ["a"]);
    assert!(outcome.interrupted.is_none());
}

fn service(world: &World, cluster_ip: &str) -> RenderedObject {
    let spec =
        json!({"spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": [{"port": 80}]}});
    world.rendered("v1", "Service", &world.namespace, "svc", spec)
}

fn job(world: &World, image: &str) -> RenderedObject {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]});
    let spec = json!({"spec": {"template": {"spec": pod}}});
    world.rendered("batch/v1", "Job", &world.namespace, "job", spec)
}

fn claim(world: &World, size: &str) -> RenderedObject {
    let spec =
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    world.rendered("v1", "PersistentVolumeClaim", &world.namespace, "pvc", spec)
}

/// Two addresses that the member assigns to Services.
async fn free_addresses(world: &World) -> [String; 2] {
    let services: Api<Service> = Api::namespaced(world.other.clone(), "default");
    // A server that just became ready may create its own Service a moment later.
    let own = wait::until(TIMEOUT, "the Service of the API server", async || {
        services.get("kubernetes").await
    });
    let own = own.await.unwrap().spec.unwrap().cluster_ip.unwrap();
    let (network, _) = own.rsplit_once('.').unwrap();
    [77, 78].map(|host| format!("{network}.{host}"))
}

/// UIDs of Service, Job and claim.
async fn uids(world: &World) -> [String; 3] {
    let (client, namespace) = (&world.other, &world.namespace);
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    [
        services.get("svc").await.unwrap().metadata.uid.unwrap(),
        jobs.get("job").await.unwrap().metadata.uid.unwrap(),
        claims.get("pvc").await.unwrap().metadata.uid.unwrap(),
    ]
}

/// T64: without `force`, an immutable field is a failure of its object, which names the field. With `force`, the object
/// is recreated, unless that would lose data.
#[tokio::test]
async fn t64_an_immutable_field_is_named_and_force_recreates_the_object_unless_it_holds_data() {
    let mut world = World::new("t64").await;
    let [old_address, address] = free_addresses(&world).await;
    let before = [
        service(&world, &old_address),
        job(&world, "registry.example/app:1"),
        claim(&world, "10Gi"),
    ];
    world.apply_ok(&before).await;
    let first = uids(&world).await;

    let after = [
        service(&world, &address),
        job(&world, "registry.example/app:2"),
        claim(&world, "5Gi"),
        world.map("a", &json!({"k": "1"})),
    ];
    let outcome = world.apply(&after).await;
    let failures: Vec<_> = outcome
        .failures
        .iter()
        .map(|(key, error)| {
            assert!(matches!(error, MemberError::Immutable { .. }), "{error}");
            (key.name.clone(), error.to_string())
        })
        .collect();
    for ((name, text), (expected, field)) in failures.iter().zip([
        ("pvc", "spec"),
        ("svc", "spec.clusterIP"),
        ("job", "spec.template"),
    ]) {
        assert!(name == expected && text.contains(field), "{name}: {text}");
    }
    assert_eq!((failures.len(), names(&outcome)), (3, vec!["a"]));
    assert_eq!(uids(&world).await, first, "nothing was deleted");
    assert!(
        failures[1].1.contains("force: true"),
        "the error says what to do: {}",
        failures[1].1
    );

    world.recreate = true;
    let outcome = world.apply(&after).await;
    let [(failed, error @ MemberError::Immutable { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(failed.kind, "PersistentVolumeClaim");
    assert!(error.to_string().contains("would be lost"), "{error}");
    assert_eq!(names(&outcome), ["svc", "job"]);
    let second = uids(&world).await;
    assert!(second[0] != first[0] && second[1] != first[1] && second[2] == first[2]);
    let inventory = world.inventory().await;
    for (key, uid) in inventory.iter().filter(|(key, _)| key.name != "pvc") {
        assert_eq!(*uid, world.records[key].uid, "{key}");
    }
    let svc: Service = Api::namespaced(world.other.clone(), &world.namespace)
        .get("svc")
        .await
        .unwrap();
    assert_eq!(svc.spec.unwrap().cluster_ip.as_deref(), Some(address.as_str()));
    let after = [
        after[0].clone(),
        after[1].clone(),
        before[2].clone(),
        after[3].clone(),
    ];
    assert_eq!(
        world.apply_ok(&after).await,
        Vec::<String>::new(),
        "the change is reverted: the claim is unchanged"
    );
}

/// T64: one object requests recreation by annotation; the others are not changed.
#[tokio::test]
async fn t64_the_annotation_recreates_one_object() {
    let mut world = World::new("t64one").await;
    let other = |world: &World, image| RenderedObject {
        key: starling_core::object::ObjectId {
            name: "other".into(),
            ..job(world, image).key
        },
        body: String::from_utf8(job(world, image).body.to_vec())
            .unwrap()
            .replace("\"name\":\"job\"", "\"name\":\"other\"")
            .into(),
        ..job(world, image)
    };
    let first = [job(&world, "a:1"), other(&world, "a:1")];
    world.apply_ok(&first).await;
    let mut annotated = job(&world, "a:2");
    annotated.directives.recreate = true;
    let outcome = world.apply(&[annotated, other(&world, "a:2")]).await;
    assert_eq!(names(&outcome), ["job"]);
    assert!(
        matches!(outcome.failures.as_slice(), [(key, MemberError::Immutable { .. })] if key.name == "other"),
        "{outcome:?}"
    );
}

/// T64: an object that could not be created again is not deleted.
#[tokio::test]
async fn t64_an_object_that_cannot_be_recreated_is_not_deleted() {
    let mut world = World::new("t64invalid").await;
    world.recreate = true;
    world.apply_ok(&[job(&world, "a:1")]).await;
    let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
    let uid = jobs.get("job").await.unwrap().metadata.uid;
    let pod = json!({"restartPolicy": "Sometimes", "containers": [{"name": "main", "image": "a:2"}]});
    let broken = world.rendered(
        "batch/v1",
        "Job",
        &world.namespace,
        "job",
        json!({"spec": {"template": {"spec": pod}}}),
    );
    let outcome = world.apply(&[broken]).await;
    let [(_, error @ MemberError::Invalid { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert!(error.to_string().contains("restartPolicy"), "{error}");
    let live = jobs.get("job").await.unwrap().metadata;
    assert_eq!((live.uid, live.deletion_timestamp), (uid, None));
}

/// What a prune deletes only after an approval is not recreated: the annotation on the cluster or in git asks for one,
/// and so does a kind that an operator added.
#[tokio::test]
async fn t64_an_object_that_asks_for_an_approval_is_not_recreated() {
    let mut world = World::new("t64confirm").await;
    world.recreate = true;
    world.apply_ok(&[job(&world, "a:1")]).await;
    let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
    let uid = jobs.get("job").await.unwrap().metadata.uid;
    let refusal = async |world: &mut World, job: RenderedObject, expected: &str| {
        let outcome = world.apply(&[job]).await;
        let [(_, error @ MemberError::Immutable { .. })] = outcome.failures.as_slice() else {
            panic!("{outcome:?}");
        };
        assert!(error.to_string().contains(expected), "{error}");
        let live = jobs.get("job").await.unwrap().metadata;
        assert_eq!((&live.uid, live.deletion_timestamp), (&uid, None));
    };

    let mut annotated = job(&world, "a:2");
    let mut body: serde_json::Value = serde_json::from_slice(&annotated.body).unwrap();
    body["metadata"]["annotations"] = json!({"starling.dev/deletion": "Confirm"});
    annotated.body = body.to_string().into();
    refusal(&mut world, annotated, "starling.dev/deletion: Confirm").await;

    world.confirm = [job(&world, "a:2").key.group_kind()].into();
    let changed = job(&world, "a:2");
    refusal(&mut world, changed.clone(), "would be lost").await;

    world.confirm.clear();
    let protect = |value: serde_json::Value| {
        Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": value}}}))
    };
    let confirm = protect("Confirm".into());
    jobs.patch("job", &PatchParams::default(), &confirm)
        .await
        .unwrap();
    refusal(&mut world, changed.clone(), "starling.dev/deletion: Confirm").await;

    let free = protect(serde_json::Value::Null);
    jobs.patch("job", &PatchParams::default(), &free).await.unwrap();
    world.apply_ok(&[changed]).await;
    assert_ne!(jobs.get("job").await.unwrap().metadata.uid, uid);
}

/// T64: neither a foreign nor a protected object is deleted, even if recreation is requested.
#[tokio::test]
async fn t64_foreign_and_protected_objects_are_not_deleted() {
    let mut world = World::new("t64theirs").await;
    world.recreate = true;
    world.conflicts_override = true;
    let foreign: Job =
        serde_json::from_value(json!({"metadata": {"name": "job"}, "spec": {"template": {"spec":
        {"restartPolicy": "Never", "containers": [{"name": "main", "image": "theirs"}]}}}}))
        .unwrap();
    let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
    jobs.create(&PostParams::default(), &foreign).await.unwrap();
    let outcome = world.apply(&[job(&world, "ours")]).await;
    let [(_, error @ MemberError::Immutable { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert!(error.to_string().contains("not this Sync's object"), "{error}");

    jobs.delete("job", &DeleteParams::background()).await.unwrap();
    wait::until(TIMEOUT, "the job gone", async || {
        jobs.get_opt("job").await.unwrap().is_none()
    })
    .await
    .unwrap();
    world.apply_ok(&[job(&world, "ours:1")]).await;
    let keep = json!({"metadata": {"annotations": {"starling.dev/prune": "disabled"}}});
    jobs.patch("job", &PatchParams::default(), &Patch::Merge(keep))
        .await
        .unwrap();
    let outcome = world.apply(&[job(&world, "ours:2")]).await;
    let [(_, error)] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert!(
        error.to_string().contains("starling.dev/prune: disabled"),
        "{error}"
    );
    assert!(jobs.get("job").await.is_ok());
}

/// T64: an object that is not gone blocks only itself; once it is gone, it is created.
#[tokio::test]
async fn t64_an_object_with_a_finalizer_is_recreated_once_it_is_gone() {
    let mut world = World::new("t64wait").await;
    world.recreate = true;
    world.apply_ok(&[job(&world, "a:1")]).await;
    let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
    let finalizers = |list: Value| json!({"metadata": {"finalizers": list}});
    let patch = finalizers(json!(["example.test/hold"]));
    jobs.patch("job", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    world.timeout = Duration::from_secs(4);
    let objects = [job(&world, "a:2"), world.map("a", &json!({"k": "1"}))];
    let outcome = world.apply(&objects).await;
    let [(_, error @ MemberError::NotGone { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert!(
        error.to_string().ends_with("it waits for example.test/hold"),
        "{error}"
    );
    assert_eq!(names(&outcome), ["a"]);
    assert!(outcome.interrupted.is_none());
    let terminating = jobs.get("job").await.unwrap().metadata;
    assert_eq!(
        terminating.finalizers.as_deref(),
        Some(&["example.test/hold".to_owned()][..]),
        "the finalizer is not removed"
    );

    jobs.patch(
        "job",
        &PatchParams::default(),
        &Patch::Merge(finalizers(Value::Null)),
    )
    .await
    .unwrap();
    assert_eq!(world.apply_ok(&objects).await, ["created job"]);
    assert_ne!(jobs.get("job").await.unwrap().metadata.uid, terminating.uid);
}

/// T65: an object that another Sync keeps is not written, not claimed, and named. An owner label that appears on an
/// owned object is respected even if all records are lost.
#[tokio::test]
async fn t65_objects_of_another_owner_are_reported_and_not_written() {
    let mut world = World::new("t65owner").await;
    let objects = [
        world.map("a", &json!({"k": "1"})),
        world.map("b", &json!({"k": "1"})),
    ];
    world.kept.insert(world.map_key("b"), "Sync fleet/other".into());
    let outcome = world.apply(&objects).await;
    let [(key, error @ MemberError::OwnedByOther { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(key.name, "b");
    assert!(
        error.to_string().ends_with("it belongs to Sync fleet/other"),
        "{error}"
    );
    assert!(world.maps().get_opt("b").await.unwrap().is_none());
    assert_eq!(world.inventory_names().await, ["a"]);

    world.kept.clear();
    world.apply_ok(&objects).await;
    let label =
        json!({"metadata": {"labels": {starling_api::OWNER_LABEL: "another"}}, "data": {"k": "theirs"}});
    world.edit("b", &label).await;
    world.restarted();
    let outcome = world.apply(&objects).await;
    let [(_, error @ MemberError::OwnedByOther { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert!(error.to_string().ends_with("the owner another"), "{error}");
    assert_eq!(world.value("b", "k").await.as_deref(), Some("theirs"));
    let maps: Api<ConfigMap> = world.maps();
    assert_eq!(
        maps.get("b").await.unwrap().metadata.labels.unwrap()[starling_api::OWNER_LABEL],
        "another"
    );
}
