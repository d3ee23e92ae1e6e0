//! Reads the Secret, keeps the connection, and probes the member.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kube::ResourceExt;
use starling_api::Cluster;
use starling_core::breaker::Contact;
use starling_core::pause;
use starling_core::plan::Reach;
use starling_core::target::{self, Owner};
use starling_core::token::TokenLease;
use tokio::time::Instant;

use super::super::unhandled_request;
use super::identity::identified;
use super::{ProbeResult, reach};
use crate::controller::caches::connections::Connection;
use crate::controller::context::ClusterContext;
use crate::controller::credentials::{Credentials, CredentialsError};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_core::ids::OwnerLabel;
use starling_member::{MemberError, Probe};

pub(super) async fn observe(context: ClusterContext<'_>, cluster: &Cluster) -> ProbeResult {
    let key = ObjectKey::of(cluster);
    if cluster.spec.suspend {
        context.connections.remove(&key);
        context.availability.forget(&key);
        return ProbeResult::Suspended;
    }
    let connection = match connect(context, cluster).await {
        Ok(connection) => connection,
        Err(result) => {
            context.connections.remove(&key);
            return result;
        }
    };
    if connection.member.is_refused() {
        return ProbeResult::Refused;
    }
    if is_requested(cluster) {
        context.availability.probe_now(&key);
    }
    if let Err(probe_after) = context.availability.begin_probe(&key) {
        return ProbeResult::Waiting { probe_after };
    }
    let response = connection
        .member
        .probe(Instant::now() + waits::PROBE_TIMEOUT)
        .await;
    if response.is_ok() {
        check_numbers(context, &key, &connection).await;
    }
    probed(context, cluster, &connection, response).await
}

/// Checks a member that responds for the first time since the start: compares the numbers of writes on it with those
/// that the management cluster knows.
async fn check_numbers(context: ClusterContext<'_>, key: &ObjectKey, connection: &Connection) {
    if context.number_checks.is_done(key) {
        return;
    }
    let owners = owners(context, key);
    let deadline = Instant::now() + waits::PROBE_TIMEOUT;
    let checked = connection.member.check_numbers(&owners, deadline).await;
    let is_done = match checked {
        // The finding holds the installation.
        Ok(()) | Err(MemberError::SetBack { .. }) => true,
        Err(error) => {
            // The attempts of each Sync compare its number. The next probe tries again.
            tracing::warn!(cluster = %key, error = %crate::chain(&error), "numbers of writes not read");
            false
        }
    };
    context.number_checks.tried(key, is_done);
}

/// Returns the owners of objects on a cluster: of its Syncs, and of those that groups may create there. A cluster or an
/// entry from after a backup has no Sync yet.
fn owners(context: ClusterContext<'_>, key: &ObjectKey) -> BTreeSet<OwnerLabel> {
    let owner = |owner: Owner<'_>| target::owner(context.installation, &key.namespace, owner);
    let syncs = context.objects.syncs.indexed(key);
    let alone = syncs.iter().map(|sync| match &sync.spec.group_ref {
        Some(of) => owner(Owner::Entry {
            group: &of.name,
            entry: &of.entry,
        }),
        None => owner(Owner::Alone {
            sync: &sync.name_any(),
        }),
    });
    let mut owners: BTreeSet<OwnerLabel> = alone.collect();
    let groups = context.objects.groups.in_namespace(&key.namespace);
    for group in groups {
        let entries = group.spec.syncs.iter().map(|entry| {
            owner(Owner::Entry {
                group: &group.name_any(),
                entry: &entry.name,
            })
        });
        owners.extend(entries);
    }
    owners
}

/// Applies the response to a probe to the circuit breaker, and returns the result for status.
async fn probed(
    context: ClusterContext<'_>,
    cluster: &Cluster,
    connection: &Connection,
    response: Result<Probe, MemberError>,
) -> ProbeResult {
    let key = ObjectKey::of(cluster);
    let error = match response {
        Ok(probe) => {
            // Status may not change: a management cluster that was away, too, has not recorded the loss.
            if context.availability.answered_probe(&key) {
                context.handlers.enqueue_syncs_of(&key);
            }
            return identified(context, cluster, connection, probe).await;
        }
        Err(error) => error,
    };
    let message = crate::chain(&error);
    if error.is_connectivity() || matches!(error, MemberError::Deadline { .. }) {
        context.availability.lost(&key, Contact::Probe);
        let probe_after = context.availability.begin_probe(&key).err();
        return ProbeResult::Unreachable { message, probe_after };
    }
    if context.availability.answered_probe(&key) {
        context.handlers.enqueue_syncs_of(&key);
    }
    match error {
        MemberError::Unauthorized { .. } => ProbeResult::Refused,
        MemberError::Throttled { retry_after, .. } if reach(cluster) == Reach::Ready => ProbeResult::Busy {
            pause: pause::wait(retry_after, &key.to_string()),
        },
        error => ProbeResult::Unusable {
            reason: reason(&error),
            message,
        },
    }
}

