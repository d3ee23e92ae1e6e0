//! The clusters that have a slot of a group, as far as the controller must have known.

use jiff::{SignedDuration, Timestamp};
use starling_api::{Cluster, RolloutDirection, RolloutStatus, SyncGroup};

use super::limits::Moment;
use crate::judge::hub::{Id, after, is_reachable, span};
use crate::judge::targets::{Target, is_done, reports_failure};
use crate::judge::world::SyncTimeline;

impl<'m> Moment<'m> {
    /// Returns the targets of a cluster just before the admission.
    pub(super) fn targets(&self, cluster: &str) -> Vec<(&'m SyncTimeline<'m>, &'m Target)> {
        let timelines = self
            .world
            .syncs
            .iter()
            .filter(|timeline| timeline.cluster == cluster);
        timelines
            .filter(|timeline| timeline.owner_group() == Some((&self.id.namespace, &self.id.name)))
            .filter_map(|timeline| Some((timeline, timeline.target_before(self.target.index)?)))
            .collect()
    }

    /// Returns the targets of a cluster for the entries that the release has. The Sync of a removed entry says nothing
    /// about the release.
    pub(super) fn rolled_targets(&self, cluster: &str) -> Vec<(&'m SyncTimeline<'m>, &'m Target)> {
        let rolled = self.rollout().map_or(&[][..], |rollout| &rollout.revisions);
        let mut targets = self.targets(cluster);
        targets.retain(|(timeline, _)| {
            rolled.is_empty() || rolled.iter().any(|rolled| timeline.is_of(&rolled.sync))
        });
        targets
    }

    pub(super) fn is_before(&self, when: Option<(Timestamp, usize)>) -> bool {
        when.is_some_and(|(_, index)| index < self.target.index)
    }

    pub(super) fn is_in_flight(&self, cluster: &str) -> bool {
        if !self.can_be_worked_on(cluster) {
            return false;
        }
        let targets = self.rolled_targets(cluster);
        let reachable = self.cluster_always(cluster, is_reachable);
        let is_open = |target: &Target| {
            // Older than the release of the rollout, also if the last known good release is admitted besides.
            let leftover = target.release != self.rolled() && !reachable;
            target.is_admission
                && !leftover
                && !self.is_before(target.returned)
                && !has_ended(&targets, target, |end| self.is_before(end))
        };
        targets.iter().any(|(timeline, target)| {
            // With an entry that failed, the cluster waits for a retry, whatever its other entries do.
            let soaks = || !has_failed(&targets, target, |end| self.is_before(end));
            (is_open(target) && !self.may_be_late(&targets, target))
                || (self.is_soaking(timeline, target) && soaks())
        })
    }

    /// Whether a cluster has applied the release and has not been healthy for long enough.
    fn is_soaking(&self, timeline: &SyncTimeline<'_>, target: &Target) -> bool {
        let at_once = |rollout: &RolloutStatus| rollout.direction == RolloutDirection::BackAtOnce;
        let is_soaking = self
            .group
            .iter()
            .map(|group| span(group.spec.rollout_strategy.min_success_time));
        let soak = is_soaking.min().unwrap_or(SignedDuration::ZERO);
        let (_, latest) = self.world.history.clock.shown(self.from, self.target.at);
        let is_of_it = target.is_admission && target.release == self.rolled();
        is_of_it
            && !soak.is_zero()
            && !self.rollout().is_some_and(at_once)
            && self.cluster_always(&timeline.cluster, is_reachable)
            && timeline.track.always(self.from, self.target.at, |sync| {
                let status = sync.status.clone().unwrap_or_default();
                let since: Option<Timestamp> = status.healthy_since.parse().ok();
                let once = status
                    .longest_healthy
                    .is_some_and(|longest| span(longest) >= soak);
                let now = since.is_some_and(|since| after(since, soak) > latest);
                now && !once && is_done(&self.world.digests, sync, &target.desired)
            })
    }

