//! I4: a stage opens after the previous one has passed, and passes when its clusters are done; nothing starts in a
//! stage that has not opened.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::{
    ActionType, Cluster, OnFailure, OnUnreachable, RolloutDirection, RolloutStatus, Stage, StageStatus,
    StageTask, StageTaskType, SyncGroup, TaskStatus,
};

use crate::judge::actions::{ActionSpan, actions, approvals, skips};
use crate::judge::hub::{Id, Track, Version, after, earlier, is_reachable, selects, span, stage_of};
use crate::judge::targets::{Target, is_done};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// The name of the stage of the clusters that no stage selects.
const REMAINDER: &str = "*";

/// A stage opens when all earlier stages have passed and its gates before it are over; it passes when its clusters
/// are finished and its gates after it are over. An operator may promote or skip a stage instead. A rollback has no
/// tasks.
///
/// Evidence: the first status of a rollout with the start time or pass time of a stage, against the state of the
/// management cluster before that write. A cluster is finished if it had the release applied and was healthy for
/// `minSuccessTime` without a break, by the times in its Sync's status; if the release failed there; or if it is
/// skipped. Only clusters count that were selected, in the stage and workable during the whole lag; unreachable ones
/// only with `onUnreachable: Wait`. A timed wait is over by the times in the status; an approval is one of this stage
/// in this rollout with the digest in the status, created before. A stage in which no cluster has the release does not
/// pass. A stage that was open with clusters and lost all of them before one was finished does not pass either. If the
/// stages of the spec changed within the lag, there is no check.
pub(super) fn stages_open_and_pass_in_order(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let mut before: Option<&RolloutStatus> = None;
        for version in track.versions() {
            let status = version.object.status.as_ref();
            let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) else {
                continue;
            };
            let known = before.filter(|before| before.id == rollout.id);
            if before.is_none_or(|before| before.id <= rollout.id) {
                found.extend(changes(world, id, track, version, known, rollout));
                before = Some(rollout);
            }
        }
    }
    found
}

fn changes(
    world: &World<'_>,
    id: &Id,
    track: &Track<SyncGroup>,
    version: &Version<SyncGroup>,
    before: Option<&RolloutStatus>,
    rollout: &RolloutStatus,
) -> Vec<Violation> {
    let from = earlier(version.at, world.history.lag);
    let rules = &version.object.spec.rollout_strategy.stages;
    let is_same = |version: &Version<SyncGroup>| version.object.spec.rollout_strategy.stages == *rules;
    if rollout.direction == RolloutDirection::BackAtOnce || !track.during(from, version.at).all(is_same) {
        return Vec::new();
    }
    let known = |name: &str| {
        let stages = before.map_or(&[][..], |before| &before.stages);
        stages.iter().find(|stage| stage.name == name)
    };
    let mut found = Vec::new();
    for (place, stage) in rollout.stages.iter().enumerate() {
        let change = StageChange {
            world,
            id,
            track,
            version,
            rollout,
            from,
            place,
            stage,
            actions: actions(world.hub, id, rollout.id),
        };
        let is_new = |time: fn(&StageStatus) -> &String| {
            !time(stage).is_empty() && known(&stage.name).is_none_or(|known| time(known).is_empty())
        };
        let opens_error = is_new(|stage| &stage.start_time)
            .then(|| change.opens_error())
            .flatten();
        let passes = is_new(|stage| &stage.pass_time)
            .then(|| change.passes_error())
            .flatten();
        let wrong = opens_error.into_iter().chain(passes);
        found.extend(wrong.map(|message| Violation {
            rule: Rule::StageOrder,
            at: version.at,
            cluster: None,
            message: format!("rollout {}, stage {}: {message}", rollout.id, stage.name),
        }));
    }
    found
}

