//! Determines whether an object is deleted by itself, or together with its namespace or its CustomResourceDefinition.
//!
//! The deletion of a namespace, or of the definitions, deletes all objects in it without a decision about the objects
//! on the members. The management cluster is queried at the time of the deletion and not from a cache, because watches
//! of different kinds are not ordered.

use starling_core::finalize::ParentDeletion;

use crate::controller::hub::Hub;
use crate::controller::object_key::ObjectKey;

/// Returns whether the namespace of an object, or a CustomResourceDefinition of Starling, is being deleted.
pub(super) async fn parent_deletion(hub: &Hub, of: &ObjectKey) -> ParentDeletion {
    match hub.deleting_parent(&of.namespace).await {
        Ok(None) => ParentDeletion::None,
        Ok(Some(what)) => ParentDeletion::Deleting(what),
        Err(error) => ParentDeletion::Unknown(crate::chain(&error)),
    }
}
