//! I4: limits. Each admission is checked at its write.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::conditions::{self, MEMBERSHIP_HELD};
use starling_api::{
    ActionType, IntOrPercent, OnFailure, RolloutAction, RolloutDirection, RolloutStatus, Stage, SyncGroup,
    SyncGroupStatus,
};

use crate::judge::actions::{ActionSpan, actions, is_aborted, is_paused, skips};
use crate::judge::hub::{Id, Track, after, earlier, stage_of};
use crate::judge::targets::{Target, is_failing};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// An admission takes a free slot, unless its cluster has one: fewer than `maxConcurrency` others are in flight, in the
/// group and in the stage of the cluster. Nothing is admitted while the release has failed on more clusters than
/// `maxFailures` allows, of the group or of a stage that has not passed. In a stage that has not opened, only the last
/// known good release is admitted, on clusters that never had another one ([`stages`](super::stages) checks when a
/// stage may open). Nothing is admitted while an operator has paused or aborted the rollout, nor on a skipped cluster.
/// A failed target is admitted again only if an operator requests it after the last admission, for this cluster and
/// stage, once, in a slot, whatever has failed. Nothing is admitted while the group is suspended, or reports that too
/// many clusters left at once; what was done before and is admitted again changes nothing, and waits for that all the
/// same.
///
/// Evidence: the specs and statuses of the group's Syncs in the order in which the management cluster committed them. A
/// cluster is in flight from the write that admits it until its Sync reports it as done or failed, or until
/// `progressDeadline`, or gives its slot back, and again while it has not been healthy for `minSuccessTime`; not while
/// it is suspended, not selected, or unreachable with an older release. Once done, it is not in flight again for the
/// same admission; if it failed and is retried, the next admission on it takes no slot of another cluster. Neither does
/// an admission on a cluster that was done within the lag, if returned clusters are the reason that too many are in
/// flight. The limits are the widest that were current, or may still have been for the controller, at the decision; a
/// failure counts once it must have been known. Percentages are of the selected clusters, or of those in the stage;
/// concurrency rounds up and is at least one, failures round down. An operator action counts if it existed during the
/// whole lag. Within the lag after a restore of the management cluster nothing is evidence.
pub(super) fn admissions_respect_the_limits(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let mut admissions: Vec<(&SyncTimeline<'_>, &Target)> = world
            .hub
            .clusters
            .keys()
            .flat_map(|cluster| world.group_timelines(id, &cluster.name))
            .flat_map(|timeline| timeline.targets.iter().map(move |target| (timeline, target)))
            .filter(|(_, target)| target.is_admission)
            .collect();
        admissions.sort_by_key(|(_, target)| target.index);
        for (timeline, target) in admissions {
            let moment = Moment::new(world, id, track, timeline, target);
            found.extend(moment.violations());
        }
    }
    found
}

/// One admission, and what the controller could know when it decided.
pub(super) struct Moment<'m> {
    pub(super) world: &'m World<'m>,
    pub(super) id: &'m Id,
    pub(super) group: Vec<&'m SyncGroup>,
    pub(super) timeline: &'m SyncTimeline<'m>,
    pub(super) target: &'m Target,
    /// Start of the span that the controller may still see.
    pub(super) from: Timestamp,
    /// All clusters that may have been selected.
    pub(super) selected: BTreeSet<&'m str>,
    /// The group's status before the write.
    pub(super) status: Option<&'m SyncGroupStatus>,
    /// The operator actions of the rollout.
    pub(super) actions: Vec<ActionSpan<'m, RolloutAction>>,
}

