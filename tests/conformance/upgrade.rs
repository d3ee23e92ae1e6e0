//! An upgrade of Starling's own definitions, as an embedded hub goes through it: objects that two managers have applied
//! and a controller has reported on, with definitions that then gain, lose and default fields, and gain a version. The
//! embedded server stops in between. Every response is compared with a real kube-apiserver.
//!
//! The older definitions are made of those in `crds`: some fields and some defaults are taken away, and a field is
//! added that the newer ones no longer have.

use serde_json::{Map, Value, json};
use starling_apiserver::controllers::Controllers;
use starling_apiserver::listen::Listening;
use starling_apiserver::server::Server;

use crate::requests::side::{Side, client};
use crate::requests::{normal, options, real, run, script};

const GROUP: &str = "starling.dev";
const VERSION: &str = "v1alpha1";
const ADDED: &str = "v1alpha2";

/// Objects of every kind.
const OBJECTS: [&str; 3] = [
    include_str!("../contract/all-fields.yaml"),
    include_str!("../contract/git-to-clusters.yaml"),
    include_str!("../contract/staged-rollout.yaml"),
];

/// A rule that a stored object does not satisfy, and that a write leaves alone: only a kube-apiserver warns
/// (`docs/apiserver-gaps.md`).
const RATCHETED: &str =
    r#"warnings ["299 - \"spec: Invalid value: exactly one of group and sync is required\""] and here []"#;

fn documents(text: &str) -> impl Iterator<Item = Value> {
    text.split("\n---")
        .map(|document| serde_saphyr::from_str(document).unwrap())
}

/// Returns the definitions of `crds`, by name.
fn definitions() -> Vec<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let texts = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    texts
        .flat_map(|text| documents(&text).collect::<Vec<_>>())
        .collect()
}

fn schema(definition: &mut Value) -> &mut Value {
    &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// Takes away every fifth field and every third default of the rest, and all rules, since they may name these fields.
fn age(schema: &mut Value, keys: &[Value], fields: &mut usize) {
    let Some(map) = schema.as_object_mut() else { return };
    map.remove("x-kubernetes-validations");
    let own = map.get("x-kubernetes-list-map-keys").cloned();
    let own = own.and_then(|keys| keys.as_array().cloned()).unwrap_or_default();
    for part in ["items", "additionalProperties"] {
        if let Some(part) = map.get_mut(part) {
            age(part, &own, fields);
        }
    }
    let names: Vec<String> = map
        .get("properties")
        .and_then(Value::as_object)
        .map(|properties| properties.keys().cloned().collect())
        .unwrap_or_default();
    for name in names.iter().filter(|name| !keys.contains(&json!(name))) {
        *fields += 1;
        if fields.is_multiple_of(5) {
            map["properties"].as_object_mut().unwrap().remove(name);
            if let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) {
                required.retain(|field| field != name);
            }
            continue;
        }
        let property = &mut map["properties"][name];
        if fields.is_multiple_of(3) {
            property.as_object_mut().unwrap().remove("default");
        }
        age(property, &[], fields);
    }
    // A default that names a field which is gone is none of the older definition.
    if map.contains_key("properties") {
        map.remove("default");
    }
}

/// Returns an older version of a definition.
fn older(definition: &Value) -> Value {
    let mut older = definition.clone();
    let mut fields = 0;
    for part in ["spec", "status"] {
        if let Some(part) = schema(&mut older)["properties"].get_mut(part) {
            age(part, &[], &mut fields);
        }
    }
    schema(&mut older)["properties"]["spec"]["properties"]["retired"] =
        json!({"type": "string", "default": "before"});
    marked(older, "older")
}

/// Returns a definition with a field of its own, whose default shows that the schema is in force. The defaults of the
/// definitions before it are stored, and pruned.
fn marked(mut definition: Value, mark: &str) -> Value {
    schema(&mut definition)["properties"]["spec"]["properties"][mark] =
        json!({"type": "string", "default": "yes"});
    definition
}

/// Returns a definition with one more version, in which objects are stored from now on.
fn with_added_version(definition: &Value) -> Value {
    let mut definition = marked(definition.clone(), "added");
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let mut added = versions[0].clone();
    versions[0]["storage"] = json!(false);
    added["name"] = json!(ADDED);
    versions.push(added);
    definition
}

