//! The targets of each Sync with their time spans, and their results by the Sync's status.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, HEALTHY, STALLED};
use starling_api::{ADMITTED_AT, GROUP_MANAGER, RELEASE, REQUESTED_AT, RETRIED_FOR, ROLLOUT, SyncResource};

use super::clock::ControllerClock;
use super::digests::{DesiredState, Digests};
use super::history::{Key, Verb};
use super::hub::{Hub, Id, Track, Version};
use super::render::Expected;

/// The reason of the condition Healthy when the health of a target failed.
const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// A target of one Sync, with the span in which it was the current one.
#[derive(Debug)]
pub(crate) struct Target {
    /// Start of the span, and the index of the write to the management cluster.
    pub(crate) at: Timestamp,
    pub(crate) index: usize,
    /// Time of the decision; no later than `at`.
    pub(crate) decided: Timestamp,
    /// Time of the decision by the controller's clock.
    pub(crate) recorded: Timestamp,
    /// Whether that write is an admission by the group.
    pub(crate) is_admission: bool,
    /// Release of the admission; empty for a Sync without a group.
    pub(crate) release: String,
    /// Rollout of the admission; 0 for a Sync without a group.
    pub(crate) rollout: i64,
    pub(crate) desired: DesiredState,
    /// The rendered objects; none if the render is not known.
    pub(crate) objects: Option<Vec<Expected>>,
    /// End of the span, and the index of the write.
    pub(crate) until: Option<(Timestamp, usize)>,
    /// When its Sync first reported it as applied and, with `wait`, healthy; and the index of the write.
    pub(crate) done: Option<(Timestamp, usize)>,
    /// When its Sync first reported a failure, even if it recovered later.
    pub(crate) failed: Option<(Timestamp, usize)>,
    /// When its Sync gave the slot of the admission back.
    pub(crate) returned: Option<(Timestamp, usize)>,
}

impl Target {
    /// Returns the rendered object of a key.
    pub(crate) fn renders(&self, key: &Key) -> Option<&Expected> {
        self.objects.iter().flatten().find(|expected| expected.is(key))
    }

    /// Whether it was the current target at some moment of a span.
    pub(crate) fn is_desired_during(&self, from: Timestamp, to: Timestamp) -> bool {
        self.at <= to && self.until.is_none_or(|(until, _)| until >= from)
    }
}

/// A moment at which the target of a Sync may have changed.
struct Moment<'v> {
    at: Timestamp,
    index: usize,
    sync: Option<&'v Version<SyncResource>>,
}

/// Returns every target with its span. A Sync without a group and without a revision follows its Source.
pub(crate) fn desired_targets(
    hub: &Hub,
    clock: &ControllerClock,
    id: &Id,
    track: &Track<SyncResource>,
) -> Vec<Target> {
    let mut moments: Vec<Moment<'_>> = track
        .versions()
        .iter()
        .map(|version| Moment {
            at: version.at,
            index: version.index,
            sync: Some(version),
        })
        .collect();
    for (_, source) in hub.sources.iter().filter(|(of, _)| of.namespace == id.namespace) {
        moments.extend(source.versions().iter().map(|version| Moment {
            at: version.at,
            index: version.index,
            sync: None,
        }));
    }
    moments.sort_by_key(|moment| moment.index);
    let mut targets: Vec<Target> = Vec::new();
    for moment in &moments {
        let next = next_target((hub, clock), id, track, moment, targets.last());
        let Some(next) = next else { continue };
        if let Some(last) = targets.last_mut()
            && last.until.is_none()
        {
            last.until = Some((moment.at, moment.index));
        }
        targets.extend(next);
    }
    targets
}

