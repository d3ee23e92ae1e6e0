//! Removals: what a group has to wait for before it deletes a Sync, and in which order the objects of a Sync go.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::{APPROVE_MEMBERSHIP, DeletionPolicy, SyncGroup, SyncResource};
use starling_core::object::{DeletionStep, ObjectId};

use super::deletions::{begun_by_us, had_begun, is_being_deleted, takes_others_along};
use super::suspended::is_set_back;
use super::targets::attempt_limit;
use crate::judge::actions::{actions, is_paused};
use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, Track, Version, after, earlier, span};
use crate::judge::member::{Member, is_own, owner, uid};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Starling begins to delete a Sync of a group only if none of this is true, as far as the controller must have known:
///
/// - the group is suspended, or reports that the management cluster was set back, or, unless the group is being
///   deleted, an operator paused its rollout;
/// - the cluster is not selected, and: the Sync is suspended; or the cluster was selected within `unselectedGrace`; or
///   more than `maxUnselected` clusters are not selected, without an approval; or its objects are deleted, and as many
///   other clusters as `maxConcurrency` are losing theirs.
pub(super) fn removals_wait(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for timeline in &world.syncs {
        let Some((namespace, name)) = timeline.owner_group() else {
            continue;
        };
        let id = Id::new(namespace, name);
        let Some(groups) = world.hub.groups.get(&id) else {
            continue;
        };
        for version in begun_by_us(timeline) {
            let removal = Removal {
                world,
                timeline,
                groups,
                id: &id,
                version,
            };
            found.extend(removal.refused().into_iter().map(|message| Violation {
                rule: Rule::Removal,
                at: version.at,
                cluster: Some(timeline.cluster.clone()),
                message: format!("Sync {} was deleted {message}", timeline.id.name),
            }));
        }
    }
    found
}

/// The begin of the deletion of a Sync.
struct Removal<'r, 'w> {
    world: &'r World<'w>,
    timeline: &'r SyncTimeline<'w>,
    groups: &'r Track<SyncGroup>,
    id: &'r Id,
    version: &'r Version<SyncResource>,
}

impl Removal<'_, '_> {
    fn refused(&self) -> Option<&'static str> {
        let at = self.version.at;
        let group = &self.groups.at(at)?.object;
        let known = self.known();
        if self.groups.always(known, at, |group| group.spec.suspend) {
            return Some("while its group was suspended");
        }
        if self.groups.always(known, at, is_set_back) {
            return Some("after a restore of the management cluster");
        }
        if group.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let rollout = rollout.map(|rollout| actions(self.world.hub, self.id, rollout.id));
        if rollout.is_some_and(|actions| is_paused(&actions, known, at)) {
            return Some("while the rollout was paused");
        }
        if self.is_selected(&self.timeline.cluster, at) {
            return None;
        }
        let track = self.timeline.track;
        if track.always(known, earlier_moment(at), |sync| sync.spec.template.suspend) {
            return Some("although it was suspended");
        }
        if self.was_selected_within_grace(group) {
            return Some("before the grace of its cluster had ended");
        }
        if self.too_many_left(group) {
            return Some("although too many clusters had left at once, without an approval");
        }
        let deletes = group.spec.when_unselected == DeletionPolicy::Delete;
        (deletes && self.no_slot(group)).then_some("without a slot")
    }

    /// The time before which every write was known when the deletion was sent.
    fn known(&self) -> Timestamp {
        let timeout = span(self.version.object.spec.template.timeout);
        earlier(self.version.at, attempt_limit(self.world, timeout))
    }

    fn is_selected(&self, cluster: &str, at: Timestamp) -> bool {
        let group = self.groups.at(at);
        group.is_some_and(|group| {
            let selected = self.world.hub.selected(&self.id.namespace, &group.object, at);
            selected.contains(&cluster)
        })
    }

    /// A moment in which the controller cannot have noticed the cluster does not count. Jumps of the clock are not
    /// known to a process that starts after them, so a time with a jump is not judged.
    fn was_selected_within_grace(&self, group: &SyncGroup) -> bool {
        let at = self.version.at;
        let lag = self.world.history.lag;
        let from = earlier(at, span(group.spec.unselected_grace));
        let (first, last) = self.world.history.clock.shown(from, at);
        if at.duration_since(from) != last.duration_since(first) {
            return false;
        }
        let cluster = self.world.hub.cluster(&self.timeline.cluster).into_iter();
        let mut moments: BTreeSet<Timestamp> = [from, at].into();
        moments.extend(self.groups.changes(from, at));
        moments.extend(cluster.flat_map(|track| track.changes(from, at)));
        let moments: Vec<Timestamp> = moments.into_iter().collect();
        moments.windows(2).any(|pair| {
            let noticed = after(pair[0], lag) < pair[1];
            noticed && self.is_selected(&self.timeline.cluster, pair[0])
        })
    }

    fn too_many_left(&self, group: &SyncGroup) -> bool {
        let (at, known) = (self.version.at, self.known());
        let is_alive = |timeline: &SyncTimeline<'_>| {
            let is_own = std::ptr::eq(timeline.track, self.timeline.track);
            let sync = timeline.track.at(at);
            is_own || sync.is_some_and(|sync| sync.object.metadata.deletion_timestamp.is_none())
        };
        let of_group = self.world.syncs.iter().filter(|timeline| {
            let group = timeline.owner_group();
            group == Some((&self.id.namespace, &self.id.name)) && is_alive(timeline)
        });
        let previous: BTreeSet<&str> = of_group.map(|timeline| timeline.cluster.as_str()).collect();
        // Before the group was there, nothing had left it.
        let was_lost = |cluster: &str| self.groups.at(known).is_some() && !self.is_selected(cluster, known);
        let lost = previous
            .iter()
            .filter(|cluster| !self.is_selected(cluster, at) && was_lost(cluster));
        let allowed = group.spec.max_unselected.of_rounded_down(previous.len()).max(1);
        let approved = group.metadata.annotations.as_ref();
        lost.count() > allowed && !approved.is_some_and(|all| all.contains_key(APPROVE_MEMBERSHIP))
    }

    fn no_slot(&self, group: &SyncGroup) -> bool {
        let at = self.version.at;
        let deadline = span(group.spec.rollout_strategy.progress_deadline);
        let mut losing = BTreeSet::new();
        for timeline in &self.world.syncs {
            let is_other = timeline.cluster != self.timeline.cluster
                && timeline.owner_group() == Some((&self.id.namespace, &self.id.name));
            let is_losing = |version: &Version<SyncResource>| {
                version.at <= at
                    && after(version.at, deadline) > at
                    && version.object.spec.template.deletion_policy == DeletionPolicy::Delete
                    && timeline.track.at(at).is_some()
                    && !self.is_selected(&timeline.cluster, version.at)
            };
            if is_other && begun_by_us(timeline).any(is_losing) {
                losing.insert(timeline.cluster.as_str());
            }
        }
        let group_clusters = self.world.hub.selected(&self.id.namespace, group, at).len();
        let clusters = group_clusters + losing.len() + 1;
        losing.len()
            >= group
                .spec
                .rollout_strategy
                .max_concurrency
                .of_rounded_up(clusters)
                .max(1)
    }
}

