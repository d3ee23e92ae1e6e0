//! Resources that a CustomResourceDefinition defines.

use std::sync::Arc;

use serde_json::{Value, json};

use super::strategy::Strategy;
use super::{Form, Resource, Scale, Subresource, Version};
use crate::fields::{FieldSet, Path};
use crate::managed::{FieldManager, ResetFields, ScaleMapping, Versions};
use crate::schema::Type;
use crate::state::State;
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
pub struct Definition {
    /// The name of the CustomResourceDefinition.
    pub name: Box<str>,
    /// Its UID: one of the same name made later is another one.
    pub uid: Box<str>,
}

/// What a definition says of one version.
pub struct CustomVersion {
    /// `openAPIV3Schema`.
    pub schema: Value,
    /// `additionalPrinterColumns`.
    pub columns: Vec<Value>,
    /// `selectableFields`, as paths without the first dot.
    pub selectable: Vec<Box<str>>,
    /// Whether there is a subresource `status`.
    pub has_status: bool,
    /// What to warn of with each answer.
    pub deprecation: Option<Box<str>>,
}

/// Makes the resource of a definition; none without a version that is served.
///
/// # Errors
/// What is wrong with a schema.
pub fn resource(definition: &Value) -> Result<Option<Resource>, Vec<Cause>> {
    let spec = &definition["spec"];
    let text = |value: &Value| -> Box<str> { value.as_str().unwrap_or_default().into() };
    let group = text(&spec["group"]);
    let names = &spec["names"];
    let kind = text(&names["kind"]);
    let listed = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut served: Vec<&Value> = listed
        .iter()
        .filter(|version| version["served"] == true)
        .collect();
    served.sort_by(|left, right| {
        precedence(right["name"].as_str().unwrap_or_default())
            .cmp(&precedence(left["name"].as_str().unwrap_or_default()))
    });
    let mut types = Vec::new();
    for (place, version) in listed.iter().enumerate() {
        let schema = version["schema"].get("openAPIV3Schema");
        let ty = Type::of_custom_resource(schema).map_err(|error| {
            vec![Cause::invalid(
                format!("spec.versions[{place}].schema"),
                &Value::Null,
                error,
            )]
        })?;
        if version["served"] == true {
            types.push((format!("{group}/{}", text(&version["name"])), ty));
        }
    }
    let versions: Vec<_> = served
        .iter()
        .filter_map(|version| Some(Arc::new(version_of(version, &group, &kind, &types, &served)?)))
        .collect();
    if versions.is_empty() {
        return Ok(None);
    }
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    let plural = text(&names["plural"]);
    let or = |value: Box<str>, other: String| if value.is_empty() { other.into() } else { value };
    let has_status = served
        .iter()
        .any(|version| version["subresources"]["status"].is_object());
    Ok(Some(Resource {
        table: crate::status::qualified(&plural, &group).into(),
        singular: or(text(&names["singular"]), kind.to_lowercase()),
        list_kind: or(text(&names["listKind"]), format!("{kind}List")),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        strategy: Strategy::of_custom(has_status),
        versions,
        custom: Some(Arc::new(Definition {
            name: text(&definition["metadata"]["name"]),
            uid: text(&definition["metadata"]["uid"]),
        })),
        group,
        plural,
        kind,
    }))
}

fn version_of(
    version: &Value,
    group: &str,
    kind: &str,
    types: &[(String, Type)],
    served: &[&Value],
) -> Option<Version> {
    let name: Box<str> = version["name"].as_str()?.into();
    let api_version = format!("{group}/{name}");
    let manager = FieldManager::new(Versions::new(types.iter().cloned()), &api_version, kind)?;
    let has_status = version["subresources"]["status"].is_object();
    let reset = |field: &str| {
        let set: FieldSet = [Path::of_fields(&[field])].into_iter().collect();
        ResetFields::new([(api_version.as_str(), set)])
    };
    let fields = if has_status {
        manager.clone().resetting(reset("status"))
    } else {
        manager.clone()
    };
    let deprecation = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"].as_str().map_or_else(
            || format!("{api_version} {kind} is deprecated").into(),
            Into::into,
        )
    });
    Some(Version {
        form: Form::Custom(CustomVersion {
            schema: version["schema"]["openAPIV3Schema"].clone(),
            columns: version["additionalPrinterColumns"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
            selectable: version["selectableFields"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| Some(one["jsonPath"].as_str()?.trim_start_matches('.').into()))
                .collect(),
            has_status,
            deprecation,
        }),
        verbs: ALL_VERBS.iter().map(|verb| (*verb).into()).collect(),
        subresources: subresources(version, kind),
        storage_hash: Box::default(),
        fields,
        status_fields: manager.subresource("status").resetting(reset("spec")),
        scale: scale_of(version, &api_version, group, served),
        api_version: api_version.into(),
        name,
    })
}

fn subresources(version: &Value, kind: &str) -> Vec<Subresource> {
    let verbs = || {
        ["get", "patch", "update"]
            .iter()
            .map(|verb| (*verb).into())
            .collect()
    };
    let mut subresources = Vec::new();
    if version["subresources"]["status"].is_object() {
        subresources.push(Subresource {
            name: "status".into(),
            kind: kind.into(),
            verbs: verbs(),
            group: None,
            version: None,
        });
    }
    if version["subresources"]["scale"].is_object() {
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

fn scale_of(version: &Value, api_version: &str, group: &str, served: &[&Value]) -> Option<Scale> {
    let scale = version["subresources"].get("scale")?;
    let paths = served.iter().map(|version| {
        let path = version["subresources"]["scale"]["specReplicasPath"]
            .as_str()
            .map(|path| Path::of_fields(&path.trim_start_matches('.').split('.').collect::<Vec<_>>()));
        let name = format!("{group}/{}", version["name"].as_str().unwrap_or_default());
        (name, path)
    });
    Some(Scale {
        spec_replicas: scale["specReplicasPath"].as_str()?.into(),
        status_replicas: scale["statusReplicasPath"].as_str()?.into(),
        selector: scale["labelSelectorPath"].as_str().map(Into::into),
        mapping: ScaleMapping::new(api_version, paths),
    })
}

impl CustomVersion {
    /// Gives an object its form and its defaults, and returns the paths of the fields that it does not have.
    pub(crate) fn decode(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// What is wrong with an object.
    pub(crate) fn check(&self, _new: &Value, _old: Option<&Value>) -> Vec<Cause> {
        Vec::new()
    }
}

/// Refuses a definition from which nothing could be served.
pub(crate) fn check_definition(_state: &State, resource: &Resource, object: &Value) -> Result<(), Status> {
    if *resource.kind != *"CustomResourceDefinition" || !resource.group.starts_with("apiextensions") {
        return Ok(());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let expected = format!(
        "{}.{}",
        object["spec"]["names"]["plural"].as_str().unwrap_or_default(),
        object["spec"]["group"].as_str().unwrap_or_default()
    );
    let mut causes = Vec::new();
    if name != expected {
        causes.push(Cause::invalid(
            "metadata.name",
            &json!(name),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if let Err(wrong) = self::resource(object) {
        causes.extend(wrong);
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&resource.group, &resource.kind, name, causes))
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
        names.sort_by(|left, right| precedence(right).cmp(&precedence(left)));
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
