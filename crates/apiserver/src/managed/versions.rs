//! The versions of a kind, and the fields that a subresource resets in each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::fields::FieldSet;
use crate::schema::Type;

/// Converts an object to another version of its kind.
pub type Convert = dyn Fn(&Value, &str) -> Value + Send + Sync;

/// The versions in which a kind is served.
///
/// Paths refer to the version that their manager wrote, so objects are compared in each version that an entry refers
/// to. Entries of versions that are not among them are dropped.
#[derive(Clone)]
pub struct Versions {
    types: BTreeMap<Arc<str>, Type>,
    convert: Option<Arc<Convert>>,
}

impl Versions {
    /// Returns versions by their `apiVersion`.
    ///
    /// Without a conversion, versions differ only in their `apiVersion`, as for custom resources with the strategy
    /// `None`. Few built-in kinds differ between versions, above all `HorizontalPodAutoscaler`; set a conversion for
    /// these by [`Self::converting`], or serve one version.
    pub fn new(types: impl IntoIterator<Item = (impl Into<Arc<str>>, Type)>) -> Self {
        Self {
            types: types
                .into_iter()
                .map(|(version, ty)| (version.into(), ty))
                .collect(),
            convert: None,
        }
    }

    /// Sets the conversion between versions.
    #[must_use]
    pub fn converting(mut self, convert: Arc<Convert>) -> Self {
        self.convert = Some(convert);
        self
    }

    /// Returns the type of a version; `None` if it is not served.
    pub fn get(&self, api_version: &str) -> Option<&Type> {
        self.types.get(api_version)
    }

    /// Converts an object to a version.
    pub(super) fn convert<'a>(&self, object: &'a Value, from: &str, to: &str) -> Cow<'a, Value> {
        if from == to {
            return Cow::Borrowed(object);
        }
        if let Some(convert) = &self.convert {
            return Cow::Owned(convert(object, to));
        }
        let mut object = object.clone();
        if let Some(version) = object.get_mut("apiVersion") {
            *version = Value::String(to.to_owned());
        }
        Cow::Owned(object)
    }
}

/// The fields that requests to an endpoint cannot change and therefore never own, by version.
///
/// Most kinds with a status have `status` for the object itself and `spec` for the subresource `status`.
#[derive(Debug, Clone, Default)]
pub struct ResetFields(BTreeMap<Arc<str>, FieldSet>);

impl ResetFields {
    /// Returns the fields by `apiVersion`.
    pub fn new(fields: impl IntoIterator<Item = (impl Into<Arc<str>>, FieldSet)>) -> Self {
        Self(
            fields
                .into_iter()
                .map(|(version, set)| (version.into(), set))
                .collect(),
        )
    }

    pub(super) fn get(&self, api_version: &str) -> Option<&FieldSet> {
        self.0.get(api_version)
    }
}
