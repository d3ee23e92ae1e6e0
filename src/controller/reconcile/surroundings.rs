//! Whether an object is deleted by itself, or because something larger goes.
//!
//! Whoever deletes a namespace, or uninstalls the definitions, deletes everything in them without having said a word about
//! the objects on the members. The management cluster is asked at the moment it matters, past the caches: watches of
//! different kinds have no order between them.

use starling_core::finalize::Surroundings;

use crate::controller::context::Context;

/// What else goes with an object of this namespace.
pub(super) async fn surroundings(context: &Context, namespace: &str) -> Surroundings {
    match context.hub.leaving(namespace).await {
        Ok(None) => Surroundings::Stay,
        Ok(Some(what)) => Surroundings::Go(what),
        Err(error) => Surroundings::Unknown(crate::chain(&error)),
    }
}
