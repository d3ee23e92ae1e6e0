//! Writes how far the Sync is into its status, if that says something new, and ends the ledger's admission.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, RENDERED_PLAIN};
use starling_api::{REQUESTED_AT, ROLLOUT, SyncStatus};
use starling_core::progress;
use starling_core::step::{self, Step, Wanted};

use super::super::{ReconcileError, not_implemented, ready, retrying, stalled};
use super::health::{self, Look};
use super::held;
use super::observe::Observed;
use super::outcome::{Failure, Held, Outcome};
use super::standing::{self, Remarks};
use super::verdict::{self, About};
use crate::controller::context::Context;
use crate::controller::wake::By;
use crate::ledger::{AdmissionKey, AdmissionOutcome};

pub(super) async fn report(
    context: &Context,
    observed: &Observed,
    step: &Step,
    done: Option<&Outcome>,
    look: Option<&Look>,
) -> Result<(), ReconcileError> {
    let wanted = observed.wanted_target();
    let about = About {
        wait: observed.spec.template.wait,
        target: wanted.as_deref(),
        cluster_id: observed.cluster_id(),
        next: context.healths.next(&observed.key),
    };
    let remarks = standing::remarks(context, observed);
    let after = status(observed, step, done, look, (&about, &remarks), context.now());
    if after == observed.status {
        return Ok(());
    }
    log(observed, done);
    let written = context.hub.write_status(&*observed.sync, &after).await?;
    if let Some(change) = context.syncs.observe_write(written) {
        context.wake_for_sync(&change, By::Us);
    }
    tell(context, observed, &after, done).await;
    Ok(())
}

/// Events for what a person would want to have heard of.
async fn tell(context: &Context, observed: &Observed, after: &SyncStatus, done: Option<&Outcome>) {
    let digest = |status: &SyncStatus| status.held_deletions.as_ref().map(|held| held.digest.clone());
    if let (true, Some(held)) = (digest(after) != digest(&observed.status), &after.held_deletions) {
        let note = held::condition(held).message;
        context.events.warning(&*observed.sync, held::REASON, note).await;
    }
    if let Some(Outcome::Holds(Held { changes, .. })) = done
        && changes.deleted > 0
    {
        let cluster = &observed.spec.cluster_ref.name;
        let note = format!(
            "{} objects that left the render are deleted from cluster {cluster}",
            changes.deleted
        );
        context
            .events
            .normal(&*observed.sync, "ObjectsDeleted", note)
            .await;
    }
}

/// Ends the admission in the ledger with the attempt, where nothing has to be waited for: without `wait`, and with objects
/// that are healthy by being there. A failed attempt does not end it: it is tried again; the group ends it at
/// `progressDeadline`.
pub(super) async fn settle_at_once(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    outcome: &Outcome,
) {
    if matches!(outcome, Outcome::Holds(_)) && !health::is_awaited(context, observed, wanted) {
        settle(context, observed, wanted).await;
    }
}

/// Ends the admission in the ledger: the target is done.
pub(super) async fn settle(context: &Context, observed: &Observed, wanted: &Wanted) {
    let (Some(group), Some(rollout)) = (&observed.spec.group_ref, observed.sync.annotations().get(ROLLOUT))
    else {
        return;
    };
    let uid = observed
        .sync
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "SyncGroup");
    let key = AdmissionKey {
        group_uid: uid.map(|owner| owner.uid.clone()).unwrap_or_default(),
        rollout: rollout.clone(),
        entry: group.entry.clone(),
        cluster: observed.spec.cluster_ref.name.clone(),
        target: wanted.target.clone(),
    };
    if let Err(error) = context
        .ledger
        .settle_admission(&key, AdmissionOutcome::Applied, "", context.now())
        .await
    {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "admission not settled");
    }
}

fn log(observed: &Observed, done: Option<&Outcome>) {
    let (sync, cluster) = (&observed.key, &observed.spec.cluster_ref.name);
    match done {
        Some(Outcome::Holds(Held { changes, .. })) => tracing::info!(
            %sync, %cluster, created = changes.created, configured = changes.configured,
            unchanged = changes.unchanged, deleted = changes.deleted, "applied"
        ),
        Some(Outcome::Failed(failure)) => {
            tracing::warn!(%sync, %cluster, reason = failure.reason, message = %failure.message, "attempt failed");
        }
        Some(Outcome::Lost { message }) => tracing::warn!(%sync, %cluster, %message, "cluster lost"),
        Some(Outcome::Busy { pause, .. }) => {
            tracing::info!(%sync, %cluster, until = %pause.until, "cluster busy");
        }
        Some(Outcome::Unchanged) | None => {}
    }
}

