//! Writes the result to the status of the Source, if status changes.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate};
use starling_api::{Source, SourceStatus};

use super::super::{ReconcileError, ready, retrying, stalled};
use super::validate::SourceBlocked;
use super::{Observed, ResolveResult, observe};
use crate::controller::context::SourceContext;
use crate::controller::event_handlers::ChangedBy;

pub(super) async fn report(
    context: SourceContext<'_>,
    source: &Source,
    observed: Observed,
) -> Result<(), ReconcileError> {
    let before = source.status.clone().unwrap_or_default();
    let after = status(source, &before, observed, context.clock.now());
    if after == before {
        return Ok(());
    }
    if after.revision != before.revision {
        tracing::info!(source = %source.name_any(), namespace = source.namespace(), revision = %after.revision, "new revision");
    }
    let written = context.hub.write_status(source, &after).await?;
    if let Some(change) = context.sources.observe_write(written) {
        context.handlers.on_source(&change, ChangedBy::Reconciler);
    }
    Ok(())
}

fn status(source: &Source, before: &SourceStatus, observed: Observed, now: Timestamp) -> SourceStatus {
    let Observed {
        result,
        lost,
        replaced,
    } = observed;
    let (revision, updates) = match result {
        ResolveResult::Blocked(blocked @ SourceBlocked::Suspended) => {
            let message = blocked.to_string();
            (
                None,
                vec![ready(ConditionStatus::Unknown, blocked.reason(), message)],
            )
        }
        ResolveResult::Blocked(blocked @ (SourceBlocked::NotImplemented(_) | SourceBlocked::Policy(_))) => {
            (None, stalled(blocked.reason(), &crate::chain(&blocked)))
        }
        ResolveResult::Stalled { reason, message } => (None, stalled(reason, &message)),
        ResolveResult::Failed { reason, message } => (None, retrying(reason, &message)),
        ResolveResult::Refused { reason, message } => (None, refused(reason, message)),
        ResolveResult::Latest(revision) => {
            let revision = revision.to_string();
            let message = format!("latest revision: {revision}");
            (
                Some(revision),
                vec![ready(ConditionStatus::True, "Succeeded", message)],
            )
        }
    };
    let moved = revision
        .as_ref()
        .is_some_and(|revision| *revision != before.revision);
    SourceStatus {
        observed_generation: source.metadata.generation,
        revision: revision.clone().unwrap_or_else(|| before.revision.clone()),
        revision_time: if moved {
            now.to_string()
        } else {
            before.revision_time.clone()
        },
        revision_origin: match revision {
            Some(_) => observe::origin(source),
            None => before.revision_origin.clone(),
        },
        lost_revisions: match lost {
            Some(lost) => lost.iter().map(ToString::to_string).collect(),
            None => before.lost_revisions.clone(),
        },
        replaced_revisions: match replaced {
            Some(replaced) => replaced.iter().map(ToString::to_string).collect(),
            None => before.replaced_revisions.clone(),
        },
        last_handled_reconcile_at: source
            .annotations()
            .get(starling_api::REQUESTED_AT)
            .cloned()
            .unwrap_or_else(|| before.last_handled_reconcile_at.clone()),
        conditions: conditions::merge(&before.conditions, updates, source.metadata.generation, now),
    }
}

/// Returns `Ready=False` without `Stalled=True`: the next push may resolve it without an edit of the Source.
fn refused(reason: &'static str, message: String) -> Vec<ConditionUpdate> {
    vec![ready(ConditionStatus::False, reason, message)]
}
