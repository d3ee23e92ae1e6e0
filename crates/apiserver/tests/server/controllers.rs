//! The controllers of a cluster, with time as a parameter: no network and no clock.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use starling_apiserver::controllers::{Health, HealthRule, Settings, step};
use starling_apiserver::journal::{Journal, Keep};
use starling_apiserver::random::Random;
use starling_apiserver::state::State;
use starling_apiserver::store::History;
use starling_apiserver::verbs::{self, DeleteOptions, Propagation, Target, Validation, Write};

struct Cluster {
    state: State,
    settings: Settings,
    now: Timestamp,
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self {
            state: State::new(
                Random::new(1),
                History::default(),
                Journal::new(Keep::Everything, Arc::default()),
            ),
            settings: Settings::new("ca".into()),
            now: Timestamp::from_second(1_000_000).unwrap(),
        };
        cluster.create("", "namespaces", "", json!({"metadata": {"name": "a"}}));
        cluster
    }

    fn target(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Target {
        let resource = self.state.registry.get(group, plural).unwrap();
        Target {
            version: Arc::clone(&resource.versions[0]),
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
        }
    }

    fn write(&self) -> Write<'static> {
        Write {
            manager: "test",
            user: "test",
            uid: "",
            groups: &[],
            extra: &starling_apiserver::write::NO_EXTRA,
            dry_run: false,
            validation: Validation::Strict,
            force: false,
            now: self.now,
            subresource: "",
        }
    }

    fn create(&mut self, group: &str, plural: &str, namespace: &str, object: Value) {
        let target = self.target(group, plural, namespace, "");
        let write = self.write();
        verbs::create(&mut self.state, &target, object, &[], &write).unwrap();
        self.step();
    }

    fn delete(&mut self, group: &str, plural: &str, namespace: &str, name: &str, propagation: Propagation) {
        let target = self.target(group, plural, namespace, name);
        let options = DeleteOptions {
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        let write = self.write();
        verbs::delete(&mut self.state, &target, &options, &write).unwrap();
        self.step();
    }

    fn step(&mut self) -> Option<Timestamp> {
        loop {
            match step(&mut self.state, &self.settings, self.now) {
                Some(next) if next <= self.now => {}
                next => return next,
            }
        }
    }

    fn get(&self, table: &str, key: &str) -> Option<Value> {
        self.state.store.get(table, key).map(|stored| stored.read())
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.step();
    }
}

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks}]}})
}

#[test]
fn every_namespace_has_a_service_account_and_the_ca() {
    let mut cluster = Cluster::new();
    assert!(cluster.get("serviceaccounts", "a/default").is_some());
    let published = cluster.get("configmaps", "a/kube-root-ca.crt").unwrap();
    assert_eq!(published["data"]["ca.crt"], "ca");
    cluster.delete("", "configmaps", "a", "kube-root-ca.crt", Propagation::Background);
    assert!(
        cluster.get("configmaps", "a/kube-root-ca.crt").is_some(),
        "it comes back"
    );
}

#[test]
fn a_namespace_deletion_removes_its_content_and_waits_for_finalizers() {
    let mut cluster = Cluster::new();
    cluster.create("", "configmaps", "a", json!({"metadata": {"name": "x"}}));
    cluster.create(
        "",
        "configmaps",
        "a",
        json!({"metadata": {"name": "held", "finalizers": ["test.dev/hold"]}}),
    );
    cluster.delete("", "namespaces", "", "a", Propagation::Background);
    assert!(cluster.get("configmaps", "a/x").is_none());
    let namespace = cluster.get("namespaces", "a").unwrap();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let conditions = namespace["status"]["conditions"].to_string();
    assert!(
        conditions.contains("test.dev/hold in 1 resource instances"),
        "{conditions}"
    );
    let target = cluster.target("", "configmaps", "a", "held");
    let mut held = cluster.get("configmaps", "a/held").unwrap();
    held["metadata"]["finalizers"] = json!([]);
    let write = cluster.write();
    verbs::update(&mut cluster.state, &target, held, &[], &write).unwrap();
    cluster.step();
    assert!(cluster.get("namespaces", "a").is_none());
}

