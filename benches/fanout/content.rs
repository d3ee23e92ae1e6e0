//! The applied content: ConfigMaps like those of an application of medium size.

use serde_json::json;

use crate::floor::Call;

/// Media type of a response with metadata only, which the program under test requests as well.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Padding that brings an object to about 700 bytes.
const FILL: &str = "The quick brown fox jumps over the lazy dog, again and again and again.\n";

/// Content of an application: a version for each object.
#[derive(Clone)]
pub(crate) struct Content {
    /// Namespace of the objects.
    pub(crate) namespace: String,
    versions: Vec<u32>,
}

impl Content {
    /// Creates an application of `objects` objects in a namespace, all at version 0.
    pub(crate) fn new(namespace: &str, objects: usize) -> Self {
        Self {
            namespace: namespace.to_owned(),
            versions: vec![0; objects],
        }
    }

    /// Changes the first `count` objects.
    pub(crate) fn change(&mut self, count: usize) {
        for version in self.versions.iter_mut().take(count) {
            *version += 1;
        }
    }

    fn name(index: usize) -> String {
        format!("settings-{index:03}")
    }

    /// Returns the version of an object in the form of its data.
    pub(crate) fn value(&self, index: usize) -> String {
        format!("version {}", self.versions[index])
    }

    /// Returns the name of the first object.
    pub(crate) fn first() -> String {
        Self::name(0)
    }

    fn object(&self, index: usize, labels: &serde_json::Value) -> serde_json::Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": Self::name(index), "namespace": self.namespace, "labels": labels},
            "data": {"version": self.value(index), "greeting": "hello", "application.properties": FILL.repeat(6)},
        })
    }

    /// Returns a value that is as long as that of a real owner label.
    fn owner(&self) -> String {
        format!("{:x<32}", self.namespace)
    }

    /// Returns the files of the repository: a plain directory, one object per file.
    pub(crate) fn files(&self) -> Vec<(String, String)> {
        (0..self.versions.len())
            .map(|index| {
                // JSON is YAML.
                let object = self.object(index, &json!({"app": "shop"}));
                (format!("app/{}.yaml", Self::name(index)), format!("{object}\n"))
            })
            .collect()
    }

    /// Returns patches of the first `count` objects, with a label that is as long as the owner label.
    pub(crate) fn patches(&self, count: usize) -> Vec<Call> {
        let labels = json!({"app": "shop", "starling.dev/owner": self.owner()});
        (0..count)
            .map(|index| Call {
                method: "PATCH".into(),
                path: format!(
                    "/api/v1/namespaces/{}/configmaps/{}?fieldManager=floor&force=true",
                    self.namespace,
                    Self::name(index)
                ),
                accept: METADATA.into(),
                content_type: "application/apply-patch+yaml".into(),
                body: self.object(index, &labels).to_string(),
            })
            .collect()
    }

    /// Returns the least requests that detect that nothing has changed: one list of metadata for the one kind.
    pub(crate) fn list(&self) -> Vec<Call> {
        let selector = format!("starling.dev%2Fowner%3D{}", self.owner());
        vec![Call {
            method: "GET".into(),
            path: format!("/api/v1/configmaps?limit=500&labelSelector={selector}"),
            accept: METADATA_LIST.into(),
            content_type: String::new(),
            body: String::new(),
        }]
    }
}
