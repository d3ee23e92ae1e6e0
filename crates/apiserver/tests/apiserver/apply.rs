//! Server-side apply and `managedFields`, step by step.
//!
//! After each request the test compares the server's entries, with their times, with those of this crate. The rest of
//! the object, such as its defaults, comes from the server's response, since other tests compare it.

use jiff::Timestamp;
use serde_json::{Value, json};
use starling_apiserver::fields::{FieldSet, Path};
use starling_apiserver::managed::{
    ApplyError, ApplyRequest, FieldManager, Live, ManagedFields, ResetFields, UpdateRequest, Versions,
    settle_times,
};
use starling_apiserver::schema::Type;

use crate::real::{Answer, Real};

/// A request for one object.
struct Step {
    method: &'static str,
    content_type: &'static str,
    manager: &'static str,
    subresource: &'static str,
    force: bool,
    body: Value,
}

fn step(method: &'static str, content_type: &'static str, manager: &'static str, body: Value) -> Step {
    Step {
        method,
        content_type,
        manager,
        subresource: "",
        force: false,
        body,
    }
}

fn apply(manager: &'static str, body: Value) -> Step {
    step("PATCH", "application/apply-patch+yaml", manager, body)
}

fn force(manager: &'static str, body: Value) -> Step {
    Step {
        force: true,
        ..apply(manager, body)
    }
}

fn create(manager: &'static str, body: Value) -> Step {
    step("POST", "application/json", manager, body)
}

fn merge(manager: &'static str, body: Value) -> Step {
    step("PATCH", "application/merge-patch+json", manager, body)
}

fn strategic(manager: &'static str, body: Value) -> Step {
    step("PATCH", "application/strategic-merge-patch+json", manager, body)
}

impl Step {
    fn status(self) -> Self {
        Self {
            subresource: "status",
            ..self
        }
    }

    fn is_apply(&self) -> bool {
        self.content_type.starts_with("application/apply")
    }
}

/// An object on the server, with the entries that this crate computes for it.
struct Subject<'a> {
    real: &'a Real,
    collection: &'static str,
    endpoint: FieldManager,
    status: FieldManager,
    /// The fields that the strategy of the kind sets on creation, after the fields were recorded.
    set_later: &'static str,
    live: Option<(Value, ManagedFields)>,
}

impl<'a> Subject<'a> {
    /// `resets` are the fields that the object's endpoint and that of its status cannot change.
    fn new(real: &'a Real, collection: &'static str, endpoint: FieldManager, version: &str) -> Self {
        let reset =
            |name: &str| ResetFields::new([(version, FieldSet::from_iter([Path::of_fields(&[name])]))]);
        Self {
            real,
            collection,
            status: endpoint.clone().subresource("status").resetting(reset("spec")),
            endpoint: endpoint.resetting(reset("status")),
            set_later: "",
            live: None,
        }
    }

    async fn play(&mut self, steps: Vec<Step>) {
        for (number, step) in steps.into_iter().enumerate() {
            let place = format!("step {number} of {}", self.collection);
            let answer = self.send(&step).await;
            if answer.code >= 300 {
                self.compare_refusal(&place, &step, &answer);
            } else {
                self.compare(&place, &step, answer.body);
            }
        }
    }

    async fn send(&self, step: &Step) -> Answer {
        let name = step.body["metadata"]["name"].as_str().unwrap_or("subject");
        let path = match (step.method, step.subresource) {
            ("POST", _) => String::new(),
            (_, "") => format!("/{name}"),
            (_, subresource) => format!("/{name}/{subresource}"),
        };
        let force = if step.force { "&force=true" } else { "" };
        let uri = format!("{}{path}?fieldManager={}{force}", self.collection, step.manager);
        self.real
            .send(step.method, &uri, step.content_type, &step.body)
            .await
    }

    fn endpoint(&self, step: &Step) -> &FieldManager {
        if step.subresource.is_empty() {
            &self.endpoint
        } else {
            &self.status
        }
    }

