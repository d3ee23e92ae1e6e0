//! The Source loop: which revision the repository offers.
//!
//! validate → observe (list refs, decide with core, fetch what moved) → report.
//! A ref that vanished, a moved tag or a server that is away leave the last good revision where it is and say so.

mod observe;
mod report;

use std::time::Duration;

use starling_api::{Source, SourceSpec};
use starling_core::digest::{hash64, spread};
use starling_core::promise;
use starling_core::revision::{OnRewrite, RefFields, RefPolicy, Revision, Rules};

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};

/// Wait after a first failure; doubles.
const RETRY: Duration = Duration::from_secs(5);

/// What a look at the repository came to.
#[derive(Debug)]
enum Finding {
    /// Somebody holds it.
    Suspended,
    /// It cannot succeed until edited.
    Stalled { reason: &'static str, message: String },
    /// The repository offers this revision, and the mirror holds it.
    Offers(Revision),
    /// The repository offers another revision, which is not taken.
    Holds { reason: &'static str, message: String },
    /// It could not be told.
    Failed { reason: &'static str, message: String },
}

/// A Source that makes sense.
struct Valid {
    policy: RefPolicy,
    rules: Rules,
}

/// Looks at one Source.
///
/// # Errors
/// [`ReconcileError`] where its status could not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(source) = context.sources.get(key) else {
        context.repositories.forget(key);
        context.pins.forget(key);
        return Ok(Next::OnEvent);
    };
    let finding = if source.spec.suspend {
        Finding::Suspended
    } else {
        match validate(&source.spec) {
            Err(finding) => finding,
            Ok(valid) => observe::look(context, &source, &valid).await,
        }
    };
    let next = next(&source, &finding);
    report::report(context, &source, finding).await?;
    Ok(next)
}

fn validate(spec: &SourceSpec) -> Result<Valid, Finding> {
    let missing = promise::of_source(spec);
    if !missing.is_empty() {
        let message = super::not_implemented(&missing);
        return Err(Finding::Stalled {
            reason: "NotImplemented",
            message,
        });
    }
    let fields = RefFields {
        branch: spec.reference.branch.as_deref(),
        semver: spec.reference.semver.as_deref(),
        tag: spec.reference.tag.as_deref(),
        commit: spec.reference.commit.as_deref(),
    };
    let policy = RefPolicy::from_fields(fields).map_err(|error| Finding::Stalled {
        reason: "InvalidRef",
        message: crate::chain(&error),
    })?;
    let on_rewrite = match spec.on_rewrite {
        Some(starling_api::OnRewrite::Follow) => OnRewrite::Follow,
        Some(starling_api::OnRewrite::Hold) => OnRewrite::Hold,
        None => OnRewrite::default_for(&policy),
    };
    Ok(Valid {
        policy,
        rules: Rules {
            on_rewrite,
            allow_downgrade: spec.allow_downgrade,
        },
    })
}

fn next(source: &Source, finding: &Finding) -> Next {
    match finding {
        Finding::Suspended | Finding::Stalled { .. } => Next::OnEvent,
        Finding::Failed { .. } => Next::Retry(RETRY.min(source.spec.interval.as_std())),
        Finding::Offers(_) | Finding::Holds { .. } => {
            // A tenth more or less, by Source: those that were made together are not asked for together for ever.
            let interval = source.spec.interval.as_std().max(Duration::from_millis(500));
            let uid = source.metadata.uid.as_deref().unwrap_or_default();
            Next::After(interval - interval / 10 + spread(interval / 5, hash64(&[uid])))
        }
    }
}
