//! I6: absence is not a reason to delete.

use jiff::{SignedDuration, Timestamp};
use starling_api::{
    DISABLED, DeletionPolicy, FIELD_MANAGER, GROUP_MANAGER, PRUNE, RECONCILE, SyncGroup, SyncResource,
};

use super::deletion::{Deletion, deletions};
use super::targets::{attempt_limit, is_current, targets};
use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, Version, after, earlier, span};
use crate::judge::member::{Member, is_own, owner, uid};
use crate::judge::render::annotation;
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Identifies the controller's deletions on the management cluster. They have no field manager, and the controller's
/// client has no user agent; a test that acts as an operator has to set one.
const AGENTS: [&str; 3] = [FIELD_MANAGER, GROUP_MANAGER, ""];

/// Starling deletes an object on a member only if all of this is true:
///
/// - the current inventory on that member lists it, with its UID (or without a UID, if the object has the label of that
///   inventory's owner: it was claimed, and its apply is unconfirmed);
/// - no annotation asks to keep it, and if it is pruned, `pruneGrace` has passed;
/// - there is a reason: a target of the owner's Sync that may be in progress does not render it, prunes, and renders
///   something or may be empty; or renders it, may recreate it, and does; or the Sync is being deleted with
///   `deletionPolicy: Delete`.
///
/// [`approvals`](super::approvals) checks what needs an approval, and [`hand_over`](super::hand_over) whether another
/// Sync has the object.
///
/// Starling deletes a Sync of a group only if its cluster was not selected, its entry not in the group, or the group
/// being deleted, as far as the controller could know: an empty list is none of these.
pub(super) fn deletions_have_a_reason(world: &World<'_>) -> Vec<Violation> {
    let all = deletions(world);
    let wrong = all.iter().filter_map(|deletion| {
        let message = has_reason(deletion).err()?;
        Some(deletion.violation(Rule::Deletion, format!("although {message}")))
    });
    let timelines = world.syncs.iter();
    wrong
        .chain(timelines.flat_map(|timeline| deleted_syncs(world, timeline)))
        .collect()
}

/// Whether the deletion had begun before, so that this write only completes it.
pub(super) fn had_begun(member: &Member<'_>, write: &Write) -> bool {
    let versions = member.versions(&write.key());
    let place = versions
        .iter()
        .position(|version| std::ptr::eq(version.write, write));
    write.verb == Verb::Delete
        && place
            .and_then(|place| versions[..place].last())
            .is_some_and(|before| before.write.verb == Verb::DeleteBegins)
}

