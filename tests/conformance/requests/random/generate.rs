//! Generates sequences of requests.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};
use starling_apiserver::random::Random;

/// The parts of requests.
#[derive(Deserialize)]
pub(super) struct Kinds {
    any: Parts,
    kinds: Vec<Kind>,
    /// The custom kind among them.
    pub(super) definition: Value,
}

/// A kind.
#[derive(Deserialize)]
struct Kind {
    plural: String,
    api: String,
    #[serde(rename = "apiVersion")]
    version: String,
    kind: String,
    weight: u64,
    /// Subresources.
    #[serde(default)]
    named: Vec<String>,
    /// The smallest valid object.
    base: Value,
    #[serde(flatten)]
    parts: Parts,
}

/// Parts of bodies.
#[derive(Deserialize)]
struct Parts {
    valid: Vec<Value>,
    invalid: Vec<Value>,
    /// JSON patches.
    json: Vec<Value>,
    /// Merge patches with directives.
    strategic: Vec<Value>,
    #[serde(default)]
    status: Vec<Value>,
}

/// The parts of requests.
pub(super) static KINDS: LazyLock<Kinds> =
    LazyLock::new(|| serde_json::from_str(include_str!("kinds.json")).unwrap());

/// The name of the last written object.
pub(super) const LAST: &str = "zz-last";

/// Returns the steps of a sequence; `$ns` is its namespace.
pub(super) fn sequence(seed: u64, number: u64, length: usize) -> Vec<String> {
    let mut random = Random::named(seed, &number.to_string());
    random.number();
    let mut generator = Generator { random };
    let count = 1 + generator.random.below(3);
    let mut kinds: Vec<&Kind> = Vec::new();
    for _ in 0..count {
        let kind = generator.kind();
        if !kinds.iter().any(|known| known.plural == kind.plural) {
            kinds.push(kind);
        }
    }
    let mut steps: Vec<String> = kinds
        .iter()
        .map(|kind| format!("GET {}", collection(kind)))
        .collect();
    for place in 0..length {
        let kind = kinds[generator.below(kinds.len())];
        generator.step(kind, place, &mut steps);
    }
    for kind in kinds {
        generator.ending(kind, &mut steps);
    }
    steps
}

fn collection(kind: &Kind) -> String {
    format!("{}/namespaces/$ns/{}", kind.api, kind.plural)
}

/// Merges an object into another.
fn lay(over: &Value, under: &mut Value) {
    match (over, under) {
        (Value::Object(over), Value::Object(under)) => {
            for (name, value) in over {
                lay(value, under.entry(name.clone()).or_insert(Value::Null));
            }
        }
        (over, under) => *under = over.clone(),
    }
}

struct Generator {
    random: Random,
}

