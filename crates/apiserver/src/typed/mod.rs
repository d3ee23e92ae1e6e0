//! Values with their types: their fields, their differences, and merging.
//!
//! The rules are those of structured-merge-diff's `typed` package, reimplemented as walks that build their result
//! bottom-up. [`Type::check`] returns a [`Typed`], so that the walks need not handle values that do not match their
//! type.

mod compare;
mod element;
mod merge;
mod reconcile;
mod remove;
mod to_set;
mod validate;

use serde_json::Value;

pub use compare::Comparison;
pub use validate::{Duplicates, ValidationError, ValidationErrors};

use crate::fields::FieldSet;
use crate::schema::Type;

/// A value that matches its type.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'a> {
    ty: &'a Type,
    value: &'a Value,
}

impl Type {
    /// Checks a value and returns it with its type.
    ///
    /// # Errors
    /// All mismatches.
    pub fn check<'a>(
        &'a self,
        value: &'a Value,
        duplicates: Duplicates,
    ) -> Result<Typed<'a>, ValidationErrors> {
        validate::validate(self, value, duplicates)?;
        Ok(Typed { ty: self, value })
    }

    /// Returns a value with its type, without checking it: it must derive from values of this type.
    pub(crate) fn trust<'a>(&'a self, value: &'a Value) -> Typed<'a> {
        Typed { ty: self, value }
    }

    /// Returns the set with the declared fields above its paths. Such fields exist as long as anything below them
    /// does, and are otherwise in no set.
    #[must_use]
    pub fn with_declared_fields(&self, set: &FieldSet) -> FieldSet {
        to_set::with_declared_fields(&self.schema, Some(self.id), set)
    }

    /// Adapts a set to the type, if the type was another one when the set was created: of a field that is atomic now,
    /// only the whole is owned. `None` if the set does not change.
    pub fn reconcile(&self, set: &FieldSet) -> Option<FieldSet> {
        reconcile::reconcile(self, set)
    }
}

impl<'a> Typed<'a> {
    /// Returns the value.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// Returns the type.
    pub fn ty(&self) -> &'a Type {
        self.ty
    }

    /// Returns the fields that the value contains: leaves, items of associative lists, and undeclared fields.
    pub fn to_field_set(&self) -> FieldSet {
        to_set::to_field_set(self.ty, self.value)
    }

    /// Returns the fields that a new value of the same type removes, changes and adds.
    pub fn compare(&self, new: &Value) -> Comparison {
        compare::compare(self.ty, self.value, new)
    }

    /// Merges a configuration of the same type into the value without removing anything. Items of associative lists
    /// come in the order of the configuration, other items keep their positions.
    pub fn merge(&self, config: Typed<'_>) -> Value {
        merge::merge(self.ty, self.value, config.value)
    }

    /// Returns the value without the given fields and items.
    pub fn remove_items(&self, items: &FieldSet) -> Value {
        remove::remove_items(self.ty, self.value, items)
    }

    /// Returns the part of the value that consists of the given fields and items.
    pub fn extract_items(&self, items: &FieldSet) -> Value {
        remove::extract_items(self.ty, self.value, items)
    }
}
