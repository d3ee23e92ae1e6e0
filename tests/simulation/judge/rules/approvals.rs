//! Approvals of deletions: what needs one, and which one it is.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{APPROVE_DELETIONS, APPROVE_MEMBERSHIP, Deletions, SyncGroup, SyncResource, UsedApproval};

use super::counted::DELETION;
use super::deletion::{Deletion, deletions};
use super::targets::{is_current, targets};
use crate::judge::hub::{Id, Track, Version, after, earlier};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Fewer objects than this may be pruned without an approval.
const APPROVAL_MINIMUM: usize = 10;

/// Starling deletes only under an approval of that list: by a prune, an object whose deletion deletes others, and ten
/// or more objects that are more than half of the inventory at once; in every way, an object whose annotation asks for
/// it, and one of the kinds that an operator added. An object that is made anew needs none.
///
/// Evidence: `status.deletions.used` of the Sync, written together with the grant of the list before the first delete.
/// It names a DeletionApproval of the Sync or its group that is not older than the Sync, or their annotation, with its
/// digest; if the Sync reported a held list just before, the digest is of that list. The approval covers the deletions
/// under this grant, and no more objects than it has.
pub(super) fn deletions_are_approved(world: &World<'_>) -> Vec<Violation> {
    let all = deletions(world);
    let mut found = Vec::new();
    let mut prunes: BTreeMap<(String, String, usize), Vec<&Deletion<'_>>> = BTreeMap::new();
    for deletion in all.iter().filter(|deletion| !deletion.is_recreation()) {
        let is_end = deletion.is_end();
        let asks = deletion.is_confirmed_kind() || deletion.asks_for_approval();
        let needs = asks || (!is_end && deletion.takes_others_along());
        if needs && !is_approved(deletion, &all) {
            found.push(deletion.violation(Rule::Unapproved, "without an approval"));
        } else if let Some(target) = pruned_for(deletion).filter(|_| !is_end) {
            let place = (deletion.cluster.to_owned(), deletion.label.clone(), target.index);
            prunes.entry(place).or_default().push(deletion);
        }
    }
    for pruned in prunes.values() {
        let of = pruned
            .iter()
            .map(|deletion| listed(deletion))
            .max()
            .unwrap_or_default();
        let is_many = pruned.len() >= APPROVAL_MINIMUM && pruned.len() * 2 > of;
        if is_many && !pruned.iter().all(|deletion| is_approved(deletion, &all)) {
            let message = format!("with {} of {of} objects, without an approval", pruned.len());
            found.extend(
                pruned
                    .first()
                    .map(|first| first.violation(Rule::Unapproved, message)),
            );
        }
    }
    found
}

/// Returns the target that a prune is for: the newest that may be in progress.
pub(super) fn pruned_for<'d>(deletion: &Deletion<'d>) -> Option<&'d Target> {
    let targets = targets(deletion.world, deletion.owner()?, deletion.cluster);
    let mut current = targets.into_iter().rev();
    current.find(|target| target.at <= deletion.at() && is_current(deletion.world, target, deletion.write))
}

/// Returns how many objects the inventory had.
fn listed(deletion: &Deletion<'_>) -> usize {
    let inventories = deletion.member.inventories(deletion.at());
    inventories
        .iter()
        .filter(|(of, ..)| *of == deletion.label)
        .count()
}

/// Whether a person approved the list of a deletion.
pub(super) fn is_approved(deletion: &Deletion<'_>, all: &[Deletion<'_>]) -> bool {
    let mut timelines = deletion.timelines().into_iter();
    timelines.any(|timeline| {
        let mut carried_out = carried_out(deletion.world, timeline).into_iter();
        carried_out.any(|one| one.covers(deletion, all))
    })
}

/// An approved list, whose deletion began.
struct CarriedOut {
    /// When the grant was written, and until when it was current.
    since: Timestamp,
    until: Timestamp,
    objects: usize,
}

impl CarriedOut {
    fn covers(&self, deletion: &Deletion<'_>, all: &[Deletion<'_>]) -> bool {
        let at = deletion.at();
        if at < self.since || at > after(self.until, deletion.limit()) {
            return false;
        }
        let of_list = all.iter().filter(|other| {
            let same = other.cluster == deletion.cluster && other.label == deletion.label;
            same && other.at() >= self.since && other.at() <= at
        });
        let objects: BTreeSet<&str> = of_list.map(Deletion::uid).collect();
        objects.len() <= self.objects
    }
}