/// Returns whether a reconcile was requested or the Cluster changed. Both justify a request that would otherwise not be
/// sent.
fn is_requested(cluster: &Cluster) -> bool {
    let status = cluster.status.clone().unwrap_or_default();
    unhandled_request(cluster, &status.last_handled_reconcile_at).is_some()
        || status.observed_generation != cluster.metadata.generation
}

/// Returns the connection for the current Secret. A changed Secret gets a new connection.
async fn connect(context: ClusterContext<'_>, cluster: &Cluster) -> Result<Arc<Connection>, ProbeResult> {
    let key = ObjectKey::of(cluster);
    let credentials = match Credentials::read(context.hub, cluster).await {
        Ok(credentials) => credentials,
        // The member is not at fault: its last connection remains usable.
        Err(error @ CredentialsError::Hub(_)) => {
            return context.connections.get(&key).ok_or_else(|| unusable(&error));
        }
        Err(error) => return Err(unusable(&error)),
    };
    let made_from = credentials.made_from();
    if let Some(known) = context
        .connections
        .get(&key)
        .filter(|known| known.made_from == made_from)
        .filter(|known| !(known.member.is_refused() && is_requested(cluster)))
    {
        return Ok(known);
    }
    let member = credentials
        .connect(context.network)
        .map_err(|error| unusable(&error))?;
    let connection = Arc::new(Connection {
        member: member.numbered(context.writes.of_cluster(&key)),
        made_from,
        lease: TokenLease::of(credentials.secret().annotations()),
        identity: Mutex::default(),
    });
    // The Syncs of the Cluster do not use it before the probe, whose report enqueues them.
    context.connections.put(&key, connection.clone());
    // The availability was observed with the old credentials or the old server.
    context.availability.forget(&key);
    Ok(connection)
}

fn unusable(error: &CredentialsError) -> ProbeResult {
    let reason = match error {
        CredentialsError::Unnamed => "InvalidSpec",
        CredentialsError::Missing { .. } => "SecretNotFound",
        CredentialsError::NoKey { .. } => "InvalidSecret",
        CredentialsError::NotText { .. }
        | CredentialsError::Kubeconfig { .. }
        | CredentialsError::Client { .. } => "InvalidKubeconfig",
        CredentialsError::Hub(_) => "ManagementClusterFailed",
    };
    ProbeResult::Unusable {
        reason,
        message: crate::chain(error),
    }
}

/// Returns the reason of Ready. No other function maps errors of members to this reason.
fn reason(error: &MemberError) -> &'static str {
    match error {
        MemberError::Unauthorized { .. } | MemberError::Forbidden { .. } => "AuthFailed",
        MemberError::Client { .. } => "InvalidKubeconfig",
        MemberError::Throttled { .. } => "Throttled",
        MemberError::Server { .. } => "ServerFailed",
        MemberError::Unreachable { .. } | MemberError::Deadline { .. } => "Unreachable",
        MemberError::NotFound { .. }
        | MemberError::NotServed { .. }
        | MemberError::Conflict { .. }
        | MemberError::Expired { .. }
        | MemberError::Invalid { .. }
        | MemberError::Garbage { .. }
        | MemberError::TooLarge { .. }
        | MemberError::UnknownKind { .. }
        | MemberError::Address { .. }
        | MemberError::SameObject(_)
        | MemberError::Immutable { .. }
        | MemberError::NotGone { .. }
        | MemberError::Terminating { .. }
        | MemberError::NotEstablished { .. }
        | MemberError::OwnedByOther { .. }
        | MemberError::InUse { .. }
        | MemberError::Account { .. }
        | MemberError::Inventory { .. }
        | MemberError::SetBack { .. }
        | MemberError::NoNumber { .. } => "NotAnAPIServer",
    }
}
