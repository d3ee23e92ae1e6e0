//! Renews the token of a cluster that `starling cluster add` has added.
//!
//! Annotations of the Secret name the account of the token and its lifetime. In the second half of the lifetime, a
//! request with the token itself gets the next token from the member, and the Secret is written if it has not changed
//! since it was read. Nothing else changes: the next probe finds a new version of the Secret and creates a connection
//! from it, as after a manual edit. The old token remains valid until it expires, so a failed renewal has no effect
//! yet.

use kube::ResourceExt;
use starling_api::Cluster;
use starling_api::conditions::{self, CREDENTIALS_EXPIRING, ConditionStatus, ConditionUpdate};
use starling_core::token::{Renewal, TokenLease};
use tokio::time::Instant;

use super::ProbeResult;
use crate::controller::caches::connections::Connection;
use crate::controller::context::ClusterContext;
use crate::controller::credentials::made_from;
use crate::controller::hub::{HubError, SecretValue};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_member::{KubeconfigError, MemberConfig, MemberError};

/// The remedy for a token that cannot be renewed.
const REMEDY: &str = "run `starling cluster add` again";

/// The error of a renewal.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("the kubeconfig in the Secret or the token from the member is invalid")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the Secret was deleted or changed during the renewal")]
    Changed,
}

/// Renews the token of a Cluster, if due. Returns the condition for status.
pub(super) async fn renew(
    context: ClusterContext<'_>,
    cluster: &Cluster,
    result: &ProbeResult,
) -> Option<ConditionUpdate> {
    let key = ObjectKey::of(cluster);
    let connection = context.connections.get(&key)?;
    let lease = match &connection.lease {
        Ok(lease) => lease.as_ref()?,
        Err(error) => {
            return Some(expiring(
                "InvalidAnnotation",
                format!("{}: {error}", secret_of(cluster)),
            ));
        }
    };
    let now = context.clock.now();
    match lease.renewal(now, &cluster.uid().unwrap_or_default()) {
        Renewal::NotBefore(_) => {
            context.token_renewals.forget(&key);
            return None;
        }
        Renewal::Expired => {
            let message = format!(
                "the token in {} expired at {}; {REMEDY}",
                secret_of(cluster),
                lease.expires_at
            );
            return Some(expiring("Expired", message));
        }
        Renewal::Due => {}
    }
    // A time beyond the longest wait was taken before the clock was set back.
    let waits = |at| now < at && at <= lease.retry_at(now);
    let too_early = context.token_renewals.get(&key).is_some_and(waits);
    // A cluster that is not Ready, or that another Cluster owns, gets no further request.
    if too_early || !matches!(result, ProbeResult::Ready(_)) {
        return as_before(cluster);
    }
    match renew_token(context, cluster, &connection, lease).await {
        Ok(expires_at) => {
            context.token_renewals.forget(&key);
            tracing::info!(cluster = %key, %expires_at, "token renewed");
            None
        }
        // The next probe reads the current Secret.
        Err(RenewError::Changed) => as_before(cluster),
        Err(error) => {
            context.token_renewals.set(&key, lease.retry_at(now));
            let message = format!(
                "the token in {} expires at {} and was not renewed: {}; {REMEDY} if renewal keeps failing",
                secret_of(cluster),
                lease.expires_at,
                crate::chain(&error)
            );
            tracing::warn!(cluster = %key, %message, "token not renewed");
            Some(expiring("RenewalFailed", message))
        }
    }
}

/// Requests the next token and writes it to the Secret. Returns its expiry.
async fn renew_token(
    context: ClusterContext<'_>,
    cluster: &Cluster,
    connection: &Connection,
    lease: &TokenLease,
) -> Result<jiff::Timestamp, RenewError> {
    let reference = &cluster.spec.kube_config.secret_ref;
    let name = ObjectKey::new(cluster.namespace().unwrap_or_default(), &reference.name);
    let secret = context.hub.secret(&name).await?.ok_or(RenewError::Changed)?;
    let (data_key, config) = secret
        .data
        .iter()
        .flatten()
        .find(|(data_key, _)| made_from(&secret, data_key) == connection.made_from)
        .map(|(data_key, value)| (data_key.as_str(), String::from_utf8_lossy(&value.0)))
        .ok_or(RenewError::Changed)?;
    let config = MemberConfig::from_kubeconfig(&config)?;
    let deadline = Instant::now() + waits::TOKEN_TIMEOUT;
    let issued_at = context.clock.now();
    let token = connection
        .member
        .request_token(&lease.namespace, &lease.name, lease.lifetime.as_std(), deadline)
        .await?;
    let text = config.renewed(&token)?;
    let next = TokenLease {
        issued_at,
        expires_at: token.expires_at(),
        ..lease.clone()
    };
    let value = SecretValue {
        key: data_key,
        value: text.reveal(),
        annotations: next.annotations(),
    };
    context.hub.write_secret(&secret, value).await?;
    Ok(token.expires_at())
}

fn secret_of(cluster: &Cluster) -> String {
    format!("Secret {:?}", cluster.spec.kube_config.secret_ref.name)
}

fn expiring(reason: &str, message: String) -> ConditionUpdate {
    ConditionUpdate {
        type_: CREDENTIALS_EXPIRING,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message,
    }
}

/// Repeats the condition of the last renewal, which still holds.
fn as_before(cluster: &Cluster) -> Option<ConditionUpdate> {
    let status = cluster.status.as_ref()?;
    let before = conditions::find(&status.conditions, CREDENTIALS_EXPIRING)?;
    Some(expiring(&before.reason, before.message.clone()))
}
