//! Writes the progress of the deletion to the status of the Sync, if status changes.

use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, READY, RECONCILING};
use starling_api::{ABANDON, DeletionHold, ObjectProblem, SyncStatus};
use starling_core::finalize::Waiting;
use starling_core::step;

use super::super::super::{ReconcileError, ready};
use super::super::deletion_hold;
use super::super::observe::SyncSnapshot;
use super::super::reason::{self, PROBLEMS};
use crate::controller::context::SyncContext;
use crate::controller::event_handlers::ChangedBy;
use starling_member::DeleteOutcome;

/// The reason of Ready while objects are being deleted, and of Reconciling while any object is left.
const DELETING: &str = "Deleting";
/// The reason of Ready after a pass in which objects could not be deleted.
const DELETION_FAILED: &str = "DeletionFailed";

/// The result of the last pass over the objects. The reason of Ready contains it, so that it survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastPass {
    /// Objects were being deleted.
    Deleting,
    /// Objects could not be deleted.
    Failed,
}

impl LastPass {
    /// Returns the last pass; `None` if there was none, or if the Sync has waited for something else since.
    pub(super) fn of(status: &SyncStatus) -> Option<Self> {
        match conditions::find(&status.conditions, READY)?.reason.as_str() {
            DELETING => Some(Self::Deleting),
            DELETION_FAILED => Some(Self::Failed),
            _ => None,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Deleting => DELETING,
            Self::Failed => DELETION_FAILED,
        }
    }
}

/// Objects that are still there after a pass.
pub(super) struct UnfinishedDeletion<'a> {
    pub(super) pass: LastPass,
    pub(super) deleted: &'a DeleteOutcome,
    /// Number of consecutive passes, including this one.
    pub(super) passes: u32,
    /// The time of the next pass.
    pub(super) until: jiff::Timestamp,
}

/// Reports the reason for the wait.
///
/// # Errors
/// [`ReconcileError`] if status cannot be written.
pub(super) async fn waiting(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    waiting: &Waiting,
) -> Result<(), ReconcileError> {
    let (status, reason, message) = match waiting {
        Waiting::ParentUnknown(why) => (
            ConditionStatus::False,
            "AwaitingManagementCluster",
            format!("cannot determine whether the namespace is being deleted: {why}"),
        ),
        Waiting::ClusterUnknown(why) => (
            ConditionStatus::False,
            "AwaitingManagementCluster",
            format!("cannot determine whether the Cluster exists: {why}"),
        ),
        Waiting::NotCounted(why) => (
            ConditionStatus::False,
            "AwaitingManagementCluster",
            format!("cannot count the deletions: {why}"),
        ),
        Waiting::Siblings(why) => (
            ConditionStatus::False,
            "HandOverUnknown",
            format!("no object is deleted: another Sync may own these objects: {why}"),
        ),
        Waiting::Group(why) => (
            ConditionStatus::False,
            "GroupStopped",
            format!("no object is deleted: {why}"),
        ),
        Waiting::Dependents(names) => (
            ConditionStatus::False,
            "AwaitingDependents",
            format!(
                "waiting for Syncs that depend on this one to be deleted: {}",
                names.join(", ")
            ),
        ),
        Waiting::Cluster(why) => (
            ConditionStatus::Unknown,
            step::CLUSTER_NOT_READY,
            format!(
                "cannot delete objects from cluster {}: {why}; set {ABANDON}: \"true\" to leave them there",
                observed.cluster_name()
            ),
        ),
    };
    write(context, observed, vec![ready(status, reason, message)], |_| {}).await
}

