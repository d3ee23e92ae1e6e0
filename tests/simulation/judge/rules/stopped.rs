//! No object goes while its group is stopped, and none late in a closed window.

use jiff::Timestamp;
use starling_api::{DeletionPolicy, SyncGroup};

use super::deletion::{Deletion, deletions};
use super::deletions::begun_by_us;
use super::windows::is_closed;
use crate::judge::actions::{actions, is_paused};
use crate::judge::hub::{Id, Track, after, earlier, span};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::SyncTimeline;
use crate::judge::world::World;

/// No object is pruned, or deleted with its Sync, while the group of the Sync is suspended or its rollout is paused:
/// not by the attempt that the group admitted, and not by the end of a Sync whose removal a plan decided before.
///
/// Evidence: the begin of the deletion, against the spec of the group and the actions of its rollout. An attempt under
/// way is not stopped, so that a stop counts from [`Deletion::limit`] on. The status of a group that is being deleted
/// does not say which rollout is paused.
pub(super) fn nothing_goes_while_its_group_is_stopped(world: &World<'_>) -> Vec<Violation> {
    let all = deletions(world).into_iter();
    let stopped = all.filter(|deletion| !deletion.is_recreation());
    let stopped = stopped.filter_map(|deletion| {
        let why = of_groups(&deletion).find_map(|(_, id, groups)| stop(&deletion, &id, groups))?;
        Some(deletion.violation(Rule::Stopped, why))
    });
    stopped.collect()
}

/// The first object of a Sync that is being deleted goes in a window of its cluster if its removal began longer than
/// `progressDeadline` ago: it gave its slot back, and was held or away meanwhile.
///
/// Evidence: the begin of the deletion, against the windows of the group. What has begun is completed, and one attempt
/// lasts as long as [`Deletion::limit`]. Jumps of the clock are not known to a process that starts after them, so a
/// time with a jump is not judged.
pub(super) fn nothing_goes_late_in_a_closed_window(world: &World<'_>) -> Vec<Violation> {
    let all = deletions(world);
    let is_first = |deletion: &&Deletion<'_>| {
        let same = |other: &&Deletion<'_>| {
            other.label == deletion.label && other.cluster == deletion.cluster && other.is_end()
        };
        !{ all.iter() }
            .filter(same)
            .any(|other| other.at() < deletion.at())
    };
    let ends = all.iter().filter(|deletion| deletion.is_end());
    let late = ends.filter(is_first).filter(|deletion| {
        of_groups(deletion).any(|(timeline, _, groups)| is_late_in_closed_window(deletion, timeline, groups))
    });
    late.map(|deletion| deletion.violation(Rule::Stopped, "late, in a closed window"))
        .collect()
}

/// Returns the Syncs of groups that an object belongs to, with their groups.
fn of_groups<'d>(
    deletion: &Deletion<'d>,
) -> impl Iterator<Item = (&'d SyncTimeline<'d>, Id, &'d Track<SyncGroup>)> {
    let world = deletion.world;
    deletion.timelines().into_iter().filter_map(move |timeline| {
        let (namespace, name) = timeline.owner_group()?;
        let id = Id::new(namespace, name);
        let groups = world.hub.groups.get(&id)?;
        Some((timeline, id, groups))
    })
}

fn stop(deletion: &Deletion<'_>, id: &Id, groups: &Track<SyncGroup>) -> Option<&'static str> {
    let (from, at) = (earlier(deletion.at(), deletion.limit()), deletion.at());
    if groups.always(from, at, |group| group.spec.suspend) {
        return Some("while its group was suspended");
    }
    let group = &groups.at(at)?.object;
    if group.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let rollout = group.status.as_ref()?.rollout.as_ref()?;
    let actions = actions(deletion.world.hub, id, rollout.id);
    is_paused(&actions, from, at).then_some("while the rollout was paused")
}

fn is_late_in_closed_window(
    deletion: &Deletion<'_>,
    timeline: &SyncTimeline<'_>,
    groups: &Track<SyncGroup>,
) -> bool {
    let (world, at) = (deletion.world, deletion.at());
    let begun = begun_by_us(timeline).filter(|version| version.at <= at).last();
    let Some(begun) = begun.map(|version| version.at) else {
        return false;
    };
    let deadlines = groups.during(begun, at);
    let deadlines = deadlines.map(|group| span(group.object.spec.rollout_strategy.progress_deadline));
    let Some(deadline) = deadlines.max() else {
        return false;
    };
    let from = earlier(at, deletion.limit());
    let is_late = after(begun, deadline) < from && !has_jump(world, begun, at);
    let Some(cluster) = world.hub.cluster(deletion.cluster).and_then(|track| track.at(at)) else {
        return false;
    };
    let (first, last) = world.history.clock.shown(from, at);
    let is_shut = |group: &SyncGroup| {
        let orphans = group.metadata.deletion_timestamp.is_some()
            && group.spec.deletion_policy == DeletionPolicy::Orphan;
        !orphans && is_closed(&group.spec.rollout_strategy.windows, &cluster.object, first, last)
    };
    is_late && groups.during(from, at).all(|group| is_shut(&group.object))
}

fn has_jump(world: &World<'_>, from: Timestamp, to: Timestamp) -> bool {
    let (first, last) = world.history.clock.shown(from, to);
    to.duration_since(from) != last.duration_since(first)
}