/// Returns the lists of a Sync that were carried out with a valid approval.
fn carried_out(world: &World<'_>, timeline: &SyncTimeline<'_>) -> Vec<CarriedOut> {
    let versions = timeline.track.versions();
    let mut found = Vec::new();
    for (place, version) in versions.iter().enumerate() {
        let before = place.checked_sub(1).map(|before| &versions[before]);
        let (now, known) = (deletions_of(version), before.and_then(deletions_of));
        let Some((now, grant)) = now.and_then(|now| Some((now, now.grant.as_ref()?))) else {
            continue;
        };
        let used = newly_used(now, known);
        let held = held_digest(&versions[..place], &grant.target);
        let mut approvals = used.filter(|used| held.is_none_or(|held| held == used.digest));
        if approvals.any(|used| is_valid_for_sync(world, timeline, version, used)) {
            let rest = versions[place + 1..].iter();
            let end = { rest }.find(|later| {
                let deletions = deletions_of(later);
                deletions.and_then(|deletions| deletions.grant.as_ref()) != Some(grant)
            });
            found.push(CarriedOut {
                since: version.at,
                until: end.map_or(Timestamp::MAX, |end| end.at),
                objects: grant.objects as usize,
            });
        }
    }
    found
}

/// Returns the digest of the list that the Sync reports as held for a target.
fn held_digest<'v>(versions: &'v [Version<SyncResource>], target: &str) -> Option<&'v str> {
    fn held(version: &Version<SyncResource>) -> Option<&str> {
        let hold = version.object.status.as_ref()?.held_deletions.as_ref()?;
        Some(&hold.digest)
    }
    let last = versions.last()?;
    let digest = held(last)?;
    let since = { versions.iter().rev() }
        .take_while(|version| held(version) == Some(digest))
        .last()?;
    let ends = since.object.metadata.deletion_timestamp.is_some();
    let is_for_target = match target {
        DELETION => ends,
        _ => {
            !ends && { last.object.status.as_ref() }
                .is_some_and(|status| status.last_attempted_target == target)
        }
    };
    is_for_target.then_some(digest)
}

fn deletions_of(version: &Version<SyncResource>) -> Option<&Deletions> {
    version.object.status.as_ref()?.deletions.as_ref()
}

/// Returns the approvals that a status has and the one before had not.
fn newly_used<'d>(
    now: &'d Deletions,
    before: Option<&'d Deletions>,
) -> impl Iterator<Item = &'d UsedApproval> {
    let known = before.map_or(&[][..], |before| &before.used);
    let is_same = |one: &UsedApproval, other: &UsedApproval| {
        (&one.name, &one.uid, &one.digest) == (&other.name, &other.uid, &other.digest)
    };
    now.used
        .iter()
        .filter(move |used| !known.iter().any(|known| is_same(known, used)))
}

fn is_valid_for_sync(
    world: &World<'_>,
    timeline: &SyncTimeline<'_>,
    version: &Version<SyncResource>,
    used: &UsedApproval,
) -> bool {
    let (id, group) = (timeline.id, timeline.owner_group());
    let of_sync = |approval: &starling_api::DeletionApprovalSpec| {
        let of_group = group.is_some_and(|(_, group)| approval.group.as_ref() == Some(group));
        of_group || approval.sync.as_ref() == Some(&id.name)
    };
    let born = { timeline.track.versions().iter() }.find(|first| first.object.uid() == version.object.uid());
    let since = born.map_or(Timestamp::MIN, |first| first.at);
    if has_object(world, &id.namespace, used, (since, version.at), of_sync) {
        return true;
    }
    let from = earlier(version.at, world.history.lag);
    let groups = group.and_then(|(namespace, name)| world.hub.groups.get(&Id::new(namespace, name)));
    used.name == APPROVE_DELETIONS
        && (is_annotated(timeline.track, used, (from, version.at))
            || groups.is_some_and(|groups| is_annotated(groups, used, (from, version.at))))
}