fn status(
    observed: &Observed,
    step: &Step,
    done: Option<&Outcome>,
    look: Option<&Look>,
    (about, remarks): (&About<'_>, &Remarks),
    now: Timestamp,
) -> SyncStatus {
    let before = &observed.status;
    let mut after = before.clone();
    after.observed_generation = observed.sync.metadata.generation;
    if let Some(asked) = observed.sync.annotations().get(REQUESTED_AT)
        && was_looked(step, done)
        && !matches!(look, Some(Look::Lost { .. }))
    {
        after.last_handled_reconcile_at.clone_from(asked);
    }
    let updates = match (step, done) {
        (Step::Apply(wanted) | Step::CheckDrift(wanted) | Step::CheckHealth(wanted), Some(outcome)) => {
            attempted(&mut after, observed, wanted, outcome, now)
        }
        (Step::Idle { wanted, .. }, _) => holding(wanted, was_plain(before)),
        (Step::CheckHealth(wanted), None) if look.is_some() => holding(wanted, was_plain(before)),
        // The condition that the failed attempt left is still true, for a new generation of the same target too.
        (Step::Backoff { .. }, _) | (Step::Apply(_) | Step::CheckDrift(_) | Step::CheckHealth(_), None) => {
            kept(before)
        }
        (Step::Suspended, _) => {
            vec![ready(
                ConditionStatus::Unknown,
                "Suspended",
                "suspended; the cluster is left as it is",
            )]
        }
        (Step::NotImplemented { fields }, _) => stalled("NotImplemented", &not_implemented(fields)),
        (Step::Invalid { message }, _) => {
            let reason = observed
                .invalid
                .as_ref()
                .map_or("InvalidSpec", |invalid| invalid.reason);
            stalled(reason, message)
        }
        (Step::DependencyCycle { message }, _) => stalled("DependencyCycle", message),
        (Step::DependencyNotReady { message }, _) => {
            vec![ready(ConditionStatus::False, "DependencyNotReady", message)]
        }
        (Step::AwaitingAdmission, _) => {
            let message = "its SyncGroup has not admitted a revision";
            vec![ready(ConditionStatus::Unknown, "AwaitingAdmission", message)]
        }
        (Step::AwaitingSource, _) => {
            let name = &observed.spec.template.source_ref.name;
            vec![ready(
                ConditionStatus::False,
                "SourceNotReady",
                format!("Source {name:?} offers no revision"),
            )]
        }
        (Step::ClusterMissing, _) => {
            let name = &observed.spec.cluster_ref.name;
            vec![ready(
                ConditionStatus::False,
                "ClusterNotFound",
                format!("there is no Cluster {name:?}"),
            )]
        }
        (Step::ClusterNotReady { message }, _) => {
            vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)]
        }
    };
    let mut updates = verdict::write(&mut after, updates, about, look, now);
    remarks.add_to(&mut updates, &before.conditions);
    updates.extend(after.held_deletions.as_ref().map(held::condition));
    after.conditions = conditions::merge(&before.conditions, updates, after.observed_generation, now);
    after
}

/// Whether a look that somebody asked for was taken. A cluster that could not be asked leaves it open: it is taken
/// once the cluster can be.
fn was_looked(step: &Step, done: Option<&Outcome>) -> bool {
    !matches!(step, Step::ClusterNotReady { .. })
        && !matches!(done, Some(Outcome::Lost { .. } | Outcome::Busy { .. }))
}

