//! The resources that a cluster serves: the built-in ones, which all clusters share, and those of its
//! CustomResourceDefinitions.
//!
//! What is built in stands in data: `resources.json` (names, verbs, subresources: the discovery of a real API server),
//! `codec.json` (how Go reads and writes the kinds), `../schema/builtin.json` (how their fields merge). What a kind does
//! beyond that is its [`Strategy`], with defaults and checks.

pub mod codec;
mod convert;
pub mod custom;
pub mod defaults;
pub mod protobuf;
pub mod quantity;
mod registry;
mod services;
pub mod strategy;
pub mod validate;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use registry::Registry;
pub use strategy::Strategy;

use crate::crd::Verdict;
use crate::managed::{FieldManager, ScaleMapping};
use crate::store::{Stored, TableName};
use codec::GoType;

/// A resource: a collection of objects with a path of its own.
pub struct Resource {
    /// API group, empty for the core.
    pub group: Box<str>,
    /// Its name in paths.
    pub plural: Box<str>,
    /// Its name for one object.
    pub singular: Box<str>,
    /// The kind of its objects.
    pub kind: Box<str>,
    /// The kind of its lists.
    pub list_kind: Box<str>,
    /// What users may call it.
    pub short_names: Vec<Box<str>>,
    /// Groups of resources that users name together, such as `all`.
    pub categories: Vec<Box<str>>,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Where its objects are kept; two resources may share it.
    pub table: TableName,
    /// The versions that are served, the preferred one first.
    pub versions: Vec<Arc<Version>>,
    /// What its kind does.
    pub strategy: Strategy,
    /// The definition that it comes from; none if it is built in.
    pub custom: Option<Arc<custom::Served>>,
}

/// A version of a resource.
pub struct Version {
    /// Such as `v1`.
    pub name: Box<str>,
    /// Such as `apps/v1`.
    pub api_version: Box<str>,
    /// What can be done, as discovery names it.
    pub verbs: Vec<Box<str>>,
    /// What lies below its objects.
    pub subresources: Vec<Subresource>,
    /// The hash of the stored form that discovery gives.
    pub storage_hash: Box<str>,
    /// How objects are read.
    pub form: Form,
    /// Who manages fields of the objects.
    pub fields: FieldManager,
    /// The same for `status`.
    pub status_fields: FieldManager,
    /// Where `scale` is, if there is one.
    pub scale: Option<Scale>,
}

/// The form of the objects of a version.
pub enum Form {
    /// A Go struct.
    Builtin(GoType),
    /// What a definition says.
    Custom(custom::CustomVersion),
}

/// What lies below an object.
#[derive(Debug, Clone, Deserialize)]
pub struct Subresource {
    /// Such as `status`.
    pub name: Box<str>,
    /// The kind of what it takes and gives.
    pub kind: Box<str>,
    /// What can be done.
    pub verbs: Vec<Box<str>>,
    /// The group of the kind, if it is not the resource's.
    pub group: Option<Box<str>>,
    /// The version of the kind, if it is not the resource's.
    pub version: Option<Box<str>>,
}

/// Where an object keeps what `scale` shows; paths such as `.spec.replicas`.
#[derive(Debug, Clone)]
pub struct Scale {
    /// The replicas that are wanted.
    pub spec_replicas: Box<str>,
    /// The replicas that are there.
    pub status_replicas: Box<str>,
    /// The selector as text, or as a `LabelSelector`.
    pub selector: Option<Box<str>>,
    /// How field managers of the one are those of the other.
    pub mapping: ScaleMapping,
}

impl Resource {
    /// Its name with its group, as messages say it: `deployments.apps`.
    pub fn qualified(&self) -> String {
        crate::status::qualified(&self.plural, &self.group)
    }

    /// A version by its name.
    pub fn version(&self, name: &str) -> Option<&Arc<Version>> {
        self.versions.iter().find(|version| *version.name == *name)
    }
}

impl Version {
    /// Whether a verb of discovery can be done.
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| **one == *verb)
    }

    /// What lies below its objects under a name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|one| *one.name == *name)
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resource({})", self.qualified())
    }
}

/// An object as a version shows it.
pub(crate) fn read_as(resource: &Resource, version: &Version, stored: &Stored) -> Value {
    match convert::stored_version(&resource.table) {
        Some(kept) if *kept != *version.api_version => {
            convert::to_version(&stored.read_as(kept, &resource.kind), &version.api_version)
        }
        _ => stored.read_as(&version.api_version, &resource.kind),
    }
}

/// An object as the version shows it that its kind is kept in.
pub(crate) fn read_kept(resource: &Resource, version: &Version, stored: &Stored) -> Value {
    let kept = convert::stored_version(&resource.table).unwrap_or(&version.api_version);
    stored.read_as(kept, &resource.kind)
}

/// Whether objects have to be read to be shown in a version.
pub(crate) fn is_converted(resource: &Resource, version: &Version) -> bool {
    convert::stored_version(&resource.table).is_some_and(|kept| *kept != *version.api_version)
}

/// Brings an object into the version that it is kept in.
pub(crate) fn to_stored_version(resource: &Resource, version: &Version, object: &mut Value) {
    if let Some(kept) = convert::stored_version(&resource.table)
        && *kept != *version.api_version
    {
        *object = convert::to_version(object, kept);
    }
}

/// What is wrong with a new object beyond its metadata.
pub(crate) fn check_create(resource: &Resource, version: &Version, object: &Value) -> Verdict {
    match &version.form {
        Form::Builtin(_) => {
            let mut causes = validate::finalizers(object);
            causes.extend(validate::create(resource, object));
            Verdict {
                causes,
                warnings: Vec::new(),
            }
        }
        Form::Custom(custom) => custom.get().validate(object, None),
    }
}

/// What is wrong with an object that takes the place of another one, beyond its metadata.
pub(crate) fn check_update(
    resource: &Resource,
    version: &Version,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Verdict {
    let causes = match &version.form {
        // Nothing else than the status can have changed.
        Form::Builtin(_) if subresource == "status" => validate::status(resource, new),
        Form::Builtin(_) => {
            let mut causes = validate::finalizers(new);
            causes.extend(validate::update(resource, new, old));
            causes
        }
        Form::Custom(custom) if subresource == "status" => return custom.get().validate_status(new, old),
        Form::Custom(custom) => return custom.get().validate(new, Some(old)),
    };
    Verdict {
        causes,
        warnings: Vec::new(),
    }
}
