//! Connections to members: one client for each Cluster, created when the Cluster is first reconciled.

use std::sync::{Arc, Mutex, PoisonError};

use starling_core::ids::ClusterId;
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
    /// The identity of the member that the last probe over this connection found, once the status of the Cluster has
    /// it. Until then it may be another member, and nothing is sent but the probe.
    pub identity: Mutex<Option<ClusterId>>,
}

impl Connection {
    /// Reports whether the connection leads to the member with this identity.
    #[must_use]
    pub fn leads_to(&self, identity: &ClusterId) -> bool {
        let known = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref() == Some(identity)
    }

    /// Records the identity. Returns whether it is new.
    fn identify(&self, identity: &ClusterId) -> bool {
        let mut known = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        known.replace(identity.clone()).as_ref() != Some(identity)
    }
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

    /// Records that the status of a Cluster has the identity of the member that its connection leads to. Returns
    /// whether that is new.
    #[must_use]
    pub fn probed(&self, cluster: &ObjectKey, identity: &ClusterId) -> bool {
        let connection = self.get(cluster);
        connection.is_some_and(|connection| connection.identify(identity))
    }

    /// Removes the connection of a Cluster.
    pub fn remove(&self, cluster: &ObjectKey) {
        self.by_cluster.forget(cluster);
    }
}
