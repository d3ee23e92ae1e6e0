//! Which clusters have one of the slots of a group, as far as the controller must have known.

use jiff::{SignedDuration, Timestamp};
use starling_api::{Cluster, RolloutDirection, RolloutStatus};

use super::bounds::Moment;
use crate::judge::hub::{Id, after, is_reachable, span};
use crate::judge::targets::{Target, is_done, is_failing};
use crate::judge::world::SyncStory;

impl<'m> Moment<'m> {
    /// The targets that a cluster was to hold just before.
    pub(super) fn targets(&self, cluster: &str) -> Vec<(&'m SyncStory<'m>, &'m Target)> {
        let stories = self.world.syncs.iter().filter(|story| story.cluster == cluster);
        stories
            .filter(|story| story.owner_group() == Some((&self.id.namespace, &self.id.name)))
            .filter_map(|story| Some((story, story.target_before(self.target.index)?)))
            .collect()
    }

    pub(super) fn is_before(&self, when: Option<(Timestamp, usize)>) -> bool {
        when.is_some_and(|(_, index)| index < self.target.index)
    }

    pub(super) fn is_in_flight(&self, cluster: &str) -> bool {
        if !self.can_be_worked_on(cluster) {
            return false;
        }
        let targets = self.targets(cluster);
        let reachable = self.cluster_always(cluster, is_reachable);
        let is_open = |target: &Target| {
            // Older than what rolls, also where what was good is admitted beside it.
            let leftover = target.release != self.rolled() && !reachable;
            target.is_admission && !leftover && !has_ended(&targets, target, |end| self.is_before(end))
        };
        targets.iter().any(|(story, target)| {
            (is_open(target) && !self.may_be_late(&targets, target)) || self.soaks(story, target)
        })
    }

    /// Whether a cluster holds what rolls and had not been healthy for long enough.
    fn soaks(&self, story: &SyncStory<'_>, target: &Target) -> bool {
        let at_once = |rollout: &RolloutStatus| rollout.direction == RolloutDirection::BackAtOnce;
        let soaks = self
            .group
            .iter()
            .map(|group| span(group.spec.rollout_strategy.min_success_time));
        let soak = soaks.min().unwrap_or(SignedDuration::ZERO);
        let (_, latest) = self.world.history.clock.shown(self.from, self.target.at);
        let is_of_it = target.is_admission && target.release == self.rolled();
        is_of_it
            && !self.rollout().is_some_and(at_once)
            && self.cluster_always(&story.cluster, is_reachable)
            && story.track.always(self.from, self.target.at, |sync| {
                let status = sync.status.clone().unwrap_or_default();
                let since: Option<Timestamp> = status.healthy_since.parse().ok();
                let once = status
                    .longest_healthy
                    .is_some_and(|longest| span(longest) >= soak);
                let now = since.is_some_and(|since| after(since, soak) > latest);
                now && !once && is_done(&self.world.digests, sync, &target.wanted)
            })
    }

