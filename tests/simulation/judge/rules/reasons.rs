//! I7: every wait has a reason and a time.

use jiff::SignedDuration;
use starling_api::conditions::{self, STALLED};
use starling_api::{RolloutPhase, SyncGroup};

use crate::judge::history::Verb;
use crate::judge::hub::{Id, Version, after, is_reachable, ready};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// While a group's status reports a rollout in progress, each selected cluster that is not at the release has a reason:
/// in `blockedBy`, with a reason and a time for each, in the group's problems, or in the Cluster's own condition. A
/// jitter delay has the time of its end. A failed Sync has the time of the next attempt, unless it waits for a change
/// of its spec.
///
/// Evidence: each version of the statuses of groups and Syncs that was current for longer than the lag while the
/// controller ran. A status that was corrected earlier is an intermediate state.
pub(super) fn waits_are_explained(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let versions = track.versions();
        for (place, version) in versions.iter().enumerate() {
            if version.verb == Verb::Write && was_current(world, version, versions.get(place + 1)) {
                found.extend(unexplained(world, id, version));
            }
        }
    }
    for timeline in &world.syncs {
        let versions = timeline.track.versions();
        for (place, version) in versions.iter().enumerate() {
            let Some(status) = &version.object.status else {
                continue;
            };
            let stalled = conditions::find(&status.conditions, STALLED).is_some();
            let has_time = !status.next_attempt_time.is_empty();
            if status.attempts == 0
                || stalled
                || has_time
                || !was_current(world, version, versions.get(place + 1))
            {
                continue;
            }
            let message = format!(
                "Sync {} has failed without the time of the next attempt",
                timeline.id.name
            );
            found.push(violation(version.at, Some(&timeline.cluster), message));
        }
    }
    found
}

/// Whether a version was current for longer than the lag while the controller could have corrected it.
fn was_current<T>(world: &World<'_>, version: &Version<T>, next: Option<&Version<T>>) -> bool {
    let until = next.map_or(world.history.ended, |next| next.at);
    let away = world.history.away.iter().map(|(from, to)| {
        let (from, to) = ((*from).max(version.at), (*to).min(until));
        to.duration_since(from).max(SignedDuration::ZERO)
    });
    let known = away.fold(world.history.lag, |sum, span| {
        sum.checked_add(span).unwrap_or(SignedDuration::MAX)
    });
    after(version.at, known) < until
}

fn unexplained(world: &World<'_>, id: &Id, version: &Version<SyncGroup>) -> Vec<Violation> {
    let group = &version.object;
    let status = group.status.as_ref();
    let Some((status, rollout)) = status.and_then(|status| Some((status, status.rollout.as_ref()?))) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for blocker in &rollout.blocked_by {
        let timeless =
            blocker.since.is_empty() || (blocker.reason == "Jitter" && blocker.recheck_at.is_empty());
        if blocker.reason.is_empty() || timeless {
            let message = format!(
                "group {} is blocked by {:?}, without a time",
                id.name, blocker.reason
            );
            found.push(violation(version.at, None, message));
        }
    }
    let under_way = matches!(
        rollout.phase,
        RolloutPhase::Pending | RolloutPhase::Progressing | RolloutPhase::Paused
    );
    if !under_way || !rollout.blocked_by.is_empty() {
        return found;
    }
    for cluster in world.hub.selected(&id.namespace, group, version.at) {
        let named = status
            .problems
            .iter()
            .any(|problem| problem.cluster == cluster && !problem.reason.is_empty());
        if !named && is_waiting(world, id, group, cluster, version) {
            let message = format!("waits, and group {} has no reason for it", id.name);
            found.push(violation(version.at, Some(cluster), message));
        }
    }
    found
}

/// Whether a workable cluster was not admitted to the release, and was not before the status was corrected.
fn is_waiting(
    world: &World<'_>,
    id: &Id,
    group: &SyncGroup,
    cluster: &str,
    version: &Version<SyncGroup>,
) -> bool {
    let known = after(version.at, world.history.lag);
    let track = world.hub.cluster(cluster);
    let there = track.is_some_and(|track| track.always(version.at, known, is_reachable));
    let rolled = group.status.iter().filter_map(|status| status.rollout.as_ref());
    let rolled: Vec<_> = rolled.flat_map(|rollout| &rollout.revisions).collect();
    let is_told = rolled.iter().all(|rolled| {
        let mut timelines = world.group_timelines(id, cluster);
        timelines.any(|timeline| {
            let target = timeline.target_at(known);
            let suspended = timeline.track.at(known).is_some_and(|sync| {
                let conditions = sync.object.status.as_ref().map(|status| &*status.conditions);
                let reason = ready(conditions.unwrap_or_default()).map_or("", |ready| &ready.reason);
                sync.object.spec.template.suspend && reason == "Suspended"
            });
            let at_it = target.is_some_and(|target| target.desired.revision == rolled.revision);
            timeline.is_of(&rolled.sync) && (at_it || suspended)
        })
    });
    there && !is_told
}

fn violation(at: jiff::Timestamp, cluster: Option<&str>, message: String) -> Violation {
    Violation {
        rule: Rule::Unexplained,
        at,
        cluster: cluster.map(str::to_owned),
        message,
    }
}
