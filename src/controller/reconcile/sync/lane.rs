//! The lane of the Sync's cluster: whether an attempt may begin, as whom, and what the attempt tells of the cluster.

use std::time::Duration;

use starling_core::breaker::Contact;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::attempt::cluster_key;
use super::observe::Observed;
use super::outcome::{Outcome, failed};
use crate::controller::context::Context;
use crate::controller::lanes::Pause;
use crate::member::{Member, MemberError};

const BUSY: &str = "the cluster asks to slow down (429 or 503 with Retry-After)";

/// Why nothing may be sent to a cluster now.
pub(super) enum Closed {
    /// There is no connection, or the circuit breaker is open.
    Lost(String),
    /// The cluster asked for a pause.
    Busy(Pause),
    /// The account that the Sync names is no name.
    Account(String),
}

impl Closed {
    /// What happened, for people.
    pub(super) fn message(self) -> String {
        match self {
            Self::Lost(message) | Self::Account(message) => message,
            Self::Busy(_) => BUSY.into(),
        }
    }
}

/// The member, asked as the account that the Sync names; found out without a request.
///
/// # Errors
/// Why nothing may be sent to it now.
pub(super) fn enter(context: &Context, observed: &Observed) -> Result<Member, Closed> {
    let cluster = cluster_key(observed);
    let Some(connection) = &observed.connection else {
        return Err(Closed::Lost("there is no connection to the cluster".into()));
    };
    if context.lanes.is_open(&cluster) {
        let message = "the cluster did not answer several times in a row; only probes are sent until it does";
        return Err(Closed::Lost(message.into()));
    }
    if let Some(pause) = context.lanes.pause(&cluster) {
        return Err(Closed::Busy(pause));
    }
    let account = observed.spec.template.service_account_name.as_str();
    if account.is_empty() {
        return Ok(connection.member.clone());
    }
    let member = connection.member.impersonating(&observed.key.namespace, account);
    member.map_err(|error| Closed::Account(format!("spec.serviceAccountName: {}", crate::chain(&error))))
}

/// Whether an attempt may begin; the member as [`enter`] returns it.
///
/// # Errors
/// Why not, as the outcome of the attempt.
pub(super) fn begin(context: &Context, observed: &Observed, wanted: &Wanted) -> Result<Member, Outcome> {
    enter(context, observed).map_err(|closed| match closed {
        Closed::Lost(message) => Outcome::Lost { message },
        Closed::Busy(pause) => busy(pause),
        Closed::Account(message) => failed(
            context,
            observed,
            wanted,
            "InvalidParameters",
            message,
            Vec::new(),
        ),
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

fn busy(pause: Pause) -> Outcome {
    Outcome::Busy {
        message: BUSY.into(),
        pause,
    }
}
