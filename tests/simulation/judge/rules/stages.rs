//! I4: a stage opens and lets the next one go when it has earned that, and nothing starts in one that has not opened.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::{
    ActionType, Cluster, OnFailure, OnUnreachable, RolloutDirection, RolloutStatus, Stage, StageStatus,
    StageTask, StageTaskType, SyncGroup, TaskStatus,
};

use crate::judge::hub::{Id, Track, Version, after, earlier, is_reachable, selects, span, stage_of};
use crate::judge::targets::is_done;
use crate::judge::violation::{Rule, Violation};
use crate::judge::words::{Said, actions, approvals, skips};
use crate::judge::world::World;

/// The name of the stage of the clusters that no stage selects.
const REST: &str = "*";

/// A stage opens when all before it have let go and its tasks before are over; it lets go when its clusters are through and its
/// tasks after are over. A person may promote a stage or pass it over instead. On the way back there are no tasks.
///
/// Evidence: the first status of a rollout in which a stage has a time at which it opened or let go, against what the
/// management cluster held before that write. A cluster is through if it held what rolls and was healthy with it for
/// `minSuccessTime` without a break, by the times in its Sync's status; or if that failed; or if somebody passes over it.
/// Only clusters count that were selected, in the stage and workable for as long as the lag; those that cannot be reached only
/// with `onUnreachable: Wait`. A timed wait is over by the times that the status has; an approval is one of this stage in this
/// rollout with the digest that the status has, made before. A stage of which no cluster holds the release lets nobody go.
/// One that was open with clusters and lost them all before any of them was through has shown nothing either.
/// Where the stages of the spec changed within the lag nothing is asked.
pub(super) fn stages_earn_it(world: &World<'_>) -> Vec<Violation> {
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
        let look = Look {
            world,
            id,
            track,
            version,
            rollout,
            from,
            place,
            stage,
            words: actions(world.hub, id, rollout.id),
        };
        let is_new = |time: fn(&StageStatus) -> &String| {
            !time(stage).is_empty() && known(&stage.name).is_none_or(|known| time(known).is_empty())
        };
        let opens = is_new(|stage| &stage.start_time).then(|| look.opens()).flatten();
        let passes = is_new(|stage| &stage.pass_time).then(|| look.lets_go()).flatten();
        let wrong = opens.into_iter().chain(passes);
        found.extend(wrong.map(|words| Violation {
            rule: Rule::StageOrder,
            at: version.at,
            cluster: None,
            words: format!("rollout {}, stage {}: {words}", rollout.id, stage.name),
        }));
    }
    found
}

/// A stage at the write that says something new of it.
struct Look<'w> {
    world: &'w World<'w>,
    id: &'w Id,
    track: &'w Track<SyncGroup>,
    version: &'w Version<SyncGroup>,
    rollout: &'w RolloutStatus,
    from: Timestamp,
    place: usize,
    stage: &'w StageStatus,
    words: Vec<Said<'w, starling_api::RolloutAction>>,
}

