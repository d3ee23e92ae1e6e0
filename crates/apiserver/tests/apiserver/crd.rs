//! CustomResourceDefinitions on the real server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::real::Real;

/// Returns the definition of a kind with one version, a status and a scale.
pub(crate) fn definition(group: &str, kind: &str, schema: &Value) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": singular, "listKind": format!("{kind}List")},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    })
}

/// Creates a definition and waits until its first version is served.
pub(crate) async fn establish(real: &Real, definition: &Value) {
    let created = real
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            definition,
        )
        .await;
    assert_eq!(created.code, 201, "{}", created.body);
    let spec = &definition["spec"];
    let collection = format!(
        "/apis/{}/{}/{}",
        spec["group"].as_str().unwrap(),
        spec["versions"][0]["name"].as_str().unwrap(),
        spec["names"]["plural"].as_str().unwrap(),
    );
    let served = async {
        while real.get(&collection).await.code != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served)
        .await
        .unwrap_or_else(|_| panic!("{collection} is not served within a minute"));
}
