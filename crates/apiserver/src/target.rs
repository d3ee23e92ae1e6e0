//! The endpoint that a request addresses.

use std::sync::Arc;

use serde_json::Value;

use crate::kinds::{Resource, Version};
use crate::managed::FieldManager;
use crate::object::head;
use crate::status::{Cause, Status};
use crate::store::Stored;

/// The endpoint that a request addresses: a collection, an object or a subresource.
#[derive(Clone)]
pub struct Target {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version of the resource that the path names.
    pub version: Arc<Version>,
    /// The namespace; empty for all namespaces and for a cluster-scoped resource.
    pub namespace: String,
    /// The name of the object; empty for the collection.
    pub name: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
}

impl Target {
    /// Returns the key of the object in its table.
    pub fn key(&self) -> Box<str> {
        head::key(&self.namespace, &self.name)
    }

    /// Returns the field manager of the writes to this endpoint.
    pub(crate) fn fields(&self) -> &FieldManager {
        match &*self.subresource {
            "status" => &self.version.status_fields,
            "finalize" => (self.version.finalize_fields.as_ref()).unwrap_or(&self.version.fields),
            _ => &self.version.fields,
        }
    }

    /// Reads a stored object in the version of the endpoint.
    pub fn read(&self, stored: &Stored) -> Value {
        crate::kinds::read_as(&self.resource, &self.version, stored)
    }

    pub(crate) fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, &self.name)
    }

    pub(crate) fn invalid(&self, name: &str, causes: Vec<Cause>) -> Status {
        Status::invalid(&self.resource.group, &self.resource.kind, name, causes)
    }

    pub(crate) fn modified(&self) -> Status {
        Status::modified(&self.resource.group, &self.resource.plural, &self.name)
    }
}
