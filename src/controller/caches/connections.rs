//! The connections to member clusters: one client each, made when its Cluster is first reconciled.

use std::sync::Arc;

use starling_core::token::{LeaseError, TokenLease};
use starling_member::Member;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

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
pub struct Connections {
    by_cluster: Keyed<Arc<Connection>>,
}

per_object!(Connections, by_cluster);

impl Connections {
    /// The connection of a Cluster; `None` until its first reconcile, and while it is suspended or its credentials
    /// cannot be used.
    #[must_use]
    pub fn get(&self, cluster: &ObjectKey) -> Option<Arc<Connection>> {
        self.by_cluster.get(cluster)
    }

    /// Replaces the connection of a Cluster. Requests under way on the old one end as they would have.
    pub fn put(&self, cluster: &ObjectKey, connection: Arc<Connection>) {
        self.by_cluster.set(cluster, connection);
    }

    /// Drops the connection of a Cluster.
    pub fn remove(&self, cluster: &ObjectKey) {
        self.by_cluster.forget(cluster);
    }
}
