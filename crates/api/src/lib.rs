//! The kinds of `starling.dev/v1alpha1`: types, schemas and names, nothing else.

mod constants;

pub use constants::*;
