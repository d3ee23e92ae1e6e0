//! Attempts that are cut in the middle of what takes more than one request: the next one goes on from what it finds.

use std::collections::BTreeSet;

use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use kube::api::Api;
use serde_json::{Value, json};
use starling::member::{MemberError, NoSiblings, PreviewJob};
use starling_api::{DISABLED, FIELD_MANAGER, IgnoreRule, OWNER_LABEL, PRUNE, RECONCILE};
use starling_core::ignore::IgnoreRules;
use starling_core::object::{RenderedObject, RenderedSet};
use starling_testkit::{Fault, FaultProxy, Match};

use crate::world::{World, connect_to, soon};

/// Applies through a proxy that cuts one request, as a process that dies there.
async fn cut(world: &mut World, objects: &[RenderedObject], matching: Match, fault: Fault) {
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let cut = proxy.on(matching, fault);
    let records = world.records.clone();
    let outcome = world.apply(objects).await;
    assert_eq!(cut.fired(), 1);
    assert!(
        matches!(outcome.interrupted, Some(MemberError::Unreachable { .. })),
        "{outcome:?}"
    );
    // The next process knows what was written down before.
    world.restarted();
    world.records = records;
}

fn job(world: &World, image: &str) -> RenderedObject {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]});
    let spec = json!({"spec": {"template": {"spec": pod}}});
    world.rendered("batch/v1", "Job", &world.namespace, "job", spec)
}

#[tokio::test]
async fn a_recreation_that_is_cut_anywhere_ends_with_one_new_object() {
    let of_job = |method| Match::method(method).path_ends_with("/jobs/job");
    let delete = || of_job(Method::DELETE).times(1);
    // The first apply is refused, the second makes the object anew.
    let apply_anew = || of_job(Method::PATCH).nth(2);
    let try_anew = Match::method(Method::POST).query_contains("dryRun=All").times(1);
    let cases = [
        ("trybefore", try_anew, Fault::CutBefore, "created job"),
        ("deletebefore", delete(), Fault::CutBefore, "created job"),
        ("deleteafter", delete(), Fault::CutAfter, "created job"),
        ("applybefore", apply_anew(), Fault::CutBefore, "created job"),
        // It is there, and is not made a third time.
        ("applyafter", apply_anew(), Fault::CutAfter, "configured job"),
    ];
    for (case, matching, fault, done) in cases {
        let mut world = World::new(&format!("cut{case}")).await;
        world.recreate = true;
        world.apply_ok(&[job(&world, "a:1")]).await;
        let jobs: Api<Job> = Api::namespaced(world.other.clone(), &world.namespace);
        let first = jobs.get("job").await.unwrap().metadata.uid.unwrap();
        let objects = [job(&world, "a:2"), world.map("a", &json!({"k": "1"}))];
        cut(&mut world, &objects, matching, fault).await;
        let between = jobs
            .get_opt("job")
            .await
            .unwrap()
            .and_then(|job| job.metadata.uid);
        let told = world.apply_ok(&objects).await;
        assert!(told.contains(&done.to_owned()), "{case}: {told:?}");
        let live = jobs.get("job").await.unwrap();
        let uid = live.metadata.uid.unwrap();
        assert_ne!(uid, first, "{case}");
        if case == "applyafter" {
            assert_eq!(between, Some(uid), "{case}: made once");
        }
        let pod = live.spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.containers[0].image.as_deref(), Some("a:2"), "{case}");
    }
}

#[tokio::test]
async fn fields_that_could_not_be_given_up_are_given_up_by_the_next_attempt() {
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
        cut(
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
        let ours = entries
            .iter()
            .find(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER));
        let fields: &Value = &ours.unwrap().fields_v1.as_ref().unwrap().0;
        assert!(fields["f:spec"]["f:replicas"].is_null(), "{case}: {fields}");
        assert!(world.find_drift().await.drifted.is_empty(), "{case}");
    }
}

/// How many objects an apply is foreseen to change; that none would fail.
async fn foreseen(world: &World, objects: &[RenderedObject]) -> usize {
    let desired = RenderedSet {
        digest: String::new(),
        objects: objects.to_vec(),
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
            approved: "",
            deadline: soon(),
        })
        .await;
    assert!(
        preview.failures.is_empty() && preview.interrupted.is_none(),
        "{preview:?}"
    );
    preview.changes.len()
}

