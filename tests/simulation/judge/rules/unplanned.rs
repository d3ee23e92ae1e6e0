//! A Sync is deleted only after a plan that removes it, and only if what confirms the removal was read just before. An
//! object is pruned after a grace only if a plan allowed that.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::{SyncGroup, SyncResource};

use super::deletion::{Deletion, deletions};
use super::deletions::{begun_by_us, has_entry, was_deselected};
use super::targets::{is_current, targets};
use crate::judge::history::Plan;
use crate::judge::hub::{Id, Track, Version, after, earlier};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// A group that is not being deleted deletes a Sync only if its newest plan removes the Sync, as its journal has it.
///
/// Evidence: every entry of the journal that was ever committed, also on a disk that was lost since. A plan that was
/// replaced may have been under way for [`live`](crate::judge::History::live). A history without any plan has no
/// witness, and is not checked.
pub(super) fn removals_are_planned(world: &World<'_>) -> Vec<Violation> {
    if world.history.plans.is_empty() {
        return Vec::new();
    }
    let removals = removals_of_living_groups(world);
    let unplanned = removals.filter(|removal| !removal.is_planned());
    unplanned
        .map(|removal| removal.violation(Rule::Unplanned, "without a plan that removes it"))
        .collect()
}

/// A Sync is deleted only if the management cluster was asked just before: its cluster was not selected, or its entry
/// neither in the release nor in the spec of its group.
///
/// Evidence: the Clusters and the group during [`live`](crate::judge::History::live) before the deletion. If they
/// selected the cluster at every moment, a read would have found it. What nothing allowed even within the lag breaks
/// [`Rule::Deletion`].
pub(super) fn removals_are_read_live(world: &World<'_>) -> Vec<Violation> {
    let removals = removals_of_living_groups(world);
    let refuted = removals
        .filter(|removal| was_deselected(world, removal.timeline, removal.version) && removal.is_refuted());
    refuted
        .map(|removal| removal.violation(Rule::LiveRead, "although its group had its cluster and its entry"))
        .collect()
}

/// An object of a Sync of a group whose grace before a prune has ended is deleted only if the newest plan of the group
/// allows that, or has it in progress: it is no part of the attempt that the group admitted, once that has succeeded.
///
/// Evidence: as of [`removals_are_planned`]. The attempt that reported the target as done may still have been under way
/// for [`Deletion::limit`].
pub(super) fn prunes_are_planned(world: &World<'_>) -> Vec<Violation> {
    if world.history.plans.is_empty() {
        return Vec::new();
    }
    let all = deletions(world).into_iter();
    let later = all.filter(|deletion| !deletion.is_end() && !deletion.is_recreation() && has_grace(deletion));
    let unplanned = later.filter(|deletion| {
        let timelines = deletion.timelines().into_iter();
        let mut of_groups = timelines.filter_map(|timeline| Some((timeline, timeline.owner_group()?)));
        of_groups.any(|(timeline, (namespace, name))| {
            let id = Id::new(namespace, name);
            let mut plans = under_way(world, &id, deletion.at()).into_iter();
            !plans.any(|plan| plan.prunes.contains(&timeline.id.name))
        })
    });
    unplanned
        .map(|deletion| deletion.violation(Rule::Unplanned, "without a plan that allows the prune"))
        .collect()
}

/// Whether every target that a prune may be for has a grace, and was done before.
fn has_grace(deletion: &Deletion<'_>) -> bool {
    let Some(owner) = deletion.owner() else {
        return false;
    };
    let targets = targets(deletion.world, owner, deletion.cluster).into_iter();
    let current = targets
        .filter(|target| target.at <= deletion.at() && is_current(deletion.world, target, deletion.write));
    let is_later = |target: &Target| {
        let done = target.done.map(|(at, _)| after(at, deletion.limit()));
        !target.desired.template.prune_grace.is_zero() && done.is_some_and(|done| done < deletion.at())
    };
    let later: Vec<bool> = current.map(is_later).collect();
    !later.is_empty() && later.into_iter().all(|is_later| is_later)
}

/// Returns the plans of a group that may be under way at a time: the newest, and what it replaced shortly before.
fn under_way<'w>(world: &'w World<'_>, group: &Id, at: Timestamp) -> Vec<&'w Plan> {
    let from = earlier(at, world.history.live);
    let plans: Vec<&Plan> = { world.history.plans.iter() }
        .filter(|plan| plan.namespace == group.namespace && plan.group == group.name && plan.at <= at)
        .collect();
    let current = plans.partition_point(|plan| plan.at <= from);
    plans[current.saturating_sub(1)..].to_vec()
}

/// The begin of the deletion of a Sync by its group.
struct Removal<'r> {
    world: &'r World<'r>,
    timeline: &'r SyncTimeline<'r>,
    id: Id,
    groups: &'r Track<SyncGroup>,
    version: &'r Version<SyncResource>,
}

fn removals_of_living_groups<'r>(world: &'r World<'_>) -> impl Iterator<Item = Removal<'r>> {
    let begun = world.syncs.iter().filter_map(|timeline| {
        let (namespace, name) = timeline.owner_group()?;
        let id = Id::new(namespace, name);
        let groups = world.hub.groups.get(&id)?;
        let removals = begun_by_us(timeline).map(move |version| (timeline, id.clone(), groups, version));
        Some(removals)
    });
    let removals = begun.flatten().map(|(timeline, id, groups, version)| Removal {
        world,
        timeline,
        id,
        groups,
        version,
    });
    removals.filter(|removal| {
        let group = removal.groups.before(removal.version.index);
        group.is_some_and(|group| group.object.metadata.deletion_timestamp.is_none())
    })
}

impl Removal<'_> {
    fn is_planned(&self) -> bool {
        let plans = under_way(self.world, &self.id, self.version.at);
        let mut removes = plans.iter().map(|plan| &plan.removes);
        removes.any(|syncs| syncs.contains(&self.timeline.id.name))
    }

    /// Whether the group had the cluster and the entry at every moment in which they may have been read.
    fn is_refuted(&self) -> bool {
        let at = self.version.at;
        let from = earlier(at, self.world.history.live);
        let cluster = self.world.hub.cluster(&self.timeline.cluster).into_iter();
        let mut moments: BTreeSet<Timestamp> = [from, at].into();
        moments.extend(self.groups.changes(from, at));
        moments.extend(cluster.flat_map(|track| track.changes(from, at)));
        moments.into_iter().all(|moment| self.is_wanted(moment))
    }

    fn is_wanted(&self, at: Timestamp) -> bool {
        let Some(group) = self.groups.at(at).map(|version| &version.object) else {
            return false;
        };
        let selected = self.world.hub.selected(&self.id.namespace, group, at);
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        // A rollback may lack an entry that the spec has.
        let rolled = rollout.is_some_and(|rollout| {
            let mut revisions = rollout.revisions.iter();
            revisions.any(|rolled| self.timeline.is_of(&rolled.sync))
        });
        group.metadata.deletion_timestamp.is_none()
            && selected.contains(&self.timeline.cluster.as_str())
            && rolled
            && has_entry(group, self.timeline)
    }

    fn violation(&self, rule: Rule, message: &str) -> Violation {
        Violation {
            rule,
            at: self.version.at,
            cluster: Some(self.timeline.cluster.clone()),
            message: format!("Sync {} was deleted {message}", self.timeline.id.name),
        }
    }
}
