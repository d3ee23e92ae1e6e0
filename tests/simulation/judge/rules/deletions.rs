//! I6: absence is not intent.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_api::{
    APPROVE_DELETIONS, DISABLED, DeletionPolicy, FIELD_MANAGER, GROUP_MANAGER, PRUNE, RECONCILE,
};

use super::order::{is_current, patience, targets};
use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, Version, earlier, span};
use crate::judge::member::{Member, owner, uid};
use crate::judge::render::annotation;
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{Owner, SyncStory, World};

/// Fewer objects than this are pruned without an approval.
const LEAST: usize = 10;

/// What the controller's deletes on the management cluster are told by. They have no field manager, and its client there
/// names no agent; whoever plays a person in a test has to name one.
const AGENTS: [&str; 3] = [FIELD_MANAGER, GROUP_MANAGER, ""];

/// An object on a member is deleted by us only if all of this holds:
///
/// - an inventory that was in force on that member lists it, with its UID (or without one, where the object carries the
///   label of that inventory's owner: it was claimed, and its apply was not confirmed);
/// - nobody asks to keep it by annotation;
/// - and a reason: a target of the owner's Sync that may be at work does not render it, prunes, and renders something or
///   may be empty; or renders it and may make it anew, and does; or the Sync is on its way out with `deletionPolicy: Delete`;
/// - what is pruned is rendered by no other Sync of the group on that cluster; and without an approval it is no Namespace,
///   definition or volume claim, and not ten objects or more and more than half of the inventory at once.
///
/// A Sync of a group is deleted by us only if its cluster was not selected, its entry not in the group, or the group on its
/// way out, as far as the controller could know: a list that came back empty is none of these.
pub(super) fn deletes_have_a_reason(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            deletes_of(world, cluster, member, &mut found);
        }
    }
    let stories = world.syncs.iter();
    found.extend(stories.flat_map(|story| syncs_taken_away(world, story)));
    found
}

/// The prunes of one target: how many, of how many objects, and since when.
type Prunes = BTreeMap<(String, usize), Vec<Pruned>>;

/// A prune.
struct Pruned {
    at: Timestamp,
    /// Objects in the inventory before it.
    of: usize,
    approved: bool,
}

fn deletes_of(world: &World<'_>, cluster: &str, member: &Member<'_>, found: &mut Vec<Violation>) {
    let mut violation = |at, words| {
        found.push(Violation {
            rule: Rule::Deletion,
            at,
            cluster: Some(cluster.to_owned()),
            words,
        });
    };
    let mut prunes = Prunes::new();
    let deletes = member.ours.iter().map(|ours| ours.write);
    for write in deletes.filter(|write| write.verb != Verb::Write && !was_begun(member, write)) {
        if let Err(words) = has_reason(world, cluster, member, write, &mut prunes) {
            violation(write.at, format!("{} was deleted: {words}", write.key()));
        }
    }
    for pruned in prunes.values() {
        let (count, of) = (
            pruned.len(),
            pruned.iter().map(|one| one.of).max().unwrap_or_default(),
        );
        if count < LEAST || count * 2 <= of || pruned.iter().all(|one| one.approved) {
            continue;
        }
        let words = format!("{count} of {of} objects were pruned, and nobody approved");
        violation(pruned[0].at, words);
    }
}

/// Whether the deletion had begun before, so that this is the end of it.
fn was_begun(member: &Member<'_>, write: &Write) -> bool {
    let stands = member.stands(&write.key());
    let place = stands.iter().position(|stand| std::ptr::eq(stand.write, write));
    write.verb == Verb::Delete
        && place
            .and_then(|place| stands[..place].last())
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
        return Err("it asks to be kept".into());
    }
    let Some(owner) = world.owner(label) else {
        return Err("its inventory is no Sync's".into());
    };
    let stories = world.stories(owner, cluster);
    if stories.iter().any(|story| is_on_its_way_out(story, write)) {
        return Ok(());
    }
    let targets = targets(world, owner, cluster);
    let current = targets
        .into_iter()
        .filter(|target| is_current(world, target, write));
    let current: Vec<&Target> = current.filter(|target| target.at <= write.at).collect();
    if current
        .iter()
        .any(|target| is_made_anew(member, target, &key, write))
    {
        return Ok(());
    }
    let without = current.iter().filter(|target| target.renders(&key).is_none());
    let Some(target) = { without }.find(|target| may_prune(target)) else {
        return Err("no target renders something without it and prunes".into());
    };
    if let Some(sibling) = sibling_with(world, cluster, owner, &key, write) {
        return Err(format!("{} renders it, of the same group", sibling.id.name));
    }
    let approved = stories.iter().any(|story| is_approved(world, story, write));
    let takes_others_along = matches!(
        key.kind.as_str(),
        "Namespace" | "CustomResourceDefinition" | "PersistentVolumeClaim"
    );
    if takes_others_along && !approved {
        return Err("it takes others along, and nobody approved".into());
    }
    let pruned = prunes.entry((label.clone(), target.index)).or_default();
    pruned.push(Pruned {
        at: write.at,
        of: inventories.iter().filter(|(of, ..)| of == label).count(),
        approved,
    });
    Ok(())
}

