//! I6: absence is not a reason to delete.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_api::{
    APPROVE_DELETIONS, DISABLED, DeletionPolicy, FIELD_MANAGER, GROUP_MANAGER, PRUNE, RECONCILE,
};

use super::targets::{attempt_limit, is_current, targets};
use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, Version, after, earlier, span};
use crate::judge::member::{Member, is_own, owner, uid};
use crate::judge::render::annotation;
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{Owner, SyncTimeline, World};

/// Fewer objects than this may be pruned without an approval.
const APPROVAL_MINIMUM: usize = 10;

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
///   `deletionPolicy: Delete`;
/// - no other Sync of the group on that cluster renders a pruned object; and without an approval it is no Namespace,
///   CustomResourceDefinition, PersistentVolume or PersistentVolumeClaim, and not ten or more objects and more than
///   half of the inventory at once.
///
/// Starling deletes a Sync of a group only if its cluster was not selected, its entry not in the group, or the group
/// being deleted, as far as the controller could know: an empty list is none of these.
pub(super) fn deletions_have_a_reason(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            deletions_of(world, cluster, member, &mut found);
        }
    }
    let timelines = world.syncs.iter();
    found.extend(timelines.flat_map(|timeline| deleted_syncs(world, timeline)));
    found
}

/// The prunes of one target: how many, of how many objects, and since when.
type Prunes = BTreeMap<(String, usize), Vec<Pruned>>;

/// One pruned object.
struct Pruned {
    at: Timestamp,
    /// Number of objects in the inventory before.
    of: usize,
    approved: bool,
}

fn deletions_of(world: &World<'_>, cluster: &str, member: &Member<'_>, found: &mut Vec<Violation>) {
    let mut violation = |at, message| {
        found.push(Violation {
            rule: Rule::Deletion,
            at,
            cluster: Some(cluster.to_owned()),
            message,
        });
    };
    let mut prunes = Prunes::new();
    let deletes = member.own_writes.iter().map(|own| own.write);
    for write in deletes.filter(|write| write.verb != Verb::Write && !had_begun(member, write)) {
        if let Err(message) = has_reason(world, cluster, member, write, &mut prunes) {
            violation(write.at, format!("{} was deleted: {message}", write.key()));
        }
    }
    for pruned in prunes.values() {
        let (count, of) = (
            pruned.len(),
            pruned.iter().map(|one| one.of).max().unwrap_or_default(),
        );
        if count < APPROVAL_MINIMUM || count * 2 <= of || pruned.iter().all(|one| one.approved) {
            continue;
        }
        let message = format!("{count} of {of} objects were pruned without an approval");
        violation(pruned[0].at, message);
    }
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

fn has_reason(
    world: &World<'_>,
    cluster: &str,
    member: &Member<'_>,
    write: &Write,
    prunes: &mut Prunes,
) -> Result<(), String> {
    let (key, live) = (write.key(), &write.object);
    let inventories = member.inventories(write.at);
    let listed = inventories.iter().find(|(of, listed, listed_uid)| {
        let claimed = listed_uid.is_empty() && owner(live) == of;
        *listed == key && (listed_uid == uid(live) || claimed)
    });
    let Some((label, _, _)) = listed else {
        return Err("no inventory lists it with its UID".into());
    };
    if annotation(live, PRUNE) == DISABLED || annotation(live, RECONCILE) == DISABLED {
        return Err("its annotation asks to keep it".into());
    }
    let Some(owner) = world.owner(label) else {
        return Err("its inventory belongs to no Sync".into());
    };
    let timelines = world.timelines(owner, cluster);
    if timelines.iter().any(|timeline| is_being_deleted(timeline, write)) {
        return Ok(());
    }
    let targets = targets(world, owner, cluster);
    let current = targets
        .into_iter()
        .filter(|target| is_current(world, target, write));
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
        return Err("no target with pruning renders a set without it".into());
    }
    let Some(target) = without.find(|target| is_after_grace(target, write.at)) else {
        return Err("its grace before the prune had not ended".into());
    };
    if let Some(sibling) = sibling_with(world, cluster, owner, &key, write) {
        return Err(format!("{} renders it, of the same group", sibling.id.name));
    }
    let approved = timelines
        .iter()
        .any(|timeline| is_approved(world, timeline, write));
    if takes_others_along(&key) && !approved {
        return Err("its deletion deletes other objects, without an approval".into());
    }
    let pruned = prunes.entry((label.clone(), target.index)).or_default();
    pruned.push(Pruned {
        at: write.at,
        of: inventories.iter().filter(|(of, ..)| of == label).count(),
        approved,
    });
    Ok(())
}

/// Returns another Sync of the group on the same cluster that renders the object, for long enough to be known.
fn sibling_with<'w>(
    world: &'w World<'_>,
    cluster: &str,
    owner: &Owner,
    key: &Key,
    write: &Write,
) -> Option<&'w SyncTimeline<'w>> {
    let group = world.timelines(owner, cluster).first()?.owner_group()?;
    let renders = |timeline: &SyncTimeline<'_>, at| {
        let target = timeline.target_at(at);
        target.is_some_and(|target| target.renders(key).is_some())
    };
    world.syncs.iter().find(|timeline| {
        let other = timeline.owner != *owner && timeline.owner_group() == Some(group);
        let known = earlier(write.at, world.history.lag);
        other && timeline.cluster == cluster && renders(timeline, known) && renders(timeline, write.at)
    })
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

fn is_approved(world: &World<'_>, timeline: &SyncTimeline<'_>, write: &Write) -> bool {
    let group = timeline.owner_group().and_then(|(namespace, name)| {
        let track = world.hub.groups.get(&Id::new(namespace, name))?;
        track.at(write.at)
    });
    let sync = timeline
        .track
        .at(write.at)
        .map(|version| version.object.annotations());
    let group = group.map(|version| version.object.annotations());
    [sync, group].into_iter().flatten().any(|annotations| {
        annotations
            .get(APPROVE_DELETIONS)
            .is_some_and(|digest| !digest.is_empty())
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

/// Whether the deletion of an object deletes others.
pub(super) fn takes_others_along(key: &Key) -> bool {
    matches!(
        key.kind.as_str(),
        "Namespace" | "CustomResourceDefinition" | "PersistentVolume" | "PersistentVolumeClaim"
    )
}

/// Whether the cluster or the entry was not in the group at some moment within the lag, or the group was being deleted.
fn was_deselected(world: &World<'_>, timeline: &SyncTimeline<'_>, version: &Version<SyncResource>) -> bool {
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
            let mut entries = group.object.spec.syncs.iter();
            let selected = world.hub.selected(namespace, &group.object, at);
            group.object.metadata.deletion_timestamp.is_none()
                && entries.any(|entry| timeline.is_of(&entry.name))
                && selected.contains(&timeline.cluster.as_str())
        });
        !is_in
    })
}
