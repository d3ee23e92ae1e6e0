//! Writes what was found into the Source's status, if it says something new.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate};
use starling_api::{Source, SourceStatus};

use super::super::{ReconcileError, ready, retrying, stalled};
use super::{Finding, observe};
use crate::controller::context::Context;
use crate::controller::wake::By;

pub(super) async fn report(
    context: &Context,
    source: &Source,
    finding: Finding,
) -> Result<(), ReconcileError> {
    let before = source.status.clone().unwrap_or_default();
    let after = status(source, &before, finding, context.now());
    if after == before {
        return Ok(());
    }
    if after.revision != before.revision {
        tracing::info!(source = %source.name_any(), namespace = source.namespace(), revision = %after.revision, "new revision");
    }
    let written = context.hub.write_status(source, &after).await?;
    if let Some(change) = context.sources.observe_write(written) {
        context.wake_for_source(&change, By::Us);
    }
    Ok(())
}

fn status(source: &Source, before: &SourceStatus, finding: Finding, now: Timestamp) -> SourceStatus {
    let (revision, updates) = match finding {
        Finding::Suspended => (
            None,
            vec![ready(
                ConditionStatus::Unknown,
                "Suspended",
                "suspended; what is known stays",
            )],
        ),
        Finding::Stalled { reason, message } => (None, stalled(reason, &message)),
        Finding::Failed { reason, message } => (None, retrying(reason, &message)),
        Finding::Holds { reason, message } => (None, held(reason, message)),
        Finding::Offers(revision) => {
            let revision = revision.to_string();
            let message = format!("offers {revision}");
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
        last_handled_reconcile_at: source
            .annotations()
            .get(starling_api::REQUESTED_AT)
            .cloned()
            .unwrap_or_else(|| before.last_handled_reconcile_at.clone()),
        conditions: conditions::merge(&before.conditions, updates, source.metadata.generation, now),
    }
}

/// Not stalled: the next push may resolve it without anybody editing the Source.
fn held(reason: &'static str, message: String) -> Vec<ConditionUpdate> {
    vec![ready(ConditionStatus::False, reason, message)]
}