    fn stored(&self) -> Option<Live<'_>> {
        self.live
            .as_ref()
            .map(|(object, managed)| Live { object, managed })
    }

    fn compare_refusal(&self, place: &str, step: &Step, answer: &Answer) {
        assert!(step.is_apply(), "{place}: {}", answer.body);
        let request = ApplyRequest {
            manager: step.manager,
            force: step.force,
            now: Timestamp::UNIX_EPOCH,
        };
        let error = self
            .endpoint(step)
            .apply(self.stored(), &step.body, &request)
            .err()
            .unwrap_or_else(|| panic!("{place} is refused: {}", answer.body));
        assert_eq!(error.code(), answer.code, "{place}: {}", answer.body);
        assert_eq!(answer.body["message"], error.to_string(), "{place}");
        if let ApplyError::Conflict(conflicts) = &error {
            let causes: Vec<Value> = conflicts
                .0
                .iter()
                .map(|conflict| {
                    json!({
                        "reason": "FieldManagerConflict",
                        "message": conflict.cause(),
                        "field": conflict.path.to_string(),
                    })
                })
                .collect();
            assert_eq!(answer.body["details"]["causes"], json!(causes), "{place}");
        }
    }

    /// Compares the entries, and continues from those of the server.
    fn compare(&mut self, place: &str, step: &Step, mut answer: Value) {
        let entries = answer["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields")
            .unwrap_or_default();
        let wanted = ManagedFields::from_value(&entries).unwrap();
        // The newest time in the entries is that of the request, if it changed anything.
        let now = wanted
            .entries()
            .iter()
            .filter_map(|entry| entry.time)
            .max()
            .unwrap_or_default();
        let mut managed = if step.is_apply() {
            let request = ApplyRequest {
                manager: step.manager,
                force: step.force,
                now,
            };
            let applied = self.endpoint(step).apply(self.stored(), &step.body, &request);
            let applied = applied.unwrap_or_else(|error| panic!("{place}: {error}"));
            if let Some(mut object) = applied.object {
                // The strategy of the endpoint restores the other half of the object.
                let reset = if step.subresource.is_empty() {
                    "status"
                } else {
                    "spec"
                };
                object[reset] = Value::Null;
                assert_within(place, &object, &answer);
            }
            applied.managed
        } else {
            let mut sent = answer.clone();
            if let Some(given) = step.body.pointer("/metadata/managedFields") {
                sent["metadata"]["managedFields"] = given.clone();
            }
            if self.live.is_none() {
                sent.as_object_mut().unwrap().remove(self.set_later);
            }
            let request = UpdateRequest {
                manager: step.manager,
                now,
            };
            let updated = self.endpoint(step).update(self.stored(), sent, &request);
            updated.unwrap_or_else(|error| panic!("{place}: {error}")).managed
        };
        if let Some((object, stored)) = &self.live {
            let changed = significant(object) != significant(&answer);
            settle_times(stored, &mut managed, changed);
        }
        assert_eq!(
            json!(managed.to_value()),
            json!(wanted.to_value()),
            "{place}: the left is ours\n{}\n{}",
            managed.to_json(),
            wanted.to_json()
        );
        self.live = Some((answer, managed));
    }
}

/// Returns the object without the fields that every write changes.
fn significant(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    object
}

/// Asserts that the object from the server, with its defaults, contains everything in `part`.
fn assert_within(place: &str, part: &Value, whole: &Value) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            for (name, part) in part {
                // The server writes these fields itself.
                if matches!(name.as_str(), "resourceVersion" | "generation") {
                    continue;
                }
                // The response omits fields that an apply empties.
                let nothing = [
                    json!(null),
                    json!({}),
                    json!([]),
                    json!(""),
                    json!(0),
                    json!(false),
                ];
                if nothing.contains(part) {
                    continue;
                }
                let whole = whole
                    .get(name)
                    .unwrap_or_else(|| panic!("{place}: the server has no {name}: {part}"));
                assert_within(&format!("{place} {name}"), part, whole);
            }
        }
        (Value::Array(part), Value::Array(whole)) => {
            assert_eq!(part.len(), whole.len(), "{place}");
            for (part, whole) in part.iter().zip(whole) {
                assert_within(place, part, whole);
            }
        }
        (part, whole) => assert_eq!(part, whole, "{place}"),
    }
}

