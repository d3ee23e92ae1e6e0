//! Computes the status of a Sync after a pass. Pure: [`super::report`] writes it.

use jiff::Timestamp;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, RENDERED_PLAIN, SUBMODULES_IGNORED};
use starling_api::{PendingDeletions, SyncStatus};
use starling_core::clock_jumps::is_far_ahead;
use starling_core::progress;
use starling_core::restore::RestoreFinding;
use starling_core::step::{self, SyncStep, Wanted};

use super::super::{held_after_restore, ledger_unavailable, ready, repeated, retrying, stalled};
use super::dependencies::depends_on;
use super::health::HealthCheck;
use super::health_status::{self, HealthSubject};
use super::observe::SyncSnapshot;
use super::outcome::{Applied, Failure, Outcome};
use super::validate::{SyncBlocked, ValidSync};
use super::{access, deletion_hold, drift_status, prune_grace};
use crate::controller::caches::drift_states::DriftState;
use crate::controller::manifests::BuildNotes;

/// The results of one pass over a valid Sync.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) step: &'a SyncStep,
    /// The admission whose slot the Sync gives back.
    pub(super) returned: Option<&'a str>,
    /// The outcome of the attempt or the drift check, if there was one.
    pub(super) outcome: Option<&'a Outcome>,
    /// [`Done::attempted_at`](super::outcome::Done::attempted_at).
    pub(super) attempted_at: Option<Timestamp>,
    /// The objects whose deletion is pending after the attempt; `None`: not known.
    pub(super) pending: Option<&'a Option<PendingDeletions>>,
    /// The result of the health check, if there was one.
    pub(super) health: Option<&'a HealthCheck>,
}

/// Returns the status after a pass over a valid Sync.
pub(super) fn after_pass(
    sync: &ValidSync<'_>,
    pass: Pass<'_>,
    subject: &HealthSubject<'_>,
    drift: Option<&DriftState>,
    now: Timestamp,
) -> SyncStatus {
    let mut draft = Draft::begin(sync.observed, was_checked(pass), drift);
    if let Some(pending) = pass.pending {
        draft.after.pending_deletions.clone_from(pending);
    }
    let updates = conditions_of(&mut draft.after, sync, pass, now);
    if let Some(attempted_at) = pass.attempted_at {
        draft.after.last_attempt_time = attempted_at.to_string();
        draft.after.last_attempted_cluster_id = sync.observed.cluster_id.as_str().to_owned();
    }
    pass.returned
        .unwrap_or_default()
        .clone_into(&mut draft.after.returned_admission);
    let is_applied = matches!(pass.outcome, Some(Outcome::Applied(_)));
    let has_deletions = draft.after.pending_deletions.is_some() || draft.after.held_deletions.is_some();
    if is_applied && !has_deletions {
        draft.after.last_depends_on = depends_on(&sync.observed.object);
    }
    draft.finish(updates, subject, pass.health, now)
}

/// Returns the status of a Sync that is not applied.
pub(super) fn blocked(
    observed: &SyncSnapshot,
    why: &SyncBlocked,
    subject: &HealthSubject<'_>,
    drift: Option<&DriftState>,
    now: Timestamp,
) -> SyncStatus {
    let message = why.to_string();
    let updates = match why {
        SyncBlocked::Suspended => vec![ready(ConditionStatus::Unknown, why.reason(), message)],
        SyncBlocked::NotImplemented(_)
        | SyncBlocked::Parameter(_)
        | SyncBlocked::Account(_)
        | SyncBlocked::Ignore(_) => stalled(why.reason(), &message),
    };
    Draft::begin(observed, true, drift).finish(updates, subject, None, now)
}

/// The conditions for what people should know of a build.
const NOTES: [&str; 2] = [RENDERED_PLAIN, SUBMODULES_IGNORED];