impl<'m> Moment<'m> {
    pub(super) fn new(
        world: &'m World<'_>,
        id: &'m Id,
        track: &'m Track<SyncGroup>,
        timeline: &'m SyncTimeline<'_>,
        target: &'m Target,
    ) -> Self {
        let from = earlier(target.decided, world.history.lag);
        let versions: Vec<_> = track.during(from, target.at).collect();
        let clusters = world
            .hub
            .clusters
            .iter()
            .filter(|(of, _)| of.namespace == id.namespace);
        let mut moments = vec![from, target.at];
        moments.extend(
            clusters
                .flat_map(|(_, track)| track.during(from, target.at))
                .map(|version| version.at)
                .filter(|at| *at >= from),
        );
        let selected = versions
            .iter()
            .flat_map(|version| moments.iter().map(move |at| (version, *at)))
            .flat_map(|(version, at)| world.hub.selected(&id.namespace, &version.object, at))
            .collect();
        Self {
            world,
            id,
            group: versions.into_iter().map(|version| &version.object).collect(),
            timeline,
            target,
            from,
            selected,
            status: track
                .before(target.index)
                .and_then(|version| version.object.status.as_ref()),
            actions: actions(world.hub, id, target.rollout),
        }
    }

    fn violations(&self) -> Vec<Violation> {
        if self.is_of_a_lost_past() {
            return Vec::new();
        }
        let is_again = self.is_again();
        let mut found: Vec<Violation> = self.forbidden_by_operator().into_iter().collect();
        if is_again && self.changes_nothing() {
            return found;
        }
        let others: Vec<&str> = self
            .selected
            .iter()
            .copied()
            .filter(|cluster| *cluster != self.timeline.cluster && self.is_in_flight(cluster))
            .collect();
        if !self.has_slot() {
            let slots = self
                .widest(|group| group.spec.rollout_strategy.max_concurrency, up)
                .max(1);
            if others.len() >= slots && !self.ended_with_too_many_in_flight(&others, slots) {
                let message = format!("admitted while {others:?} were in flight, of {slots} at most");
                found.push(self.violation(Rule::Concurrency, message));
            }
            found.extend(self.stage_is_full(&others));
        }
        if is_again {
            found.extend(self.without_request());
        } else {
            found.extend(self.failure_limit_exceeded());
            found.extend(self.stage_is_closed());
        }
        found
    }