fn named(version: &str, kind: &str, name: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = json!(version);
    rest["kind"] = json!(kind);
    rest["metadata"]["name"] = json!(name);
    rest
}

#[tokio::test]
async fn config_maps_are_applied_as_on_the_real_server() {
    let real = Real::start().await;
    let endpoint = FieldManager::for_builtin("v1", "ConfigMap").unwrap();
    let mut subject = Subject::new(&real, "/api/v1/namespaces/default/configmaps", endpoint, "v1");
    let map = |rest| named("v1", "ConfigMap", "apply-map", rest);
    subject
        .play(vec![
            apply("a", map(json!({"data": {"p": "1", "q": "1", "a.b": "1"}}))),
            apply("a", map(json!({"data": {"p": "1", "q": "1", "a.b": "1"}}))),
            apply("b", map(json!({"data": {"p": "1"}}))),
            apply("b", map(json!({"data": {"p": "2", "q": "2"}}))),
            force("b", map(json!({"data": {"p": "2"}}))),
            apply("a", map(json!({"data": {"q": "1"}}))),
            merge(
                "u",
                map(json!({"data": {"q": "3", "r": "1"}, "metadata": {"labels": {"l": "1"}}})),
            ),
            apply("a", map(json!({"data": {"q": "1", "r": "2"}}))),
            apply("a", map(json!({"data": {"unknown": {"x": 1}}}))),
            apply("a", map(json!({"datum": {}}))),
            merge("u", map(json!({"metadata": {"labels": {"l": "1"}}}))),
            merge("u", map(json!({"metadata": {"managedFields": [{}]}}))),
            merge("u", map(json!({"data": {"s": "1"}}))),
            apply("c", map(json!({"data": {"s": "2"}}))),
            force("c", map(json!({"data": {"s": "2"}}))),
            apply("c", map(json!({"metadata": {"managedFields": []}}))),
            merge("u", map(json!({"data": null}))),
        ])
        .await;
}

#[tokio::test]
async fn deployments_are_applied_as_on_the_real_server() {
    let real = Real::start().await;
    let endpoint = FieldManager::for_builtin("apps/v1", "Deployment").unwrap();
    let mut subject = Subject::new(
        &real,
        "/apis/apps/v1/namespaces/default/deployments",
        endpoint,
        "apps/v1",
    );
    let pods = |spec: Value| {
        let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": spec});
        let spec = json!({"selector": {"matchLabels": {"app": "x"}}, "template": template});
        named("apps/v1", "Deployment", "apply-deployment", json!({"spec": spec}))
    };
    let bare = |rest| named("apps/v1", "Deployment", "apply-deployment", rest);
    subject
        .play(vec![
            apply(
                "a",
                pods(json!({"containers": [{"name": "c", "image": "i:1",
                    "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}]})),
            ),
            apply("b", bare(json!({"spec": {"replicas": 3}}))),
            apply(
                "b",
                bare(json!({"spec": {"template": {"spec": {"containers": [
                    {"name": "c", "image": "i:2", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}]}]}}}})),
            ),
            force(
                "b",
                bare(json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [
                    {"name": "d", "image": "j"}, {"name": "c", "env": [{"name": "B", "value": "1"}]}]}}}})),
            ),
            strategic(
                "u",
                bare(json!({"spec": {"template": {"spec": {"containers": [
                    {"name": "c", "image": "i:3", "ports": [{"containerPort": 81, "protocol": "UDP"}]}]}}}})),
            ),
            apply(
                "a",
                pods(json!({"containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 82}]}]})),
            ),
            merge("w", bare(json!({"status": {"replicas": 3, "readyReplicas": 1, "conditions": [
                {"type": "Available", "status": "True", "lastUpdateTime": "2020-01-01T00:00:00Z"}]}})))
                .status(),
            apply("s", bare(json!({"status": {"readyReplicas": 2}}))).status(),
            force("s", bare(json!({"status": {"readyReplicas": 2}, "spec": {"replicas": 9}}))).status(),
            apply("b", bare(json!({"spec": {"replicas": 4}, "status": {"readyReplicas": 9}}))),
            apply(
                "a",
                pods(json!({"containers": [{"name": "c", "image": "i:3"}, {"name": "c", "image": "i:4"}]})),
            ),
            apply("a", pods(json!({"containers": [{"name": "c", "imagePullPolicies": "Always"}]}))),
        ])
        .await;
}

#[tokio::test]
async fn services_and_namespaces_are_applied_as_on_the_real_server() {
    let real = Real::start().await;
    let endpoint = FieldManager::for_builtin("v1", "Service").unwrap();
    let mut subject = Subject::new(&real, "/api/v1/namespaces/default/services", endpoint, "v1");
    let service = |spec: Value| named("v1", "Service", "apply-service", json!({"spec": spec}));
    subject
        .play(vec![
            apply(
                "a",
                service(json!({"ports": [{"port": 80, "name": "w"}], "selector": {"app": "x"}})),
            ),
            apply(
                "b",
                service(json!({"ports": [{"port": 80, "protocol": "UDP", "name": "u"}]})),
            ),
            apply(
                "b",
                service(json!({"ports": [{"port": 80, "name": "v"}], "type": "NodePort"})),
            ),
            apply(
                "a",
                service(json!({"ports": [{"port": 80, "targetPort": "http", "name": "w"}]})),
            ),
        ])
        .await;

    let endpoint = FieldManager::for_builtin("v1", "Namespace").unwrap();
    let mut subject = Subject::new(&real, "/api/v1/namespaces", endpoint, "v1");
    subject.set_later = "spec";
    let namespace = |labels: Value| {
        named(
            "v1",
            "Namespace",
            "apply-namespace",
            json!({"metadata": {"labels": labels}}),
        )
    };
    subject
        .play(vec![
            create("kubectl-create", namespace(json!({"p": "1"}))),
            apply("a", namespace(json!({"p": "1", "q": "1"}))),
            apply("a", namespace(json!({"p": "2"}))),
            force("a", namespace(json!({"p": "2"}))),
            apply("a", namespace(json!({}))),
        ])
        .await;
}

const SCHEMA: &str = r#"{"type": "object", "properties": {
    "spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "mode": {"type": "string", "default": "m"},
        "groups": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "image": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}}}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
    "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}}"#;