/// However often it is tried, `a` is a conflict and keeps its value.
async fn stays_theirs(world: &mut World, objects: &[RenderedObject]) {
    for _ in 0..2 {
        let outcome = world.apply(objects).await;
        assert!(
            matches!(&outcome.failures[..], [(_, MemberError::Conflict { .. })]),
            "{outcome:?}"
        );
        assert_eq!(world.value("a", "k").await.as_deref(), Some("theirs"));
    }
}

/// The answer to the apply that made the object is lost, and somebody changes it before the next attempt.
#[tokio::test]
async fn what_was_made_without_an_answer_and_edited_is_taken_back() {
    let made = || {
        Match::method(Method::PATCH)
            .path_ends_with("/configmaps/a")
            .times(1)
    };
    let left_alone = json!({"metadata": {"annotations": {RECONCILE: DISABLED}}});
    for (case, more, told, value) in [
        ("madeedited", json!({}), "configured a", "ours"),
        ("madeleft", left_alone, "unchanged a", "edited"),
    ] {
        let mut world = World::new(case).await;
        let objects = [world.map("a", &json!({"k": "ours"}))];
        cut(&mut world, &objects, made(), Fault::CutAfter).await;
        world.edit("a", &json!({"data": {"k": "edited"}})).await;
        world.edit("a", &more).await;
        assert_eq!(
            foreseen(&world, &objects).await,
            usize::from(value == "ours"),
            "{case}"
        );
        assert_eq!(world.apply_ok(&objects).await, [told], "{case}");
        assert_eq!(world.value("a", "k").await.as_deref(), Some(value), "{case}");
    }
    // What was let go carries the same proof, and nobody meant to write it since.
    let mut world = World::new("madeletgo").await;
    let objects = [
        world.map("a", &json!({"k": "ours"})),
        world.map("b", &json!({"k": "1"})),
    ];
    world.apply_ok(&objects).await;
    let protected = json!({"metadata": {"annotations": {PRUNE: DISABLED}}, "data": {"k": "theirs"}});
    world.edit("a", &protected).await;
    world.apply(&objects[1..]).await;
    stays_theirs(&mut world, &objects).await;
    // Whoever copies an object copies its labels, and makes it no object of ours.
    let mut world = World::new("madecopied").await;
    world.create_map("a", &json!({"k": "theirs"})).await;
    let label = json!({"metadata": {"labels": {OWNER_LABEL: world.owner}}});
    world.edit("a", &label).await;
    let objects = [world.map("a", &json!({"k": "ours"}))];
    stays_theirs(&mut world, &objects).await;
}

/// The same with fields that are left to others, and with a field that cannot be changed: the object is made anew.
#[tokio::test]
async fn what_was_made_without_an_answer_is_ours_in_every_way() {
    let mut world = World::new("madeignored").await;
    let rule: IgnoreRule = serde_json::from_value(json!({"paths": ["/data/left"]})).unwrap();
    world.ignore = IgnoreRules::new(&[rule]).unwrap();
    let objects = [world.map("a", &json!({"k": "ours", "left": "first"}))];
    let made = Match::method(Method::PATCH)
        .path_ends_with("/configmaps/a")
        .times(1);
    cut(&mut world, &objects, made, Fault::CutAfter).await;
    let edit = json!({"data": {"k": "edited", "left": "theirs"}});
    world.edit("a", &edit).await;
    assert_eq!(world.apply_ok(&objects).await, ["configured a"]);
    let values = (world.value("a", "k").await, world.value("a", "left").await);
    assert_eq!(values, (Some("ours".into()), Some("theirs".into())));

    let mut world = World::new("madeanew").await;
    world.recreate = true;
    let made = Match::method(Method::PATCH).path_ends_with("/jobs/job").times(1);
    let first = [job(&world, "a:1")];
    cut(&mut world, &first, made, Fault::CutAfter).await;
    let second = [job(&world, "a:2")];
    assert_eq!(world.apply_ok(&second).await, ["created job"]);
}
