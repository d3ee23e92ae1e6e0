//! Fields of built-in kinds that the API server of Kubernetes 1.35 drops: their feature gates are off, or nothing uses
//! them any longer.

use serde_json::{Map, Value, json};

use super::codec::GoType;

/// The fields by the Go type that has them.
const FIELDS: [(&str, &[&str]); 6] = [
    ("v1.Endpoint", &["deprecatedTopology"]),
    ("v1.LeaseSpec", &["strategy", "preferredHolder"]),
    ("v1.NodeSpec", &["configSource"]),
    ("v1.NodeStatus", &["config", "declaredFeatures"]),
    ("v1.PodSpec", &["workloadRef"]),
    ("v1.RollingUpdateStatefulSetStrategy", &["maxUnavailable"]),
];

/// Drops these fields from an object.
pub(super) fn drop_from(ty: GoType, kind: &str, object: &mut Value) {
    ty.each_struct(object, &mut |name, fields| {
        for (owner, names) in FIELDS {
            if name == owner {
                fields.retain(|field, _| !names.contains(&field.as_str()));
            }
        }
        if matches!(name, "v1.Container" | "v1.EphemeralContainer") {
            stop_signal(fields);
        }
    });
    if kind == "PersistentVolumeClaim"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        data_source(spec);
    }
}

/// Drops the signal that stops a container, and the lifecycle that has nothing else.
fn stop_signal(container: &mut Map<String, Value>) {
    let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) else {
        return;
    };
    if lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty() {
        container.remove("lifecycle");
    }
}

/// Keeps `dataSource` of a claim if it is a claim or a snapshot, and then keeps its two forms equal: `dataSourceRef`
/// may name any kind. A source in another namespace needs a feature gate that is off.
fn data_source(spec: &mut Map<String, Value>) {
    let is_known = |source: &Value| {
        let text = |field: &str| source[field].as_str().unwrap_or_default();
        matches!(
            (text("apiGroup"), text("kind")),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    if spec.get("dataSource").is_some_and(|source| !is_known(source)) {
        spec.remove("dataSource");
    }
    let elsewhere = |source: &Value| !source["namespace"].as_str().unwrap_or_default().is_empty();
    if spec.get("dataSourceRef").is_some_and(elsewhere) {
        spec.remove("dataSourceRef");
    }
    match (
        spec.get("dataSource").cloned(),
        spec.get("dataSourceRef").cloned(),
    ) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(source)) => {
            let source =
                json!({"apiGroup": source["apiGroup"], "kind": source["kind"], "name": source["name"]});
            spec.insert("dataSource".to_owned(), source);
        }
        _ => {}
    }
}