#[tokio::test]
async fn custom_resources_are_applied_as_on_the_real_server() {
    let real = Real::start().await;
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let crd = crate::crd::definition("applied.test.dev", "Applied", &schema);
    crate::crd::establish(&real, &crd).await;

    let version = "applied.test.dev/v1";
    let ty = Type::of_custom_resource(Some(&schema)).unwrap();
    let endpoint = FieldManager::new(Versions::new([(version, ty)]), version, "Applied").unwrap();
    let collection = "/apis/applied.test.dev/v1/namespaces/default/applieds";
    let mut subject = Subject::new(&real, collection, endpoint, version);
    let object = |rest| named(version, "Applied", "apply-custom", rest);
    subject
        .play(vec![
            apply("a", object(json!({"spec": {"replicas": 1, "groups": ["x", "y"], "items": [{"name": "n", "image": "i"}],
                "open": {"k": {"l": [1, {"m": 1}]}}}}))),
            apply("b", object(json!({"spec": {"groups": ["z", "x"], "items": [{"name": "o", "tags": ["t"]}, {"name": "n"}]}}))),
            apply("b", object(json!({"spec": {"replicas": 2, "items": [{"name": "n", "image": "j"}]}}))),
            apply("b", object(json!({"spec": {"mode": "m"}}))),
            merge("u", object(json!({"spec": {"replicas": 5, "open": {"k": {"l": null}}}, "status": {"phase": "p"}}))),
            merge("w", object(json!({"spec": {"replicas": 6}, "status": {"phase": "p"}}))).status(),
            apply("s", object(json!({"status": {"phase": "q"}}))).status(),
            apply("a", object(json!({"spec": {"items": [{"name": "n"}, {"name": "n"}]}}))),
            apply("a", object(json!({"spec": {"items": [{"image": "n"}]}}))),
            apply("a", object(json!({"spec": {"replicas": "many"}}))),
            apply("a", object(json!({"spec": {}}))),
        ])
        .await;
}
