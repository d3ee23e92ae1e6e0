//! The parts that objects of all kinds share: names, metadata, selectors, `continue` tokens.

pub mod continuation;
pub(crate) mod finalizers;
pub mod head;
pub mod json;
pub mod metadata;
pub mod names;
pub mod selector;
pub mod times;

pub use head::{Head, Owner};
pub use selector::{FieldSelector, LabelSelector};
