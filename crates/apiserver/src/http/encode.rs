//! The JSON of stored objects and of list metadata.

use serde_json::{Value, json};

use crate::kinds;
use crate::store::Stored;
use crate::target::Target;
use crate::verbs::Listing;

/// Returns a stored object in the version of the endpoint.
pub(super) fn whole(target: &Target, stored: &Stored) -> Vec<u8> {
    let mut out = Vec::with_capacity(stored.body().len() + 64);
    match kinds::shown(&target.resource, &target.version, stored) {
        Some(object) => {
            let _ = serde_json::to_writer(&mut out, &object);
        }
        None => stored.write_as(&mut out, &target.version.api_version, &target.resource.kind),
    }
    out
}

/// Returns the metadata of a list.
pub(super) fn list_metadata(listing: &Listing) -> Value {
    let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
    if let Some(next) = &listing.next {
        metadata["continue"] = json!(next);
    }
    if let Some(remaining) = listing.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    metadata
}
