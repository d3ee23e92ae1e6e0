//! What each Sync was to hold from when to when, and what its status says became of it.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, HEALTHY, STALLED};
use starling_api::{ADMITTED_AT, GROUP_MANAGER, RELEASE, ROLLOUT, SyncResource};

use super::clock::ControllerClock;
use super::digests::{Digests, Wanted};
use super::history::{Key, Verb};
use super::hub::{Hub, Id, Track, Version};
use super::render::Expected;

/// The reason with which health ends the hope for a target.
const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// A target of one Sync, from when it was wanted until something else was.
#[derive(Debug)]
pub(crate) struct Target {
    /// Since when, and by which write of the management cluster.
    pub(crate) at: Timestamp,
    pub(crate) index: usize,
    /// When it was decided; no later than `at`.
    pub(crate) decided: Timestamp,
    /// When that was by the controller's clock.
    pub(crate) recorded: Timestamp,
    /// Whether the group admitted it with that write.
    pub(crate) is_admission: bool,
    /// Release that it was admitted with; empty for a Sync alone.
    pub(crate) release: String,
    /// The rollout that admitted it; 0 for a Sync alone.
    pub(crate) rollout: i64,
    pub(crate) wanted: Wanted,
    /// What it renders to; none where it renders to nothing that is known.
    pub(crate) objects: Option<Vec<Expected>>,
    /// Until when it was wanted, and until which write.
    pub(crate) until: Option<(Timestamp, usize)>,
    /// When its Sync first said that the cluster holds it and, with `wait`, was healthy with it; and by which write.
    pub(crate) done: Option<(Timestamp, usize)>,
    /// When its Sync first said that it failed, though it may have recovered since.
    pub(crate) failed: Option<(Timestamp, usize)>,
}

impl Target {
    /// Whether it renders an object of this name.
    pub(crate) fn renders(&self, key: &Key) -> Option<&Expected> {
        self.objects.iter().flatten().find(|expected| expected.is(key))
    }

    /// Whether it was the wanted one at some moment of a span.
    pub(crate) fn is_wanted_during(&self, from: Timestamp, to: Timestamp) -> bool {
        self.at <= to && self.until.is_none_or(|(until, _)| until >= from)
    }
}

/// A moment at which what a Sync wants may have changed.
struct Moment<'v> {
    at: Timestamp,
    index: usize,
    sync: Option<&'v Version<SyncResource>>,
}

/// Every target, with the time in which it was wanted. A Sync alone without a revision follows its Source.
pub(crate) fn wanted_targets(
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

/// `None`: all is as before. `Some(None)`: nothing is wanted any more.
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
    let wanted = Wanted::of(&revision, spec);
    let decided = current.object.annotations().get(ADMITTED_AT);
    let decided: Option<Timestamp> = decided.and_then(|at| at.parse().ok());
    let is_admission = spec.group_ref.is_some()
        && moment
            .sync
            .is_some_and(|version| version.manager == GROUP_MANAGER)
        && decided.is_none_or(|decided| open.is_none_or(|open| open.recorded != decided));
    if !is_admission && open.is_some_and(|open| open.wanted == wanted) {
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
        wanted,
        objects: None,
        until: None,
        done: None,
        failed: None,
    }))
}

/// How the target ended, by what its Sync said while it was wanted.
pub(crate) fn find_ends(digests: &Digests, track: &Track<SyncResource>, target: &mut Target) {
    let end = target.until.map_or(usize::MAX, |(_, index)| index);
    let said = track.versions().iter().filter(|version| {
        version.index >= target.index && version.index < end && version.verb != Verb::Delete
    });
    for version in said {
        let when = (version.at, version.index);
        if target.done.is_none() && is_done(digests, &version.object, &target.wanted) {
            target.done = Some(when);
        }
        if target.failed.is_none() && is_failing(digests, &version.object, &target.wanted) {
            target.failed = Some(when);
        }
    }
}

/// Whether a Sync says that the cluster holds this and, with `wait`, was healthy with it.
pub(crate) fn is_done(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let healthy = !wanted.template.wait || status.last_healthy_target == status.last_applied_target;
    is_held(digests, sync, wanted) && healthy
}

fn is_held(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let tried_another = !status.last_attempted_target.is_empty()
        && status.last_attempted_target != status.last_applied_target;
    !tried_another && digests.is(&status.last_applied_target, wanted)
}

/// Whether a Sync says that its last attempt at this failed, or that it did not become healthy, or that it is stalled.
pub(crate) fn is_failing(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let attempt = status.attempts > 0 && digests.is(&status.last_attempted_target, wanted);
    let generation = sync.metadata.generation.unwrap_or_default();
    let stalled = conditions::is_true(&status.conditions, STALLED, generation);
    let unhealthy = conditions::find(&status.conditions, HEALTHY)
        .is_some_and(|healthy| healthy.reason == HEALTH_CHECK_FAILED);
    attempt || stalled || (unhealthy && is_held(digests, sync, wanted) && !is_done(digests, sync, wanted))
}
