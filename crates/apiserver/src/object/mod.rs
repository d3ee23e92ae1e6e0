//! What is common to objects of all kinds: names, metadata, selectors, tokens of lists.

pub mod continuation;
pub mod head;
pub mod json;
pub mod metadata;
pub mod names;
pub mod selector;
pub mod times;

pub use head::{Head, Owner};
pub use selector::{FieldSelector, LabelSelector};