/// The moment before a write.
fn earlier_moment(at: Timestamp) -> Timestamp {
    earlier(at, jiff::SignedDuration::from_nanos(1))
}

/// The objects of a Sync that is deleted go step by step: none is deleted while an object of an earlier step is there.
/// And what was there before Starling is never deleted where its deletion deletes others.
pub(super) fn objects_go_in_order(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            let deletes = member.own_writes.iter().map(|own| own.write);
            for write in deletes.filter(|write| write.verb != Verb::Write && !had_begun(member, write)) {
                let mut violation = |rule, message| {
                    found.push(Violation {
                        rule,
                        at: write.at,
                        cluster: Some(cluster.to_owned()),
                        message: format!("{} was deleted {message}", write.key()),
                    });
                };
                if takes_others_along(&write.key()) && was_there_before(member, write) {
                    violation(Rule::Adopted, "although it was there before Starling".to_owned());
                }
                if let Some(earlier) = remaining_of_earlier_step(world, cluster, member, write) {
                    violation(Rule::DeletionOrder, format!("before {earlier}"));
                }
            }
        }
    }
    found
}

fn was_there_before(member: &Member<'_>, write: &Write) -> bool {
    let versions = member.versions(&write.key()).iter();
    let mut same = versions.filter(|version| uid(&version.write.object) == uid(&write.object));
    same.next().is_some_and(|first| !is_own(first.write))
}

/// Returns an object of an earlier step of the same Sync that is still there.
fn remaining_of_earlier_step(
    world: &World<'_>,
    cluster: &str,
    member: &Member<'_>,
    write: &Write,
) -> Option<Key> {
    let label = owner(&write.object);
    let timelines = world.timelines(world.owner(label)?, cluster);
    if !timelines.iter().any(|timeline| is_being_deleted(timeline, write)) {
        return None;
    }
    let step = DeletionStep::of(&object_id(&write.key()));
    let listed = member.inventories(earlier_moment(write.at)).into_iter();
    let earlier = listed.filter(|(of, key, _)| of == label && DeletionStep::of(&object_id(key)) < step);
    let mut remaining = earlier.filter(|(_, key, listed_uid)| {
        let versions = member.versions(key);
        let known = versions.partition_point(|version| version.write.at <= write.at);
        versions[..known].last().is_some_and(|last| {
            let object = &last.write.object;
            !last.is_gone() && uid(object) == listed_uid && owner(object) == label
        })
    });
    remaining.next().map(|(_, key, _)| key)
}

fn object_id(key: &Key) -> ObjectId {
    ObjectId {
        group: key.group.clone(),
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}