/// Returns what a schema knows of a value.
fn fitting(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Object(fields) if schema["properties"].is_object() => {
            let known = fields.iter().filter_map(|(name, value)| {
                let schema = schema["properties"].get(name)?;
                Some((name.clone(), fitting(value, schema)))
            });
            Value::Object(known.collect())
        }
        Value::Object(fields) if schema["additionalProperties"].is_object() => {
            let of = &schema["additionalProperties"];
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), fitting(value, of)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.iter().map(|item| fitting(item, &schema["items"])).collect(),
        _ => value.clone(),
    }
}

/// One object, and where it is.
struct Written {
    object: Value,
    plural: String,
    name: String,
    has_status: bool,
}

impl Written {
    fn path(&self, version: &str) -> String {
        let (plural, name) = (&self.plural, &self.name);
        format!("/apis/{GROUP}/{version}/namespaces/default/{plural}/{name}")
    }

    /// The steps by which two managers apply the object, and a controller its status, by the schema of a definition.
    fn apply(&self, version: &str, definition: &Value, force: bool) -> Vec<String> {
        let mut definition = definition.clone();
        let schema = schema(&mut definition);
        let head = |spec: Value| {
            let metadata = json!({"name": self.name, "labels": self.object["metadata"]["labels"]});
            let version = format!("{GROUP}/{version}");
            json!({"apiVersion": version, "kind": self.object["kind"], "metadata": metadata, "spec": spec})
        };
        let spec = fitting(&self.object["spec"], &schema["properties"]["spec"]);
        let half: Map<String, Value> = spec
            .as_object()
            .into_iter()
            .flatten()
            .step_by(2)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let path = self.path(version);
        let mut steps = vec![
            format!("APPLY {path}?fieldManager=first&force={force} {}", head(spec)),
            format!(
                "APPLY {path}?fieldManager=second&force={force} {}",
                head(half.into())
            ),
        ];
        if self.has_status && self.object["status"].is_object() {
            let mut body = head(Value::Null);
            body["status"] = fitting(&self.object["status"], &schema["properties"]["status"]);
            body.as_object_mut().unwrap().remove("spec");
            steps.push(format!(
                "APPLY {path}/status?fieldManager=controller&force={force} {body}"
            ));
        }
        steps.push(format!(
            "PATCH-MERGE {path}?fieldManager=person {{\"metadata\":{{\"annotations\":{{\"by\":\"a-person\"}}}}}}"
        ));
        steps.push(format!("GET {path}"));
        steps
    }
}

/// Returns the objects of all kinds.
fn objects(definitions: &[Value]) -> Vec<Written> {
    let mut all = Vec::new();
    for (file, text) in OBJECTS.iter().enumerate() {
        for object in documents(text) {
            let of = |definition: &&Value| definition["spec"]["names"]["kind"] == object["kind"];
            let Some(definition) = definitions.iter().find(of) else {
                continue;
            };
            let version = &definition["spec"]["versions"][0];
            all.push(Written {
                plural: definition["spec"]["names"]["plural"].as_str().unwrap().to_owned(),
                name: format!("{}-{file}", object["metadata"]["name"].as_str().unwrap()),
                has_status: version["subresources"]["status"].is_object(),
                object,
            });
        }
    }
    all
}

/// Both servers, and what their values are called.
struct Both {
    wanted: Side,
    found: Side,
    normal: normal::Pair,
    steps: usize,
    differences: Vec<String>,
}

impl Both {
    async fn run(&mut self, steps: &[String]) {
        for step in script::read(&steps.join("\n")) {
            self.steps += 1;
            let mut found = run(&step, &mut self.wanted, &mut self.found, &mut self.normal).await;
            found.retain(|difference| difference != RATCHETED);
            assert!(
                self.differences.len() < 10,
                "ten differences (the real server's value stands first):\n{}",
                self.differences.join("\n")
            );
            if !found.is_empty() {
                let (method, path) = (step.method, &step.path);
                self.differences
                    .push(format!("{method} {path}\n    {}", found.join("\n    ")));
            }
        }
    }