fn has_reason(deletion: &Deletion<'_>) -> Result<(), &'static str> {
    let Deletion {
        world,
        cluster,
        member,
        write,
        ..
    } = deletion;
    let (key, live) = (deletion.key(), &write.object);
    let inventories = member.inventories(write.at);
    let listed = inventories.iter().filter(|(of, listed, listed_uid)| {
        let claimed = listed_uid.is_empty() && owner(live) == of;
        *listed == key && (listed_uid == uid(live) || claimed)
    });
    // A cluster that moved between two groups may have the object in the inventories of both.
    let Some((label, _, _)) = listed.max_by_key(|(of, ..)| owner(live) == of) else {
        return Err("no inventory lists it with its UID");
    };
    if annotation(live, PRUNE) == DISABLED || annotation(live, RECONCILE) == DISABLED {
        return Err("its annotation asks to keep it");
    }
    let Some(owner) = world.owner(label) else {
        return Err("its inventory belongs to no Sync");
    };
    let timelines = world.timelines(owner, cluster);
    if timelines.iter().any(|timeline| is_being_deleted(timeline, write)) {
        return Ok(());
    }
    let targets = targets(world, owner, cluster).into_iter();
    let current = targets.filter(|target| is_current(world, target, write));
    let current: Vec<&Target> = current.filter(|target| target.at <= write.at).collect();
    if current
        .iter()
        .any(|target| is_recreated(member, target, &key, write))
    {
        return Ok(());
    }
    let without = current.iter().filter(|target| target.renders(&key).is_none());
    let mut without = without.filter(|target| may_prune(target)).peekable();
    if without.peek().is_none() {
        return Err("no target with pruning renders a set without it");
    }
    let in_time = without.any(|target| is_after_grace(target, write.at));
    in_time
        .then_some(())
        .ok_or("its grace before the prune had not ended")
}

/// Whether the grace before a prune is over: since the target is the one of its Sync, at the earliest.
fn is_after_grace(target: &Target, at: Timestamp) -> bool {
    after(target.at, span(target.desired.template.prune_grace)) <= at
}

fn may_prune(target: &Target) -> bool {
    let template = &target.desired.template;
    let complete = target
        .objects
        .as_ref()
        .is_some_and(|objects| !objects.is_empty() || template.allow_empty);
    template.prune && complete
}

/// Whether the object may be deleted in order to recreate it, and was recreated.
fn is_recreated(member: &Member<'_>, target: &Target, key: &Key, write: &Write) -> bool {
    let Some(expected) = target.renders(key) else {
        return false;
    };
    let may = target.desired.template.force || expected.may_be_recreated();
    let mut later = member
        .versions(key)
        .iter()
        .filter(|version| version.write.at >= write.at);
    may && later
        .any(|version| version.write.verb == Verb::Write && uid(&version.write.object) != uid(&write.object))
}

/// Whether the object was deleted in order to recreate it: the next write of that name is ours, and soon.
pub(super) fn is_recreation(member: &Member<'_>, write: &Write) -> bool {
    let mut later = member
        .versions(&write.key())
        .iter()
        .filter(|version| version.write.at >= write.at && !std::ptr::eq(version.write, write));
    later.next().is_some_and(|next| {
        let is_soon = next.write.at.duration_since(write.at) <= SignedDuration::from_mins(1);
        next.write.verb == Verb::Write && is_own(next.write) && is_soon
    })
}

pub(super) fn is_being_deleted(timeline: &SyncTimeline<'_>, write: &Write) -> bool {
    timeline.track.at(write.at).is_some_and(|version| {
        let sync = &version.object;
        sync.metadata.deletion_timestamp.is_some()
            && sync.spec.template.deletion_policy == DeletionPolicy::Delete
    })
}

/// Returns the writes with which the controller began to delete a Sync.
pub(super) fn begun_by_us<'t>(
    timeline: &'t SyncTimeline<'_>,
) -> impl Iterator<Item = &'t Version<SyncResource>> {
    let versions = timeline.track.versions();
    let begins = move |(place, version): (usize, &'t Version<SyncResource>)| {
        let before = place.checked_sub(1).and_then(|before| versions.get(before));
        let had_begun = before.is_some_and(|before| before.object.metadata.deletion_timestamp.is_some());
        let by_us = AGENTS.contains(&version.manager.as_str());
        (version.verb != Verb::Write && !had_begun && by_us).then_some(version)
    };
    versions.iter().enumerate().filter_map(begins)
}

/// Whether a group has the entry of a Sync: in its spec, or, while it rolls back, in its release.
pub(super) fn has_entry(group: &SyncGroup, timeline: &SyncTimeline<'_>) -> bool {
    let status = group.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let back = rollout.filter(|rollout| !rollout.direction.is_forward());
    match back {
        Some(back) => back.revisions.iter().any(|rolled| timeline.is_of(&rolled.sync)),
        None => group.spec.syncs.iter().any(|entry| timeline.is_of(&entry.name)),
    }
}

/// Returns the deletions of a group's Syncs without a reason.
fn deleted_syncs(world: &World<'_>, timeline: &SyncTimeline<'_>) -> Vec<Violation> {
    let begun = begun_by_us(timeline).filter(|version| !was_deselected(world, timeline, version));
    let violation = |version: &Version<SyncResource>| Violation {
        rule: Rule::Deletion,
        at: version.at,
        cluster: Some(timeline.cluster.clone()),
        message: format!(
            "Sync {} was deleted, although its group still has the cluster",
            timeline.id.name
        ),
    };
    begun.map(violation).collect()
}

/// Whether the cluster or the entry was not in the group at some moment within the lag, or the group was being deleted.
/// An entry that a rollback lacks is not in the group, although its spec has it.
pub(super) fn was_deselected(
    world: &World<'_>,
    timeline: &SyncTimeline<'_>,
    version: &Version<SyncResource>,
) -> bool {
    let Some((namespace, name)) = timeline.owner_group() else {
        return true;
    };
    let Some(groups) = world.hub.groups.get(&Id::new(namespace, name)) else {
        return true;
    };
    let timeout = span(version.object.spec.template.timeout);
    let from = earlier(version.at, attempt_limit(world, timeout));
    let cluster = world.hub.cluster(&timeline.cluster).into_iter();
    let mut moments = vec![from, version.at];
    moments.extend(groups.changes(from, version.at));
    moments.extend(cluster.flat_map(|track| track.changes(from, version.at)));
    let born = timeline.track.versions().first().map(|first| first.at);
    moments.retain(|at| Some(*at) >= born);
    moments.iter().any(|&at| {
        let is_in = groups.at(at).is_some_and(|group| {
            let selected = world.hub.selected(namespace, &group.object, at);
            group.object.metadata.deletion_timestamp.is_none()
                && has_entry(&group.object, timeline)
                && selected.contains(&timeline.cluster.as_str())
        });
        !is_in
    })
}