impl Look<'_> {
    fn rules(&self) -> &[Stage] {
        &self.version.object.spec.rollout_strategy.stages
    }

    fn is_said(&self, is: impl Fn(&starling_api::RolloutAction) -> bool) -> bool {
        let mut words = self.words.iter();
        words.any(|said| said.may_be_known(self.from, self.version.index) && is(said.what))
    }

    fn is_promoted(&self) -> bool {
        let name = Some(self.stage.name.as_str());
        self.is_said(|action| {
            action.spec.action == ActionType::Promote && action.spec.stage.as_deref() == name
        })
    }

    fn is_skipped(&self) -> bool {
        self.is_said(|action| skips(action, None, Some(&self.stage.name)))
    }

    fn opens(&self) -> Option<String> {
        if self.is_promoted() {
            return None;
        }
        let earlier = &self.rollout.stages[..self.place];
        if let Some(closed) = earlier.iter().find(|stage| stage.pass_time.is_empty()) {
            return Some(format!("it opened before {} had let it go", closed.name));
        }
        let tasks = self.rules().get(self.place);
        let tasks = tasks.map_or(&[][..], |stage| &stage.before_stage_tasks);
        self.unfinished(tasks, &self.stage.before_stage_tasks, &self.stage.start_time)
            .map(|task| format!("it opened before {task}"))
    }

    fn lets_go(&self) -> Option<String> {
        if self.is_promoted() || self.is_skipped() {
            return None;
        }
        if self.stage.start_time.is_empty() {
            return Some("it let go and never opened".to_owned());
        }
        let tasks = self.rules().get(self.place);
        let tasks = tasks.map_or(&[][..], |stage| &stage.after_stage_tasks);
        let task = self.unfinished(tasks, &self.stage.after_stage_tasks, &self.stage.pass_time);
        task.map(|task| format!("it let go before {task}"))
            .or_else(|| self.not_through())
            .or_else(|| self.unproven())
    }

    /// The first task that was not over by a time.
    fn unfinished(&self, tasks: &[StageTask], recorded: &[TaskStatus], by: &str) -> Option<String> {
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
                // Nobody does these yet.
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
        approvals.any(|said| {
            said.may_be_known(self.from, self.version.index)
                && !digest.is_empty()
                && said.what.spec.release_digest == *digest
        })
    }

    /// The clusters that were in the stage all the time and can be worked on.
    fn members(&self) -> impl Iterator<Item = &str> {
        let waits = self.version.object.spec.rollout_strategy.on_unreachable == OnUnreachable::Wait;
        self.always_here(move |cluster| !cluster.spec.suspend && (waits || is_reachable(cluster)))
    }

    /// The clusters that were in the stage all the time, and so.
    fn always_here(&self, is: impl Fn(&Cluster) -> bool) -> impl Iterator<Item = &str> {
        let (world, id, group) = (self.world, self.id, &self.version.object);
        let clusters = world.hub.clusters.iter();
        let ours = clusters.filter(move |(of, _)| of.namespace == id.namespace);
        ours.filter(move |(of, _)| {
            let is_there = |cluster: &Cluster| stage_of(self.rules(), cluster) == self.place && is(cluster);
            world
                .hub
                .always_selected(group, of, (self.from, self.version.at), is_there)
        })
        .map(|(of, _)| of.name.as_str())
    }

    fn not_through(&self) -> Option<String> {
        let cluster = self.members().find(|cluster| {
            let passed_over = self.is_said(|action| skips(action, Some(cluster), None));
            !passed_over && !self.is_excused(cluster) && !self.is_through(cluster)
        });
        cluster.map(|cluster| format!("it let go before {cluster} was through"))
    }

    /// Whether the cluster cannot get anything, by what concerns it alone.
    fn is_excused(&self, cluster: &str) -> bool {
        let problems = self
            .version
            .object
            .status
            .iter()
            .flat_map(|status| &status.problems);
        let lacks =
            { problems }.any(|problem| problem.cluster == cluster && problem.reason == "InvalidParameters");
        let mut stories = self.world.group_stories(self.id, cluster);
        lacks
            || stories.any(|story| {
                let mut versions = story.track.during(self.from, self.version.at);
                versions.any(|sync| {
                    sync.object.spec.template.suspend || sync.object.metadata.deletion_timestamp.is_some()
                })
            })
    }

    fn is_through(&self, cluster: &str) -> bool {
        self.rollout.revisions.iter().all(|rolled| {
            self.world.group_stories(self.id, cluster).any(|story| {
                let ours = story.targets.iter().filter(|target| {
                    target.index < self.version.index && target.wanted.revision == rolled.revision
                });
                story.is_of(&rolled.sync) && { ours }.any(|target| {
                    let failed = target.failed.is_some_and(|(_, index)| index < self.version.index);
                    failed || self.is_late(target.recorded) || self.has_soaked(story, target)
                })
            })
        })
    }

    /// Whether its time may have been over.
    fn is_late(&self, admitted: Timestamp) -> bool {
        let deadline = span(self.version.object.spec.rollout_strategy.progress_deadline);
        let (_, latest) = self.world.history.clock.shown(self.from, self.version.at);
        after(admitted, deadline) <= latest
    }

    fn has_soaked(
        &self,
        story: &crate::judge::world::SyncStory<'_>,
        target: &crate::judge::targets::Target,
    ) -> bool {
        let soak = match self.rollout.direction {
            RolloutDirection::Forward | RolloutDirection::Back => {
                span(self.version.object.spec.rollout_strategy.min_success_time)
            }
            RolloutDirection::BackAtOnce => SignedDuration::ZERO,
        };
        let by: Option<Timestamp> = self.stage.pass_time.parse().ok();
        let versions = story.track.versions().iter();
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
                is_done(&self.world.digests, &version.object, &target.wanted)
                    && (soak.is_zero() || now || once)
            })
    }

    /// Whether it is a stage of which no cluster holds the release, though somebody behind it waits for just that.
    fn unproven(&self) -> Option<String> {
        let strategy = &self.version.object.spec.rollout_strategy;
        let goes_on =
            strategy.on_failure == OnFailure::Continue && self.rollout.direction == RolloutDirection::Forward;
        let is_passed_over = |cluster: &&str| self.is_said(|action| skips(action, Some(cluster), None));
        let all = self.always_here(|_| true);
        let members: Vec<&str> = { all }.filter(|cluster| !is_passed_over(cluster)).collect();
        let is_proven = (members.is_empty() && !self.was_emptied()) || self.anybody_holds_it();
        let behind = &self.rollout.stages[self.place + 1..];
        let is_last = behind.iter().all(|stage| stage.total == 0) || self.stage.name == REST;
        (!goes_on && !is_proven && !is_last)
            .then(|| format!("it let go though the release is on none of {members:?}"))
    }

    /// Whether it was open with clusters before it was through, and nobody was in it lately.
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
        let looks = before.filter_map(|version| {
            let rollout = version.object.status.as_ref()?.rollout.as_ref()?;
            let stage = rollout.stages.iter().find(|stage| stage.name == self.stage.name);
            stage.filter(|stage| rollout.id == self.rollout.id && stage.total > 0)
        });
        let (mut was_open, mut was_through) = (false, false);
        for stage in looks {
            was_open |= !stage.start_time.is_empty();
            was_through |= !stage.completion_time.is_empty();
        }
        !anybody && was_open && !was_through
    }

    /// Whether a cluster that may have been in the stage holds what rolls.
    fn anybody_holds_it(&self) -> bool {
        self.world.hub.clusters.iter().any(|(of, track)| {
            let was_here = track
                .during(self.from, self.version.at)
                .any(|version| stage_of(self.rules(), &version.object) == self.place);
            let holds = self.rollout.revisions.iter().all(|rolled| {
                self.world.group_stories(self.id, &of.name).any(|story| {
                    let mut ours = story.targets.iter().filter(|target| {
                        target.index < self.version.index && target.wanted.revision == rolled.revision
                    });
                    story.is_of(&rolled.sync) && ours.any(|target| self.has_soaked(story, target))
                })
            });
            was_here && holds
        })
    }
}
