//! Decides on the identity that a member claims ([`starling_core::identity_claim`]), with a proof whether another
//! Cluster with the same one is the same member.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use kube::ResourceExt;
use starling_api::Cluster;
use starling_api::conditions::{self, READY};
use starling_core::digest::hash64;
use starling_core::identity_claim::{self, Claim, ClaimVerdict, Proof, Rival};
use starling_core::ids::ClusterId;
use starling_member::{Member, MemberError, Probe};
use tokio::time::Instant;

use super::report::IDENTITY_CONFLICT_REASON;
use super::{Identity, ProbeResult};
use crate::controller::caches::connections::Connection;
use crate::controller::caches::identity_proofs::Subject;
use crate::controller::context::ClusterContext;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// The number of other Clusters that a Cluster is compared with, the oldest first.
const RIVALS: usize = 4;

/// Returns the result of a probe that succeeded.
pub(super) async fn identified(
    context: ClusterContext<'_>,
    cluster: &Cluster,
    connection: &Connection,
    probe: Probe,
) -> ProbeResult {
    let key = ObjectKey::of(cluster);
    let age = |c: &Cluster| (c.creation_timestamp().map(|time| time.0), ObjectKey::of(c));
    let mut others: Vec<Arc<Cluster>> = context
        .clusters
        .indexed(&ObjectKey::new("", probe.cluster_id.as_str()))
        .into_iter()
        .filter(|other| !other.spec.suspend && ObjectKey::of(&**other) != key)
        .collect();
    others.sort_by_key(|other| age(other));
    others.truncate(RIVALS);
    let recorded = ClusterId::of(cluster);
    let own = identity_claim::own(&probe.cluster_id, &key.namespace, &key.name);
    let claim = Claim {
        claimed: &probe.cluster_id,
        recorded: &recorded,
        own: &own,
        was_refused: is_refused(cluster),
    };
    let mut rivals = Vec::new();
    for other in &others {
        let is_older = age(other) < age(cluster);
        let proof = if identity_claim::matters(&claim, is_older) {
            proof(context, &key, connection, other).await
        } else {
            Proof::Unknown
        };
        rivals.push(Rival {
            is_older,
            is_neighbour: other.namespace().unwrap_or_default() == key.namespace,
            proof,
        });
    }
    let verdict = identity_claim::decide(&claim, &rivals);
    let other = |place: usize| others.get(place).map(|other| ObjectKey::of(&**other));
    let mut identity = Identity {
        cluster_id: probe.cluster_id.clone(),
        version: probe.version,
        also_claimed_by: None,
    };
    match verdict {
        ClaimVerdict::Granted => ProbeResult::Ready(identity),
        ClaimVerdict::Qualified(place) => {
            identity.cluster_id = own;
            identity.also_claimed_by = other(place);
            ProbeResult::Ready(identity)
        }
        ClaimVerdict::Refused(place) => {
            let is_proven = rivals.get(place).is_some_and(|rival| rival.proof == Proof::Same);
            match other(place) {
                Some(other) => ProbeResult::IdentityConflict { other, is_proven },
                None => ProbeResult::Ready(identity),
            }
        }
    }
}

/// Reports whether the last probe of a Cluster ended with another one that has its identity.
fn is_refused(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    ready.is_some_and(|ready| ready.reason == IDENTITY_CONFLICT_REASON)
}

/// Returns whether a Cluster is the member of another one.
async fn proof(
    context: ClusterContext<'_>,
    key: &ObjectKey,
    connection: &Connection,
    other: &Cluster,
) -> Proof {
    let (identity, is_refused) = (ClusterId::of(other), is_refused(other));
    let other = ObjectKey::of(other);
    // Before its probe, a new connection may lead to another member than the Cluster says. That of a Cluster that was
    // refused has no identity.
    let known = context.connections.get(&other);
    let Some(known) = known.filter(|known| is_refused || known.leads_to(&identity)) else {
        return Proof::Unknown;
    };
    let about = Subject {
        other: other.clone(),
        made_from: [connection.made_from.clone(), known.made_from.clone()],
    };
    if let Some(proof) = context.identity_proofs.get(key, &about) {
        return proof;
    }
    // After a restore nothing is written to a member. An open breaker lets probes through, and nothing else.
    if context.writes.held().is_some() || context.availability.is_open(&other) {
        return Proof::Unknown;
    }
    let proof = prove(key, &connection.member, &known.member).await;
    tracing::info!(cluster = %key, namespace = %key.namespace, ?proof, "two clusters report one identity");
    if proof != Proof::Unknown {
        context.identity_proofs.set(key, about, proof);
    }
    proof
}

/// Writes through each of two clients, and reads through the other one. A member that knows what it was not told is the
/// same.
async fn prove(key: &ObjectKey, one: &Member, other: &Member) -> Proof {
    let passed = tokio::try_join!(passes(key, "there", one, other), passes(key, "back", other, one));
    match passed {
        Ok((true, true)) => Proof::Same,
        Ok(_) => Proof::Different,
        Err(error) => {
            tracing::debug!(cluster = %key, error = %crate::chain(&error), "identity not proven");
            Proof::Unknown
        }
    }
}

async fn passes(
    key: &ObjectKey,
    direction: &str,
    writer: &Member,
    reader: &Member,
) -> Result<bool, MemberError> {
    // One probe of a Cluster runs at a time, so that nobody else writes to this name.
    let name = format!("{:016x}", hash64(&[&key.namespace, &key.name, direction]));
    let nonce = nonce();
    let deadline = Instant::now() + waits::PROBE_TIMEOUT;
    writer.leave_mark(&name, &nonce, deadline).await?;
    let read = reader.read_mark(&name, deadline).await;
    // Whatever becomes of it: a mark that stays says nothing, and the next one replaces it.
    drop(writer.remove_mark(&name, deadline).await);
    Ok(read?.is_some_and(|read| read == nonce))
}

/// Returns a text of 128 bits that nobody can guess: the standard library keys its hashes with randomness of the
/// system.
fn nonce() -> String {
    let random = || RandomState::new().hash_one(Instant::now());
    format!("{:016x}{:016x}", random(), random())
}
