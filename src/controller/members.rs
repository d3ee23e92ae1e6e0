//! The connections to member clusters: one client each, made when its Cluster is first reconciled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use starling_core::token::{LeaseError, TokenLease};

use crate::member::Member;

use super::cache::ObjectKey;

/// A member that can be talked to.
#[derive(Debug)]
pub struct Connection {
    /// The client.
    pub member: Member,
    /// UID and resourceVersion of the Secret it was made from: another one means another client.
    pub made_from: String,
    /// The token that the Secret holds, if it is one that Starling renews.
    pub lease: Result<Option<TokenLease>, LeaseError>,
}

/// Connections by Cluster.
#[derive(Debug, Default)]
pub struct Members {
    connections: Mutex<HashMap<ObjectKey, Arc<Connection>>>,
}

impl Members {
    /// The connection of a Cluster; `None` until its first reconcile, and while it is suspended or its credentials
    /// cannot be used.
    #[must_use]
    pub fn get(&self, cluster: &ObjectKey) -> Option<Arc<Connection>> {
        self.lock().get(cluster).cloned()
    }

    /// Replaces the connection of a Cluster. Requests under way on the old one end as they would have.
    pub fn put(&self, cluster: ObjectKey, connection: Arc<Connection>) {
        self.lock().insert(cluster, connection);
    }

    /// Drops the connection of a Cluster.
    pub fn remove(&self, cluster: &ObjectKey) {
        self.lock().remove(cluster);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
