//! Deletion of collections.

use super::{DeleteOptions, ListOptions, Listing, Target, Write, delete, list};
use crate::state::State;
use crate::status::Status;

/// Deletes the objects of a list, and returns the list.
///
/// # Errors
/// The answer of the API server.
pub fn delete_collection(
    state: &mut State,
    target: &Target,
    options: &ListOptions,
    deletion: &DeleteOptions,
    write: &Write<'_>,
) -> Result<Listing, Status> {
    let listing = list(state, target, options, None)?;
    for stored in &listing.items {
        let one = Target {
            namespace: stored.head.namespace.to_string(),
            name: stored.head.name.to_string(),
            ..target.clone()
        };
        match delete(state, &one, deletion, write) {
            // Somebody was quicker.
            Err(status) if status.code == 404 => {}
            outcome => {
                outcome?;
            }
        }
    }
    Ok(listing)
}
