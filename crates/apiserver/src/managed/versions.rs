//! The versions of a kind, and what a subresource may not touch in each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::fields::FieldSet;
use crate::schema::Type;

/// Gives an object in another version of its kind.
pub type Convert = dyn Fn(&Value, &str) -> Value + Send + Sync;

/// The versions that a kind is served in.
///
/// Fields are named by the version that their manager wrote, so an object is looked at in each version that its
/// entries name. Entries of a version that is not served any more are dropped.
#[derive(Clone)]
pub struct Versions {
    types: BTreeMap<Arc<str>, Type>,
    convert: Option<Arc<Convert>>,
}

impl Versions {
    /// Returns versions by their `apiVersion`.
    ///
    /// Without a conversion, an object in another version is the same object under another `apiVersion`: so it is for
    /// custom resources with the strategy `None`. Of built-in kinds only those differ that say so in their version's
    /// documentation, `HorizontalPodAutoscaler` above all; for them give [`Self::converting`] a conversion, or serve
    /// one version.
    pub fn new(types: impl IntoIterator<Item = (impl Into<Arc<str>>, Type)>) -> Self {
        Self {
            types: types
                .into_iter()
                .map(|(version, ty)| (version.into(), ty))
                .collect(),
            convert: None,
        }
    }

    /// Sets how an object gets from one version to another.
    #[must_use]
    pub fn converting(mut self, convert: Arc<Convert>) -> Self {
        self.convert = Some(convert);
        self
    }

    /// Returns the type of a version, none if it is not served.
    pub fn get(&self, api_version: &str) -> Option<&Type> {
        self.types.get(api_version)
    }

    /// Returns an object in a version.
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

/// Fields that requests to an endpoint cannot change, and therefore never own; by version.
///
/// Most kinds with a status have `status` for the object itself and `spec` for the subresource `status`.
#[derive(Debug, Clone, Default)]
pub struct ResetFields(BTreeMap<Arc<str>, FieldSet>);

impl ResetFields {
    /// Returns fields by `apiVersion`.
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
