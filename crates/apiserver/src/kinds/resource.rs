//! Resources and their versions.

use std::sync::Arc;

use serde::Deserialize;

use super::codec::GoType;
use super::custom_version::{CustomVersion, Served};
use super::strategy::Strategy;
use crate::managed::{FieldManager, ScaleMapping};
use crate::store::TableName;

/// A resource: a collection of objects with its own path.
pub struct Resource {
    /// The API group, empty for the core.
    pub group: Box<str>,
    /// The plural name, as in paths.
    pub plural: Box<str>,
    /// The singular name.
    pub singular: Box<str>,
    /// The kind of the objects.
    pub kind: Box<str>,
    /// The kind of lists.
    pub list_kind: Box<str>,
    /// The short names.
    pub short_names: Vec<Box<str>>,
    /// The categories, such as `all`.
    pub categories: Vec<Box<str>>,
    /// Whether the objects are in namespaces.
    pub namespaced: bool,
    /// The table of the objects; two resources may share a table.
    pub table: TableName,
    /// The served versions, the preferred one first.
    pub versions: Vec<Arc<Version>>,
    /// The behaviour of the kind.
    pub strategy: Strategy,
    /// The definition of a custom resource; `None` for a built-in one.
    pub custom: Option<Arc<Served>>,
}

/// A version of a resource.
pub struct Version {
    /// The name, such as `v1`.
    pub name: Box<str>,
    /// The group version, such as `apps/v1`.
    pub api_version: Box<str>,
    /// The verbs, as discovery names them.
    pub verbs: Vec<Box<str>>,
    /// The subresources.
    pub subresources: Vec<Subresource>,
    /// The hash of the storage version, as discovery shows it.
    pub storage_hash: Box<str>,
    /// The form of the objects.
    pub form: Form,
    /// The field manager of writes to the object.
    pub fields: FieldManager,
    /// The field manager of writes to `status`.
    pub status_fields: FieldManager,
    /// The field manager of `finalize`, which only namespaces have.
    pub finalize_fields: Option<FieldManager>,
    /// The paths of `scale`; `None` without that subresource.
    pub scale: Option<Scale>,
}

/// The form of the objects of a version.
pub enum Form {
    /// A Go struct.
    Builtin(GoType),
    /// The schema of a definition.
    Custom(CustomVersion),
}

/// A subresource.
#[derive(Debug, Clone, Deserialize)]
pub struct Subresource {
    /// The name, such as `status`.
    pub name: Box<str>,
    /// The kind of its requests and responses.
    pub kind: Box<str>,
    /// The verbs.
    pub verbs: Vec<Box<str>>,
    /// The group of the kind, if it differs from that of the resource.
    pub group: Option<Box<str>>,
    /// The version of the kind, if it differs from that of the resource.
    pub version: Option<Box<str>>,
}

/// The fields of an object that `scale` shows, as paths such as `.spec.replicas`.
#[derive(Debug, Clone)]
pub struct Scale {
    /// The path of the desired replicas.
    pub spec_replicas: Box<str>,
    /// The path of the current replicas.
    pub status_replicas: Box<str>,
    /// The path of the selector, which is text or a `LabelSelector`.
    pub selector: Option<Box<str>>,
    /// The mapping between the field managers of the object and of its scale.
    pub mapping: ScaleMapping,
}

impl Resource {
    /// Returns the plural name with the group, such as `deployments.apps`.
    pub fn qualified(&self) -> String {
        crate::status::qualified(&self.plural, &self.group)
    }

    /// Returns a version by its name.
    pub fn version(&self, name: &str) -> Option<&Arc<Version>> {
        self.versions.iter().find(|version| *version.name == *name)
    }
}

impl Version {
    /// Returns whether the version supports a verb.
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| **one == *verb)
    }

    /// Returns a subresource by its name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|one| *one.name == *name)
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resource({})", self.qualified())
    }
}
