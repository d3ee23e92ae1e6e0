//! Access to `metadata`, and its validation.

use serde_json::{Map, Value, json};

use super::names;
use crate::managed::ManagedFields;
use crate::status::Cause;

/// Returns the metadata of an object, creating it if it is missing; `None` if it is not an object.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object.as_object_mut()?.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut()
}

/// Returns a string of the metadata; empty if it is missing.
pub fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// Sets or removes a field of the metadata.
pub fn set(object: &mut Value, name: &str, value: Option<Value>) {
    let Some(metadata) = metadata_mut(object) else {
        return;
    };
    match value {
        Some(value) => metadata.insert(name.to_owned(), value),
        None => metadata.remove(name),
    };
}

/// Sets `managedFields`; removes the field if there are no entries.
pub fn set_managed(object: &mut Value, managed: &ManagedFields) {
    let value = (!managed.is_empty()).then(|| managed.to_value());
    set(object, "managedFields", value);
}

/// The size limit of all annotations together; `TotalAnnotationSizeLimitB` of apimachinery.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Checks labels at a path.
pub fn check_labels(labels: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (name, value) in labels.as_object().into_iter().flatten() {
        let shown = Value::String(name.clone());
        causes.extend(
            names::qualified_name(name)
                .into_iter()
                .map(|why| Cause::invalid(path, &shown, why)),
        );
        causes.extend(
            names::label_value(value.as_str().unwrap_or_default())
                .into_iter()
                .map(|why| Cause::invalid(path, value, why)),
        );
    }
}

fn check_annotations(annotations: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut size = 0;
    for (name, value) in annotations.as_object().into_iter().flatten() {
        let shown = Value::String(name.clone());
        let lower = name.to_lowercase();
        causes.extend(
            names::qualified_name(&lower)
                .into_iter()
                .map(|why| Cause::invalid(path, &shown, why)),
        );
        size += name.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        causes.push(Cause {
            reason: "FieldValueTooLong",
            field: path.to_owned(),
            message: format!("Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"),
        });
    }
}

fn check_owners(owners: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut controller: Option<String> = None;
    for owner in owners.as_array().into_iter().flatten() {
        for (field, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::invalid(format!("{path}.{field}"), &json!(""), why));
            }
        }
        let core = owner["apiVersion"] == "v1" || owner["apiVersion"] == "events.k8s.io/v1";
        if core && owner["kind"] == "Event" {
            let version = owner["apiVersion"].as_str().unwrap_or_default();
            let slash = if version.contains('/') { "" } else { "/" };
            causes.push(Cause::invalid_shown(
                path,
                shown_owners(&json!([owner])).trim_matches(['[', ']']),
                &format!("{slash}{version}, Kind=Event is disallowed from being an owner"),
            ));
        }
        if owner["controller"] == true {
            let text = |name: &str| owner[name].as_str().unwrap_or_default();
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                Some(first) => causes.push(Cause::invalid_shown(
                    path,
                    &shown_owners(owners),
                    &format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"),
                )),
                None => controller = Some(this),
            }
        }
    }
}

/// Formats owner references with their fields in the order of the Go struct.
fn shown_owners(owners: &Value) -> String {
    let fields = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let one = |owner: &Value| {
        let given: Vec<String> = fields
            .iter()
            .filter_map(|name| Some(format!("\"{name}\":{}", owner.get(name)?)))
            .collect();
        format!("{{{}}}", given.join(","))
    };
    let all: Vec<String> = owners.as_array().into_iter().flatten().map(one).collect();
    format!("[{}]", all.join(","))
}

/// Checks finalizers at a path.
pub fn check_finalizers(finalizers: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut both = [false; 2];
    for name in finalizers.as_array().into_iter().flatten() {
        let text = name.as_str().unwrap_or_default();
        causes.extend(
            names::qualified_name(text)
                .into_iter()
                .map(|why| Cause::invalid(path, name, why)),
        );
        both[0] |= text == "orphan";
        both[1] |= text == "foregroundDeletion";
    }
    if both == [true, true] {
        causes.push(Cause::invalid(
            path,
            finalizers,
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

/// Checks the metadata of an object, except for its name and namespace.
pub fn check(object: &Value, path: &str) -> Vec<Cause> {
    let metadata = &object["metadata"];
    let mut causes = Vec::new();
    if metadata["generation"].as_i64().is_some_and(|number| number < 0) {
        causes.push(Cause::invalid(
            format!("{path}.generation"),
            &metadata["generation"],
            "must be greater than or equal to 0",
        ));
    }
    causes.extend(check_maps_and_owners(metadata, path));
    check_finalizers(
        &metadata["finalizers"],
        &format!("{path}.finalizers"),
        &mut causes,
    );
    causes
}

fn check_maps_and_owners(metadata: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_labels(&metadata["labels"], &format!("{path}.labels"), &mut causes);
    check_annotations(
        &metadata["annotations"],
        &format!("{path}.annotations"),
        &mut causes,
    );
    check_owners(
        &metadata["ownerReferences"],
        &format!("{path}.ownerReferences"),
        &mut causes,
    );
    causes
}

/// The metadata fields that an update cannot change.
const IMMUTABLE: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Checks the metadata of an object that replaces another one.
pub fn check_update(new: &Value, old: &Value, path: &str) -> Vec<Cause> {
    let (before, after) = (&old["metadata"], &new["metadata"]);
    let mut causes = Vec::new();
    if before["deletionTimestamp"].is_string() {
        let had = before["finalizers"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let added: Vec<&str> = after["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|one| !had.contains(one))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            let list = added
                .iter()
                .map(|one| format!("{one:?}"))
                .collect::<Vec<_>>()
                .join(", ");
            causes.push(Cause::forbidden(
                format!("{path}.finalizers"),
                &format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"),
            ));
        }
    }
    for field in IMMUTABLE {
        if before[field] != after[field] {
            causes.push(Cause::invalid(
                format!("{path}.{field}"),
                &after[field],
                "field is immutable",
            ));
        }
    }
    // The finalizers have been checked before.
    causes.extend(check_maps_and_owners(after, path));
    causes
}