    /// Whether the deadline of an admission may have passed when this one was decided.
    pub(super) fn may_be_late(&self, targets: &[(&SyncTimeline<'_>, &Target)], target: &Target) -> bool {
        let (_, latest) = self.world.history.clock.shown(self.from, self.target.at);
        self.deadline(targets, target) <= latest
    }

    /// Whether the admitted cluster has a slot already.
    pub(super) fn has_slot(&self) -> bool {
        self.is_in_flight(&self.timeline.cluster) || self.is_retried()
    }

    /// With all slots taken by `others`: whether the cluster's own work ended within the lag, for the controller
    /// perhaps not yet. The admission that replaces it takes no slot of another cluster. That counts only if more
    /// clusters are in flight than there are slots, because clusters were not selected or unreachable, or their
    /// deadline had passed for a clock that was ahead, so that they lost their slots, and returned: the cluster
    /// itself, or enough others. In all other cases the controller itself has written the end.
    pub(super) fn ended_with_too_many_in_flight(&self, others: &[&str], slots: usize) -> bool {
        let cluster = &self.timeline.cluster;
        let (earliest, _) = self.world.history.clock.shown(self.from, self.target.at);
        let known = |end: Option<(Timestamp, usize)>| end.is_some_and(|(at, _)| at <= self.from);
        let targets = self.targets(cluster);
        let was_open = targets.iter().any(|(_, target)| {
            let over = has_ended(&targets, target, known)
                || known(target.returned)
                || self.deadline(&targets, target) <= earliest;
            target.is_admission && !over
        });
        let track = self.world.hub.cluster(cluster);
        let reachable = track.is_some_and(|track| {
            let mut versions = track.during(self.from, self.target.at);
            versions.any(|version| is_reachable(&version.object))
        });
        let returned = others.iter().filter(|cluster| self.has_returned(cluster)).count();
        was_open
            && reachable
            // Not during the whole span: it may have returned just now.
            && self.selected.contains(cluster.as_str())
            && !self.is_held(cluster)
            && (self.has_returned(cluster) || others.len() - returned < slots)
    }

    /// Whether a cluster was not selected, unreachable or suspended for a time after its admission, now or within the
    /// lag, or a release lacked its entry, or its deadline had passed for a clock that was ahead: a newer release uses
    /// the same slot.
    fn has_returned(&self, cluster: &str) -> bool {
        let its = Id::new(&self.id.namespace, cluster);
        let always_in = |since| {
            let span = (since, self.target.at);
            let mut groups = self.group.iter();
            groups.all(|group| self.world.hub.always_selected(group, &its, span, is_reachable))
        };
        let timelines = self.world.group_timelines(self.id, cluster);
        let mut lately = timelines.flat_map(|timeline| &timeline.targets).filter(|target| {
            let before = target.index < self.target.index;
            before && target.is_admission && target.is_desired_during(self.from, self.target.at)
        });
        lately.any(|target| !always_in(target.at))
            || self.has_returned_with_an_entry(cluster)
            || self.has_returned_with_the_clock(cluster)
    }

    /// Whether the deadline of an admission had passed for a clock that was ahead, and is still to come for the one
    /// that decided: the cluster lost its slot, and has it again.
    fn has_returned_with_the_clock(&self, cluster: &str) -> bool {
        let targets = self.targets(cluster);
        targets.iter().any(|(_, target)| {
            let deadline = self.deadline(&targets, target);
            let (_, latest) = self.world.history.clock.shown(target.at, self.target.at);
            target.is_admission && deadline <= latest && self.target.recorded < deadline
        })
    }

    /// Whether a release since an unfinished admission of the cluster lacked its entry: it had no slot until the entry
    /// returned.
    fn has_returned_with_an_entry(&self, cluster: &str) -> bool {
        let Some(groups) = self.world.hub.groups.get(self.id) else {
            return false;
        };
        self.rolled_targets(cluster)
            .into_iter()
            .any(|(timeline, target)| {
                let lacks = |group: &SyncGroup| {
                    let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
                    rollout.is_some_and(|rollout| {
                        let revisions = &rollout.revisions;
                        !revisions.is_empty() && !revisions.iter().any(|rolled| timeline.is_of(&rolled.sync))
                    })
                };
                let mut since = groups.during(target.at, self.target.at);
                target.is_admission && since.any(|version| lacks(&version.object))
            })
    }

    /// Whether the cluster failed with its admission before the deadline, and may be known to be retried: a successful
    /// retry belongs to the same admission and has no admission of its own.
    fn is_retried(&self) -> bool {
        let cluster = &self.timeline.cluster;
        let targets = self.targets(cluster);
        let reachable = self.cluster_always(cluster, is_reachable);
        self.can_be_worked_on(cluster)
            && reachable
            && targets.iter().any(|(timeline, target)| {
                let failing = timeline.track.always(self.from, self.target.at, |sync| {
                    reports_failure(&self.world.digests, sync, &target.desired)
                });
                let open = target.is_admission && !self.is_before(target.done) && !failing;
                open && self.is_before(target.failed) && !self.may_be_late(&targets, target)
            })
    }

    /// Returns the deadline of a cluster's admission, by the controller's clock.
    pub(super) fn deadline(&self, targets: &[(&SyncTimeline<'_>, &Target)], target: &Target) -> Timestamp {
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

    /// Whether the cluster can be worked on: selected during the whole span, active, and neither it nor a Sync on it
    /// suspended.
    pub(super) fn can_be_worked_on(&self, cluster: &str) -> bool {
        let from = self.known_since(cluster);
        let its = Id::new(&self.id.namespace, cluster);
        let mut groups = self.group.iter();
        let selected = groups.all(|group| {
            let span = (from, self.target.at);
            self.world.hub.always_selected(group, &its, span, |_| true)
        });
        let active = self.cluster_always(cluster, |cluster| !cluster.spec.suspend);
        selected && active && !self.is_held(cluster)
    }

    /// Whether a Sync on the cluster was suspended or being deleted within the lag, or has invalid parameters.
    fn is_held(&self, cluster: &str) -> bool {
        let from = self.known_since(cluster);
        let is_invalid = self.group.iter().any(|group| {
            let problems = group.status.iter().flat_map(|status| &status.problems);
            problems
                .into_iter()
                .any(|problem| problem.cluster == cluster && problem.reason == "InvalidParameters")
        });
        is_invalid
            || self.targets(cluster).iter().any(|(timeline, _)| {
                let mut versions = timeline.track.during(from, self.target.at);
                versions.any(|version| {
                    let object = &version.object;
                    object.spec.template.suspend || object.metadata.deletion_timestamp.is_some()
                })
            })
    }

    /// Returns the start of the span in which a state of a cluster may still be the controller's: the lag, but not
    /// before the admission of the cluster, at which the controller knew its state.
    pub(super) fn known_since(&self, cluster: &str) -> Timestamp {
        let admitted = self.targets(cluster).iter().map(|(_, target)| target.at).max();
        admitted.map_or(self.from, |admitted| admitted.max(self.from))
    }

    pub(super) fn cluster_always(&self, cluster: &str, is: impl Fn(&Cluster) -> bool) -> bool {
        let track = self.world.hub.cluster(cluster);
        track.is_some_and(|track| track.always(self.known_since(cluster), self.target.at, is))
    }
}

/// Whether a target is done or failed: the target itself, another of its release, or a later one.
fn has_ended(
    targets: &[(&SyncTimeline<'_>, &Target)],
    target: &Target,
    counts: impl Fn(Option<(Timestamp, usize)>) -> bool,
) -> bool {
    counts(target.done) || has_failed(targets, target, counts)
}

/// Whether the same cluster failed with the same release, or with a later one.
fn has_failed(
    targets: &[(&SyncTimeline<'_>, &Target)],
    target: &Target,
    counts: impl Fn(Option<(Timestamp, usize)>) -> bool,
) -> bool {
    targets.iter().any(|(_, other)| {
        let with_it = other.release == target.release || other.at >= target.at;
        with_it && counts(other.failed)
    })
}
