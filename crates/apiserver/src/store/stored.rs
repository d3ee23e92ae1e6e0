//! One version of an object.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::object::Head;
use crate::object::metadata;

/// One version of an object: compact JSON and what the server has to know without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The head.
    pub head: Head,
    /// The revision of the write that made it.
    pub revision: u64,
    /// The object without `apiVersion` and `kind`, which are the endpoint's: a version of a custom resource differs
    /// in nothing else.
    body: Bytes,
}

impl Stored {
    /// Keeps an object, whose `resourceVersion` becomes the revision.
    pub fn new(object: &mut Value, revision: u64) -> Self {
        metadata::set(
            object,
            "resourceVersion",
            Some(Value::String(revision.to_string())),
        );
        let head = Head::of(object);
        let typed = object
            .as_object_mut()
            .map(|map| (map.remove("apiVersion"), map.remove("kind")));
        let body = serde_json::to_vec(object).unwrap_or_default().into();
        if let (Some(map), Some((api_version, kind))) = (object.as_object_mut(), typed) {
            map.extend(api_version.map(|value| ("apiVersion".to_owned(), value)));
            map.extend(kind.map(|value| ("kind".to_owned(), value)));
        }
        Self { head, revision, body }
    }

    /// An object that was kept before, by its body; none if that is no object.
    pub(crate) fn restored(body: Bytes, revision: u64) -> Option<Self> {
        let object: Value = serde_json::from_slice(&body).ok()?;
        object["metadata"].is_object().then(|| Self {
            head: Head::of(&object),
            revision,
            body,
        })
    }

    /// The same object under another revision.
    pub fn at_revision(&self, revision: u64) -> Self {
        let mut object = self.read();
        Self::new(&mut object, revision)
    }

    /// The object without `apiVersion` and `kind`.
    pub fn read(&self) -> Value {
        // Written by `new`.
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The object under a version of its kind.
    pub fn read_as(&self, api_version: &str, kind: &str) -> Value {
        let mut object = self.read();
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::String(api_version.to_owned()));
            map.insert("kind".to_owned(), Value::String(kind.to_owned()));
        }
        object
    }

    /// The bytes of the object without `apiVersion` and `kind`.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Writes the object under a version of its kind.
    pub fn write_as(&self, out: &mut Vec<u8>, api_version: &str, kind: &str) {
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"apiVersion\":\"");
        out.extend_from_slice(api_version.as_bytes());
        out.push(b'"');
        let rest = self.body.get(1..).unwrap_or_default();
        if rest != b"}" {
            out.push(b',');
        }
        out.extend_from_slice(rest);
    }

    /// Writes only what all objects have, the kind `PartialObjectMetadata`.
    pub fn write_metadata(&self, out: &mut Vec<u8>) {
        #[derive(Deserialize)]
        struct Part<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        let part = serde_json::from_slice::<Part<'_>>(&self.body);
        out.extend_from_slice(
            b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":",
        );
        out.extend_from_slice(part.map_or("{}", |part| part.metadata.get()).as_bytes());
        out.push(b'}');
    }

    /// How many bytes it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.body.len() + size_of::<Self>()
    }
}