    /// Whether the time of an admission may have been over when this one was decided.
    pub(super) fn may_be_late(&self, targets: &[(&SyncStory<'_>, &Target)], target: &Target) -> bool {
        let (_, latest) = self.world.history.clock.shown(self.from, self.target.at);
        self.deadline(targets, target) <= latest
    }

    /// Whether the cluster that is admitted has a slot already.
    pub(super) fn has_a_slot(&self) -> bool {
        self.is_in_flight(&self.story.cluster) || self.is_at_work_again()
    }

    /// With all slots taken by `others`: whether what the cluster itself was at was over within the lag only, for the controller
    /// perhaps not yet. What it is admitted to in place of that takes no slot of another's. That counts only where more are at work
    /// than there are slots, because clusters were out, had their slots taken, and came back: itself, or so many others.
    /// Everywhere else its end is what the controller itself has written.
    pub(super) fn ended_while_too_many_were_at_work(&self, others: &[&str], slots: usize) -> bool {
        let itself = &self.story.cluster;
        let (earliest, _) = self.world.history.clock.shown(self.from, self.target.at);
        let known = |end: Option<(Timestamp, usize)>| end.is_some_and(|(at, _)| at <= self.from);
        let targets = self.targets(itself);
        let was_open = targets.iter().any(|(_, target)| {
            let over = has_ended(&targets, target, known) || self.deadline(&targets, target) <= earliest;
            target.is_admission && !over
        });
        let track = self.world.hub.cluster(itself);
        let reachable = track.is_some_and(|track| {
            let mut versions = track.during(self.from, self.target.at);
            versions.any(|version| is_reachable(&version.object))
        });
        let returned = others.iter().filter(|cluster| self.has_returned(cluster)).count();
        was_open
            && reachable
            && self.can_be_worked_on(itself)
            && (self.has_returned(itself) || others.len() - returned < slots)
    }

    /// Whether a cluster was not selected, lost or suspended for a time, after it had been admitted to what it is at, or was at within
    /// the lag: what is newer goes into the same slot.
    fn has_returned(&self, cluster: &str) -> bool {
        let its = Id::new(&self.id.namespace, cluster);
        let always_in = |since| {
            let span = (since, self.target.at);
            let mut groups = self.group.iter();
            groups.all(|group| self.world.hub.always_selected(group, &its, span, is_reachable))
        };
        let stories = self.world.group_stories(self.id, cluster);
        let mut lately = stories.flat_map(|story| &story.targets).filter(|target| {
            let before = target.index < self.target.index;
            before && target.is_admission && target.is_wanted_during(self.from, self.target.at)
        });
        lately.any(|target| !always_in(target.at))
    }

    /// Whether the cluster itself failed with what it was admitted to, in time, and may be known to be at work on it again: a
    /// retry that goes well is work of the same admission, which nobody admits.
    fn is_at_work_again(&self) -> bool {
        let cluster = &self.story.cluster;
        let targets = self.targets(cluster);
        let reachable = self.cluster_always(cluster, is_reachable);
        self.can_be_worked_on(cluster)
            && reachable
            && targets.iter().any(|(story, target)| {
                let failing = story.track.always(self.from, self.target.at, |sync| {
                    is_failing(&self.world.digests, sync, &target.wanted)
                });
                let open = target.is_admission && !self.is_before(target.done) && !failing;
                open && self.is_before(target.failed) && !self.may_be_late(&targets, target)
            })
    }

    /// When the admission of a cluster ends at the latest, by the controller's clock.
    pub(super) fn deadline(&self, targets: &[(&SyncStory<'_>, &Target)], target: &Target) -> Timestamp {
        let together = targets
            .iter()
            .filter(|(_, other)| other.release == target.release);
        let last = together
            .map(|(_, other)| other.recorded)
            .max()
            .unwrap_or(target.recorded);
        let track = self.world.hub.groups.get(self.id);
        let versions = track
            .into_iter()
            .flat_map(|track| track.during(target.at, self.target.at));
        let shortest = versions
            .map(|version| span(version.object.spec.rollout_strategy.progress_deadline))
            .min();
        after(last, shortest.unwrap_or(SignedDuration::MAX))
    }

    /// Whether nobody has suspended the cluster or a Sync on it, and it was selected all the time, and it can be told what to hold.
    pub(super) fn can_be_worked_on(&self, cluster: &str) -> bool {
        let from = self.known_since(cluster);
        let its = Id::new(&self.id.namespace, cluster);
        let mut groups = self.group.iter();
        let selected = groups.all(|group| {
            let span = (from, self.target.at);
            self.world.hub.always_selected(group, &its, span, |_| true)
        });
        let is_held = self.group.iter().any(|group| {
            let problems = group.status.iter().flat_map(|status| &status.problems);
            problems
                .into_iter()
                .any(|problem| problem.cluster == cluster && problem.reason == "InvalidParameters")
        });
        let suspended = self.targets(cluster).iter().any(|(story, _)| {
            let mut versions = story.track.during(from, self.target.at);
            versions.any(|version| {
                let object = &version.object;
                object.spec.template.suspend || object.metadata.deletion_timestamp.is_some()
            })
        });
        let active = self.cluster_always(cluster, |cluster| !cluster.spec.suspend);
        selected && active && !suspended && !is_held
    }

    /// Since when a state of a cluster may still be what the controller knows: for as long as the lag, but not since before it
    /// told the cluster what to hold, for then it knew.
    pub(super) fn known_since(&self, cluster: &str) -> Timestamp {
        let told = self.targets(cluster).iter().map(|(_, target)| target.at).max();
        told.map_or(self.from, |told| told.max(self.from))
    }

    pub(super) fn cluster_always(&self, cluster: &str, is: impl Fn(&Cluster) -> bool) -> bool {
        let track = self.world.hub.cluster(cluster);
        track.is_some_and(|track| track.always(self.known_since(cluster), self.target.at, is))
    }
}

/// Whether a target is through, or failed: it itself, or another of its release, or one that came later.
fn has_ended(
    targets: &[(&SyncStory<'_>, &Target)],
    target: &Target,
    counts: impl Fn(Option<(Timestamp, usize)>) -> bool,
) -> bool {
    let gave_up = targets.iter().any(|(_, other)| {
        let with_it = other.release == target.release || other.at >= target.at;
        with_it && counts(other.failed)
    });
    gave_up || counts(target.done)
}
