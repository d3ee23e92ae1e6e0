//! The verb `deletecollection`.

use super::delete::{DeleteOptions, delete_one_of_many};
use super::read::{ListOptions, Listing, list};
use crate::state::State;
use crate::status::Status;
use crate::target::Target;
use crate::write::Write;

/// Deletes the objects that a list returns. Returns the list, and the warnings of admission policies.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn delete_collection(
    state: &mut State,
    target: &Target,
    options: &ListOptions,
    deletion: &DeleteOptions,
    write: &Write<'_>,
) -> Result<(Listing, Vec<String>), Status> {
    let listing = list(state, target, options, None)?;
    let mut warnings = Vec::new();
    for stored in &listing.items {
        let one = Target {
            namespace: stored.head.namespace.to_string(),
            name: stored.head.name.to_string(),
            ..target.clone()
        };
        match delete_one_of_many(state, &one, deletion, write) {
            // Another request deleted the object first.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status.warning(warnings)),
            Ok(outcome) => warnings.extend(outcome.warnings),
        }
    }
    Ok((listing, warnings))
}