    /// Replaces the versions of all definitions, and waits until they are in force.
    async fn change(&mut self, definitions: &[Value], objects: &[Written], mark: &str, version: &str) {
        let changes = definitions.iter().map(|definition| {
            let name = definition["metadata"]["name"].as_str().unwrap();
            let versions = &definition["spec"]["versions"];
            format!(
                "!PATCH-MERGE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name} {}",
                json!({"spec": {"versions": versions}})
            )
        });
        let waits = objects
            .iter()
            .map(|object| format!("UNTIL {} 200 \"{mark}\":\"yes\"", object.path(version)));
        let steps: Vec<String> = changes.chain(waits).collect();
        self.run(&steps).await;
    }

    /// Reads everything, changes a label, and applies everything again.
    async fn use_all(&mut self, objects: &[Written], definitions: &[Value], versions: &[&str]) {
        let mut steps = Vec::new();
        for version in versions {
            for object in objects {
                let path = object.path(version);
                steps.push(format!("GET {path}"));
                steps.push(format!(
                    "PATCH-MERGE {path}?fieldManager=person {{\"metadata\":{{\"labels\":{{\"in\":\"{version}\"}}}}}}"
                ));
            }
            for definition in definitions {
                let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
                steps.push(format!("GET /apis/{GROUP}/{version}/namespaces/default/{plural}"));
            }
            for object in objects {
                let of = |definition: &&Value| definition["spec"]["names"]["plural"] == object.plural;
                let definition = definitions.iter().find(of).unwrap();
                steps.extend(object.apply(version, definition, false));
            }
        }
        self.run(&steps).await;
    }
}

/// Opens the embedded server in a directory.
async fn open(folder: &std::path::Path) -> (Server, Listening) {
    let server = Server::open(options(Controllers::none()), folder).await.unwrap();
    let address = server.kept_address().unwrap_or(([127, 0, 0, 1], 0).into());
    let listening = server.listen(address).await.unwrap();
    (server, listening)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_of_starlings_definitions_keeps_objects_and_owners() {
    let newer = definitions();
    let before: Vec<Value> = newer.iter().map(older).collect();
    let after: Vec<Value> = newer.iter().cloned().map(|one| marked(one, "newer")).collect();
    let added: Vec<Value> = newer.iter().map(with_added_version).collect();
    let objects = objects(&newer);
    let kinds: std::collections::BTreeSet<&str> =
        objects.iter().map(|object| object.plural.as_str()).collect();
    assert_eq!(kinds.len(), newer.len(), "objects of every kind");

    let folder = tempfile::tempdir().unwrap();
    let ((_planes, real), (server, listening)) = tokio::join!(real(false), open(folder.path()));
    let cluster = server.create_cluster("hub").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let mut both = Both {
        wanted: Side::new(&real, false),
        found: Side::new(&client(&kubeconfig).await, false),
        normal: normal::Pair::default(),
        steps: 0,
        differences: Vec::new(),
    };
    let mut steps = Vec::new();
    for definition in &before {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        steps.push(format!("!POST {path} {definition}"));
        steps.push(format!("UNTIL {path}/{name} 200 InitialNamesAccepted"));
        steps.push(format!(
            "UNTIL /apis/{GROUP}/{VERSION}/namespaces/default/{plural} 200"
        ));
    }
    for object in &objects {
        let of = |definition: &&Value| definition["spec"]["names"]["plural"] == object.plural;
        steps.extend(object.apply(VERSION, before.iter().find(of).unwrap(), true));
    }
    both.run(&steps).await;

    both.change(&after, &objects, "newer", VERSION).await;
    both.use_all(&objects, &after, &[VERSION]).await;

    server.close().await;
    drop((cluster, server, listening));
    let (server, _listening) = open(folder.path()).await;
    let kubeconfig = server.cluster("hub").unwrap().kubeconfig();
    both.found = Side::new(&client(&kubeconfig).await, false);
    both.use_all(&objects, &after, &[VERSION]).await;

    both.change(&added, &objects, "added", ADDED).await;
    both.use_all(&objects, &added, &[VERSION, ADDED, VERSION]).await;

    eprintln!("{} steps with {} objects compared", both.steps, objects.len());
    assert!(
        both.differences.is_empty(),
        "{} of {} steps differ (the real server's value stands first):\n{}",
        both.differences.len(),
        both.steps,
        both.differences.join("\n")
    );
}
