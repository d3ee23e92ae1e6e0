//! The objects of a target: those in git, with the values of the Sync. And whether an object on a member matches one.

use std::collections::BTreeMap;

use serde_json::Value;
use starling_api::{DISABLED, ENABLED, FORCE, IgnoreRule, OWNER_LABEL, RECONCILE, SyncTemplate};

use super::history::{Key, Push};

/// An object that a target renders.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    group: String,
    kind: String,
    /// Its possible namespaces: only the member knows which kinds are namespaced.
    namespaces: Vec<String>,
    name: String,
    /// As rendered.
    whole: Value,
    /// Without the ignored fields.
    required: Value,
}

/// Returns the objects of a commit and a template; none if the commit was never pushed, or the folder does not render.
pub(crate) fn render(pushes: &[&Push], revision: &str, template: &SyncTemplate) -> Option<Vec<Expected>> {
    let (_, commit) = revision.rsplit_once(':')?;
    let push = pushes.iter().rev().find(|push| push.commit == commit)?;
    let folder = template.path.trim_start_matches("./").trim_matches('/');
    let objects = push.objects.get(folder)?;
    Some(objects.iter().map(|object| expected(object, template)).collect())
}

fn expected(object: &Value, template: &SyncTemplate) -> Expected {
    let mut whole = object.clone();
    substitute(&mut whole, &template.substitute);
    let text = |pointer: &str| whole.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, _) = text("/apiVersion").rsplit_once('/').unwrap_or_default();
    let own = text("/metadata/namespace");
    let namespaces: &[&str] = match (template.target_namespace.as_str(), own) {
        ("", "") => &["default", ""],
        ("", own) => &[own],
        (target, _) => &[target, ""],
    };
    let namespaces = namespaces.iter().map(|&namespace| namespace.to_owned()).collect();
    let (group, kind, name) = (
        group.to_owned(),
        text("/kind").to_owned(),
        text("/metadata/name").to_owned(),
    );
    // The namespace is part of the name, which is compared first.
    if let Some(metadata) = whole.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("namespace");
    }
    let mut required = whole.clone();
    for rule in &template.ignore {
        remove_ignored(&mut required, &kind, &name, rule);
    }
    Expected {
        group,
        kind,
        namespaces,
        name,
        whole,
        required,
    }
}

/// Replaces `${NAME}` for the names that have a value; `$${` is an escaped `${`.
fn substitute(value: &mut Value, values: &BTreeMap<String, String>) {
    match value {
        Value::String(text) if text.contains("${") => {
            let mut replaced = text.replace("$${", "\u{0}{");
            for (name, value) in values {
                replaced = replaced.replace(&format!("${{{name}}}"), value);
            }
            *text = replaced.replace("\u{0}{", "${");
        }
        Value::Array(items) => items.iter_mut().for_each(|item| substitute(item, values)),
        Value::Object(fields) => fields.values_mut().for_each(|field| substitute(field, values)),
        _ => {}
    }
}

fn remove_ignored(object: &mut Value, kind: &str, name: &str, rule: &IgnoreRule) {
    let concerns = rule.target.as_ref().is_none_or(|target| {
        (target.kind.is_empty() || target.kind == kind) && (target.name.is_empty() || target.name == name)
    });
    for path in rule.paths.iter().filter(|_| concerns) {
        let Some((parent, field)) = path.rsplit_once('/') else {
            continue;
        };
        if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(&field.replace("~1", "/").replace("~0", "~"));
        }
    }
}

impl Expected {
    /// Whether this is the object of a key.
    pub(crate) fn is(&self, key: &Key) -> bool {
        self.group == key.group
            && self.kind == key.kind
            && self.name == key.name
            && self.namespaces.contains(&key.namespace)
    }

    /// Returns the possible keys on the member.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.namespaces.iter().map(|namespace| Key {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: namespace.clone(),
            name: self.name.clone(),
        })
    }

    /// Returns the display name.
    pub(crate) fn named(&self) -> String {
        match self.namespaces.first().map(String::as_str) {
            None | Some("") => format!("{} {}", self.kind, self.name),
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
        }
    }

    /// Whether this is the object of a display name in `status.problems`.
    pub(crate) fn has_display_name(&self, name: &str) -> bool {
        let names = self.namespaces.iter().map(|namespace| match namespace.as_str() {
            "" => format!("{} {}", self.kind, self.name),
            namespace => format!("{} {namespace}/{}", self.kind, self.name),
        });
        names.into_iter().any(|own| own == name)
    }

    /// Whether an annotation in git disables reconciliation of the object.
    pub(crate) fn is_unmanaged(&self) -> bool {
        annotation(&self.whole, RECONCILE) == DISABLED
    }

    /// Whether an annotation in git allows to recreate the object if it cannot be changed.
    pub(crate) fn may_be_recreated(&self) -> bool {
        annotation(&self.whole, FORCE) == ENABLED
    }

    /// Whether the member's object contains everything that is rendered. Other writers may have added fields.
    pub(crate) fn is_in(&self, live: &Value) -> bool {
        contains(&self.required, live, true)
    }

    /// Whether the object can be the result of a write for this target: it contains everything, and no other field of
    /// Starling.
    pub(crate) fn is_written_as(&self, live: &Value) -> bool {
        self.is_in(live) && owned(live).all(|fields| are_rendered(fields, &self.whole))
    }
}

/// Returns an annotation of an object; empty without it.
pub(crate) fn annotation<'o>(object: &'o Value, name: &str) -> &'o str {
    let annotations = object
        .get("metadata")
        .and_then(|metadata| metadata.get("annotations"));
    annotations
        .and_then(|annotations| annotations.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether `live` contains the desired value. A list contains each desired element at some position: whether others may
/// add to a list depends on its type. A substituted number may be text on one side.
fn contains(desired: &Value, live: &Value, top: bool) -> bool {
    match (desired, live) {
        (Value::Null, _) => true,
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(field, desired)| {
            if top && matches!(field.as_str(), "apiVersion" | "kind" | "status" | "stringData") {
                return true;
            }
            match live.get(field) {
                Some(live) => contains(desired, live, false),
                None => is_empty(desired),
            }
        }),
        (Value::Array(desired), Value::Array(live)) => desired
            .iter()
            .all(|desired| live.iter().any(|live| contains(desired, live, false))),
        (desired, live) => desired == live || scalar(desired).is_some_and(|text| Some(text) == scalar(live)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns the fields that an apply of Starling owns, by `managedFields`.
fn owned(live: &Value) -> impl Iterator<Item = &Value> {
    let entries = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries
        .into_iter()
        .flatten()
        .filter(|entry| entry["manager"] == starling_api::FIELD_MANAGER && entry["operation"] == "Apply")
        .filter(|entry| entry.get("subresource").is_none_or(|sub| sub == ""))
        .map(|entry| &entry["fieldsV1"])
}

/// Whether all owned fields are rendered ones, or the owner label. Elements of lists are not distinguished.
fn are_rendered(fields: &Value, whole: &Value) -> bool {
    fields.as_object().into_iter().flatten().all(|(key, below)| {
        let Some(name) = key.strip_prefix("f:") else {
            return true;
        };
        match whole.get(name) {
            Some(inner @ Value::Object(_)) => are_rendered(below, inner),
            Some(_) => true,
            None => match name {
                OWNER_LABEL => true,
                "labels" | "metadata" => are_rendered(below, &Value::Null),
                "data" => whole.get("stringData").is_some(),
                _ => false,
            },
        }
    })
}
