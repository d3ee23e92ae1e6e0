//! Attempts that are interrupted between several requests: the next attempt continues from the state of the member.

use std::collections::BTreeSet;

use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use kube::api::Api;
use serde_json::{Value, json};
use starling_api::{DISABLED, FIELD_MANAGER, IgnoreRule, OWNER_LABEL, PRUNE, RECONCILE};
use starling_core::apply::ApprovedDeletions;
use starling_core::ignore::IgnoreRules;
use starling_core::object::{RenderedObject, RenderedSet};
use starling_member::{MemberError, NoSiblings, PreviewJob};
use starling_testkit::{Fault, FaultProxy, Match};

use crate::world::{World, connect_to, soon};

/// Applies through a proxy that cuts one request, as if the process died there.
async fn interrupt(world: &mut World, objects: &[RenderedObject], matching: Match, fault: Fault) {
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let interrupt = proxy.on(matching, fault);
    let records = world.records.clone();
    let outcome = world.apply(objects).await;
    assert_eq!(interrupt.fired(), 1);
    assert!(
        matches!(outcome.interrupted, Some(MemberError::Unreachable { .. })),
        "{outcome:?}"
    );
    // The next process has the records of earlier attempts.
    world.restarted();
    world.records = records;
}

fn job(world: &World, image: &str) -> RenderedObject {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]});
    let spec = json!({"spec": {"template": {"spec": pod}}});
    world.rendered("batch/v1", "Job", &world.namespace, "job", spec)
}

#[tokio::test]
async fn an_interrupted_recreation_ends_with_one_new_object() {
    let of_job = |method| Match::method(method).path_ends_with("/jobs/job");
    let delete = || of_job(Method::DELETE).times(1);
    // The first apply is refused, the second recreates the object.
    let second_apply = || of_job(Method::PATCH).nth(2);
    let dry_run = Match::method(Method::POST).query_contains("dryRun=All").times(1);
    let cases = [
        ("trybefore", dry_run, Fault::CutBefore, "created job"),
        ("deletebefore", delete(), Fault::CutBefore, "created job"),
        ("deleteafter", delete(), Fault::CutAfter, "created job"),
        ("applybefore", second_apply(), Fault::CutBefore, "created job"),
        // The object exists, and is not created a third time.
        ("applyafter", second_apply(), Fault::CutAfter, "configured job"),
    ];
    for (case, matching, fault, done) in cases {
        let mut world = World::new(&format!("cut{case}")).await;
        world.recreate = true;
        world.apply_ok(&[job(&world, "a:1")]).await;
        let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
        let first = jobs.get("job").await.unwrap().metadata.uid.unwrap();
        let objects = [job(&world, "a:2"), world.map("a", &json!({"k": "1"}))];
        interrupt(&mut world, &objects, matching, fault).await;
        let live_uid = jobs
            .get_opt("job")
            .await
            .unwrap()
            .and_then(|job| job.metadata.uid);
        let changes = world.apply_ok(&objects).await;
        assert!(changes.contains(&done.to_owned()), "{case}: {changes:?}");
        let live = jobs.get("job").await.unwrap();
        let uid = live.metadata.uid.unwrap();
        assert_ne!(uid, first, "{case}");
        if case == "applyafter" {
            assert_eq!(live_uid, Some(uid), "{case}: created once");
        }
        let pod = live.spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.containers[0].image.as_deref(), Some("a:2"), "{case}");
    }
}