/// Another Sync of the group on the same cluster that is to hold the object, and was so long enough ago to be known.
fn sibling_with<'w>(
    world: &'w World<'_>,
    cluster: &str,
    owner: &Owner,
    key: &Key,
    write: &Write,
) -> Option<&'w SyncStory<'w>> {
    let group = world.stories(owner, cluster).first()?.owner_group()?;
    let renders = |story: &SyncStory<'_>, at| {
        let target = story.target_at(at);
        target.is_some_and(|target| target.renders(key).is_some())
    };
    world.syncs.iter().find(|story| {
        let other = story.owner != *owner && story.owner_group() == Some(group);
        let known = earlier(write.at, world.history.lag);
        other && story.cluster == cluster && renders(story, known) && renders(story, write.at)
    })
}

fn may_prune(target: &Target) -> bool {
    let template = &target.wanted.template;
    let complete = target
        .objects
        .as_ref()
        .is_some_and(|objects| !objects.is_empty() || template.allow_empty);
    template.prune && complete
}

/// Whether the object may be deleted to be made anew, and was.
fn is_made_anew(member: &Member<'_>, target: &Target, key: &Key, write: &Write) -> bool {
    let Some(expected) = target.renders(key) else {
        return false;
    };
    let may = target.wanted.template.force || expected.may_be_made_anew();
    let mut later = member
        .stands(key)
        .iter()
        .filter(|stand| stand.write.at >= write.at);
    may && later
        .any(|stand| stand.write.verb == Verb::Write && uid(&stand.write.object) != uid(&write.object))
}

fn is_on_its_way_out(story: &SyncStory<'_>, write: &Write) -> bool {
    story.track.at(write.at).is_some_and(|version| {
        let sync = &version.object;
        sync.metadata.deletion_timestamp.is_some()
            && sync.spec.template.deletion_policy == DeletionPolicy::Delete
    })
}

fn is_approved(world: &World<'_>, story: &SyncStory<'_>, write: &Write) -> bool {
    let group = story.owner_group().and_then(|(namespace, name)| {
        let track = world.hub.groups.get(&Id::new(namespace, name))?;
        track.at(write.at)
    });
    let sync = story
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

/// The Syncs of a group that were taken away without need.
fn syncs_taken_away(world: &World<'_>, story: &SyncStory<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut before: Option<&Version<SyncResource>> = None;
    for version in story.track.versions() {
        let begun = before.is_some_and(|before| before.object.metadata.deletion_timestamp.is_some());
        before = Some(version);
        let by_us = AGENTS.contains(&version.manager.as_str());
        if version.verb == Verb::Write || begun || !by_us || left(world, story, version) {
            continue;
        }
        found.push(Violation {
            rule: Rule::Deletion,
            at: version.at,
            cluster: Some(story.cluster.clone()),
            words: format!(
                "Sync {} was taken away, though its group still has the cluster",
                story.id.name
            ),
        });
    }
    found
}

/// Whether the cluster or the entry was out of the group at some moment within the lag, or the group on its way out.
fn left(world: &World<'_>, story: &SyncStory<'_>, version: &Version<SyncResource>) -> bool {
    let Some((namespace, name)) = story.owner_group() else {
        return true;
    };
    let Some(groups) = world.hub.groups.get(&Id::new(namespace, name)) else {
        return true;
    };
    let timeout = span(version.object.spec.template.timeout);
    let from = earlier(version.at, patience(world, timeout));
    let cluster = world.hub.cluster(&story.cluster).into_iter();
    let mut moments = vec![from, version.at];
    moments.extend(groups.changes(from, version.at));
    moments.extend(cluster.flat_map(|track| track.changes(from, version.at)));
    let born = story.track.versions().first().map(|first| first.at);
    moments.retain(|at| Some(*at) >= born);
    moments.iter().any(|&at| {
        let is_in = groups.at(at).is_some_and(|group| {
            let mut entries = group.object.spec.syncs.iter();
            let selected = world.hub.selected(namespace, &group.object, at);
            group.object.metadata.deletion_timestamp.is_none()
                && entries.any(|entry| story.is_of(&entry.name))
                && selected.contains(&story.cluster.as_str())
        });
        !is_in
    })
}
