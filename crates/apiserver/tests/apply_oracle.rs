//! Compares server-side apply with recorded responses of Kubernetes' libraries, which `tests/oracle/apply` writes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use starling_apiserver::fields::{FieldSet, Path};
use starling_apiserver::managed::{
    ApplyError, ApplyRequest, Entry, FieldManager, Live, ManagedFields, ResetFields, UpdateRequest, Versions,
};
use starling_apiserver::schema::{Type, builtin};

const GROUP: &str = "test.dev";

#[derive(Deserialize)]
struct Corpus {
    schemas: Vec<Option<Value>>,
    runs: Vec<Run>,
}

/// A kind, and a sequence of operations on one object of it.
#[derive(Deserialize)]
struct Run {
    #[serde(default)]
    name: String,
    custom: Option<BTreeMap<String, usize>>,
    builtin: Option<(String, String)>,
    live: Option<Value>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(rename = "do")]
    action: Action,
    #[serde(rename = "by")]
    manager: String,
    #[serde(rename = "at")]
    version: String,
    #[serde(rename = "sub", default)]
    subresource: String,
    #[serde(default)]
    reset: bool,
    #[serde(rename = "obj")]
    object: Value,
    /// The object after the step, unless it is the one sent.
    #[serde(rename = "is")]
    result: Option<Value>,
    #[serde(default)]
    managed: Vec<Value>,
    #[serde(default)]
    error: String,
    #[serde(default)]
    code: u16,
    #[serde(default)]
    unstable: bool,
}

#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Action {
    Apply,
    Force,
    Update,
}

/// The kind of a run.
struct Subject {
    versions: Versions,
    names: Vec<String>,
    kind: String,
    empty: Value,
}

impl Subject {
    fn of(run: &Run, schemas: &[Option<Value>]) -> Self {
        if let Some((version, kind)) = &run.builtin {
            let found =
                builtin(version, kind).unwrap_or_else(|| panic!("{version} {kind} is not in the table"));
            return Self {
                versions: Versions::new([(version.as_str(), found.ty)]),
                names: vec![version.clone()],
                kind: kind.clone(),
                empty: found.empty,
            };
        }
        let types: Vec<(String, Type)> = run
            .custom
            .iter()
            .flatten()
            .map(|(version, place)| {
                let ty = Type::of_custom_resource(schemas[*place].as_ref()).unwrap();
                (format!("{GROUP}/{version}"), ty)
            })
            .collect();
        Self {
            names: types.iter().map(|(name, _)| name.clone()).collect(),
            versions: Versions::new(types),
            kind: "Thing".to_owned(),
            empty: json!({"kind": "Thing"}),
        }
    }

    fn endpoint(&self, step: &Step) -> FieldManager {
        let mut empty = self.empty.clone();
        empty["apiVersion"] = json!(step.version);
        let endpoint = FieldManager::new(self.versions.clone(), &step.version, &self.kind)
            .unwrap()
            .starting_from(empty)
            .subresource(&step.subresource);
        if !step.reset {
            return endpoint;
        }
        let name = if step.subresource.is_empty() {
            "status"
        } else {
            "spec"
        };
        let fields = FieldSet::from_iter([Path::of_fields(&[name])]);
        endpoint.resetting(ResetFields::new(
            self.names
                .iter()
                .map(|version| (version.as_str(), fields.clone())),
        ))
    }
}

/// An object between two steps.
struct State {
    object: Value,
    managed: ManagedFields,
}

impl State {
    /// Returns the start of a run. Unreadable entries count as none.
    fn of(live: &Value) -> Self {
        let mut object = live.clone();
        let entries = object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        Self {
            object,
            managed: ManagedFields::from_value(&entries.unwrap_or_default()).unwrap_or_default(),
        }
    }
}

/// The result of a step in the library or in this crate.
struct Answer {
    outcome: Result<State, (u16, String)>,
    /// The error of an update that is accepted without entries.
    complaint: String,
}