#[test]
fn dependents_are_deleted_by_the_propagation_policy() {
    for (propagation, stays) in [
        (Propagation::Background, false),
        (Propagation::Foreground, false),
        (Propagation::Orphan, true),
    ] {
        let mut cluster = Cluster::new();
        cluster.create("", "configmaps", "a", json!({"metadata": {"name": "owner"}}));
        let owner = cluster.get("configmaps", "a/owner").unwrap();
        cluster.create("", "secrets", "a", owned("child", &owner, true));
        let child = cluster.get("secrets", "a/child").unwrap();
        let mut grandchild = owned("grandchild", &child, false);
        grandchild["metadata"]["ownerReferences"][0]["kind"] = json!("Secret");
        cluster.create("", "secrets", "a", grandchild);
        cluster.delete("", "configmaps", "a", "owner", propagation);
        assert!(cluster.get("configmaps", "a/owner").is_none(), "{propagation:?}");
        assert_eq!(
            cluster.get("secrets", "a/child").is_some(),
            stays,
            "{propagation:?}"
        );
        assert_eq!(
            cluster.get("secrets", "a/grandchild").is_some(),
            stays,
            "{propagation:?}"
        );
        if stays {
            let child = cluster.get("secrets", "a/child").unwrap();
            assert!(child["metadata"].get("ownerReferences").is_none());
        }
    }
}

#[test]
fn a_foreground_deletion_waits_for_dependents_with_finalizers() {
    let mut cluster = Cluster::new();
    cluster.create("", "configmaps", "a", json!({"metadata": {"name": "owner"}}));
    let owner = cluster.get("configmaps", "a/owner").unwrap();
    let mut child = owned("child", &owner, true);
    child["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    cluster.create("", "secrets", "a", child);
    cluster.delete("", "configmaps", "a", "owner", Propagation::Foreground);
    assert!(cluster.get("configmaps", "a/owner").is_some());
    let target = cluster.target("", "secrets", "a", "child");
    let mut child = cluster.get("secrets", "a/child").unwrap();
    assert!(child["metadata"]["deletionTimestamp"].is_string());
    child["metadata"]["finalizers"] = json!([]);
    let write = cluster.write();
    verbs::update(&mut cluster.state, &target, child, &[], &write).unwrap();
    cluster.step();
    assert!(cluster.get("secrets", "a/child").is_none());
    assert!(cluster.get("configmaps", "a/owner").is_none());
}

#[test]
fn a_dependent_with_two_owners_stays_until_both_are_deleted() {
    let mut cluster = Cluster::new();
    for name in ["one", "two"] {
        cluster.create("", "configmaps", "a", json!({"metadata": {"name": name}}));
    }
    let (one, two) = (
        cluster.get("configmaps", "a/one").unwrap(),
        cluster.get("configmaps", "a/two").unwrap(),
    );
    let mut child = owned("child", &one, false);
    let second = owned("child", &two, false)["metadata"]["ownerReferences"][0].clone();
    child["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(second);
    cluster.create("", "secrets", "a", child);
    cluster.delete("", "configmaps", "a", "one", Propagation::Background);
    let child = cluster.get("secrets", "a/child").unwrap();
    assert_eq!(child["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    cluster.delete("", "configmaps", "a", "two", Propagation::Background);
    assert!(cluster.get("secrets", "a/child").is_none());
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}})
}

#[test]
fn a_workload_becomes_healthy_after_the_configured_time_or_never() {
    let mut cluster = Cluster::new();
    cluster.settings.health = Health::After(SignedDuration::from_secs(5));
    cluster.settings.rules.push(HealthRule {
        kind: "Deployment".to_owned(),
        namespace: String::new(),
        name: "never".to_owned(),
        health: Health::Never,
    });
    cluster.create("apps", "deployments", "a", deployment("web"));
    cluster.create("apps", "deployments", "a", deployment("never"));
    let available = |cluster: &Cluster, name: &str| {
        let status = cluster.get("deployments.apps", &format!("a/{name}")).unwrap()["status"].clone();
        assert_eq!(status["observedGeneration"], 1, "seen at once");
        status["availableReplicas"].as_i64().unwrap_or_default()
    };
    assert_eq!(available(&cluster, "web"), 0);
    assert_eq!(
        cluster.step(),
        Some(cluster.now + SignedDuration::from_secs(5)),
        "planned"
    );
    cluster.pass(4);
    assert_eq!(available(&cluster, "web"), 0);
    cluster.pass(1);
    assert_eq!(available(&cluster, "web"), 2);
    cluster.pass(10_000);
    assert_eq!(available(&cluster, "never"), 0);
    assert_eq!(cluster.step(), None, "nothing is left to do");
}

#[test]
fn the_same_requests_give_the_same_journal() {
    let run = || {
        let mut cluster = Cluster::new();
        cluster.create("", "configmaps", "a", json!({"metadata": {"generateName": "x-"}}));
        cluster.create("apps", "deployments", "a", deployment("web"));
        cluster.delete("", "namespaces", "", "a", Propagation::Background);
        cluster
            .state
            .journal
            .entries()
            .map(|entry| format!("{:?} {} {}", entry.verb, entry.resource, entry.object.read()))
            .collect::<Vec<_>>()
    };
    let first = run();
    assert!(first.len() > 10);
    assert_eq!(first, run());
}