/// Whether a DeletionApproval existed at the time of its use, and is not older than what it is for. The API has whole
/// seconds.
fn has_object(
    world: &World<'_>,
    namespace: &str,
    used: &UsedApproval,
    (since, at): (Timestamp, Timestamp),
    is_for: impl Fn(&starling_api::DeletionApprovalSpec) -> bool,
) -> bool {
    let known = earlier(at, world.history.lag);
    let in_namespace = { world.hub.deletion_approvals.iter() }.filter(|(id, _)| id.namespace == namespace);
    in_namespace.into_iter().any(|(_, track)| {
        let created = track.versions().first();
        let is_old = created.is_none_or(|created| created.at.as_second() < since.as_second());
        let mut current = track.during(known, at);
        !is_old
            && current.any(|version| {
                let approval = &version.object;
                let same = approval.uid().as_ref() == Some(&used.uid) && approval.spec.digest == used.digest;
                same && is_for(&approval.spec)
            })
    })
}

/// Whether an annotation of an object had the digest when it was used.
fn is_annotated<K: ResourceExt>(
    track: &Track<K>,
    used: &UsedApproval,
    (from, to): (Timestamp, Timestamp),
) -> bool {
    track.during(from, to).any(|version| {
        let value = version.object.annotations().get(&used.name);
        let mut digests = value.into_iter().flat_map(|value| value.split([',', ' ', '\n']));
        version.object.uid().as_ref() == Some(&used.uid) && digests.any(|digest| digest == used.digest)
    })
}

/// Whether a person approved that a cluster leaves the group: the status names the cluster and the used approval, since
/// one write, until the cluster leaves.
pub(super) fn may_leave(world: &World<'_>, id: &Id, cluster: &str, index: usize) -> bool {
    let Some(groups) = world.hub.groups.get(id) else {
        return false;
    };
    let leaves = |version: &Version<SyncGroup>| {
        let deletions = group_deletions(version);
        deletions.is_some_and(|deletions| deletions.leaving.iter().any(|name| name == cluster))
    };
    let known = groups.versions().partition_point(|version| version.index < index);
    let versions = &groups.versions()[..known];
    let last_without = versions.iter().rposition(|version| !leaves(version));
    let first = last_without.map_or(0, |place| place + 1);
    versions[first..].iter().enumerate().any(|(place, version)| {
        let before = (first + place)
            .checked_sub(1)
            .and_then(|before| group_deletions(&versions[before]));
        let now = group_deletions(version);
        let mut used = now.into_iter().flat_map(|now| newly_used(now, before));
        used.any(|used| is_valid_for_group(world, id, (groups, version), used))
    })
}

fn group_deletions(version: &Version<SyncGroup>) -> Option<&Deletions> {
    version.object.status.as_ref()?.deletions.as_ref()
}

fn is_valid_for_group(
    world: &World<'_>,
    id: &Id,
    (groups, version): (&Track<SyncGroup>, &Version<SyncGroup>),
    used: &UsedApproval,
) -> bool {
    let born = { groups.versions().iter() }.find(|first| first.object.uid() == version.object.uid());
    let since = born.map_or(Timestamp::MIN, |first| first.at);
    let of_group = |approval: &starling_api::DeletionApprovalSpec| approval.group.as_ref() == Some(&id.name);
    let from = earlier(version.at, world.history.lag);
    has_object(world, &id.namespace, used, (since, version.at), of_group)
        || (used.name == APPROVE_MEMBERSHIP && is_annotated(groups, used, (from, version.at)))
}

/// Whether a person may have approved that an automatic rollback removes entries of a group: there is an approval of
/// the group that was made after the rollback began.
pub(super) fn may_remove_entries(world: &World<'_>, id: &Id, since: Timestamp, at: Timestamp) -> bool {
    let known = earlier(at, world.history.lag);
    let mut approvals = world.hub.deletion_approvals.iter();
    let objects = approvals.any(|(of, track)| {
        let created = track.versions().first();
        let is_of_group = |version: &Version<starling_api::DeletionApproval>| {
            version.object.spec.group.as_ref() == Some(&id.name)
        };
        of.namespace == id.namespace
            && created.is_some_and(|created| created.at.as_second() >= since.as_second())
            && track.during(known, at).any(is_of_group)
    });
    let groups = world.hub.groups.get(id);
    objects
        || groups.is_some_and(|groups| {
            let mut versions = groups.during(known, at);
            versions.any(|group| group.object.annotations().contains_key(APPROVE_DELETIONS))
        })
}