fn answer(subject: &Subject, live: Option<&State>, step: &Step, place: usize) -> Answer {
    let endpoint = subject.endpoint(step);
    let now = Timestamp::from_second(i64::try_from(place).unwrap()).unwrap();
    let in_version = live.map(|live| {
        let mut object = live.object.clone();
        object["apiVersion"] = json!(step.version);
        object
    });
    let stored = live.zip(in_version.as_ref()).map(|(live, object)| Live {
        object,
        managed: &live.managed,
    });
    let state = |object, managed| State { object, managed };
    if step.action == Action::Update {
        let request = UpdateRequest {
            manager: &step.manager,
            now,
        };
        let (outcome, complaint) = match endpoint.update(stored, step.object.clone(), &request) {
            Ok(updated) => (state(updated.object, updated.managed), String::new()),
            Err(error) => {
                let mut object = step.object.clone();
                object["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .remove("managedFields");
                (state(object, ManagedFields::new()), error.to_string())
            }
        };
        return Answer {
            outcome: Ok(outcome),
            complaint,
        };
    }
    let request = ApplyRequest {
        manager: &step.manager,
        force: step.action == Action::Force,
        now,
    };
    let outcome = match endpoint.apply(stored, &step.object, &request) {
        Ok(applied) => {
            let object = applied.object.or(in_version).unwrap();
            Ok(state(object, applied.managed))
        }
        Err(error) => Err((error.code(), text_of(&error))),
    };
    Answer {
        outcome,
        complaint: String::new(),
    }
}

/// Returns the message and the causes, one a line, in the order of the oracle.
fn text_of(error: &ApplyError) -> String {
    let mut text = error.to_string();
    if let ApplyError::Conflict(conflicts) = error {
        for conflict in &conflicts.0 {
            text += &format!("\nFieldManagerConflict {} at {}", conflict.cause(), conflict.path);
        }
    }
    sorted(&text)
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<_> = text.split('\n').collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Returns the entries in the notation of the oracle.
fn notation(managed: &ManagedFields) -> Vec<Value> {
    let of_entry = |entry: &Entry| {
        json!([
            entry.manager.name,
            entry.manager.operation.as_str(),
            entry.api_version,
            entry.manager.subresource,
            entry.time.map_or(-1, Timestamp::as_second),
            entry.fields.to_fields_v1_value(),
        ])
    };
    managed.entries().iter().map(of_entry).collect()
}

/// The number of steps of each kind, so that a shrinking corpus fails the test.
#[derive(Debug, Default)]
struct Seen {
    applied: usize,
    conflicts: usize,
    refused: usize,
    updated: usize,
    complaints: usize,
}

fn differences(corpus: &Corpus, seen: &mut Seen) -> Vec<String> {
    let mut found = Vec::new();
    for (number, run) in corpus.runs.iter().enumerate() {
        let subject = Subject::of(run, &corpus.schemas);
        let mut live: Option<State> = run.live.as_ref().map(State::of);
        for (place, step) in run.steps.iter().enumerate() {
            let got = answer(&subject, live.as_ref(), step, place);
            if let Some(difference) = compare(step, &got, seen) {
                found.push(format!("run {number} {} step {place}: {difference}", run.name));
                break;
            }
            if let Ok(mut state) = got.outcome {
                if state.object["metadata"].get("uid").is_none() {
                    state.object["metadata"]["uid"] = json!("u");
                }
                live = Some(state);
            }
        }
    }
    found
}

fn compare(step: &Step, got: &Answer, seen: &mut Seen) -> Option<String> {
    let state = match &got.outcome {
        Err((code, text)) => {
            match code {
                409 => seen.conflicts += 1,
                _ => seen.refused += 1,
            }
            let same = *code == step.code && (step.unstable || *text == step.error);
            return (!same).then(|| format!("wanted {} {:?}, got {code} {text:?}", step.code, step.error));
        }
        Ok(state) => state,
    };
    match step.action {
        Action::Apply | Action::Force => seen.applied += 1,
        Action::Update => seen.updated += 1,
    }
    let complaint = sorted(&got.complaint);
    seen.complaints += usize::from(!complaint.is_empty());
    if complaint.is_empty() != (step.error.is_empty() && !step.unstable)
        || !step.unstable && complaint != step.error
    {
        return Some(format!("wanted error {:?}, got {complaint:?}", step.error));
    }
    let mut object = state.object.clone();
    if object["metadata"].get("uid").is_none() {
        object["metadata"]["uid"] = json!("u");
    }
    if let Some(wanted) = &step.result {
        // The library leaves an unchanged object in its previous version.
        object["apiVersion"] = wanted["apiVersion"].clone();
        if object != *wanted {
            return Some(format!("wanted {wanted}\n  got {object}"));
        }
    }
    let managed = notation(&state.managed);
    (managed != step.managed).then(|| {
        let [wanted, got] = [&step.managed, &managed].map(|entries| json!(entries));
        format!("wanted {wanted}\n  got {got}")
    })
}

fn report(differences: &[String]) {
    let shown: Vec<_> = differences.iter().take(10).cloned().collect();
    assert!(
        differences.is_empty(),
        "{} runs differ from Kubernetes:\n{}",
        differences.len(),
        shown.join("\n")
    );
}

#[test]
fn written_runs_match_kubernetes() {
    let corpus: Corpus = serde_json::from_str(include_str!("data/apply.json")).unwrap();
    let mut seen = Seen::default();
    let found = differences(&corpus, &mut seen);
    report(&found);
    assert!(seen.conflicts >= 15 && seen.refused >= 10, "{seen:?}");
}

#[test]
fn random_runs_match_kubernetes() {
    let corpus: Corpus = serde_json::from_str(include_str!("data/apply-random.json")).unwrap();
    let mut seen = Seen::default();
    let found = differences(&corpus, &mut seen);
    report(&found);
    assert!(
        seen.applied >= 1500 && seen.conflicts >= 200 && seen.refused >= 80 && seen.updated >= 900,
        "{seen:?}"
    );
}
