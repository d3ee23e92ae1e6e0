//! Values with their types: what of an object is a field, what differs, what merges.
//!
//! The rules are those of structured-merge-diff's `typed` package, written anew as walks that build their answer from
//! below. [`Type::check`] gives a [`Typed`], so that the walks need not think of values that do not fit.

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

/// A value that fits its type.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'a> {
    ty: &'a Type,
    value: &'a Value,
}

impl Type {
    /// Says what is wrong with a value, else gives it back with its type.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn check<'a>(
        &'a self,
        value: &'a Value,
        duplicates: Duplicates,
    ) -> Result<Typed<'a>, ValidationErrors> {
        validate::validate(self, value, duplicates)?;
        Ok(Typed { ty: self, value })
    }

    /// Gives a value that was made from values of this type.
    pub(crate) fn trust<'a>(&'a self, value: &'a Value) -> Typed<'a> {
        Typed { ty: self, value }
    }

    /// Returns the set with the declared fields above its paths. Those are there as long as anything below them is,
    /// and are in no set otherwise.
    #[must_use]
    pub fn with_declared_fields(&self, set: &FieldSet) -> FieldSet {
        to_set::with_declared_fields(&self.schema, Some(self.id), set)
    }

    /// Brings a set in line with the type, if the type was another when the set was made: of what is atomic now, only
    /// the whole is owned. None if the set is in line.
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

    /// Returns the fields that the value mentions: leaves, items of associative lists, and undeclared fields.
    pub fn to_field_set(&self) -> FieldSet {
        to_set::to_field_set(self.ty, self.value)
    }

    /// Says which fields the other value, of the same type, removes, changes and adds.
    pub fn compare(&self, new: &Value) -> Comparison {
        compare::compare(self.ty, self.value, new)
    }

    /// Lays a configuration of the same type over the value. Nothing is removed. Items of associative lists come in the
    /// order of the configuration, those it does not mention where they were.
    pub fn merge(&self, config: Typed<'_>) -> Value {
        merge::merge(self.ty, self.value, config.value)
    }

    /// Returns the value without fields and items.
    pub fn remove_items(&self, items: &FieldSet) -> Value {
        remove::remove_items(self.ty, self.value, items)
    }

    /// Returns the part of the value that consists of fields and items.
    pub fn extract_items(&self, items: &FieldSet) -> Value {
        remove::extract_items(self.ty, self.value, items)
    }
}
