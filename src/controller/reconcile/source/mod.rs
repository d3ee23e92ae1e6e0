//! The Source loop: resolves the policy to a revision.
//!
//! validate → observe (list refs, decide with core, fetch a new revision) → report. If a ref vanished, a tag moved, or
//! the server is not available, the last good revision stays and the problem is reported.

mod observe;
mod report;
mod validate;

use std::collections::BTreeSet;

use starling_api::Source;
use starling_core::revision::Revision;

use super::ReconcileError;
use crate::controller::context::{Next, SourceContext};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_core::ids::Uid;
use validate::{SourceBlocked, validate};

/// The result of a reconcile of the Source.
#[derive(Debug)]
enum ResolveResult {
    /// The Source is invalid or suspended, and no request was sent to the repository.
    Blocked(SourceBlocked),
    /// The repository cannot be addressed until the Source is edited.
    Stalled { reason: &'static str, message: String },
    /// The latest revision; the mirror contains it.
    Latest(Revision),
    /// `onRewrite` or `allowDowngrade` refuses the latest revision, and the last revision stays.
    Refused { reason: &'static str, message: String },
    /// The latest revision is unknown.
    Failed { reason: &'static str, message: String },
}

/// A result, and what was found out about earlier revisions.
#[derive(Debug)]
struct Observed {
    result: ResolveResult,
    /// The revisions of stored releases that are lost; `None`: not known.
    lost: Option<BTreeSet<Revision>>,
    /// The heads that rewrites have replaced; `None`: as before.
    replaced: Option<Vec<Revision>>,
}

impl From<ResolveResult> for Observed {
    fn from(result: ResolveResult) -> Self {
        Self {
            result,
            lost: None,
            replaced: None,
        }
    }
}

/// Reconciles one Source.
///
/// # Errors
/// [`ReconcileError`] if status cannot be written.
pub async fn reconcile(context: SourceContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(source) = context.sources.get(key) else {
        return Ok(Next::OnEvent);
    };
    let observed = match validate(&source) {
        Err(blocked) => ResolveResult::Blocked(blocked).into(),
        Ok(valid) => observe::observe(context, &valid).await,
    };
    let next = next(&source, &observed.result);
    report::report(context, &source, observed).await?;
    Ok(next)
}

fn next(source: &Source, result: &ResolveResult) -> Next {
    match result {
        ResolveResult::Blocked(_) | ResolveResult::Stalled { .. } => Next::OnEvent,
        ResolveResult::Failed { .. } => Next::Retry(waits::SOURCE_RETRY.min(source.spec.interval.as_std())),
        ResolveResult::Latest(_) | ResolveResult::Refused { .. } => {
            // The jitter depends on the Source, so that Sources that were created together are not reconciled together
            // forever.
            let interval = source.spec.interval.as_std().max(waits::SOURCE_MIN_INTERVAL);
            Next::After(waits::around(interval, Uid::of(source).as_str()))
        }
    }
}