/// What an attempt or a check makes of the status; the conditions are the answer.
fn attempted(
    after: &mut SyncStatus,
    observed: &Observed,
    wanted: &Wanted,
    outcome: &Outcome,
    now: Timestamp,
) -> Vec<ConditionUpdate> {
    match outcome {
        Outcome::Unchanged => {
            // A repair that had failed is no longer needed.
            if after.attempts > 0 {
                after.attempts = 0;
                after.next_attempt_time.clear();
                after.problems.clear();
            }
            return holding(wanted, was_plain(&observed.status));
        }
        Outcome::Holds(held) => {
            succeed(after, observed, wanted, held, now);
            return holding(wanted, held.plain);
        }
        Outcome::Failed(_) | Outcome::Lost { .. } | Outcome::Busy { .. } => {}
    }
    if after.last_attempted_target != wanted.target {
        after.attempts = 0;
        after.next_attempt_time.clear();
    }
    after.last_attempted_target.clone_from(&wanted.target);
    after.last_attempted_revision.clone_from(&wanted.revision);
    match outcome {
        Outcome::Failed(Failure {
            reason,
            message,
            problems,
            attempts,
            retry_at,
            held,
        }) => {
            after.held_deletions.clone_from(held);
            after.attempts = *attempts;
            after.next_attempt_time = retry_at.to_string();
            after.problems.clone_from(problems);
            if held.is_some() {
                vec![ready(ConditionStatus::False, *reason, message)]
            } else {
                retrying(reason, message)
            }
        }
        Outcome::Lost { message } => {
            vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)]
        }
        Outcome::Busy { message, pause } => {
            after.next_attempt_time = pause.until.to_string();
            vec![ready(ConditionStatus::Unknown, "Throttled", message)]
        }
        Outcome::Unchanged | Outcome::Holds(_) => Vec::new(),
    }
}

fn succeed(after: &mut SyncStatus, observed: &Observed, wanted: &Wanted, held: &Held, now: Timestamp) {
    let new = !progress::holds(&observed.status, &wanted.target, observed.cluster_id());
    let Held {
        changes,
        inventory,
        plain: _,
    } = held;
    after.last_attempted_revision.clone_from(&wanted.revision);
    after.last_attempted_target.clone_from(&wanted.target);
    after.last_applied_revision.clone_from(&wanted.revision);
    after.last_applied_target.clone_from(&wanted.target);
    after.last_applied_cluster_id = observed.cluster_id().to_owned();
    if new {
        after.last_applied_time = now.to_string();
        // Whatever was healthy was so with another target, or on another cluster.
        after.healthy_since.clear();
        after.last_healthy_target.clear();
        after.longest_healthy = None;
    }
    if new || changes.created + changes.configured + changes.deleted > 0 {
        after.changes = *changes;
    }
    after.attempts = 0;
    after.next_attempt_time.clear();
    after.inventory.clone_from(inventory);
    after.held_deletions = None;
    after.problems.clear();
}

fn was_plain(before: &SyncStatus) -> bool {
    conditions::find(&before.conditions, RENDERED_PLAIN).is_some()
}

/// The conditions of a Sync whose cluster holds what it says; `plain`: it was rendered without kustomize.
fn holding(wanted: &Wanted, plain: bool) -> Vec<ConditionUpdate> {
    let mut updates = vec![ready(
        ConditionStatus::True,
        "Succeeded",
        format!("holds {}", wanted.revision),
    )];
    updates.extend(plain.then(rendered_plain));
    updates
}

/// The reason of Healthy as last written; empty without one.
pub(super) fn healthy_reason(status: &SyncStatus) -> &str {
    conditions::find(&status.conditions, conditions::HEALTHY).map_or("", |healthy| healthy.reason.as_str())
}

fn rendered_plain() -> ConditionUpdate {
    ConditionUpdate {
        type_: RENDERED_PLAIN,
        status: ConditionStatus::True,
        reason: "KustomizeMissing".into(),
        message: "the folder was read directly: neither kustomize nor kubectl was found".into(),
    }
}

fn kept(before: &SyncStatus) -> Vec<ConditionUpdate> {
    let types = [
        conditions::READY,
        conditions::RECONCILING,
        conditions::STALLED,
        RENDERED_PLAIN,
    ];
    let status = |text: &str| match text {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    types
        .into_iter()
        .filter_map(|type_| {
            let condition = conditions::find(&before.conditions, type_)?;
            Some(ConditionUpdate {
                type_,
                status: status(&condition.status),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against the loss of a request that came while the program had just started and was not connected yet.
    #[test]
    fn a_requested_look_stays_open_while_the_cluster_cannot_be_asked() {
        let wanted = Wanted {
            revision: "main@sha1:a".into(),
            target: "t".into(),
        };
        let check = Step::CheckDrift(wanted);
        let message = String::from("no answer");
        let not_ready = Step::ClusterNotReady {
            message: message.clone(),
        };
        assert!(!was_looked(&not_ready, None));
        assert!(!was_looked(&check, Some(&Outcome::Lost { message })));
        assert!(was_looked(&check, Some(&Outcome::Unchanged)));
        assert!(was_looked(&Step::Suspended, None));
    }
}
