//! Connections to members: one client for each Cluster, created when the Cluster is first reconciled.

use std::sync::Arc;

use starling_core::token::{LeaseError, TokenLease};
use starling_member::Member;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// A connection to a member.
#[derive(Debug)]
pub struct Connection {
    /// The client of the member.
    pub member: Member,
    /// UID and resourceVersion of the Secret that the client was created from. If they change, a new client is created.
    pub made_from: String,
    /// The lease of the token in the Secret, if Starling renews the token.
    pub lease: Result<Option<TokenLease>, LeaseError>,
}

/// Connections by Cluster.
#[derive(Debug, Default)]
pub struct Connections {
    by_cluster: Keyed<Arc<Connection>>,
}

per_object!(Connections, by_cluster);

impl Connections {
    /// Returns the connection of a Cluster; `None` before the first reconcile, while the Cluster is suspended, and
    /// while its credentials cannot be used.
    #[must_use]
    pub fn get(&self, cluster: &ObjectKey) -> Option<Arc<Connection>> {
        self.by_cluster.get(cluster)
    }

    /// Replaces the connection of a Cluster. Pending requests on the old connection are not affected.
    pub fn put(&self, cluster: &ObjectKey, connection: Arc<Connection>) {
        self.by_cluster.set(cluster, connection);
    }

    /// Removes the connection of a Cluster.
    pub fn remove(&self, cluster: &ObjectKey) {
        self.by_cluster.forget(cluster);
    }
}
