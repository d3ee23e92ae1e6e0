//! The lane of the Sync's cluster: whether an attempt may begin, as whom, and what the attempt tells of the cluster.

use std::time::Duration;

use jiff::Timestamp;
use starling_core::breaker::Contact;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::attempt::cluster_key;
use super::observe::Observed;
use super::outcome::{Outcome, failed, no_connection};
use crate::controller::context::Context;
use crate::member::{Member, MemberError};

/// Whether an attempt may begin, without a request. Returns the member, asked as the account that the Sync names.
///
/// # Errors
/// Why not: there is no connection, the circuit breaker is open, the cluster asked for a pause, or the account is no
/// name.
pub(super) fn begin(context: &Context, observed: &Observed, wanted: &Wanted) -> Result<Member, Outcome> {
    let cluster = cluster_key(observed);
    let Some(connection) = &observed.connection else {
        return Err(no_connection());
    };
    if context.lanes.is_open(&cluster) {
        let message =
            "the cluster did not answer several times in a row; only probes are sent until it does".into();
        return Err(Outcome::Lost { message });
    }
    if let Some(until) = context.lanes.busy_until(&cluster) {
        return Err(busy(until));
    }
    let account = observed.spec.template.service_account_name.as_str();
    if account.is_empty() {
        return Ok(connection.member.clone());
    }
    let member = connection.member.impersonating(&observed.key.namespace, account);
    member.map_err(|error| {
        let message = format!("spec.serviceAccountName: {}", crate::chain(&error));
        failed(
            context,
            observed,
            wanted,
            "InvalidParameters",
            message,
            Vec::new(),
        )
    })
}

/// Watches how a cluster answers while an attempt sends requests to it.
pub(super) struct Watch<'a> {
    member: &'a Member,
    began: Instant,
    requests: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn begin(member: &'a Member) -> Self {
        Self {
            member,
            began: Instant::now(),
            requests: member.requests(),
        }
    }

    /// Takes in what it was; `interrupted` is what ended the attempt early.
    pub(super) fn end(self, context: &Context, observed: &Observed, interrupted: Option<&MemberError>) {
        let cluster = cluster_key(observed);
        let requests = self.member.requests().saturating_sub(self.requests);
        match interrupted {
            Some(MemberError::Unreachable { .. }) => context.lanes.lost(&cluster, Contact::Work),
            Some(MemberError::Deadline { .. }) => context.lanes.slow(&cluster),
            Some(MemberError::Unauthorized { .. } | MemberError::Throttled { .. }) => {}
            // Without a request nothing was learned.
            _ if requests == 0 => {}
            _ => context.lanes.worked(&cluster, self.began.elapsed(), requests),
        }
    }
}

/// The cluster asked for a pause: it is busy, which is no failure of the revision.
pub(super) fn throttled(context: &Context, observed: &Observed, asked: Option<Duration>) -> Outcome {
    busy(context.lanes.throttled(&cluster_key(observed), asked))
}

fn busy(until: Timestamp) -> Outcome {
    let message = "the cluster asks to slow down (429 or 503 with Retry-After)".into();
    Outcome::Busy { message, until }
}
