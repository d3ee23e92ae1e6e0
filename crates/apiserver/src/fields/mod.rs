//! Field paths and sets of them.
//!
//! The model is that of structured-merge-diff's `fieldpath`: a [`Path`] leads from the object to a field, an item of
//! an associative list or a member of a set; a [`FieldSet`] holds paths. A path in a set says nothing about its
//! parents and children: the owner of `.spec.containers[name="web"]` owns the existence of the item, not its image.

mod path;
mod set;
mod v1;

pub use path::{Path, PathElement};
pub use set::FieldSet;
pub(crate) use set::{FieldSetBuilder, Node};
pub use v1::FieldsV1Error;
pub(crate) use v1::write_json_string;
