//! The resources that CustomResourceDefinitions define.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::custom_version::{CustomVersion, Served, compiled};
use super::resource::{Form, Resource, Scale, Subresource, Version};
use super::strategy::Strategy;
use super::tables::DEFINITIONS;
use crate::crd::{self, Definition};
use crate::fields::{FieldSet, Path};
use crate::managed::{Convert, FieldManager, ResetFields, ScaleMapping, Versions};
use crate::status::{Cause, Status};

const ALL_VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

/// Returns the resource of a definition; `None` if it serves no version.
///
/// # Errors
/// A schema is invalid.
pub fn resource(definition: &Value) -> Result<Option<Resource>, Cause> {
    let compiled = compiled(definition)?;
    let names = compiled.names();
    let group = compiled.group();
    let served = CustomVersion::served(&compiled);
    let all = CustomVersion::all(&compiled);
    let versions: Vec<_> = served
        .iter()
        .filter_map(|version| Some(Arc::new(version_of(version, &all)?)))
        .collect();
    if versions.is_empty() {
        return Ok(None);
    }
    let boxed = |list: &[String]| list.iter().map(|text| text.as_str().into()).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().into();
    let has_status = served.iter().any(|version| version.get().has_status());
    Ok(Some(Resource {
        table: crate::status::qualified(&names.plural, group).into(),
        group: group.into(),
        plural: names.plural.as_str().into(),
        singular: names.singular.as_str().into(),
        kind: names.kind.as_str().into(),
        list_kind: names.list_kind.as_str().into(),
        short_names: boxed(&names.short_names),
        categories: boxed(&names.categories),
        namespaced: compiled.is_namespaced(),
        strategy: Strategy::of_custom(has_status),
        versions,
        custom: Some(Arc::new(Served {
            name: text(&definition["metadata"]["name"]),
            uid: text(&definition["metadata"]["uid"]),
        })),
    }))
}

/// Returns a version that is served. `all` are the versions of the definition, served or not: as in Kubernetes, the
/// entries of managers that wrote a version that is no longer served are kept.
fn version_of(version: &CustomVersion, all: &[CustomVersion]) -> Option<Version> {
    let this = version.get();
    let kind = &version.definition().names().kind;
    let types = all.iter().map(|version| {
        (
            version.get().api_version().to_owned(),
            version.get().merge_type().clone(),
        )
    });
    let versions = Versions::new(types).converting(converting(all));
    let manager = FieldManager::new(versions, this.api_version(), kind)?;
    let reset = |field: &str| {
        let set: FieldSet = [Path::of_fields(&[field])].into_iter().collect();
        ResetFields::new([(this.api_version(), set)])
    };
    let fields = if this.has_status() {
        manager.clone().resetting(reset("status"))
    } else {
        manager.clone()
    };
    Some(Version {
        name: this.name().into(),
        api_version: this.api_version().into(),
        verbs: ALL_VERBS.iter().map(|verb| (*verb).into()).collect(),
        subresources: subresources(this, kind),
        storage_hash: storage_hash(version.definition()),
        fields,
        status_fields: manager.subresource("status").resetting(reset("spec")),
        finalize_fields: None,
        scale: scale_of(this, all),
        form: Form::Custom(version.clone()),
    })
}

/// Returns the conversion between versions: nothing but `apiVersion`, and the fields that the schema of the other
/// version does not have.
fn converting(all: &[CustomVersion]) -> Arc<Convert> {
    let all = all.to_vec();
    Arc::new(move |object: &Value, api_version: &str| {
        let mut object = object.clone();
        if let Some(version) = object.get_mut("apiVersion") {
            *version = Value::String(api_version.to_owned());
        }
        if let Some(version) = all
            .iter()
            .find(|version| version.get().api_version() == api_version)
        {
            version.get().prune(&mut object);
        }
        object
    })
}

/// Returns the hash of the storage version, as discovery shows it.
fn storage_hash(definition: &Definition) -> Box<str> {
    let Some(kept) = definition.storage_version() else {
        return Box::default();
    };
    let digest = Sha256::digest(format!("{}/{}", kept.api_version(), definition.names().kind));
    STANDARD.encode(&digest[..8]).into()
}

fn subresources(version: &crd::Version, kind: &str) -> Vec<Subresource> {
    let verbs = || {
        ["get", "patch", "update"]
            .iter()
            .map(|verb| (*verb).into())
            .collect()
    };
    let mut subresources = Vec::new();
    if version.has_status() {
        subresources.push(Subresource {
            name: "status".into(),
            kind: kind.into(),
            verbs: verbs(),
            group: None,
            version: None,
        });
    }
    if version.scale().is_some() {
        subresources.push(Subresource {
            name: "scale".into(),
            kind: "Scale".into(),
            verbs: verbs(),
            group: Some("autoscaling".into()),
            version: Some("v1".into()),
        });
    }
    subresources
}

fn scale_of(version: &crd::Version, all: &[CustomVersion]) -> Option<Scale> {
    let scale = version.scale()?;
    let paths = all.iter().map(|version| {
        let version = version.get();
        let path = version.scale().map(crd::Scale::replicas_field);
        (version.api_version().to_owned(), path)
    });
    Some(Scale {
        spec_replicas: scale.spec_replicas_path.as_str().into(),
        status_replicas: scale.status_replicas_path.as_str().into(),
        selector: (!scale.label_selector_path.is_empty()).then(|| scale.label_selector_path.as_str().into()),
        mapping: ScaleMapping::new(version.api_version(), paths),
    })
}

/// Rejects a definition that cannot be served.
pub(crate) fn check_definition(
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if !is_definition(resource) {
        return Ok(());
    }
    let served = object["spec"]["versions"].as_array().into_iter().flatten();
    let several = served.filter(|version| version["served"] == true).count() > 1;
    if several && object["spec"]["conversion"]["strategy"] == "Webhook" {
        return Err(Status::not_implemented("conversion by a webhook"));
    }
    let checked = match old {
        None => Definition::from_object(object),
        Some(old) => Definition::updated(object, old),
    };
    checked.map(|_| ()).map_err(|causes| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        Status::invalid(&resource.group, &resource.kind, name, causes)
    })
}

/// Returns whether a resource is that of CustomResourceDefinitions.
pub(crate) fn is_definition(resource: &Resource) -> bool {
    *resource.table == *DEFINITIONS
}

/// Returns the status of a definition that is served.
pub(crate) fn established(definition: &Value, now: &str) -> Value {
    let condition = |ty: &str, reason: &str, message: &str| json!({"type": ty, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    let stored: Vec<&Value> = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
        .map(|version| &version["name"])
        .collect();
    let mut status = json!({
        "acceptedNames": definition["spec"]["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": stored,
    });
    // Versions that objects were stored in stay in the list.
    if let Some(before) = definition["status"]["storedVersions"].as_array() {
        let mut all = before.clone();
        for name in stored {
            if !all.contains(name) {
                all.push(name.clone());
            }
        }
        status["storedVersions"] = Value::Array(all);
    }
    status
}
