//! The subresource `scale` of a version: three paths into its objects.

use serde_json::{Value, json};

use crate::cause::Cause;
use crate::fields::Path;

/// The paths of `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The path of the desired replicas, such as `.spec.replicas`.
    pub spec_replicas_path: String,
    /// The path of the current replicas.
    pub status_replicas_path: String,
    /// The path of the selector as text; empty for none.
    pub label_selector_path: String,
}

impl Scale {
    /// Reads `subresources.scale`.
    pub(super) fn read(scale: &Value) -> Option<Self> {
        scale.as_object()?;
        let text = |name: &str| scale[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            spec_replicas_path: text("specReplicasPath"),
            status_replicas_path: text("statusReplicasPath"),
            label_selector_path: text("labelSelectorPath"),
        })
    }

    /// Returns the path of the desired replicas, for [`crate::managed::ScaleMapping`].
    pub fn replicas_field(&self) -> Path {
        Path::of_fields(&steps(&self.spec_replicas_path).collect::<Vec<_>>())
    }

    /// Returns the desired replicas; `None` if the field is missing.
    pub fn spec_replicas(&self, object: &Value) -> Option<i64> {
        find(object, &self.spec_replicas_path)?.as_i64()
    }

    /// Returns the current replicas; 0 if the field is missing.
    pub fn status_replicas(&self, object: &Value) -> i64 {
        find(object, &self.status_replicas_path)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    }

    /// Returns the selector; empty if the field is missing.
    pub fn selector<'a>(&self, object: &'a Value) -> &'a str {
        find(object, &self.label_selector_path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Sets the desired replicas.
    pub fn set_spec_replicas(&self, object: &mut Value, replicas: i64) {
        let mut place = object;
        for step in steps(&self.spec_replicas_path) {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[step];
        }
        *place = Value::from(replicas);
    }

    /// Returns what is wrong with the desired replicas.
    pub(super) fn check_spec(&self, object: &Value) -> Option<Cause> {
        check_replicas(object, &self.spec_replicas_path)
    }

    /// Returns what is wrong with the fields of the status.
    pub(super) fn check_status(&self, object: &Value) -> Vec<Cause> {
        let mut causes: Vec<Cause> = check_replicas(object, &self.status_replicas_path)
            .into_iter()
            .collect();
        let path = &self.label_selector_path;
        if let Some(found) = find(object, path).filter(|found| !found.is_string() && !path.is_empty()) {
            causes.push(accessor_error(path, found, &json!(""), "string"));
        }
        causes
    }
}

fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('.').unwrap_or(path).split('.')
}

fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path).try_fold(object, |place, step| place.get(step))
}

fn check_replicas(object: &Value, path: &str) -> Option<Cause> {
    let found = find(object, path)?;
    let Some(count) = found.as_i64() else {
        return Some(accessor_error(path, found, &json!(0), "int64"));
    };
    let why = match count {
        i64::MIN..0 => "should be a non-negative integer".to_owned(),
        0..=2_147_483_647 => return None,
        _ => format!("should be less than or equal to {}", i32::MAX),
    };
    Some(Cause::invalid(path, found, &why))
}

/// Returns the error for a value of the wrong type, in the text of the API server's accessors.
fn accessor_error(path: &str, found: &Value, shown: &Value, wanted: &str) -> Cause {
    let steps: Vec<_> = steps(path).collect();
    let why = format!(
        ".{} accessor error: {} is of the type {}, expected {wanted}",
        steps.join("."),
        crate::value::plain(found),
        crate::value::go_type(found)
    );
    Cause::invalid(path, shown, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_and_set_at_their_paths() {
        let scale = Scale::read(&json!({
            "specReplicasPath": ".spec.size.count", "statusReplicasPath": ".status.count",
            "labelSelectorPath": ".status.selector",
        }))
        .unwrap();
        let mut object = json!({"status": {"count": 2, "selector": "a=b"}});
        assert_eq!(scale.spec_replicas(&object), None);
        scale.set_spec_replicas(&mut object, 3);
        assert_eq!(object["spec"], json!({"size": {"count": 3}}));
        assert_eq!(scale.spec_replicas(&object), Some(3));
        assert_eq!(
            (scale.status_replicas(&object), scale.selector(&object)),
            (2, "a=b")
        );
        assert_eq!(scale.replicas_field().to_string(), ".spec.size.count");
        assert!(scale.check_spec(&object).is_none());
        scale.set_spec_replicas(&mut object, -1);
        let cause = scale.check_spec(&object).unwrap();
        assert_eq!(
            cause.to_string(),
            ".spec.size.count: Invalid value: -1: should be a non-negative integer"
        );
    }
}