/// Reports deletions that exceed a budget.
///
/// # Errors
/// As [`waiting`].
pub(super) async fn held(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    hold: &DeletionHold,
) -> Result<(), ReconcileError> {
    let subject = deletion_hold::HeldSync::of(observed);
    let message = deletion_hold::message(&subject, hold);
    let updates = vec![
        ready(ConditionStatus::False, deletion_hold::REASON, message.clone()),
        deletion_hold::condition(&subject, hold),
    ];
    let known = observed.status.held_deletions.as_ref().map(|hold| &hold.digest);
    if known != Some(&hold.digest) {
        let (sync, cluster) = (&observed.key, observed.cluster_name());
        tracing::warn!(%sync, %cluster, %message, "deletions held");
        let note = deletion_hold::condition(&subject, hold).message;
        context
            .events
            .warning(&*observed.object, deletion_hold::REASON, note)
            .await;
    }
    write(context, observed, updates, |status| {
        status.held_deletions = Some(hold.clone());
    })
    .await
}

/// Reports the remaining objects.
///
/// # Errors
/// As [`waiting`].
pub(super) async fn unfinished(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    unfinished: UnfinishedDeletion<'_>,
) -> Result<(), ReconcileError> {
    let UnfinishedDeletion {
        pass,
        deleted,
        passes,
        until,
    } = unfinished;
    let message = remaining(deleted);
    tracing::warn!(sync = %observed.key, cluster = %observed.cluster_name(), %message, "objects not deleted yet");
    let under_way = ConditionUpdate {
        type_: RECONCILING,
        status: ConditionStatus::True,
        reason: DELETING.into(),
        message: message.clone(),
    };
    let updates = vec![ready(ConditionStatus::False, pass.reason(), message), under_way];
    write(context, observed, updates, |status| {
        status.attempts = passes;
        status.next_attempt_time = until.to_string();
        status.problems = reason::problems(&deleted.failures);
        status.problems.extend(terminating(deleted));
        status.problems.truncate(PROBLEMS);
    })
    .await
}

fn terminating(deleted: &DeleteOutcome) -> impl Iterator<Item = ObjectProblem> {
    deleted.terminating.iter().map(|key| ObjectProblem {
        object: key.to_string(),
        reason: "Terminating".into(),
        message: "deleted; waiting for its finalizers".into(),
    })
}

fn remaining(deleted: &DeleteOutcome) -> String {
    if let Some(error) = &deleted.interrupted {
        return crate::chain(error);
    }
    let left = deleted.failures.len() + deleted.terminating.len();
    let first = match (deleted.failures.first(), deleted.terminating.first()) {
        (Some((key, error)), _) => format!("{key}: {}", crate::chain(error)),
        (None, Some(key)) => format!("{key}: waiting for its finalizers"),
        (None, None) => String::new(),
    };
    match left {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

async fn write(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    updates: Vec<ConditionUpdate>,
    change: impl FnOnce(&mut SyncStatus),
) -> Result<(), ReconcileError> {
    let mut after = observed.status.clone();
    after.observed_generation = observed.object.metadata.generation;
    after.held_deletions = None;
    change(&mut after);
    after.conditions = conditions::merge(
        &observed.status.conditions,
        updates,
        after.observed_generation,
        context.clock.now(),
    );
    if after == observed.status {
        return Ok(());
    }
    let written = context.hub.write_status(&*observed.object, &after).await?;
    if let Some(change) = context.objects.syncs.observe_write(written) {
        context.handlers.on_sync(&change, ChangedBy::Reconciler);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn status(reason: &str, message: &str) -> SyncStatus {
        let update = ready(ConditionStatus::False, reason, message);
        SyncStatus {
            conditions: conditions::merge(&[], vec![update], None, Timestamp::UNIX_EPOCH),
            ..SyncStatus::default()
        }
    }

    #[test]
    fn the_last_pass_is_known_by_its_reason_and_by_no_message() {
        for pass in [LastPass::Deleting, LastPass::Failed] {
            assert_eq!(LastPass::of(&status(pass.reason(), "")), Some(pass));
        }
        // Texts of an API server are not a state.
        for message in [DELETING, DELETION_FAILED] {
            assert_eq!(LastPass::of(&status("Forbidden", message)), None);
        }
        assert_eq!(LastPass::of(&SyncStatus::default()), None);
    }
}