impl Generator {
    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn kind(&mut self) -> &'static Kind {
        let all: u64 = KINDS.kinds.iter().map(|kind| kind.weight).sum();
        let mut place = self.random.below(all);
        for kind in &KINDS.kinds {
            if place < kind.weight {
                return kind;
            }
            place -= kind.weight;
        }
        unreachable!("weights add up")
    }

    fn name(&mut self) -> &'static str {
        self.one::<&'static str>(&["a", "a", "a", "b", "b", "c"])
    }

    /// Returns a part of a body, valid or invalid.
    fn part(&mut self, kind: &'static Kind) -> &'static Value {
        let common = self.chance(30);
        let parts = if common { &KINDS.any } else { &kind.parts };
        if self.chance(15) {
            self.one(&parts.invalid)
        } else {
            self.one(&parts.valid)
        }
    }

    /// Returns the complete body of an object.
    fn body(&mut self, kind: &'static Kind, name: &str, most: usize) -> Value {
        let mut body = json!({"apiVersion": kind.version, "kind": kind.kind, "metadata": {"name": name}});
        lay(&kind.base, &mut body);
        for _ in 0..self.below(most + 1) {
            lay(self.part(kind), &mut body);
        }
        body
    }

    /// Parameters of a write.
    fn parameters(&mut self, apply: bool) -> String {
        let mut all = Vec::new();
        if apply && !self.chance(2) {
            let manager = self.one(&["a", "a", "b", "c"]);
            all.push(format!("fieldManager={manager}"));
            if self.chance(35) {
                all.push("force=true".to_owned());
            }
        } else if self.chance(50) {
            let manager = self.one(&["a", "u", "v"]);
            all.push(format!("fieldManager={manager}"));
        }
        if self.chance(7) {
            all.push(
                self.one(&["dryRun=All", "dryRun=All", "dryRun=All", "dryRun=Some"])
                    .to_string(),
            );
        }
        if self.chance(12) {
            let level = self.one(&["Strict", "Ignore", "Warn", "Strict", "Ignore", "Foo"]);
            all.push(format!("fieldValidation={level}"));
        }
        if !apply && self.chance(1) {
            all.push("force=true".to_owned());
        }
        if all.is_empty() {
            String::new()
        } else {
            format!("?{}", all.join("&"))
        }
    }

    /// Returns a subresource, if the kind has one.
    fn subresource(&mut self, kind: &'static Kind) -> Option<&'static str> {
        if kind.named.is_empty() {
            None
        } else {
            Some(self.one(kind.named.as_slice()).as_str())
        }
    }

    fn step(&mut self, kind: &'static Kind, place: usize, steps: &mut Vec<String>) {
        let all = collection(kind);
        let name = self.name();
        let one = format!("{all}/{name}");
        match self.random.below(100) {
            0..15 => {
                let mut body = self.body(kind, name, 3);
                if self.chance(10) {
                    body["metadata"]["name"].take();
                    body["metadata"]["generateName"] = json!(format!("gen-{place}-"));
                }
                steps.push(format!("POST {all}{} {body}", self.parameters(false)));
            }
            15..19 => steps.push(format!("GET {one}")),
            19..27 => self.lists(kind, &all, steps),
            27..39 => {
                let body = self.replacement(kind, name);
                steps.push(format!("PUT {one}{} {body}", self.parameters(false)));
            }
            39..49 => {
                let patch = self.patch(kind, name);
                steps.push(format!("PATCH-MERGE {one}{} {patch}", self.parameters(false)));
            }
            49..56 => {
                let common = self.chance(50);
                let parts = if common { &KINDS.any } else { &kind.parts };
                let patch = self.one(&parts.json);
                steps.push(format!("PATCH-JSON {one}{} {patch}", self.parameters(false)));
            }
            56..64 => {
                let patch = if self.chance(60) {
                    let common = self.chance(30);
                    let parts = if common { &KINDS.any } else { &kind.parts };
                    self.one(&parts.strategic).clone()
                } else {
                    self.patch(kind, name)
                };
                steps.push(format!("PATCH-STRATEGIC {one}{} {patch}", self.parameters(false)));
            }
            64..80 => {
                let body = self.applied(kind, name);
                steps.push(format!("APPLY {one}{} {body}", self.parameters(true)));
            }
            80..88 => match self.subresource(kind) {
                Some("status") => steps.push(self.status(kind, name, &one)),
                Some(_) => steps.push(self.scale(kind, name, &one)),
                None => steps.push(format!("GET {one}")),
            },
            88..96 => {
                let options = self.deletion(kind, name);
                steps.push(format!("DELETE {one}{options}"));
                if self.chance(50) {
                    steps.push(format!(
                        "PATCH-MERGE {one} {{\"metadata\":{{\"finalizers\":null}}}}"
                    ));
                }
            }
            96..98 => {
                let selector = self.one(&["app%3Da", "app", "app+in+(b,c)", "!app,tier", "tier%3Dfront"]);
                // Each namespace has objects of these kinds, which controllers recreate at any time.
                let own = ["configmaps", "serviceaccounts"].contains(&kind.plural.as_str());
                if own && *selector != "!app,tier" || self.chance(60) {
                    steps.push(format!("DELETE {all}?labelSelector={selector}"));
                } else if !own {
                    steps.push(format!("DELETE {all}"));
                }
            }
            _ => steps.push(self.invalid_request(kind, name, &all)),
        }
    }

    /// Adds lists, one of which may be continued.
    fn lists(&mut self, kind: &'static Kind, all: &str, steps: &mut Vec<String>) {
        let query = *self.one(&[
            "",
            "?labelSelector=app%3Da",
            "?labelSelector=app!%3Da",
            "?labelSelector=app+in+(a,b),tier",
            "?labelSelector=!app",
            "?labelSelector=app+notin+(a)",
            "?labelSelector=app+",
            "?labelSelector=app+gt+1",
            "?labelSelector=a%3Db%3Dc",
            "?fieldSelector=metadata.name%3Da",
            "?fieldSelector=metadata.name!%3Da",
            "?fieldSelector=metadata.namespace%3D$ns",
            "?fieldSelector=metadata.namespace%3Delsewhere",
            "?fieldSelector=spec.colour%3Dred",
            "?fieldSelector=type%3DOpaque",
            "?fieldSelector=status.successful%3D0",
            "?limit=1",
            "?limit=2",
            "?limit=1&labelSelector=app",
            "?limit=100",
            "?limit=-1",
            "?limit=x",
            "?resourceVersion=$start(PLURAL)&resourceVersionMatch=NotOlderThan",
            "?resourceVersion=$start(PLURAL)&resourceVersionMatch=Exact",
            "?resourceVersion=$start(PLURAL)&limit=2",
            "?resourceVersionMatch=Exact",
            "?resourceVersion=x",
            "?timeoutSeconds=5&pretty=true",
        ]);
        steps.push(format!("GET {all}{}", query.replace("PLURAL", &kind.plural)));
        if query.starts_with("?limit=1") {
            if self.chance(50) {
                let body = self.body(kind, "b", 1);
                steps.push(format!("POST {all} {body}"));
            }
            let selector = if query.contains("app") {
                "&labelSelector=app"
            } else {
                ""
            };
            steps.push(format!("GET {all}?limit=2&continue=$continue(){selector}"));
        }
    }

    /// Returns the body of an update, with a current, old, invalid or no revision.
    fn replacement(&mut self, kind: &'static Kind, name: &str) -> Value {
        let mut body = self.body(kind, name, 3);
        let object = format!("{}/{name}", kind.plural);
        match self.random.below(20) {
            0..7 => body["metadata"]["resourceVersion"] = json!(format!("$rv({object})")),
            7..9 => body["metadata"]["resourceVersion"] = json!(format!("$old({object})")),
            9 => body["metadata"]["resourceVersion"] = json!("1"),
            10 => body["metadata"]["uid"] = json!(format!("$uid({object})")),
            11 => body["metadata"]["namespace"] = json!("$ns"),
            12 => body["metadata"]["name"] = json!("another"),
            _ => {}
        }
        body
    }

    /// A merge patch.
    fn patch(&mut self, kind: &'static Kind, name: &str) -> Value {
        let mut patch = json!({});
        for _ in 0..1 + self.below(2) {
            lay(self.part(kind), &mut patch);
        }
        match self.random.below(20) {
            0 => patch["metadata"]["resourceVersion"] = json!(format!("$rv({}/{name})", kind.plural)),
            1 => patch["metadata"]["resourceVersion"] = json!(format!("$old({}/{name})", kind.plural)),
            2 => patch = json!({}),
            3 => patch = json!({"metadata": {"labels": null, "annotations": null}}),
            4 => patch = json!({"spec": null}),
            _ => {}
        }
        patch
    }

    /// Returns an apply configuration, which may be incomplete.
    fn applied(&mut self, kind: &'static Kind, name: &str) -> Value {
        let mut body = json!({"apiVersion": kind.version, "kind": kind.kind, "metadata": {"name": name}});
        if self.chance(70) {
            lay(&kind.base, &mut body);
        }
        for _ in 0..self.below(4) {
            lay(self.part(kind), &mut body);
        }
        body
    }

    fn status(&mut self, kind: &'static Kind, name: &str, one: &str) -> String {
        let status = self.one(&kind.parts.status).clone();
        match self.random.below(10) {
            0 => format!("GET {one}/status"),
            1..4 => {
                let mut body = self.body(kind, name, 2);
                lay(&status, &mut body);
                format!("PUT {one}/status{} {body}", self.parameters(false))
            }
            4..7 => format!("PATCH-MERGE {one}/status{} {status}", self.parameters(false)),
            7 => format!("PATCH-STRATEGIC {one}/status{} {status}", self.parameters(false)),
            _ => {
                let mut body = self.applied(kind, name);
                lay(&status, &mut body);
                format!("APPLY {one}/status{} {body}", self.parameters(true))
            }
        }
    }

    fn scale(&mut self, kind: &'static Kind, name: &str, one: &str) -> String {
        let replicas = self
            .one(&[json!(0), json!(1), json!(5), json!(-1), json!("x"), Value::Null])
            .clone();
        let mut body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name, "namespace": "$ns"},
            "spec": {"replicas": replicas}});
        if self.chance(20) {
            body["metadata"]["resourceVersion"] = json!(format!("$rv({}/{name})", kind.plural));
        }
        match self.random.below(10) {
            0..2 => format!("GET {one}/scale"),
            2..5 => format!("PUT {one}/scale{} {body}", self.parameters(false)),
            5..7 => format!(
                "PATCH-MERGE {one}/scale{} {}",
                self.parameters(false),
                json!({"spec": {"replicas": replicas}})
            ),
            7 => format!(
                "PATCH-JSON {one}/scale{} {}",
                self.parameters(false),
                json!([{"op": "replace", "path": "/spec/replicas", "value": replicas}])
            ),
            _ => format!("APPLY {one}/scale{} {body}", self.parameters(true)),
        }
    }

    /// Options of a deletion, in the body or the query.
    fn deletion(&mut self, kind: &'static Kind, name: &str) -> String {
        let object = format!("{}/{name}", kind.plural);
        // Garbage collection discovers a new kind after up to half a minute.
        let custom = kind.plural == "gadgets";
        match self.random.below(20) {
            0..3 => format!(" {{\"preconditions\":{{\"resourceVersion\":\"$rv({object})\"}}}}"),
            3 => format!(" {{\"preconditions\":{{\"resourceVersion\":\"$old({object})\"}}}}"),
            4 => format!(" {{\"preconditions\":{{\"uid\":\"$uid({object})\"}}}}"),
            5 => " {\"preconditions\":{\"uid\":\"11111111-1111-1111-1111-111111111111\"}}".to_owned(),
            6 => "?propagationPolicy=Background".to_owned(),
            7 if !custom => "?propagationPolicy=Foreground".to_owned(),
            8 if !custom => " {\"propagationPolicy\":\"Orphan\"}".to_owned(),
            9 => "?propagationPolicy=Sideways".to_owned(),
            10 => "?dryRun=All".to_owned(),
            11 => " {\"dryRun\":[\"All\"]}".to_owned(),
            12 => "?gracePeriodSeconds=0".to_owned(),
            13 => " {\"kind\":\"DeleteOptions\",\"apiVersion\":\"v1\",\"gracePeriodSeconds\":5}".to_owned(),
            14 => " {\"gracePeriodSeconds\":-1,\"nothing\":1}".to_owned(),
            _ => String::new(),
        }
    }

    /// Returns an invalid request.
    fn invalid_request(&mut self, kind: &'static Kind, name: &str, all: &str) -> String {
        let body = self.body(kind, name, 1);
        match self.random.below(12) {
            0 => format!("POST {all}/{name} {body}"),
            1 => format!("PUT {all} {body}"),
            2 => format!("GET {all}/{name}/nothing"),
            3 => format!("POST {}/namespaces/nowhere-$ns/{} {body}", kind.api, kind.plural),
            4 => format!(
                "APPLY {}/namespaces/nowhere-$ns/{}/{name}?fieldManager=a {body}",
                kind.api, kind.plural
            ),
            5 => format!("PATCH-MERGE {all} {body}"),
            6 => format!("DELETE {all}/none"),
            7 => format!("GET {all}/none"),
            8 => format!("POST {all}"),
            9 => format!("PUT {all}/{name}/status {body}"),
            10 => format!("GET {all}/{name}/scale"),
            _ => format!("PUT {all}/{name} {{}}"),
        }
    }

    /// Adds the last write of a kind, and watches of all events up to it.
    fn ending(&mut self, kind: &'static Kind, steps: &mut Vec<String>) {
        let all = collection(kind);
        let mut body = json!({"apiVersion": kind.version, "kind": kind.kind, "metadata": {"name": LAST, "labels": {"app": "a"}}});
        lay(&kind.base, &mut body);
        steps.push(format!("GET {all}"));
        steps.push(format!("POST {all} {body}"));
        let plural = &kind.plural;
        steps.push(format!(
            "WATCH {all}?watch=1&resourceVersion=$start({plural}) {LAST}"
        ));
        let query = *self.one(&[
            "labelSelector=app%3Da&resourceVersion=$start(PLURAL)",
            "labelSelector=app&resourceVersion=$start(PLURAL)",
            "labelSelector=!tier&resourceVersion=$start(PLURAL)",
            "fieldSelector=metadata.name!%3Da&resourceVersion=$start(PLURAL)",
            "resourceVersion=$rv(PLURAL/a)",
        ]);
        steps.push(format!(
            "WATCH {all}?watch=1&{} {LAST}",
            query.replace("PLURAL", plural)
        ));
    }
}