#[tokio::test]
async fn fields_that_were_not_released_are_released_by_the_next_attempt() {
    let give_up = || Match::method(Method::PATCH).body_contains("managedFields");
    let make = || {
        Match::method(Method::PATCH)
            .path_ends_with("/deployments/web")
            .body_contains("\"replicas\":3")
    };
    let cases = [
        ("makeafter", make(), Fault::CutAfter),
        ("givebefore", give_up(), Fault::CutBefore),
        ("giveafter", give_up(), Fault::CutAfter),
    ];
    for (case, matching, fault) in cases {
        let mut world = World::new(&format!("cut{case}")).await;
        let rule: IgnoreRule = serde_json::from_value(json!({"paths": ["/spec/replicas"]})).unwrap();
        world.ignore = IgnoreRules::new(&[rule]).unwrap();
        let spec = json!({"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "a"}]}}}});
        let object = world.rendered("apps/v1", "Deployment", &world.namespace, "web", spec);
        interrupt(
            &mut world,
            std::slice::from_ref(&object),
            matching.times(1),
            fault,
        )
        .await;
        world.apply_ok(&[object]).await;
        let deployments: Api<Deployment> = Api::namespaced(world.other.clone(), &world.namespace);
        let live = deployments.get("web").await.unwrap();
        assert_eq!(live.spec.unwrap().replicas, Some(3), "{case}");
        let entries = live.metadata.managed_fields.unwrap();
        let own_entry = entries
            .iter()
            .find(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER));
        let fields: &Value = &own_entry.unwrap().fields_v1.as_ref().unwrap().0;
        assert!(fields["f:spec"]["f:replicas"].is_null(), "{case}: {fields}");
        assert!(world.find_drift().await.drifted.is_empty(), "{case}");
    }
}

/// Returns the number of changes of a preview, and asserts that no object would fail.
async fn previewed_changes(world: &World, objects: &[RenderedObject]) -> usize {
    let desired = RenderedSet {
        digest: String::new(),
        objects: objects.to_vec(),
        secrets: Default::default(),
    };
    let preview = world
        .member
        .preview(PreviewJob {
            owner: &world.owner,
            desired: &desired,
            prune: true,
            allow_empty: false,
            conflicts_override: false,
            recreate: false,
            siblings: &NoSiblings,
            handed_over_by: &BTreeSet::new(),
            grace: starling_core::apply::Grace::none(),
            approval: ApprovedDeletions::default(),
            confirm: &Default::default(),
            earlier: Default::default(),
            deadline: soon(),
        })
        .await;
    assert!(
        preview.failures.is_empty() && preview.interrupted.is_none(),
        "{preview:?}"
    );
    preview.changes.len()
}

/// Asserts that `a` is a conflict in every attempt and keeps its value.
async fn assert_conflict_persists(world: &mut World, objects: &[RenderedObject]) {
    for _ in 0..2 {
        let outcome = world.apply(objects).await;
        assert!(
            matches!(&outcome.failures[..], [(_, MemberError::Conflict { .. })]),
            "{outcome:?}"
        );
        assert_eq!(world.value("a", "k").await.as_deref(), Some("theirs"));
    }
}

/// The response to the apply that created the object is lost, and another writer changes the object before the next
/// attempt.
#[tokio::test]
async fn an_unconfirmed_creation_that_was_edited_is_restored() {
    let creation = || {
        Match::method(Method::PATCH)
            .path_ends_with("/configmaps/a")
            .times(1)
    };
    let left_alone = json!({"metadata": {"annotations": {RECONCILE: DISABLED}}});
    for (case, more, changes, value) in [
        ("madeedited", json!({}), "configured a", "ours"),
        ("madeleft", left_alone, "unchanged a", "edited"),
    ] {
        let mut world = World::new(case).await;
        let objects = [world.map("a", &json!({"k": "ours"}))];
        interrupt(&mut world, &objects, creation(), Fault::CutAfter).await;
        world.edit("a", &json!({"data": {"k": "edited"}})).await;
        world.edit("a", &more).await;
        assert_eq!(
            previewed_changes(&world, &objects).await,
            usize::from(value == "ours"),
            "{case}"
        );
        assert_eq!(world.apply_ok(&objects).await, [changes], "{case}");
        assert_eq!(world.value("a", "k").await.as_deref(), Some(value), "{case}");
    }
    // A released object has the same label and fields, but no claim since then.
    let mut world = World::new("madeletgo").await;
    let objects = [
        world.map("a", &json!({"k": "ours"})),
        world.map("b", &json!({"k": "1"})),
    ];
    world.apply_ok(&objects).await;
    let protected = json!({"metadata": {"annotations": {PRUNE: DISABLED}}, "data": {"k": "theirs"}});
    world.edit("a", &protected).await;
    world.apply(&objects[1..]).await;
    assert_conflict_persists(&mut world, &objects).await;
    // A copy of an object has its labels, but Starling does not own the copy.
    let mut world = World::new("madecopied").await;
    world.create_map("a", &json!({"k": "theirs"})).await;
    let label = json!({"metadata": {"labels": {OWNER_LABEL: world.owner}}});
    world.edit("a", &label).await;
    let objects = [world.map("a", &json!({"k": "ours"}))];
    assert_conflict_persists(&mut world, &objects).await;
}

/// The same with ignored fields, and with an immutable field, which recreates the object.
#[tokio::test]
async fn an_unconfirmed_creation_is_owned_with_ignored_and_immutable_fields() {
    let mut world = World::new("madeignored").await;
    let rule: IgnoreRule = serde_json::from_value(json!({"paths": ["/data/left"]})).unwrap();
    world.ignore = IgnoreRules::new(&[rule]).unwrap();
    let objects = [world.map("a", &json!({"k": "ours", "left": "first"}))];
    let creation = Match::method(Method::PATCH)
        .path_ends_with("/configmaps/a")
        .times(1);
    interrupt(&mut world, &objects, creation, Fault::CutAfter).await;
    let edit = json!({"data": {"k": "edited", "left": "theirs"}});
    world.edit("a", &edit).await;
    assert_eq!(world.apply_ok(&objects).await, ["configured a"]);
    let values = (world.value("a", "k").await, world.value("a", "left").await);
    assert_eq!(values, (Some("ours".into()), Some("theirs".into())));

    let mut world = World::new("madeanew").await;
    world.recreate = true;
    let creation = Match::method(Method::PATCH).path_ends_with("/jobs/job").times(1);
    let first = [job(&world, "a:1")];
    interrupt(&mut world, &first, creation, Fault::CutAfter).await;
    let second = [job(&world, "a:2")];
    assert_eq!(world.apply_ok(&second).await, ["created job"]);
}