/// Returns the next target. `None`: no change. `Some(None)`: no target any more.
fn next_target(
    (hub, clock): (&Hub, &ControllerClock),
    id: &Id,
    track: &Track<SyncResource>,
    moment: &Moment<'_>,
    last: Option<&Target>,
) -> Option<Option<Target>> {
    let open = last.filter(|last| last.until.is_none());
    let Some(current) = track.before(moment.index + 1) else {
        return open.map(|_| None);
    };
    let spec = &current.object.spec;
    let revision = if spec.revision.is_empty() && spec.group_ref.is_none() {
        let source = hub
            .sources
            .get(&Id::new(&id.namespace, &spec.template.source_ref.name));
        let offered = source.and_then(|source| source.before(moment.index + 1));
        offered
            .and_then(|offered| offered.object.status.as_ref())
            .map(|status| status.revision.clone())
            .unwrap_or_default()
    } else {
        spec.revision.clone()
    };
    if revision.is_empty() {
        return open.map(|_| None);
    }
    let desired = DesiredState::of(&revision, spec);
    let decided = current.object.annotations().get(ADMITTED_AT);
    let decided: Option<Timestamp> = decided.and_then(|at| at.parse().ok());
    let is_admission = spec.group_ref.is_some()
        && moment
            .sync
            .is_some_and(|version| version.manager == GROUP_MANAGER)
        && decided.is_none_or(|decided| open.is_none_or(|open| open.recorded != decided));
    if !is_admission && open.is_some_and(|open| open.desired == desired) {
        return None;
    }
    Some(Some(Target {
        at: moment.at,
        index: moment.index,
        decided: decided.map_or(moment.at, |decided| clock.when(decided, moment.at)),
        recorded: decided.unwrap_or(moment.at),
        is_admission,
        release: current
            .object
            .annotations()
            .get(RELEASE)
            .cloned()
            .unwrap_or_default(),
        rollout: current
            .object
            .annotations()
            .get(ROLLOUT)
            .and_then(|id| id.parse().ok())
            .unwrap_or_default(),
        desired,
        objects: None,
        until: None,
        done: None,
        failed: None,
        returned: None,
    }))
}

/// Finds the results of a target in the statuses of its Sync during the span.
pub(crate) fn find_ends(digests: &Digests, track: &Track<SyncResource>, target: &mut Target) {
    let end = target.until.map_or(usize::MAX, |(_, index)| index);
    let current = track.versions().iter().filter(|version| {
        version.index >= target.index && version.index < end && version.verb != Verb::Delete
    });
    for version in current {
        let when = (version.at, version.index);
        if target.done.is_none() && is_done(digests, &version.object, &target.desired) {
            target.done = Some(when);
        }
        if target.failed.is_none() && is_failing(digests, &version.object, &target.desired) {
            target.failed = Some(when);
        }
        if target.returned.is_none() && has_returned(&version.object) {
            target.returned = Some(when);
        }
    }
}

/// Whether a Sync reports that it gave the slot of its last admission back.
fn has_returned(sync: &SyncResource) -> bool {
    let returned = sync
        .status
        .as_ref()
        .map(|status| status.returned_admission.as_str());
    let returned = returned.filter(|returned| !returned.is_empty());
    returned.is_some() && returned == sync.annotations().get(ADMITTED_AT).map(String::as_str)
}

/// Whether a Sync reports the target as applied and, with `wait`, healthy.
pub(crate) fn is_done(digests: &Digests, sync: &SyncResource, desired: &DesiredState) -> bool {
    let Some(status) = &sync.status else { return false };
    let healthy = !desired.template.wait || status.last_healthy_target == status.last_applied_target;
    is_applied(digests, sync, desired) && healthy
}

fn is_applied(digests: &Digests, sync: &SyncResource, desired: &DesiredState) -> bool {
    let Some(status) = &sync.status else { return false };
    let attempted_another = !status.last_attempted_target.is_empty()
        && status.last_attempted_target != status.last_applied_target;
    !attempted_another && digests.is(&status.last_applied_target, desired)
}

/// Whether a Sync reports that the last attempt at this target failed, that the target did not become healthy, or that
/// the Sync is stalled.
pub(crate) fn is_failing(digests: &Digests, sync: &SyncResource, desired: &DesiredState) -> bool {
    !is_retry_open(sync) && reports_failure(digests, sync, desired)
}

/// The same, whether or not an operator has requested a retry since.
pub(crate) fn reports_failure(digests: &Digests, sync: &SyncResource, desired: &DesiredState) -> bool {
    let Some(status) = &sync.status else { return false };
    let attempt = status.attempts > 0 && digests.is(&status.last_attempted_target, desired);
    let generation = sync.metadata.generation.unwrap_or_default();
    let stalled = conditions::is_true(&status.conditions, STALLED, generation);
    let unhealthy = conditions::find(&status.conditions, HEALTHY)
        .is_some_and(|healthy| healthy.reason == HEALTH_CHECK_FAILED);
    attempt
        || stalled
        || (unhealthy && is_applied(digests, sync, desired) && !is_done(digests, sync, desired))
}

/// Whether status still has the failure before a retry: a Sync reports the request of a retry with the outcome.
fn is_retry_open(sync: &SyncResource) -> bool {
    let annotation = |key| sync.annotations().get(key);
    let handled = sync
        .status
        .as_ref()
        .map(|status| &status.last_handled_reconcile_at);
    let retried_for = annotation(RETRIED_FOR);
    retried_for.is_some() && handled != retried_for && handled != annotation(REQUESTED_AT)
}
