//! A version of an object.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::object::Head;
use crate::object::metadata;

/// A version of an object: compact JSON, and the metadata that the server needs without parsing the JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The metadata that the server needs.
    pub head: Head,
    /// The revision of the write that created this version.
    pub revision: u64,
    /// The object without `apiVersion` and `kind`, which depend on the endpoint: the versions of a custom resource
    /// differ in nothing else.
    body: Bytes,
    shape: Shape,
}

/// The last schema that was found to change nothing in an object that it reads. It is no part of the object.
#[derive(Debug, Default)]
struct Shape(AtomicU64);

impl Clone for Shape {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for Shape {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Shape {}

impl Stored {
    /// Encodes an object and sets its `resourceVersion` to the revision.
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
        Self {
            head,
            revision,
            body,
            shape: Shape::default(),
        }
    }

    /// Returns an object that was read from the disk; `None` if the body is not an object.
    pub(crate) fn restored(body: Bytes, revision: u64) -> Option<Self> {
        let object: Value = serde_json::from_slice(&body).ok()?;
        object["metadata"].is_object().then(|| Self {
            head: Head::of(&object),
            revision,
            body,
            shape: Shape::default(),
        })
    }

    /// Returns the same object with another revision.
    pub fn at_revision(&self, revision: u64) -> Self {
        let mut object = self.read();
        Self::new(&mut object, revision)
    }

    /// Parses the object, without `apiVersion` and `kind`.
    pub fn read(&self) -> Value {
        // [`Stored::new`] wrote the body.
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Parses the object in a version of its kind.
    pub fn read_as(&self, api_version: &str, kind: &str) -> Value {
        let mut object = self.read();
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::String(api_version.to_owned()));
            map.insert("kind".to_owned(), Value::String(kind.to_owned()));
        }
        object
    }

    /// Returns whether the schema with this number changes nothing in the object, as far as that is known.
    pub(crate) fn has_shape(&self, schema: u64) -> bool {
        self.shape.0.load(Ordering::Relaxed) == schema
    }

    /// Records that the schema with this number changes nothing in the object.
    pub(crate) fn set_shape(&self, schema: u64) {
        self.shape.0.store(schema, Ordering::Relaxed);
    }

    /// Returns the JSON of the object without `apiVersion` and `kind`.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Writes the object in a version of its kind.
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

    /// Writes the metadata of the object as `PartialObjectMetadata`.
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

    /// Returns the approximate size in memory.
    pub(crate) fn size(&self) -> usize {
        self.body.len() + size_of::<Self>()
    }
}
