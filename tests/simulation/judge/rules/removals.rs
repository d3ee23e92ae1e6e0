//! Removals: what a group has to wait for before it deletes a Sync.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::{DeletionPolicy, EntryRevision, RolloutDirection, SyncGroup, SyncResource};

use super::approvals::{may_leave, may_remove_entries};
use super::deletions::begun_by_us;
use super::limits::Moment;
use super::suspended::is_set_back;
use super::windows::is_closed;
use crate::judge::actions::{actions, is_paused};
use crate::judge::history::{History, Verb};
use crate::judge::hub::{Id, Track, Version, after, earlier, is_reachable, span, stage_of};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Starling begins to delete a Sync of a group only if none of this is true, as far as the controller must have known:
///
/// - the group is suspended, or reports that the management cluster was set back, or, unless the group is being
///   deleted, an operator paused its rollout;
/// - the objects are deleted, and: no window of the cluster is open, unless an immediate rollback removes an entry; or,
///   unless the group is being deleted, the stage of the cluster has not opened; or as many other clusters as
///   `maxConcurrency` are in flight or losing theirs;
/// - the group is being deleted with its objects, and an earlier stage has Syncs;
/// - the cluster is not selected, and: the Sync is suspended; or the cluster was selected within `unselectedGrace`; or
///   more than `maxUnselected` clusters are not selected, without an approval;
/// - the cluster is selected, and its entry was removed, and: an entry of the release is not done there; or the release
///   has failed on more clusters than `maxFailures` allows; or an automatic rollback lacks the entry, without an
///   approval.
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
        let is_deleted = group.metadata.deletion_timestamp.is_some();
        // A group that is not being deleted is read just before.
        let read = if is_deleted {
            known
        } else {
            earlier(at, self.world.history.live)
        };
        if self.groups.always(read, at, |group| group.spec.suspend) {
            return Some("while its group was suspended");
        }
        if self.groups.always(known, at, is_set_back) {
            return Some("after a restore of the management cluster");
        }
        if is_deleted {
            return self.refused_with_its_group(group);
        }
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let rollout = rollout.map(|rollout| actions(self.world.hub, self.id, rollout.id));
        if rollout.is_some_and(|actions| is_paused(&actions, known, at)) {
            return Some("while the rollout was paused");
        }
        // A label that was set since the Cluster was read says nothing about the removal.
        let read = earlier(at, self.world.history.live).max(self.created());
        let was_selected = |at| self.is_selected(&self.timeline.cluster, at);
        if was_selected(read) && was_selected(earlier_moment(at)) {
            return self.refused_as_entry();
        }
        self.refused_as_unselected(group)
    }

    fn refused_with_its_group(&self, group: &SyncGroup) -> Option<&'static str> {
        if group.spec.deletion_policy == DeletionPolicy::Orphan {
            return None;
        }
        if self.is_window_closed() {
            return Some("outside the windows of its cluster");
        }
        if self.has_earlier_stage(group) {
            return Some("before the clusters of an earlier stage were done");
        }
        let deadline = span(group.spec.rollout_strategy.progress_deadline);
        let losing = self.losing(deadline, |_| true);
        let clusters = self.clusters_with_syncs().len();
        (losing.len() >= self.slots(clusters)).then_some("without a slot")
    }

    fn refused_as_unselected(&self, group: &SyncGroup) -> Option<&'static str> {
        let (at, known) = (self.version.at, self.known());
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
        if group.spec.when_unselected == DeletionPolicy::Orphan {
            return None;
        }
        if self.is_window_closed() {
            return Some("outside the windows of its cluster");
        }
        let target = self.as_target()?;
        let moment = Moment::new(self.world, self.id, self.groups, self.timeline, &target);
        // Without clusters the stages have nothing to wait for, until the group knows of one.
        let selected = |at| self.world.hub.selected(&self.id.namespace, group, at);
        let has_clusters = !selected(known).is_empty() && !selected(at).is_empty();
        if !moment.selected.is_empty() && has_clusters && moment.is_before_its_stage() {
            return Some("before its stage had opened");
        }
        self.no_slot(group, &moment).then_some("without a slot")
    }

    /// The removal of an entry is a part of the release: it waits for what a start on the cluster waits for.
    fn refused_as_entry(&self) -> Option<&'static str> {
        let target = self.as_target()?;
        let moment = Moment::new(self.world, self.id, self.groups, self.timeline, &target);
        let rollout = moment.rollout()?;
        if rollout
            .revisions
            .iter()
            .any(|rolled| self.timeline.is_of(&rolled.sync))
        {
            return None;
        }
        if rollout.automatic && !self.is_approved_after(&rollout.start_time) {
            return Some("by an automatic rollback, without an approval");
        }
        // An immediate rollback does not wait for windows, and what its release lacks is a part of it.
        if rollout.direction != RolloutDirection::BackAtOnce && self.is_window_closed() {
            return Some("outside the windows of its cluster");
        }
        let is_done = |rolled: &EntryRevision| {
            let mut timelines = self.world.group_timelines(self.id, &self.timeline.cluster);
            timelines.any(|timeline| {
                let mut targets = timeline.targets.iter();
                let is_of = timeline.is_of(&rolled.sync);
                is_of
                    && targets.any(|target| {
                        let done = target.done.is_some_and(|(_, index)| index < self.version.index);
                        done && target.desired.revision == rolled.revision
                    })
            })
        };
        if !rollout.revisions.iter().all(is_done) {
            return Some("before the entries of the release were done on its cluster");
        }
        let has_begun = self
            .world
            .group_timelines(self.id, &self.timeline.cluster)
            .any(|timeline| {
                let sync = timeline.track.before(self.version.index);
                sync.is_some_and(|sync| sync.object.metadata.deletion_timestamp.is_some())
            });
        moment.refuses_removal(has_begun)
    }

    /// Returns the removal as a target of the release, so that it can be judged as a start.
    fn as_target(&self) -> Option<Target> {
        let last = self.timeline.target_before(self.version.index)?;
        let group = self.groups.before(self.version.index)?;
        let status = group.object.status.as_ref()?;
        let rollout = status.rollout.as_ref()?;
        Some(Target {
            at: self.version.at,
            index: self.version.index,
            decided: self.version.at,
            recorded: self.version.at,
            is_admission: false,
            release: rollout.release.clone(),
            rollout: rollout.id,
            desired: last.desired.clone(),
            objects: None,
            until: None,
            done: None,
            failed: None,
            returned: None,
        })
    }

    fn is_approved_after(&self, start: &str) -> bool {
        let start: Timestamp = start.parse().unwrap_or(Timestamp::MIN);
        let since = self.world.history.clock.when(start, self.version.at);
        may_remove_entries(self.world, self.id, since, self.version.at)
    }

    /// Whether no window of the cluster was open at any moment at which the removal may have been decided.
    fn is_window_closed(&self) -> bool {
        let at = self.version.at;
        let from = earlier(at, self.world.history.live);
        let cluster = self.world.hub.cluster(&self.timeline.cluster);
        let Some(cluster) = cluster.and_then(|track| track.at(at)) else {
            return false;
        };
        let (first, last) = self.world.history.clock.shown(from, at);
        let mut groups = self.groups.during(from, at);
        groups.all(|group| {
            let windows = &group.object.spec.rollout_strategy.windows;
            is_closed(windows, &cluster.object, first, last)
        })
    }

    /// Whether a cluster of an earlier stage has a Sync whose deletion has not begun, as far as the stages are known.
    fn has_earlier_stage(&self, group: &SyncGroup) -> bool {
        let from = self.known();
        let stages = &group.spec.rollout_strategy.stages;
        let stage = |cluster: &str| {
            let mut versions = self.world.hub.cluster(cluster)?.during(from, self.version.at);
            let first = stage_of(stages, &versions.next()?.object);
            let is_same = versions.all(|version| stage_of(stages, &version.object) == first);
            is_same.then_some(first)
        };
        let Some(own) = stage(&self.timeline.cluster) else {
            return false;
        };
        self.world.syncs.iter().any(|timeline| {
            let of_group = timeline.owner_group() == Some((&self.id.namespace, &self.id.name));
            let stays = timeline.track.always(from, self.version.at, |sync| {
                sync.metadata.deletion_timestamp.is_none()
            });
            of_group && stays && stage(&timeline.cluster).is_some_and(|stage| stage < own)
        })
    }

    /// Returns the clusters on which the group has a Sync.
    fn clusters_with_syncs(&self) -> BTreeSet<&str> {
        let syncs = self.world.syncs.iter();
        let of_group = syncs.filter(|timeline| {
            let is_of_group = timeline.owner_group() == Some((&self.id.namespace, &self.id.name));
            is_of_group && timeline.track.before(self.version.index).is_some()
        });
        of_group.map(|timeline| timeline.cluster.as_str()).collect()
    }

    /// The time since when both the group and the cluster exist.
    fn created(&self) -> Timestamp {
        let cluster = self.world.hub.cluster(&self.timeline.cluster);
        let cluster = cluster.and_then(|track| track.versions().first());
        let group = self.groups.versions().first().map(|version| version.at);
        let both = group.max(cluster.map(|version| version.at));
        both.unwrap_or(self.version.at)
    }

    /// The time before which every write was known when the deletion was sent.
    fn known(&self) -> Timestamp {
        let History { lag, live, .. } = self.world.history;
        earlier(earlier(self.version.at, *lag), *live)
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
        let lost: BTreeSet<&str> = lost.copied().collect();
        let allowed = group.spec.max_unselected.of_rounded_down(previous.len()).max(1);
        // What loses no object is not counted, and so the use of its approval leaves no trace.
        let keeps_objects = group.spec.when_unselected == DeletionPolicy::Orphan;
        let may_leave = may_leave(self.world, self.id, &self.timeline.cluster, self.version.index)
            || (keeps_objects && may_remove_entries(self.world, self.id, Timestamp::MIN, at));
        lost.len() > allowed && !may_leave
    }

    fn no_slot(&self, group: &SyncGroup, moment: &Moment<'_>) -> bool {
        let at = self.version.at;
        let deadline = span(group.spec.rollout_strategy.progress_deadline);
        let is_unselected = |version: &Version<SyncResource>, cluster: &str| {
            version.object.spec.template.deletion_policy == DeletionPolicy::Delete
                && !self.is_selected(cluster, version.at)
        };
        let mut taken = BTreeSet::new();
        for timeline in self.others() {
            let is_losing = |version: &Version<SyncResource>| {
                self.is_under_way(timeline, version, deadline) && is_unselected(version, &timeline.cluster)
            };
            if begun_by_us(timeline).any(is_losing) {
                taken.insert(timeline.cluster.as_str());
            }
        }
        let losing = taken.len();
        taken.extend(
            moment
                .selected
                .iter()
                .filter(|cluster| moment.is_in_flight(cluster)),
        );
        // The slot is that of the cluster. It has one already while another of its Syncs is being removed.
        if self.loses_another(deadline) {
            return false;
        }
        taken.remove(self.timeline.cluster.as_str());
        let selected = self.world.hub.selected(&self.id.namespace, group, at).len();
        taken.len() >= self.slots(selected.max(moment.selected.len()) + losing + 1)
    }

    /// Whether the removal of another Sync of the cluster is in progress, or was when the controller decided.
    fn loses_another(&self, deadline: SignedDuration) -> bool {
        let mut timelines = self.world.group_timelines(self.id, &self.timeline.cluster);
        timelines.any(|timeline| {
            let mut begun = begun_by_us(timeline).filter(|begun| begun.index < self.version.index);
            begun.any(|begun| self.was_under_way(timeline, begun, deadline, self.known()))
        })
    }

    /// Returns the other clusters on which the group began to delete a Sync that is still there.
    fn losing(&self, deadline: SignedDuration, counts: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let others = self.others().filter(|timeline| {
            let mut begun = timeline
                .track
                .versions()
                .iter()
                .filter(|version| version.verb != Verb::Write);
            let reachable = self.world.hub.cluster(&timeline.cluster);
            let reachable =
                reachable.is_some_and(|track| track.always(self.known(), self.version.at, is_reachable));
            reachable && begun.any(|version| self.is_under_way(timeline, version, deadline))
        });
        others
            .map(|timeline| timeline.cluster.as_str())
            .filter(|cluster| counts(cluster))
            .collect()
    }

    fn others(&self) -> impl Iterator<Item = &SyncTimeline<'_>> {
        self.world.syncs.iter().filter(|timeline| {
            let of_group = timeline.owner_group() == Some((&self.id.namespace, &self.id.name));
            timeline.cluster != self.timeline.cluster && of_group
        })
    }

    fn is_under_way(
        &self,
        timeline: &SyncTimeline<'_>,
        begun: &Version<SyncResource>,
        deadline: SignedDuration,
    ) -> bool {
        self.was_under_way(timeline, begun, deadline, self.version.at)
    }

    /// The same, where the end of the removal counts only up to a time.
    fn was_under_way(
        &self,
        timeline: &SyncTimeline<'_>,
        begun: &Version<SyncResource>,
        deadline: SignedDuration,
        ended: Timestamp,
    ) -> bool {
        let at = self.version.at;
        let (_, latest) = self.world.history.clock.shown(begun.at, at);
        // The cluster may have returned since, and have another Sync of this name.
        let later = timeline.track.versions().iter();
        let mut later = later.filter(|version| version.index >= begun.index && version.at <= ended);
        let is_gone = later.any(|version| {
            // A restored management cluster may not know of the deletion.
            version.verb == Verb::Delete || version.object.metadata.deletion_timestamp.is_none()
        });
        begun.at <= at && after(begun.at, deadline) > latest && !is_gone
    }

    /// Returns the most slots that the group had while the removal may have been decided.
    fn slots(&self, clusters: usize) -> usize {
        let groups = self.groups.during(self.known(), self.version.at);
        let slots = groups.map(|group| {
            let slots = group.object.spec.rollout_strategy.max_concurrency;
            slots.of_rounded_up(clusters)
        });
        slots.max().unwrap_or_default().max(1)
    }
}

/// The moment before a write.
fn earlier_moment(at: Timestamp) -> Timestamp {
    earlier(at, jiff::SignedDuration::from_nanos(1))
}
