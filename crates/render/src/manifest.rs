//! Converts YAML documents to Kubernetes objects.

use std::collections::BTreeSet;

use serde_json::Value;
use starling_core::object::ObjectId;

use super::RenderError;

/// The key of an object, and its version.
pub(super) struct Identity {
    pub(super) key: ObjectId,
    pub(super) api_version: String,
}

/// Flattens lists and checks that every object has a unique identity.
pub(super) fn objects(documents: Vec<Value>, origin: &str, limit: usize) -> Result<Vec<Value>, RenderError> {
    let mut objects = Vec::with_capacity(documents.len());
    for (index, document) in documents.into_iter().enumerate() {
        flatten(document, &mut objects)
            .and_then(|()| within(&objects, limit))
            .map_err(|problem| match problem {
                Problem::Lacks(MissingField(missing)) => RenderError::Incomplete {
                    origin: origin.to_owned(),
                    document: index + 1,
                    missing,
                },
                Problem::TooMany => RenderError::TooLarge {
                    what: "the number of objects",
                    limit,
                },
            })?;
    }
    Ok(objects)
}

/// Fails if two objects have the same key, in any version.
pub(super) fn unique<'a>(keys: impl Iterator<Item = &'a ObjectId>) -> Result<(), RenderError> {
    let mut seen = BTreeSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(RenderError::Duplicate { key: key.clone() });
        }
    }
    Ok(())
}

/// The path of a field of an object that is missing, or not a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingField(pub(super) &'static str);

/// Reads the identity of an object.
pub(super) fn identity(object: &Value) -> Result<Identity, MissingField> {
    let text = |value: &Value, path| {
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or(MissingField(path))
    };
    let api_version = text(&object["apiVersion"], "apiVersion")?;
    let kind = text(&object["kind"], "kind")?;
    let name = text(&object["metadata"]["name"], "metadata.name")?;
    let namespace = match &object["metadata"]["namespace"] {
        Value::Null => String::new(),
        Value::String(namespace) => namespace.clone(),
        _ => return Err(MissingField("metadata.namespace")),
    };
    let group = api_version
        .split_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    Ok(Identity {
        key: ObjectId {
            group,
            kind,
            namespace,
            name,
        },
        api_version,
    })
}

enum Problem {
    Lacks(MissingField),
    TooMany,
}

fn within(objects: &[Value], limit: usize) -> Result<(), Problem> {
    if objects.len() > limit {
        Err(Problem::TooMany)
    } else {
        Ok(())
    }
}

/// Adds a document, or the items of a list; the YAML reader limits the depth of nested lists.
fn flatten(document: Value, objects: &mut Vec<Value>) -> Result<(), Problem> {
    if is_list(&document) {
        let Value::Object(mut fields) = document else {
            return Ok(());
        };
        return match fields.remove("items") {
            Some(Value::Array(items)) => items.into_iter().try_for_each(|item| flatten(item, objects)),
            _ => Err(Problem::Lacks(MissingField("items"))),
        };
    }
    identity(&document).map_err(Problem::Lacks)?;
    objects.push(document);
    Ok(())
}

/// Whether a document is a `List` of the core group, or a typed one such as `ConfigMapList`. Any other kind that ends
/// in `List` has a name.
fn is_list(document: &Value) -> bool {
    let kind = document["kind"].as_str().unwrap_or_default();
    (kind == "List" && document["apiVersion"] == "v1")
        || (kind.ends_with("List") && document["items"].is_array() && document["metadata"]["name"].is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    }

    #[test]
    fn lists_are_flattened() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            map("a"),
            {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": [map("b")]},
        ]});
        let allow_list =
            json!({"apiVersion": "x.io/v1", "kind": "AllowList", "metadata": {"name": "c"}, "items": []});
        let all = objects(vec![list, allow_list], "f", 10).expect("objects");
        let names: Vec<_> = all.iter().map(|o| o["metadata"]["name"].as_str()).collect();
        assert_eq!(names, [Some("a"), Some("b"), Some("c")]);
    }

    #[test]
    fn a_missing_field_is_named_with_its_document() {
        for (broken, missing) in [
            (
                json!({"kind": "ConfigMap", "metadata": {"name": "a"}}),
                "apiVersion",
            ),
            (json!({"apiVersion": "v1", "metadata": {"name": "a"}}), "kind"),
            (json!({"apiVersion": "v1", "kind": "ConfigMap"}), "metadata.name"),
            (
                json!({"apiVersion": "v1", "kind": "Job", "metadata": {"generateName": "a-"}}),
                "metadata.name",
            ),
            (
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": 12}}),
                "metadata.name",
            ),
            (
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": 1}}),
                "metadata.namespace",
            ),
            (json!({"apiVersion": "v1", "kind": "List"}), "items"),
            (json!("just a text"), "apiVersion"),
            (json!(["a"]), "apiVersion"),
        ] {
            let error = objects(vec![map("ok"), broken], "apps/web.yaml", 10).expect_err(missing);
            assert_eq!(
                error.to_string(),
                format!("apps/web.yaml: document 2 has no usable {missing}")
            );
        }
    }

    #[test]
    fn one_object_in_two_versions_is_a_duplicate() {
        let hpa = |version| {
            json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "web", "namespace": "shop"}})
        };
        let keys: Vec<_> = [hpa("v1"), hpa("v2")]
            .iter()
            .map(|o| identity(o).map(|i| i.key))
            .collect();
        let keys: Vec<_> = keys.into_iter().map(|key| key.expect("identity")).collect();
        let error = unique(keys.iter()).expect_err("duplicate");
        assert_eq!(error.to_string(), "HorizontalPodAutoscaler shop/web occurs twice");
    }

    #[test]
    fn too_many_objects_are_refused() {
        let error = objects(vec![map("a"), map("b")], "f", 1).expect_err("limit");
        assert!(matches!(error, RenderError::TooLarge { limit: 1, .. }), "{error}");
    }
}
