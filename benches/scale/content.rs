//! The content of each cluster: a small application.

use serde_json::{Value, json};

/// Namespace of the application.
pub(crate) const NAMESPACE: &str = "shop";
/// Name of the ConfigMap that changes.
pub(crate) const CHANGES: &str = "settings-0";
/// Number of ConfigMaps; the application has twenty objects in total.
const CONFIG_MAPS: usize = 12;
const DEPLOYMENTS: usize = 3;
/// Padding that brings a ConfigMap to about 700 bytes.
const FILL: &str = "The quick brown fox jumps over the lazy dog, again and again and again.\n";

/// Returns the objects of one revision as files of a plain directory.
pub(crate) fn files(revision: usize) -> Vec<(String, String)> {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        object("v1", "ServiceAccount", "shop", json!({})),
    ];
    for index in 0..CONFIG_MAPS {
        let name = format!("settings-{index}");
        let version = if name == CHANGES { revision } else { 0 };
        let data = json!({
            "version": format!("version {version}"), "colour": "${COLOUR}", "application.properties": FILL.repeat(6),
        });
        objects.push(object("v1", "ConfigMap", &name, json!({"data": data})));
    }
    for index in 0..DEPLOYMENTS {
        let name = format!("web-{index}");
        objects.push(object("apps/v1", "Deployment", &name, deployment(&name)));
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        let spec = json!({"selector": {"app": name}, "ports": ports});
        objects.push(object("v1", "Service", &name, json!({"spec": spec})));
    }
    objects
        .iter()
        .map(|object| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
            let path = format!(
                "app/{}-{}.yaml",
                text(&object["kind"]),
                text(&object["metadata"]["name"])
            );
            // JSON is YAML.
            (path, format!("{object}\n"))
        })
        .collect()
}

fn deployment(name: &str) -> Value {
    let container = json!({
        "name": "web", "image": "registry.example.com/shop/web:1.27", "ports": [{"containerPort": 80, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "env": [{"name": "COLOUR", "value": "blue"}, {"name": "LOG", "value": "info"}],
    });
    json!({"spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    }})
}

fn object(version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let labels = json!({"app": name, "app.kubernetes.io/part-of": NAMESPACE});
    let mut object = json!({
        "apiVersion": version, "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
    });
    if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
        object.extend(rest);
    }
    object
}