    /// Returns why an entry must not be removed from the cluster, as if its removal was a start; if another removal has
    /// begun on the cluster, it has its slot.
    pub(super) fn refuses_removal(&self, has_begun: bool) -> Option<&'static str> {
        if let Some(violation) = self.forbidden_by_operator() {
            return Some(match violation.rule {
                Rule::Skipped => "although its cluster was skipped",
                _ => "while nothing was to start",
            });
        }
        if self.is_before_its_stage() {
            return Some("before its stage had opened");
        }
        if self.failure_limit_exceeded().is_some() {
            return Some("after the release had failed on too many clusters");
        }
        let is_other = |cluster: &&str| *cluster != self.timeline.cluster;
        let others = self.selected.iter().copied().filter(is_other);
        let others: Vec<&str> = others.filter(|cluster| self.is_in_flight(cluster)).collect();
        let limit = |group: &SyncGroup| group.spec.rollout_strategy.max_concurrency;
        let is_full = others.len() >= self.widest(limit, up).max(1) || self.stage_is_full(&others).is_some();
        (is_full && !has_begun).then_some("without a slot")
    }

    /// Whether the stage of the cluster had not opened for the rollout.
    pub(super) fn is_before_its_stage(&self) -> bool {
        if self.is_of_a_lost_past() {
            return false;
        }
        let open = self.rollout().zip(self.staged()).is_none_or(|(rollout, group)| {
            let stages = group.spec.rollout_strategy.stages.len();
            let is_open = |place: usize| {
                let stage = rollout.stages.get(place);
                stage.is_some_and(|stage| !stage.start_time.is_empty() || !stage.pass_time.is_empty())
            };
            let mut places = (0..=stages).filter(|place| self.ever_in(group, &self.timeline.cluster, *place));
            let is_gone = self
                .world
                .hub
                .cluster(&self.timeline.cluster)
                .is_none_or(|track| track.during(self.from, self.target.at).next().is_none());
            is_gone || rollout.direction == RolloutDirection::BackAtOnce || places.any(is_open)
        });
        !open
    }

    /// Whether the management cluster was set back within the lag: the controller may have decided by a state, also one
    /// of its own, that the journal has no more.
    fn is_of_a_lost_past(&self) -> bool {
        let history = self.world.history;
        let mut of_hub = { history.set_backs.iter() }.filter(|(_, name)| !history.members.contains_key(name));
        of_hub.any(|(back, _)| self.from <= *back && *back <= self.target.at)
    }

    /// Returns the rollout of the admission in the group's status.
    pub(super) fn rollout(&self) -> Option<&'m RolloutStatus> {
        let rollout = self.status.and_then(|status| status.rollout.as_ref());
        rollout.filter(|rollout| rollout.id == self.target.rollout)
    }

    /// Returns the release of the rollout; the admitted one may be the last known good one.
    pub(super) fn rolled(&self) -> &str {
        self.rollout()
            .map_or(&self.target.release, |rollout| &rollout.release)
    }

    /// Whether the Sync had the same target before, and kept its slot.
    fn is_again(&self) -> bool {
        let before = self.timeline.target_before(self.target.index);
        before.is_some_and(|before| {
            before.is_admission
                && !self.is_before(before.returned)
                && before.release == self.target.release
                && before.desired == self.target.desired
        })
    }

    /// Whether the Sync was done with the same target before.
    fn changes_nothing(&self) -> bool {
        let before = self.timeline.target_before(self.target.index);
        before.is_some_and(|before| self.is_before(before.done))
    }

    fn without_request(&self) -> Option<Violation> {
        let mut actions = self.actions.iter();
        let asked = actions.any(|action| {
            action.object.spec.action == ActionType::Retry
                && action.may_be_known(self.from, self.target.index)
                && self.is_request(action)
        });
        if !asked {
            let message = "admitted to the same target again, without a request";
            return Some(self.violation(Rule::NotAdmitted, message.to_owned()));
        }
        let targets = self.targets_before_pass();
        let has_failed = targets.iter().any(|(_, target)| {
            let failed = self.is_before(target.failed) || self.may_be_late(&targets, target);
            target.release == self.target.release && failed
        });
        let message = "admitted again on request, although it had not failed";
        (!has_failed).then(|| self.violation(Rule::NotAdmitted, message.to_owned()))
    }

    /// Returns the targets of the cluster before the pass that admitted this one, which has one time: it may have
    /// retried another entry of the cluster just before.
    fn targets_before_pass(&self) -> Vec<(&'m SyncTimeline<'m>, &'m Target)> {
        let mut targets = self.targets(&self.timeline.cluster);
        for (timeline, target) in &mut targets {
            if target.rollout == self.target.rollout && target.recorded == self.target.recorded {
                *target = timeline.target_before(target.index).unwrap_or(target);
            }
        }
        targets
    }

    /// Whether a request to retry is for this cluster and stage, and not answered yet: it was made after the last
    /// admission, as far as whole seconds tell. After a jump of the clock the times cannot be compared.
    fn is_request(&self, action: &ActionSpan<'_, RolloutAction>) -> bool {
        let spec = &action.object.spec;
        let stage = self.staged().and_then(|group| {
            let place = self.always_in(group, &self.timeline.cluster)?;
            let stages = &group.spec.rollout_strategy.stages;
            Some(stages.get(place).map_or("*", |stage| &stage.name))
        });
        let of_cluster = spec
            .cluster
            .as_ref()
            .is_none_or(|of| *of == self.timeline.cluster);
        let of_stage = spec
            .stage
            .as_deref()
            .is_none_or(|of| stage.is_none_or(|stage| stage == of));
        let before = self.timeline.target_before(self.target.index);
        let is_newer = before.is_none_or(|before| {
            let (shown, _) = self.world.history.clock.shown(before.at, before.at);
            let has_jumped = shown != before.at || !self.world.history.clock.0.is_empty();
            has_jumped || before.decided.duration_since(action.created.0) < SignedDuration::from_secs(1)
        });
        of_cluster && of_stage && is_newer
    }

    fn forbidden_by_operator(&self) -> Option<Violation> {
        let (from, to) = (self.from, self.target.at);
        let groups = self.world.hub.groups.get(self.id);
        if groups.is_some_and(|groups| groups.always(from, to, |group| group.spec.suspend)) {
            return Some(self.violation(
                Rule::Suspended,
                "admitted while the group was suspended".to_owned(),
            ));
        }
        if groups.is_some_and(|groups| groups.always(from, to, is_membership_held) && !self.ends_hold(groups))
        {
            let message = "admitted while too many clusters had left at once".to_owned();
            return Some(self.violation(Rule::Suspended, message));
        }
        if is_paused(&self.actions, from, to) {
            return Some(self.violation(Rule::Paused, "admitted while the rollout was paused".to_owned()));
        }
        if is_aborted(&self.actions, from, to) {
            return Some(self.violation(
                Rule::Paused,
                "admitted although the rollout was aborted".to_owned(),
            ));
        }
        let cluster = &self.timeline.cluster;
        let is_skipped = self.is_skipped(cluster, |action| action.existed(from, to));
        is_skipped.then(|| self.violation(Rule::Skipped, "admitted although it is skipped".to_owned()))
    }

    /// Whether the pass that admitted found that the clusters may leave, or have returned: it writes its status after
    /// its admissions.
    fn ends_hold(&self, groups: &Track<SyncGroup>) -> bool {
        let (from, to) = (self.target.at, after(self.target.at, self.world.history.lag));
        let mut later = groups.during(from, to).filter(|version| version.at > from);
        let next = later.find(|version| version.manager == "starling");
        next.is_some_and(|version| !is_membership_held(&version.object))
    }

    /// Whether a cluster, or the stage of the cluster, is skipped. Skipping a stage counts for clusters that were not
    /// admitted to the release before.
    fn is_skipped(&self, cluster: &str, counts: impl Fn(&ActionSpan<'_, RolloutAction>) -> bool) -> bool {
        let at_once = self
            .rollout()
            .is_some_and(|rollout| rollout.direction == RolloutDirection::BackAtOnce);
        let was_admitted_before = |action: &ActionSpan<'_, RolloutAction>| {
            let mut timelines = self.world.group_timelines(self.id, cluster);
            timelines.any(|timeline| {
                timeline
                    .targets
                    .iter()
                    .any(|target| target.release == self.rolled() && target.index < action.created.1)
            })
        };
        let stage = self.staged().and_then(|group| {
            let place = self.always_in(group, cluster)?;
            let stages = &group.spec.rollout_strategy.stages;
            Some(stages.get(place).map_or("*", |stage| &stage.name))
        });
        let mut actions = self.actions.iter().filter(|action| counts(action));
        actions.any(|action| {
            skips(action.object, Some(cluster), None)
                || (!at_once
                    && stage.is_some()
                    && skips(action.object, None, stage)
                    && !was_admitted_before(action))
        })
    }

    /// Returns the widest value of a limit.
    fn widest(
        &self,
        limit: impl Fn(&SyncGroup) -> IntOrPercent,
        rounded: fn(IntOrPercent, usize) -> usize,
    ) -> usize {
        let limits = self
            .group
            .iter()
            .map(|group| rounded(limit(group), self.selected.len()));
        limits.max().unwrap_or(usize::MAX)
    }

    fn failure_limit_exceeded(&self) -> Option<Violation> {
        let continues = |group: &&SyncGroup| group.spec.rollout_strategy.on_failure == OnFailure::Continue;
        if self.group.iter().any(continues) {
            return None;
        }
        let failed: Vec<&str> = self
            .selected
            .iter()
            .copied()
            .filter(|cluster| *cluster != self.timeline.cluster && self.has_failed(cluster))
            .filter(|cluster| {
                !self.is_skipped(cluster, |action| {
                    action.may_be_known(self.from, self.target.index)
                })
            })
            .collect();
        let allowed = self.widest(|group| group.spec.rollout_strategy.max_failures, down);
        let (failed, allowed, of) = if failed.len() > allowed {
            (failed, allowed, "the group")
        } else {
            self.stage_failure_limit_exceeded(&failed)?
        };
        let message =
            format!("admitted after the release had failed on {failed:?} of {of}, of {allowed} at most");
        Some(self.violation(Rule::FailureLimit, message))
    }

    /// Returns a stage that had not passed, and in which more clusters had failed than allowed.
    fn stage_failure_limit_exceeded(&self, failed: &[&'m str]) -> Option<(Vec<&'m str>, usize, &'m str)> {
        let (group, rollout) = (self.staged()?, self.rollout()?);
        if rollout.direction == RolloutDirection::BackAtOnce {
            return None;
        }
        let strategy = &group.spec.rollout_strategy;
        rollout.stages.iter().enumerate().find_map(|(place, stage)| {
            // A stage without a failure limit of its own has that of the group.
            let own = strategy.stages.get(place)?.max_failures?;
            let may_be_in = self
                .selected
                .iter()
                .filter(|cluster| self.ever_in(group, cluster, place))
                .count();
            let allowed = down(own, may_be_in);
            let here: Vec<&str> = failed
                .iter()
                .copied()
                .filter(|cluster| self.always_in(group, cluster) == Some(place))
                .collect();
            (stage.pass_time.is_empty() && here.len() > allowed).then_some((
                here,
                allowed,
                stage.name.as_str(),
            ))
        })
    }

    /// Whether it must have been known that the release failed on a cluster.
    fn has_failed(&self, cluster: &str) -> bool {
        let targets = self.rolled_targets(cluster);
        let is_of_rollout = |target: &Target| target.is_admission && target.release == self.rolled();
        self.can_be_worked_on(cluster)
            && !targets.is_empty()
            && targets.iter().all(|(_, target)| is_of_rollout(target))
            && targets.iter().any(|(timeline, target)| {
                let digests = &self.world.digests;
                let failing = timeline.track.always(self.from, self.target.at, |sync| {
                    is_failing(digests, sync, &target.desired)
                });
                let (known, _) = self.world.history.clock.shown(self.from, self.target.at);
                let late = self.deadline(&targets, target) <= known && target.at <= self.from;
                !self.is_before(target.done) && (failing || late)
            })
    }

    /// Returns the stage in which a cluster was during the whole span; clusters that no stage selects form the last
    /// one.
    fn always_in(&self, group: &SyncGroup, cluster: &str) -> Option<usize> {
        let track = self.world.hub.cluster(cluster)?;
        let stages = &group.spec.rollout_strategy.stages;
        let mut places = track
            .during(self.from, self.target.at)
            .map(|version| stage_of(stages, &version.object));
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    /// Whether a cluster was in a stage at some moment.
    fn ever_in(&self, group: &SyncGroup, cluster: &str, place: usize) -> bool {
        let stages = &group.spec.rollout_strategy.stages;
        let track = self.world.hub.cluster(cluster);
        track.is_some_and(|track| {
            let mut versions = track.during(self.from, self.target.at);
            versions.any(|version| stage_of(stages, &version.object) == place)
        })
    }

    /// Returns the only current group spec, if it has stages. During a change of the spec there is no check.
    fn staged(&self) -> Option<&'m SyncGroup> {
        let (&first, rest) = self.group.split_first()?;
        let stages = &first.spec.rollout_strategy.stages;
        let same = rest
            .iter()
            .all(|group| group.spec.rollout_strategy.stages == *stages);
        (!stages.is_empty() && same).then_some(first)
    }

    fn stage_is_full(&self, in_flight: &[&str]) -> Option<Violation> {
        let group = self.staged()?;
        let at_once = |rollout: &RolloutStatus| rollout.direction == RolloutDirection::BackAtOnce;
        if self.rollout().is_some_and(at_once) {
            return None;
        }
        let place = self.always_in(group, &self.timeline.cluster)?;
        let stage: &Stage = group.spec.rollout_strategy.stages.get(place)?;
        let mut selected = self.selected.iter();
        let total = { &mut selected }
            .filter(|cluster| self.ever_in(group, cluster, place))
            .count();
        let slots = up(stage.max_concurrency?, total).max(1);
        let is_here = |cluster: &&str| self.always_in(group, cluster) == Some(place);
        let others: Vec<_> = in_flight.iter().copied().filter(is_here).collect();
        let is_full = others.len() >= slots && !self.ended_with_too_many_in_flight(&others, slots);
        is_full.then(|| {
            let message = format!(
                "admitted while {others:?} of stage {} were in flight, of {slots}",
                stage.name
            );
            self.violation(Rule::Concurrency, message)
        })
    }

    /// Returns the violation of an admission in a stage that had not opened. The last known good release is allowed for
    /// clusters that were never admitted to another one, or gave their slot of that one back. A retry of the target
    /// that the cluster has is allowed, too: an earlier rollout may have admitted it.
    fn stage_is_closed(&self) -> Option<Violation> {
        let group = self.staged()?;
        let rollout = self.rollout();
        if rollout.is_some_and(|rollout| rollout.direction == RolloutDirection::BackAtOnce) {
            return None;
        }
        let recorded = rollout.map_or(&[][..], |rollout| &rollout.stages);
        let is_open = |place: usize| {
            recorded
                .get(place)
                .is_some_and(|stage| !stage.start_time.is_empty() || !stage.pass_time.is_empty())
        };
        let stages = group.spec.rollout_strategy.stages.len();
        let may_be_open =
            (0..=stages).any(|place| self.ever_in(group, &self.timeline.cluster, place) && is_open(place));
        let last_good = self.status.and_then(|status| status.last_known_good.as_ref());
        let is_good = last_good.is_some_and(|last_good| last_good.release == self.target.release);
        let before = self.timeline.target_before(self.target.index);
        let is_retry = before.is_some_and(|before| before.desired == self.target.desired);
        let is_new = before.is_none_or(|before| self.is_before(before.returned));
        let excused = may_be_open || is_retry || (is_good && is_new);
        (!excused).then(|| {
            let message = "admitted before its stage had opened".to_owned();
            self.violation(Rule::StageOrder, message)
        })
    }

    fn violation(&self, rule: Rule, message: String) -> Violation {
        Violation {
            rule,
            at: self.target.at,
            cluster: Some(self.timeline.cluster.clone()),
            message,
        }
    }
}

/// Whether a group reports that too many clusters left at once.
fn is_membership_held(group: &SyncGroup) -> bool {
    let status = group.status.as_ref();
    let held = status.and_then(|status| conditions::find(&status.conditions, MEMBERSHIP_HELD));
    held.is_some_and(|condition| condition.status == "True")
}

fn up(limit: IntOrPercent, of: usize) -> usize {
    match limit {
        IntOrPercent::Int(clusters) => clusters as usize,
        IntOrPercent::Percent(percent) => (of * percent as usize).div_ceil(100),
    }
}

fn down(limit: IntOrPercent, of: usize) -> usize {
    match limit {
        IntOrPercent::Int(clusters) => clusters as usize,
        IntOrPercent::Percent(percent) => of * percent as usize / 100,
    }
}
