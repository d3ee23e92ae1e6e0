//! Access to the member of a Sync: whether requests may be sent, the account that sends them, and the availability that
//! the responses show.

use starling_core::account::AccountRequired;
use starling_core::breaker::Contact;
use tokio::time::Instant;

use super::observe::SyncSnapshot;
use crate::controller::caches::availability::Pause;
use crate::controller::context::SyncContext;
use crate::controller::object_key::ObjectKey;
use starling_member::{Member, MemberError};

/// The message of a Sync while its cluster throttles requests.
pub(super) const BUSY: &str = "requests throttled by the cluster (429 or 503 with Retry-After)";

/// The reason why no request may be sent to a cluster.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    /// This process has no connection to the cluster.
    #[error("not connected to the cluster")]
    NoConnection,
    /// The circuit breaker is open.
    #[error("circuit breaker open after several requests without a response; only probes are sent")]
    BreakerOpen,
    /// The cluster requested a pause.
    #[error("{BUSY}")]
    Busy(Pause),
    /// The Sync names no account.
    #[error("spec.{0}")]
    AccountRequired(AccountRequired),
    /// The account that the Sync names cannot be impersonated.
    #[error("spec.serviceAccountName")]
    Account(#[source] MemberError),
}

/// Returns the member, which impersonates `account`, or the account that the operator set if `account` is empty. Sends
/// no request.
///
/// # Errors
/// [`AccessError`].
pub(super) fn enter(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    account: &str,
) -> Result<Member, AccessError> {
    let member = enter_as_kubeconfig_user(context, observed)?;
    let accounts = &context.rights.accounts;
    let account = accounts.account(account).map_err(AccessError::AccountRequired)?;
    if account.is_empty() {
        return Ok(member);
    }
    let namespace = &observed.key.namespace;
    member
        .impersonating(namespace, account)
        .map_err(AccessError::Account)
}

/// Returns the member for what Starling keeps there for itself, which no account of a Sync may write. Sends no request.
///
/// # Errors
/// [`AccessError`].
pub(super) fn enter_as_kubeconfig_user(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<Member, AccessError> {
    let cluster = observed.cluster_key();
    let connection = observed.connection.as_ref().ok_or(AccessError::NoConnection)?;
    if context.availability.is_open(&cluster) {
        return Err(AccessError::BreakerOpen);
    }
    if let Some(pause) = context.availability.pause(&cluster) {
        return Err(AccessError::Busy(pause));
    }
    let numbers = context.writes.of_pass(context.permit, &cluster);
    Ok(connection.member.clone().numbered(numbers))
}

/// Records how a cluster responds during an attempt.
pub(super) struct ResponseRecorder<'a> {
    member: &'a Member,
    began: Instant,
    requests: u64,
}

impl<'a> ResponseRecorder<'a> {
    pub(super) fn begin(member: &'a Member) -> Self {
        Self {
            member,
            began: Instant::now(),
            requests: member.requests(),
        }
    }

    /// Records the responses in the availability cache. `interrupted` is the error that ended the attempt early.
    pub(super) fn end(
        self,
        context: SyncContext<'_>,
        cluster: &ObjectKey,
        interrupted: Option<&MemberError>,
    ) {
        let requests = self.member.requests().saturating_sub(self.requests);
        match interrupted {
            Some(MemberError::Unreachable { .. }) => {
                context.availability.lost(cluster, Contact::Work);
            }
            Some(MemberError::Deadline { .. }) => context.availability.slow(cluster),
            Some(MemberError::Unauthorized { .. } | MemberError::Throttled { .. }) => {}
            // Without a request there is no new information.
            _ if requests == 0 => {}
            _ => {
                let was_lost = context
                    .availability
                    .worked(cluster, self.began.elapsed(), requests);
                if was_lost {
                    context.handlers.enqueue_syncs_of(cluster);
                }
            }
        }
    }
}
