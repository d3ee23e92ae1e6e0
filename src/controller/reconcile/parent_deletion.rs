//! Whether an object is deleted by itself, or because its namespace or a definition is deleted.
//!
//! Whoever deletes a namespace, or uninstalls the definitions, deletes everything in them without having asked for
//! anything about the objects on the members. The management cluster is asked at the moment it matters, past the
//! caches: watches of different kinds have no order between them.

use starling_core::finalize::ParentDeletion;

use crate::controller::cache::ObjectKey;
use crate::controller::hub::Hub;

/// Whether the namespace of an object, or the definition of a kind of ours, is being deleted.
pub(super) async fn parent_deletion(hub: &Hub, of: &ObjectKey) -> ParentDeletion {
    match hub.leaving(&of.namespace).await {
        Ok(None) => ParentDeletion::None,
        Ok(Some(what)) => ParentDeletion::Deleting(what),
        Err(error) => ParentDeletion::Unknown(crate::chain(&error)),
    }
}