/// Returns the status of a Sync while nothing is written after a restore.
pub(super) fn held(before: &SyncStatus, finding: &RestoreFinding, now: Timestamp) -> SyncStatus {
    untouched(before, held_after_restore(finding), now)
}

/// Returns the status of a Sync whose intent the ledger does not accept.
pub(super) fn not_recorded(before: &SyncStatus, message: &str, now: Timestamp) -> SyncStatus {
    untouched(before, ledger_unavailable(message), now)
}

/// Returns the status of a Sync for which nothing is done. What was known of the objects stays.
fn untouched(before: &SyncStatus, mut updates: Vec<ConditionUpdate>, now: Timestamp) -> SyncStatus {
    updates.extend(repeated_of(before, &[conditions::HEALTHY]));
    updates.extend(noted(before));
    updates.extend(repeated_of(
        before,
        &[conditions::CONTESTED, conditions::DELETION_HELD],
    ));
    SyncStatus {
        conditions: conditions::merge(&before.conditions, updates, before.observed_generation, now),
        ..before.clone()
    }
}

/// A status in progress.
struct Draft {
    after: SyncStatus,
    /// The condition Contested during a drift fight.
    contested: Option<ConditionUpdate>,
    deletion_subject: deletion_hold::HeldSync,
}

impl Draft {
    /// Starts from the last written status. `answered` marks a requested reconcile as handled.
    fn begin(observed: &SyncSnapshot, answered: bool, drift: Option<&DriftState>) -> Self {
        let mut after = observed.status.clone();
        after.observed_generation = observed.object.metadata.generation;
        if answered {
            observed.requests().handle(&mut after);
        }
        let interval = observed.object.spec.template.interval.as_std();
        let contested = drift_status::write(&mut after, drift, interval);
        Self {
            after,
            contested,
            deletion_subject: deletion_hold::HeldSync::of(observed),
        }
    }

    /// Adds the conditions of health, drift and deletions to the conditions in `updates`.
    fn finish(
        self,
        updates: Vec<ConditionUpdate>,
        subject: &HealthSubject<'_>,
        health: Option<&HealthCheck>,
        now: Timestamp,
    ) -> SyncStatus {
        let Self {
            mut after,
            contested,
            deletion_subject,
        } = self;
        replace_future_times(&mut after, now);
        let mut updates = health_status::write(&mut after, updates, subject, health, now);
        updates.extend(contested);
        let hold = after.held_deletions.as_ref();
        updates.extend(hold.map(|hold| deletion_hold::condition(&deletion_subject, hold)));
        after.conditions = conditions::merge(&after.conditions, updates, after.observed_generation, now);
        after
    }
}

/// Replaces times that lie far ahead: a clock that was wrong wrote them, and soak times would count from them.
fn replace_future_times(after: &mut SyncStatus, now: Timestamp) {
    for time in [&mut after.last_applied_time, &mut after.healthy_since] {
        if time.parse().is_ok_and(|time| is_far_ahead(time, now)) {
            *time = now.to_string();
        }
    }
}

