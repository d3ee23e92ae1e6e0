//! Resources that a CustomResourceDefinition defines.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::strategy::Strategy;
use super::{Form, Resource, Scale, Subresource, Version};
use crate::crd::{self, Definition};
use crate::fields::{FieldSet, Path};
use crate::managed::{FieldManager, ResetFields, ScaleMapping, Versions};
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

/// A definition as it is served.
#[derive(Debug)]
pub struct Served {
    /// The name of the CustomResourceDefinition.
    pub name: Box<str>,
    /// Its UID: one of the same name made later is another one.
    pub uid: Box<str>,
}

/// Definitions that have been compiled, by what they say: clusters with equal definitions share one.
static COMPILED: LazyLock<Mutex<HashMap<[u8; 32], Weak<Definition>>>> = LazyLock::new(Mutex::default);

/// Compiles what a stored definition says, or gives what an equal one has been compiled to.
fn compiled(definition: &Value) -> Result<Arc<Definition>, Cause> {
    let spec = serde_json::to_vec(&definition["spec"]).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&spec).into();
    let known = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = known().get(&digest).and_then(Weak::upgrade) {
        return Ok(shared);
    }
    let compiled = Arc::new(Definition::compile(definition)?);
    let mut known = known();
    known.retain(|_, shared| shared.strong_count() > 0);
    known.insert(digest, Arc::downgrade(&compiled));
    Ok(compiled)
}

/// A version of a definition.
#[derive(Clone)]
pub struct CustomVersion {
    definition: Arc<Definition>,
    place: usize,
}

impl CustomVersion {
    /// What the definition says of it.
    ///
    /// # Panics
    /// Never: it is made with a place in the definition that it holds.
    pub fn get(&self) -> &crd::Version {
        &self.definition.versions()[self.place]
    }
}

impl CustomVersion {
    /// What users of the version are warned of: with the version to use, if the definition has no words of its own.
    pub fn deprecation_warning(&self) -> Option<String> {
        let this = self.get();
        let warning = this.deprecation_warning()?;
        let kind = &self.definition.names().kind;
        let usual = format!("{} {kind} is deprecated", this.api_version());
        let better = self
            .definition
            .versions()
            .iter()
            .filter(|version| version.is_served() && version.deprecation_warning().is_none())
            .max_by_key(|version| precedence(version.name()))
            .filter(|version| precedence(version.name()) > precedence(this.name()));
        Some(match better {
            Some(better) if warning == usual => format!("{usual}; use {} {kind}", better.api_version()),
            _ => warning.to_owned(),
        })
    }
}

/// Makes the resource of a definition; none without a version that is served.
///
/// # Errors
/// What is wrong with a schema.
pub fn resource(definition: &Value) -> Result<Option<Resource>, Cause> {
    let compiled = compiled(definition)?;
    let names = compiled.names();
    let group = compiled.group();
    let mut served: Vec<CustomVersion> = compiled
        .versions()
        .iter()
        .enumerate()
        .filter(|(_, version)| version.is_served())
        .map(|(place, _)| CustomVersion {
            definition: Arc::clone(&compiled),
            place,
        })
        .collect();
    served.sort_by_key(|version| std::cmp::Reverse(precedence(version.get().name())));
    let versions: Vec<_> = served
        .iter()
        .filter_map(|version| Some(Arc::new(version_of(version, &served)?)))
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

fn version_of(version: &CustomVersion, served: &[CustomVersion]) -> Option<Version> {
    let this = version.get();
    let kind = &version.definition.names().kind;
    let types = served.iter().map(|version| {
        (
            version.get().api_version().to_owned(),
            version.get().merge_type().clone(),
        )
    });
    let manager = FieldManager::new(Versions::new(types), this.api_version(), kind)?;
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
        storage_hash: storage_hash(&version.definition),
        fields,
        status_fields: manager.subresource("status").resetting(reset("spec")),
        scale: scale_of(this, served),
        form: Form::Custom(version.clone()),
    })
}

/// The hash of the form that objects are kept in, as discovery gives it.
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

fn scale_of(version: &crd::Version, served: &[CustomVersion]) -> Option<Scale> {
    let scale = version.scale()?;
    let paths = served.iter().map(|version| {
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

/// Refuses a definition from which nothing could be served.
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

/// Whether a resource is that of definitions.
pub(crate) fn is_definition(resource: &Resource) -> bool {
    *resource.table == *"customresourcedefinitions.apiextensions.k8s.io"
}

/// The order of versions: stable before beta before alpha, then by number; names that are no versions come last.
pub(crate) fn precedence(name: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let none = (0, 0, 0, std::cmp::Reverse(name.to_owned()));
    let Some(rest) = name.strip_prefix('v') else {
        return none;
    };
    let digits = rest
        .find(|char: char| !char.is_ascii_digit())
        .unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else {
        return none;
    };
    let (stage, minor) = match &rest[digits..] {
        "" => (3, ""),
        tail if tail.starts_with("beta") => (2, &tail[4..]),
        tail if tail.starts_with("alpha") => (1, &tail[5..]),
        _ => return none,
    };
    match minor {
        "" if stage == 3 => (3, major, 0, std::cmp::Reverse(String::new())),
        minor => match minor.parse() {
            Ok(minor) => (stage, major, minor, std::cmp::Reverse(String::new())),
            Err(_) => none,
        },
    }
}

/// The conditions of a definition that is served.
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
    // What has been stored once is not forgotten.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_kubernetes() {
        let mut names = [
            "v1alpha1",
            "foo",
            "v2",
            "v10beta3",
            "v1",
            "v11alpha2",
            "v10",
            "v3beta1",
            "bar",
        ];
        names.sort_by_key(|name| std::cmp::Reverse(precedence(name)));
        assert_eq!(
            names,
            [
                "v10",
                "v2",
                "v1",
                "v10beta3",
                "v3beta1",
                "v11alpha2",
                "v1alpha1",
                "bar",
                "foo"
            ]
        );
    }
}
