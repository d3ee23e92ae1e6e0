//! The verbs of the API: synchronous functions on the state of a cluster, with the time as a parameter.
//!
//! Each verb follows the order of Kubernetes: decode and default the object, update its field managers, run
//! admission, prepare it by the strategy of its kind, validate it, and commit the write.

mod admission;
mod collection;
mod create;
mod decode;
mod delete;
mod escalation;
mod outcome;
mod patch;
mod policies;
mod read;
mod scale;
mod update;
mod watch;

use serde_json::Value;

pub use collection::delete_collection;
pub use create::create;
pub(crate) use create::{check_names, update_managed_fields};
pub(crate) use decode::{check_kind, decode};
pub(crate) use delete::delete_evicted;
pub use delete::{DeleteOptions, Preconditions, Propagation, delete, delete_warnings};
pub use outcome::{Body, Outcome};
pub use patch::PatchBody;
pub(crate) use policies::{Request, admit};
pub(crate) use read::check_reached;
pub use read::{ListOptions, Listing, RevisionMatch, Selection, get, list};
pub use scale::show_stored as show_scale;
pub use watch::{Event, EventBody, Service, WatchOptions, Watching, error as watch_error};

use crate::state::State;
use crate::status::Status;
pub use crate::target::Target;
pub use crate::write::{Validation, Write};

/// Replaces an object or its scale; creates the object if its kind allows that.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn update(
    state: &mut State,
    target: &Target,
    object: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    match &*target.subresource {
        "scale" => scale::update(state, target, object, duplicates, write),
        _ => update::update(state, target, object, duplicates, write),
    }
}

/// Patches an object or its scale.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn patch(
    state: &mut State,
    target: &Target,
    body: PatchBody,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    match &*target.subresource {
        "scale" => scale::patch(state, target, body, duplicates, write),
        _ => patch::patch(state, target, body, duplicates, write),
    }
}