/// Returns the conditions except those of health and drift.
fn conditions_of(
    after: &mut SyncStatus,
    sync: &ValidSync<'_>,
    pass: Pass<'_>,
    now: Timestamp,
) -> Vec<ConditionUpdate> {
    let observed = sync.observed;
    let before = &observed.status;
    match (pass.step, pass.outcome) {
        (
            SyncStep::Apply(wanted) | SyncStep::CheckDrift(wanted) | SyncStep::CheckHealth(wanted),
            Some(outcome),
        ) => attempted(after, observed, wanted, pass, outcome, now),
        (SyncStep::Idle { wanted, .. }, _) => applied(after, observed, wanted, noted(before)),
        (SyncStep::CheckHealth(wanted), None) if pass.health.is_some() => {
            applied(after, observed, wanted, noted(before))
        }
        // The condition of the failed attempt still holds, also for a new generation with the same target.
        (SyncStep::Backoff { .. }, _)
        | (SyncStep::Apply(_) | SyncStep::CheckDrift(_) | SyncStep::CheckHealth(_), None) => kept(before),
        (SyncStep::DependencyCycle { message }, _) => stalled("DependencyCycle", message),
        (SyncStep::DependencyNotReady { message }, _) => {
            vec![ready(ConditionStatus::False, "DependencyNotReady", message)]
        }
        (SyncStep::AwaitingAdmission, _) => {
            let message = "waiting for the SyncGroup to admit a revision";
            vec![ready(ConditionStatus::Unknown, "AwaitingAdmission", message)]
        }
        (SyncStep::AwaitingSlot, _) => {
            let message = "the cluster was unreachable before anything was applied; waiting for the SyncGroup to \
                           admit the revision again";
            vec![ready(ConditionStatus::Unknown, "AwaitingSlot", message)]
        }
        (SyncStep::AwaitingSource, _) => {
            let name = &sync.spec.template.source_ref.name;
            let message = format!("Source {name:?} has no revision");
            vec![ready(ConditionStatus::False, "SourceNotReady", message)]
        }
        (SyncStep::ClusterMissing, _) => {
            let message = format!("Cluster {:?} not found", observed.cluster_name());
            vec![ready(ConditionStatus::False, "ClusterNotFound", message)]
        }
        (SyncStep::ClusterNotReady { message }, _) => {
            vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)]
        }
    }
}

/// Returns whether a requested reconcile is handled. If the cluster is not available, the request stays open until it
/// is.
fn was_checked(pass: Pass<'_>) -> bool {
    !matches!(
        pass.step,
        SyncStep::ClusterNotReady { .. } | SyncStep::AwaitingSlot
    ) && !matches!(
        pass.outcome,
        Some(Outcome::Lost { .. } | Outcome::Busy(_) | Outcome::NotAllowed(_))
    ) && !matches!(pass.health, Some(HealthCheck::Lost { .. }))
}

/// Applies the outcome of an attempt or a check to status, and returns the conditions.
fn attempted(
    after: &mut SyncStatus,
    observed: &SyncSnapshot,
    wanted: &Wanted,
    pass: Pass<'_>,
    outcome: &Outcome,
    now: Timestamp,
) -> Vec<ConditionUpdate> {
    match outcome {
        Outcome::Unchanged => {
            // The repair that failed is no longer needed.
            if after.attempts > 0 {
                after.attempts = 0;
                after.next_attempt_time.clear();
                after.problems.clear();
            }
            applied(after, observed, wanted, noted(&observed.status))
        }
        Outcome::Applied(done) => {
            succeed(after, observed, wanted, done, now);
            applied(after, observed, wanted, notes(&done.notes))
        }
        Outcome::Failed(failure) => {
            begin_target(after, wanted);
            fail(after, failure)
        }
        Outcome::Lost { message } => {
            begin_target(after, wanted);
            vec![ready(ConditionStatus::Unknown, step::CLUSTER_NOT_READY, message)]
        }
        Outcome::NotAllowed(cause) => {
            if pass.attempted_at.is_some() {
                begin_target(after, wanted);
            }
            vec![ready(ConditionStatus::Unknown, cause.reason, &cause.message)]
        }
        Outcome::Busy(pause) => {
            begin_target(after, wanted);
            after.next_attempt_time = pause.until.to_string();
            vec![ready(ConditionStatus::Unknown, "Throttled", access::BUSY)]
        }
    }
}

/// Records a last attempt at this target that did not apply it.
fn begin_target(after: &mut SyncStatus, wanted: &Wanted) {
    if after.last_attempted_target != wanted.target {
        after.attempts = 0;
        after.next_attempt_time.clear();
    }
    after.last_attempted_target = String::from(&wanted.target);
    after.last_attempted_revision.clone_from(&wanted.revision);
}

