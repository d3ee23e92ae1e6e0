//! The Source loop: which revision the policy selects.
//!
//! validate → observe (list refs, decide with core, fetch what moved) → report.
//! A ref that vanished, a moved tag or a server that is away leave the last good revision where it is and report it.

mod observe;
mod report;
mod validate;

use starling_api::Source;
use starling_core::revision::Revision;

use super::ReconcileError;
use super::names::Uid;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Next, SourceContext};
use crate::controller::waits;
use validate::{SourceBlocked, validate};

/// What a reconcile of the Source came to.
#[derive(Debug)]
enum ResolveResult {
    /// The Source is not valid, or suspended: the repository was not asked.
    Blocked(SourceBlocked),
    /// The repository cannot be addressed until the Source is edited.
    Stalled { reason: &'static str, message: String },
    /// This is the latest revision, and the mirror has it.
    Latest(Revision),
    /// The latest revision is refused by `onRewrite` or `allowDowngrade`; the last one is kept.
    Refused { reason: &'static str, message: String },
    /// The latest revision is not known.
    Failed { reason: &'static str, message: String },
}

/// Reconciles one Source.
///
/// # Errors
/// [`ReconcileError`] where its status could not be written.
pub async fn reconcile(context: SourceContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(source) = context.sources.get(key) else {
        return Ok(Next::OnEvent);
    };
    let result = match validate(&source) {
        Err(blocked) => ResolveResult::Blocked(blocked),
        Ok(valid) => observe::observe(context, &valid).await,
    };
    let next = next(&source, &result);
    report::report(context, &source, result).await?;
    Ok(next)
}

fn next(source: &Source, result: &ResolveResult) -> Next {
    match result {
        ResolveResult::Blocked(_) | ResolveResult::Stalled { .. } => Next::OnEvent,
        ResolveResult::Failed { .. } => Next::Retry(waits::SOURCE_RETRY.min(source.spec.interval.as_std())),
        ResolveResult::Latest(_) | ResolveResult::Refused { .. } => {
            // By Source: those that were created together are not reconciled together for ever.
            let interval = source.spec.interval.as_std().max(waits::SOURCE_MIN_INTERVAL);
            Next::After(waits::around(interval, Uid::of(source).as_str()))
        }
    }
}
