//! Conversion between the versions of built-in kinds: autoscalers in two versions, events in two groups.

use serde_json::{Map, Value, json};

use super::resource::{Form, Resource, Version};
use crate::store::Stored;

/// Reads a stored object in a version.
pub(crate) fn read_as(resource: &Resource, version: &Version, stored: &Stored) -> Value {
    shown(resource, version, stored).unwrap_or_else(|| stored.read_as(&version.api_version, &resource.kind))
}

/// Returns a stored object in a version; `None` if that is the stored JSON, except for `apiVersion` and `kind`.
pub(crate) fn shown(resource: &Resource, version: &Version, stored: &Stored) -> Option<Value> {
    if let Form::Custom(custom) = &version.form {
        let schema = custom.get();
        if stored.has_shape(schema.number()) {
            return None;
        }
        let before = stored.read_as(&version.api_version, &resource.kind);
        let mut object = before.clone();
        schema.read_stored(&mut object);
        if before == object {
            stored.set_shape(schema.number());
        }
        return Some(object);
    }
    let kept = stored_version(&resource.table).filter(|kept| **kept != *version.api_version)?;
    Some(to_version(
        &stored.read_as(kept, &resource.kind),
        &version.api_version,
    ))
}

/// Reads a stored object in the version that its kind is stored in.
pub(crate) fn read_stored_version(resource: &Resource, version: &Version, stored: &Stored) -> Value {
    let kept = stored_version(&resource.table).unwrap_or(&version.api_version);
    stored.read_as(kept, &resource.kind)
}

/// Returns whether objects have to be converted to be shown in a version.
pub(crate) fn is_converted(resource: &Resource, version: &Version) -> bool {
    stored_version(&resource.table).is_some_and(|kept| *kept != *version.api_version)
}

/// Converts an object to the version that its kind is stored in.
pub(crate) fn to_stored_version(resource: &Resource, version: &Version, object: &mut Value) {
    if let Some(kept) = stored_version(&resource.table)
        && *kept != *version.api_version
    {
        *object = to_version(object, kept);
    }
}

/// Converts an object to another version of its kind.
pub(crate) fn to_version(object: &Value, api_version: &str) -> Value {
    let mut object = object.clone();
    let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    if from == api_version {
        return object;
    }
    match (from.as_str(), api_version) {
        ("autoscaling/v1", "autoscaling/v2") => autoscaler_to_v2(&mut object),
        ("autoscaling/v2", "autoscaling/v1") => autoscaler_to_v1(&mut object),
        ("events.k8s.io/v1", "v1") => rename(&mut object, |new, old| (old, new)),
        ("v1", "events.k8s.io/v1") => rename(&mut object, |new, old| (new, old)),
        _ => {}
    }
    object["apiVersion"] = json!(api_version);
    object
}

/// Returns the version that the objects of a table are stored in; `None` if all versions have the same form.
fn stored_version(table: &str) -> Option<&'static str> {
    match table {
        "horizontalpodautoscalers.autoscaling" => Some("autoscaling/v2"),
        "events" => Some("v1"),
        _ => None,
    }
}

/// The names of event fields that differ: in `events.k8s.io`, and in the core group.
const EVENT: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
];

fn rename(
    object: &mut Value,
    direction: impl Fn(&'static str, &'static str) -> (&'static str, &'static str),
) {
    let Some(map) = object.as_object_mut() else { return };
    for (new, old) in EVENT {
        let (to, from) = direction(new, old);
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
    // The core group always writes these two fields, the other group only if they are not empty.
    for name in ["reportingComponent", "reportingInstance"] {
        if direction("new", "old").0 == "old" {
            map.entry(name).or_insert_with(|| json!(""));
        }
    }
    for name in ["reportingController", "reportingInstance"] {
        if direction("new", "old").0 == "new" && map.get(name) == Some(&json!("")) {
            map.remove(name);
        }
    }
}

fn take(map: &mut Map<String, Value>, name: &str) -> Option<Value> {
    map.remove(name).filter(|value| !value.is_null())
}

fn autoscaler_to_v2(object: &mut Value) {
    if let Some(spec) = object["spec"].as_object_mut()
        && let Some(target) = take(spec, "targetCPUUtilizationPercentage")
    {
        spec.insert(
            "metrics".to_owned(),
            json!([cpu("target", "Utilization", &target)]),
        );
    }
    if let Some(status) = object["status"].as_object_mut() {
        // Only the first version writes a number of 0.
        status.retain(|name, value| name != "currentReplicas" || *value != 0);
        let current = take(status, "currentCPUUtilizationPercentage").map_or(Value::Null, |current| {
            json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": current}}}])
        });
        status.insert("currentMetrics".to_owned(), current);
    }
}

fn cpu(field: &str, ty: &str, value: &Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", field: {"type": ty, "averageUtilization": value}}})
}

fn autoscaler_to_v1(object: &mut Value) {
    let percentage = |list: &Value, field: &str| {
        list.as_array()?.iter().find_map(|metric| {
            let resource = &metric["resource"];
            let value = resource[field].get("averageUtilization")?;
            (resource["name"] == "cpu").then(|| value.clone())
        })
    };
    if let Some(spec) = object["spec"].as_object_mut() {
        let target = percentage(spec.get("metrics").unwrap_or(&Value::Null), "target");
        spec.remove("metrics");
        spec.remove("behavior");
        if let Some(target) = target {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
    }
    if let Some(status) = object["status"].as_object_mut() {
        let current = percentage(status.get("currentMetrics").unwrap_or(&Value::Null), "current");
        for name in ["currentMetrics", "conditions"] {
            status.remove(name);
        }
        status.entry("currentReplicas").or_insert_with(|| json!(0));
        if let Some(current) = current {
            status.insert("currentCPUUtilizationPercentage".to_owned(), current);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_converts_both_ways() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70}, "status": {"currentReplicas": 1, "desiredReplicas": 2}});
        let v2 = to_version(&v1, "autoscaling/v2");
        assert_eq!(
            v2["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
            70
        );
        assert_eq!(to_version(&v2, "autoscaling/v1"), v1);
    }

    #[test]
    fn an_event_converts_both_ways() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "message": "m", "reason": "r", "source": {},
            "involvedObject": {"kind": "Pod"}, "reportingComponent": "c", "reportingInstance": ""});
        let new = to_version(&core, "events.k8s.io/v1");
        assert_eq!(new["note"], "m");
        assert_eq!(new["regarding"]["kind"], "Pod");
        assert_eq!(to_version(&new, "v1"), core);
    }
}