fn fail(after: &mut SyncStatus, failure: &Failure) -> Vec<ConditionUpdate> {
    let Failure {
        cause,
        attempts,
        retry_at,
        deletion_hold,
    } = failure;
    after.held_deletions.clone_from(deletion_hold);
    after.attempts = *attempts;
    after.next_attempt_time = retry_at.to_string();
    after.problems.clone_from(&cause.problems);
    if deletion_hold.is_some() {
        vec![ready(ConditionStatus::False, cause.reason, &cause.message)]
    } else {
        retrying(cause.reason, &cause.message)
    }
}

fn succeed(after: &mut SyncStatus, observed: &SyncSnapshot, wanted: &Wanted, done: &Applied, now: Timestamp) {
    let cluster_id = &observed.cluster_id;
    let new = !progress::has_applied(&observed.status, &wanted.target, cluster_id);
    let Applied {
        changes,
        inventory,
        notes: _,
    } = done;
    after.last_attempted_revision.clone_from(&wanted.revision);
    after.last_attempted_target = String::from(&wanted.target);
    after.last_applied_revision.clone_from(&wanted.revision);
    after.last_applied_target = String::from(&wanted.target);
    after.last_applied_cluster_id = cluster_id.as_str().to_owned();
    if new {
        after.last_applied_time = now.to_string();
        // The health was observed with another target or on another cluster.
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

/// Returns the conditions of the last build.
fn noted(before: &SyncStatus) -> Vec<ConditionUpdate> {
    repeated_of(before, &NOTES).collect()
}

/// Returns the conditions of a Sync with an applied target. `notes` are those of its build.
fn applied(
    after: &SyncStatus,
    observed: &SyncSnapshot,
    wanted: &Wanted,
    notes: Vec<ConditionUpdate>,
) -> Vec<ConditionUpdate> {
    let mut message = format!("applied {}", wanted.revision);
    if let Some(left_alone) = &after.left_alone {
        message = format!("{message}; {}", drift_status::remark(left_alone));
    }
    if let Some(pending) = &after.pending_deletions {
        message = format!("{message}; {}", prune_grace::remark(pending, observed));
    }
    let mut updates = vec![ready(ConditionStatus::True, "Succeeded", message)];
    updates.extend(notes);
    updates
}

/// Returns the conditions for what people should know of a build.
fn notes(of: &BuildNotes) -> Vec<ConditionUpdate> {
    let present = |type_, reason: &str, message: String| ConditionUpdate {
        type_,
        status: ConditionStatus::True,
        reason: reason.into(),
        message,
    };
    let plain = of.plain.then(|| {
        let message = "path read as plain YAML: neither kustomize nor kubectl found";
        present(RENDERED_PLAIN, "KustomizeMissing", message.into())
    });
    let submodules = of.submodules.as_ref().map(|submodules| {
        let message = format!("{submodules}: files of submodules are not read");
        present(SUBMODULES_IGNORED, "SubmodulesNotFetched", message)
    });
    plain.into_iter().chain(submodules).collect()
}

fn kept(before: &SyncStatus) -> Vec<ConditionUpdate> {
    let types = [conditions::READY, conditions::RECONCILING, conditions::STALLED];
    repeated_of(before, &types).chain(noted(before)).collect()
}

fn repeated_of(before: &SyncStatus, types: &[&'static str]) -> impl Iterator<Item = ConditionUpdate> {
    types
        .iter()
        .filter_map(|type_| Some(repeated(type_, conditions::find(&before.conditions, type_)?)))
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::json;
    use starling_api::REQUESTED_AT;
    use starling_core::clock_jumps::ClockJumps;
    use starling_core::object::ObjectId;

    use super::super::outcome::Cause;
    use super::super::validate::tests::mk_observed;
    use super::super::validate::validate;
    use super::*;
    use starling_core::ids::ClusterId;

    fn wanted() -> Wanted {
        Wanted {
            revision: "main@sha1:a".into(),
            target: "t".into(),
        }
    }

    fn pass<'a>(step: &'a SyncStep, outcome: Option<&'a Outcome>) -> Pass<'a> {
        Pass {
            step,
            returned: None,
            outcome,
            attempted_at: None,
            pending: None,
            health: None,
        }
    }

    fn not_ready() -> SyncStep {
        SyncStep::ClusterNotReady {
            message: "no answer".into(),
        }
    }

    fn idle() -> SyncStep {
        SyncStep::Idle {
            wanted: wanted(),
            until: Timestamp::MAX,
        }
    }

    /// Guards against a Sync that says that all is well while the disk is full.
    #[test]
    fn tenant_a_ledger_that_accepts_nothing_is_reported_and_the_health_stays() {
        let known = [
            ready(ConditionStatus::True, "Succeeded", "applied"),
            ConditionUpdate {
                type_: conditions::HEALTHY,
                status: ConditionStatus::True,
                reason: "Healthy".into(),
                message: "all objects are healthy".into(),
            },
        ];
        let now = Timestamp::UNIX_EPOCH;
        let before = SyncStatus {
            last_applied_target: "t".into(),
            conditions: conditions::merge(&[], known.into(), Some(3), now),
            observed_generation: Some(3),
            ..SyncStatus::default()
        };
        let after = not_recorded(&before, "the disk is full", now);
        let reason = |type_| conditions::find(&after.conditions, type_).map(|found| found.reason.as_str());
        assert_eq!(reason(conditions::READY), Some("LedgerUnavailable"));
        assert_eq!(reason(conditions::HEALTHY), Some("Healthy"));
        assert_eq!(after.last_applied_target, "t");
        assert_eq!(
            not_recorded(&after, "the disk is full", now),
            after,
            "written once"
        );
    }

    /// Guards against the loss of a request that came while the process had just started and was not connected yet.
    #[test]
    fn a_requested_reconcile_stays_open_while_the_cluster_cannot_be_asked() {
        let check = SyncStep::CheckDrift(wanted());
        let lost = Outcome::Lost {
            message: "no answer".into(),
        };
        assert!(!was_checked(pass(&not_ready(), None)));
        assert!(!was_checked(pass(&check, Some(&lost))));
        assert!(was_checked(pass(&check, Some(&Outcome::Unchanged))));
        assert!(was_checked(pass(&SyncStep::AwaitingSource, None)));
    }

    /// Returns the message of Ready after each of these passes over a Sync without `wait`.
    fn messages(passes: &[(SyncStep, Option<DriftState>)]) -> Vec<String> {
        let subject = HealthSubject {
            wait: false,
            target: Some("t"),
            cluster_id: &ClusterId::new("id"),
            next: None,
            clock_jumps: ClockJumps::default(),
        };
        let mut observed = mk_observed(json!({"wait": false}));
        let mut messages = Vec::new();
        for (step, drift) in passes {
            let valid =
                validate(&observed, &Default::default()).unwrap_or_else(|blocked| panic!("{blocked}"));
            let now = Timestamp::UNIX_EPOCH;
            let after = after_pass(&valid, pass(step, None), &subject, drift.as_ref(), now);
            let ready = conditions::find(&after.conditions, conditions::READY);
            messages.push(ready.map(|ready| ready.message.clone()).unwrap_or_default());
            observed.status = after;
        }
        messages
    }

    /// Guards against a drift state that is read from the message of Ready, which may have changed.
    #[test]
    fn what_is_left_alone_is_still_known_after_a_restart_and_a_lost_cluster() {
        let object = ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: "a".into(),
        };
        let known = DriftState {
            left_alone: [object].into(),
            ..DriftState::default()
        };
        let passes = [(idle(), Some(known)), (not_ready(), None), (idle(), None)];
        let messages = messages(&passes);
        assert_eq!(
            messages[0],
            "applied main@sha1:a; reconcile disabled (1): ConfigMap shop/a"
        );
        assert_eq!(messages[2], messages[0]);
    }

    /// An attempt may lose its permission, or the management cluster its state, between two of its writes. Guards
    /// against a return to the target before it that is "applied" without a request.
    #[test]
    fn a_target_whose_attempt_began_is_not_at_rest_with_the_one_before() {
        let cluster_id = ClusterId::new("id");
        let before = SyncStatus {
            last_applied_target: "before".into(),
            last_attempted_target: "before".into(),
            last_applied_cluster_id: "id".into(),
            ..SyncStatus::default()
        };
        let observed = mk_observed(json!({"wait": false}));
        let outcomes = [
            Outcome::NotAllowed(Cause::new("RestoreDetected", "it was set back")),
            Outcome::Lost {
                message: "no answer".into(),
            },
        ];
        let step = SyncStep::Apply(wanted());
        for outcome in &outcomes {
            for attempted_at in [None, Some(Timestamp::UNIX_EPOCH)] {
                let mut after = before.clone();
                let pass = Pass {
                    attempted_at,
                    ..pass(&step, Some(outcome))
                };
                attempted(
                    &mut after,
                    &observed,
                    &wanted(),
                    pass,
                    outcome,
                    Timestamp::UNIX_EPOCH,
                );
                let is_at_rest = progress::has_applied(&after, "before", &cluster_id);
                let began = attempted_at.is_some() || matches!(outcome, Outcome::Lost { .. });
                assert_eq!(is_at_rest, !began, "{outcome:?}, {attempted_at:?}");
            }
        }
    }

    /// Guards against a soak time of a year: a clock that was wrong wrote when the objects became healthy.
    #[test]
    fn a_time_that_lies_far_ahead_is_replaced_with_the_time_of_the_pass() {
        let subject = HealthSubject {
            wait: true,
            target: Some("t"),
            cluster_id: &ClusterId::new("id"),
            next: None,
            clock_jumps: ClockJumps::default(),
        };
        let now = Timestamp::from_second(1_000).unwrap();
        for (stored, expected) in [(2_000, 1_000), (1_600, 1_600), (500, 500)] {
            let mut observed = mk_observed(json!({}));
            let stored = Timestamp::from_second(stored).unwrap().to_string();
            observed.status.healthy_since.clone_from(&stored);
            observed.status.last_applied_time = stored;
            let valid =
                validate(&observed, &Default::default()).unwrap_or_else(|blocked| panic!("{blocked}"));
            let after = after_pass(&valid, pass(&idle(), None), &subject, None, now);
            let expected = Timestamp::from_second(expected).unwrap().to_string();
            assert_eq!(
                (after.healthy_since, after.last_applied_time),
                (expected.clone(), expected)
            );
        }
    }

    #[test]
    fn a_blocked_sync_answers_a_requested_reconcile_and_says_why() {
        let mut observed = mk_observed(json!({"path": "$(cluster.labels.tier)"}));
        let mut object = (*observed.object).clone();
        object.annotations_mut().insert(REQUESTED_AT.into(), "now".into());
        observed.object = std::sync::Arc::new(object);
        let blocked = validate(&observed, &Default::default()).err().unwrap();
        let subject = HealthSubject {
            wait: true,
            target: None,
            cluster_id: &ClusterId::new("id"),
            next: None,
            clock_jumps: ClockJumps::default(),
        };
        let after = super::blocked(&observed, &blocked, &subject, None, Timestamp::UNIX_EPOCH);
        assert_eq!(after.last_handled_reconcile_at, "now");
        let said: Vec<_> = after
            .conditions
            .iter()
            .map(|c| (&*c.type_, &*c.status, &*c.reason))
            .collect();
        assert_eq!(
            said,
            [
                ("Ready", "False", "InvalidParameters"),
                ("Stalled", "True", "InvalidParameters")
            ]
        );
    }
}
