//! Read models: what a command or an API answers, as plain data.
//!
//! A read model is a serialisable struct and a function that builds it from API objects, a plan or the journal. This
//! module does not know command lines, terminals or columns; the command line prints the same structs that an API would
//! serve. Everything that a user may filter or sort by is a field of its own and not part of a text.

pub mod explanation;
pub mod forecast;
pub mod group;
pub mod history;
pub mod listing;
pub mod preview;
mod recorded;
pub mod removals;
pub mod restore;
pub mod revision_progress;
mod revisions;
pub mod tree;
pub mod verification;

pub use recorded::{Recorded, RecordedError, journals};
pub use revisions::{short, shorts};
