//! What is applied: ConfigMaps like those of a middling application.

use serde_json::json;

use crate::floor::Call;

/// Answer with metadata only: what the program under test asks for too.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Fills an object up to about 700 bytes.
const FILL: &str = "The quick brown fox jumps over the lazy dog, again and again and again.\n";

/// What an application holds at one moment: a version for each of its objects.
#[derive(Clone)]
pub(crate) struct Content {
    /// The namespace of its objects.
    pub(crate) namespace: String,
    versions: Vec<u32>,
}

impl Content {
    /// An application of `objects` objects in a namespace, all of version 0.
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

    /// The version of an object as it stands in its data.
    pub(crate) fn value(&self, index: usize) -> String {
        format!("version {}", self.versions[index])
    }

    /// Name of the first object.
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

    /// As long as a real owner label.
    fn owner(&self) -> String {
        format!("{:x<32}", self.namespace)
    }

    /// The files of the repository: a plain folder, one object to a file.
    pub(crate) fn files(&self) -> Vec<(String, String)> {
        (0..self.versions.len())
            .map(|index| {
                // JSON is YAML.
                let object = self.object(index, &json!({"app": "shop"}));
                (format!("app/{}.yaml", Self::name(index)), format!("{object}\n"))
            })
            .collect()
    }

    /// The same objects as patches of the first `count` of them, with a label as long as the owner label.
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

    /// The least that finds out that nothing has changed: one list of metadata for the one kind.
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