/// A stage at the write that changes its status.
struct StageChange<'w> {
    world: &'w World<'w>,
    id: &'w Id,
    track: &'w Track<SyncGroup>,
    version: &'w Version<SyncGroup>,
    rollout: &'w RolloutStatus,
    from: Timestamp,
    place: usize,
    stage: &'w StageStatus,
    actions: Vec<ActionSpan<'w, starling_api::RolloutAction>>,
}

impl StageChange<'_> {
    fn rules(&self) -> &[Stage] {
        &self.version.object.spec.rollout_strategy.stages
    }

    fn has_action(&self, is: impl Fn(&starling_api::RolloutAction) -> bool) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|action| action.may_be_known(self.from, self.version.index) && is(action.object))
    }

    fn is_promoted(&self) -> bool {
        let name = Some(self.stage.name.as_str());
        self.has_action(|action| {
            action.spec.action == ActionType::Promote && action.spec.stage.as_deref() == name
        })
    }

    fn is_skipped(&self) -> bool {
        self.has_action(|action| skips(action, None, Some(&self.stage.name)))
    }

    fn opens_error(&self) -> Option<String> {
        if self.is_promoted() {
            return None;
        }
        let earlier = &self.rollout.stages[..self.place];
        if let Some(closed) = earlier.iter().find(|stage| stage.pass_time.is_empty()) {
            return Some(format!("it opened before {} had passed", closed.name));
        }
        let tasks = self.rules().get(self.place);
        let tasks = tasks.map_or(&[][..], |stage| &stage.before_stage_tasks);
        self.unfinished_task(tasks, &self.stage.before_stage_tasks, &self.stage.start_time)
            .map(|task| format!("it opened before {task}"))
    }

    fn passes_error(&self) -> Option<String> {
        if self.is_promoted() || self.is_skipped() {
            return None;
        }
        if self.stage.start_time.is_empty() {
            return Some("it passed and never opened".to_owned());
        }
        let tasks = self.rules().get(self.place);
        let tasks = tasks.map_or(&[][..], |stage| &stage.after_stage_tasks);
        let task = self.unfinished_task(tasks, &self.stage.after_stage_tasks, &self.stage.pass_time);
        task.map(|task| format!("it passed before {task}"))
            .or_else(|| self.unfinished_cluster())
            .or_else(|| self.unproven())
    }

    /// Returns the first task that was not over by a time.
    fn unfinished_task(&self, tasks: &[StageTask], recorded: &[TaskStatus], by: &str) -> Option<String> {
        if self.rollout.direction != RolloutDirection::Forward {
            return None;
        }
        let by: Option<Timestamp> = by.parse().ok();
        tasks.iter().enumerate().find_map(|(place, task)| {
            let known = recorded.get(place).filter(|known| known.type_ == task.type_);
            let begun: Option<Timestamp> = known.and_then(|known| known.start_time.parse().ok());
            let is_over = match (task.type_, begun) {
                (_, None) => false,
                (StageTaskType::TimedWait, Some(begun)) => {
                    let wait = task.wait_time.map_or(SignedDuration::ZERO, span);
                    by.is_some_and(|by| after(begun, wait) <= by)
                }
                (StageTaskType::Approval, Some(_)) => self.is_approved(),
                // No script of the simulation has these tasks.
                (StageTaskType::Webhook | StageTaskType::Metric | StageTaskType::Job, Some(_)) => {
                    known.is_some_and(|known| known.result.is_some())
                }
            };
            (!is_over).then(|| format!("its task {place} ({:?}) was over", task.type_))
        })
    }

    fn is_approved(&self) -> bool {
        let digest = &self.rollout.release_digest;
        let mut approvals = approvals(self.world.hub, self.id, self.rollout.id, &self.stage.name);
        approvals.any(|action| {
            action.may_be_known(self.from, self.version.index)
                && !digest.is_empty()
                && action.object.spec.release_digest == *digest
        })
    }

    /// Returns the clusters that were in the stage during the whole span and can be worked on.
    fn members(&self) -> impl Iterator<Item = &str> {
        let waits = self.version.object.spec.rollout_strategy.on_unreachable == OnUnreachable::Wait;
        self.always_here(move |cluster| !cluster.spec.suspend && (waits || is_reachable(cluster)))
    }

    /// Returns the clusters that were in the stage during the whole span and always met a condition.
    fn always_here(&self, is: impl Fn(&Cluster) -> bool) -> impl Iterator<Item = &str> {
        let (world, id, group) = (self.world, self.id, &self.version.object);
        let clusters = world.hub.clusters.iter();
        let in_namespace = clusters.filter(move |(of, _)| of.namespace == id.namespace);
        in_namespace
            .filter(move |(of, _)| {
                let is_there =
                    |cluster: &Cluster| stage_of(self.rules(), cluster) == self.place && is(cluster);
                world
                    .hub
                    .always_selected(group, of, (self.from, self.version.at), is_there)
            })
            .map(|(of, _)| of.name.as_str())
    }

    fn unfinished_cluster(&self) -> Option<String> {
        let cluster = self.members().find(|cluster| {
            let is_skipped = self.has_action(|action| skips(action, Some(cluster), None));
            !is_skipped && !self.is_excused(cluster) && !self.is_finished(cluster)
        });
        cluster.map(|cluster| format!("it passed before {cluster} was finished"))
    }

    /// Whether the cluster cannot be admitted for a reason of its own.
    fn is_excused(&self, cluster: &str) -> bool {
        let problems = self
            .version
            .object
            .status
            .iter()
            .flat_map(|status| &status.problems);
        let lacks =
            { problems }.any(|problem| problem.cluster == cluster && problem.reason == "InvalidParameters");
        let mut timelines = self.world.group_timelines(self.id, cluster);
        lacks
            || timelines.any(|timeline| {
                let mut versions = timeline.track.during(self.from, self.version.at);
                versions.any(|sync| {
                    sync.object.spec.template.suspend || sync.object.metadata.deletion_timestamp.is_some()
                })
            })
    }

    /// Whether every entry is finished on a cluster. One that failed finishes those that were admitted with it or
    /// before. If it failed in an earlier rollout with the same target, the others have no soak time: the cluster has
    /// failed once they are applied.
    fn is_finished(&self, cluster: &str) -> bool {
        let targets = || {
            self.rollout.revisions.iter().flat_map(|rolled| {
                let timelines = self.world.group_timelines(self.id, cluster);
                let timelines = timelines.filter(|timeline| timeline.is_of(&rolled.sync));
                timelines.flat_map(move |timeline| {
                    let targets = timeline.targets.iter().filter(move |target| {
                        target.index < self.version.index && target.desired.revision == rolled.revision
                    });
                    targets.map(move |target| (rolled, timeline, target))
                })
            })
        };
        let has_failed = |target: &Target| target.failed.is_some_and(|(_, index)| index < self.version.index);
        let failed = || targets().filter(|(_, _, target)| has_failed(target));
        let failed_at = failed().map(|(_, _, target)| target.recorded).max();
        let soak = if failed().any(|(_, _, target)| target.rollout < self.rollout.id) {
            SignedDuration::ZERO
        } else {
            self.soak()
        };
        self.rollout.revisions.iter().all(|rolled| {
            let mut of_entry = targets().filter(|(of, ..)| of.sync == rolled.sync);
            of_entry.any(|(_, timeline, target)| {
                Some(target.recorded) <= failed_at
                    || self.is_late(target.recorded)
                    || self.has_soaked(timeline, target, soak)
            })
        })
    }

    /// Whether the deadline may have passed.
    fn is_late(&self, admitted: Timestamp) -> bool {
        let deadline = span(self.version.object.spec.rollout_strategy.progress_deadline);
        let (_, latest) = self.world.history.clock.shown(self.from, self.version.at);
        after(admitted, deadline) <= latest
    }

    fn soak(&self) -> SignedDuration {
        match self.rollout.direction {
            RolloutDirection::Forward | RolloutDirection::Back => {
                span(self.version.object.spec.rollout_strategy.min_success_time)
            }
            RolloutDirection::BackAtOnce => SignedDuration::ZERO,
        }
    }

    fn has_soaked(&self, timeline: &SyncTimeline<'_>, target: &Target, soak: SignedDuration) -> bool {
        let by: Option<Timestamp> = self.stage.pass_time.parse().ok();
        let versions = timeline.track.versions().iter();
        { versions }
            .filter(|version| version.index < self.version.index)
            .any(|version| {
                let Some(status) = &version.object.status else {
                    return false;
                };
                let since: Option<Timestamp> = status.healthy_since.parse().ok();
                let now = since.zip(by).is_some_and(|(since, by)| after(since, soak) <= by);
                let once = status
                    .longest_healthy
                    .is_some_and(|longest| span(longest) >= soak);
                is_done(&self.world.digests, &version.object, &target.desired)
                    && (soak.is_zero() || now || once)
            })
    }

    /// Returns the error of a stage in which no cluster has the release, although later stages have clusters.
    fn unproven(&self) -> Option<String> {
        let strategy = &self.version.object.spec.rollout_strategy;
        let continues =
            strategy.on_failure == OnFailure::Continue && self.rollout.direction == RolloutDirection::Forward;
        let is_skipped = |cluster: &&str| self.has_action(|action| skips(action, Some(cluster), None));
        let all = self.always_here(|_| true);
        let members: Vec<&str> = { all }.filter(|cluster| !is_skipped(cluster)).collect();
        let is_proven = (members.is_empty() && !self.was_emptied()) || self.is_applied_anywhere();
        let behind = &self.rollout.stages[self.place + 1..];
        let is_last = behind.iter().all(|stage| stage.total == 0) || self.stage.name == REMAINDER;
        (!continues && !is_proven && !is_last)
            .then(|| format!("it passed although the release is on none of {members:?}"))
    }

    /// Whether it was open with clusters before it was finished, and has no cluster any more.
    fn was_emptied(&self) -> bool {
        let is_of_group = |cluster: &Cluster| {
            let selector = &self.version.object.spec.cluster_selector;
            selects(selector, cluster.labels()) && stage_of(self.rules(), cluster) == self.place
        };
        let anybody = self.world.hub.clusters.iter().any(|(of, track)| {
            let mut lately = track.during(self.from, self.version.at);
            of.namespace == self.id.namespace && lately.any(|version| is_of_group(&version.object))
        });
        let before = self.track.versions().iter();
        let before = before.filter(|version| version.index < self.version.index);
        let statuses = before.filter_map(|version| {
            let rollout = version.object.status.as_ref()?.rollout.as_ref()?;
            let stage = rollout.stages.iter().find(|stage| stage.name == self.stage.name);
            // After a restore another rollout may have the number.
            let is_it = (rollout.id, &rollout.start_time) == (self.rollout.id, &self.rollout.start_time);
            stage.filter(|stage| is_it && stage.total > 0)
        });
        let (mut was_open, mut was_finished) = (false, false);
        for stage in statuses {
            was_open |= !stage.start_time.is_empty();
            was_finished |= !stage.completion_time.is_empty();
        }
        !anybody && was_open && !was_finished
    }

    /// Whether a cluster that may have been in the stage has applied the release.
    fn is_applied_anywhere(&self) -> bool {
        self.world.hub.clusters.iter().any(|(of, track)| {
            let was_here = track
                .during(self.from, self.version.at)
                .any(|version| stage_of(self.rules(), &version.object) == self.place);
            let is_applied = self.rollout.revisions.iter().all(|rolled| {
                self.world.group_timelines(self.id, &of.name).any(|timeline| {
                    let mut targets = timeline.targets.iter().filter(|target| {
                        target.index < self.version.index && target.desired.revision == rolled.revision
                    });
                    timeline.is_of(&rolled.sync)
                        && targets.any(|target| self.has_soaked(timeline, target, self.soak()))
                })
            });
            was_here && is_applied
        })
    }
}
