//! I4: bounds. What may start is judged at the write that starts it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::{
    ActionType, IntOrPercent, OnFailure, RolloutAction, RolloutDirection, RolloutStatus, Stage, SyncGroup,
    SyncGroupStatus,
};

use crate::judge::hub::{Id, Track, after, earlier, is_reachable, span, stage_of};
use crate::judge::targets::{Target, is_done, is_failing};
use crate::judge::violation::{Rule, Violation};
use crate::judge::words::{Said, actions, is_aborted, is_paused, skips};
use crate::judge::world::{SyncStory, World};

/// An admission takes a slot unless its cluster has one, and then there is one: fewer than `maxConcurrency` others are in
/// flight, in the group and in the stage of the cluster. Nothing is admitted, whatever it is, while what rolls has failed on
/// more clusters than `maxFailures` allows, of the group or of a stage that has not let go. Nothing is admitted in a stage that
/// has not opened but what was good before, where nothing else ever was ([`stages`](super::stages) says when it may open). Nothing
/// is admitted while a person has paused the rollout or given it up, nor on a cluster that they pass over. What failed is
/// admitted once more, whatever the bounds, if a person asks for that, and only then.
///
/// Evidence: the specs and statuses of the group's Syncs in the order in which the management cluster committed them. A
/// cluster is in flight from the write that admits it until its Sync says that it is done or that it failed, or until
/// `progressDeadline`, and again while it has not been healthy for `minSuccessTime`; not while it is suspended, not selected, or unreachable with an older release. Once it was through, it
/// is not in flight again for the same admission; but where it failed and is at work again, what is admitted on it next takes
/// no slot of another cluster's. The bounds are the widest that were in force, or may still have been for
/// the controller, when it was decided; what failed counts once it must have been known. Percentages are of the selected
/// clusters, or of those in the stage; concurrency rounds up and is at least one, failures round down. A word of a person counts
/// if it was there for as long as the lag.
pub(super) fn admissions_keep_the_bounds(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let mut admissions: Vec<(&SyncStory<'_>, &Target)> = world
            .hub
            .clusters
            .keys()
            .flat_map(|cluster| world.group_stories(id, &cluster.name))
            .flat_map(|story| story.targets.iter().map(move |target| (story, target)))
            .filter(|(_, target)| target.is_admission)
            .collect();
        admissions.sort_by_key(|(_, target)| target.index);
        for (story, target) in admissions {
            let moment = Moment::new(world, id, track, story, target);
            found.extend(moment.violations());
        }
    }
    found
}

/// One admission, and what the controller could know when it decided.
struct Moment<'m> {
    world: &'m World<'m>,
    id: &'m Id,
    group: Vec<&'m SyncGroup>,
    story: &'m SyncStory<'m>,
    target: &'m Target,
    /// Since when what is known may be.
    from: Timestamp,
    /// All that may have been selected.
    selected: BTreeSet<&'m str>,
    /// The group's status before the write.
    status: Option<&'m SyncGroupStatus>,
    /// What people said to the rollout.
    words: Vec<Said<'m, RolloutAction>>,
}

impl<'m> Moment<'m> {
    fn new(
        world: &'m World<'_>,
        id: &'m Id,
        track: &'m Track<SyncGroup>,
        story: &'m SyncStory<'_>,
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
            story,
            target,
            from,
            selected,
            status: track
                .before(target.index)
                .and_then(|version| version.object.status.as_ref()),
            words: actions(world.hub, id, target.rollout),
        }
    }

    fn violations(&self) -> Vec<Violation> {
        if self.is_again() {
            return self.nobody_asked().into_iter().collect();
        }
        let mut found = Vec::new();
        let others: Vec<&str> = self
            .selected
            .iter()
            .copied()
            .filter(|cluster| *cluster != self.story.cluster && self.is_in_flight(cluster))
            .collect();
        if !self.is_in_flight(&self.story.cluster) && !self.is_at_work_again() {
            let slots = self
                .widest(|group| group.spec.rollout_strategy.max_concurrency, up)
                .max(1);
            if others.len() >= slots {
                let words = format!("admitted while {others:?} were in flight, of {slots} at most");
                found.push(self.violation(Rule::Concurrency, words));
            }
            found.extend(self.stage_is_full(&others));
        }
        found.extend(self.budget_is_overdrawn());
        found.extend(self.stage_is_closed());
        found.extend(self.people_are_against_it());
        found
    }

    /// The rollout that admits it, as the group's status had it.
    fn rollout(&self) -> Option<&'m RolloutStatus> {
        let rollout = self.status.and_then(|status| status.rollout.as_ref());
        rollout.filter(|rollout| rollout.id == self.target.rollout)
    }

    /// The release that rolls; what is admitted may be what was good before.
    fn rolled(&self) -> &str {
        self.rollout()
            .map_or(&self.target.release, |rollout| &rollout.release)
    }

    /// Whether the Sync was to hold just this before.
    fn is_again(&self) -> bool {
        let before = self.story.target_before(self.target.index);
        before.is_some_and(|before| {
            before.is_admission
                && before.release == self.target.release
                && before.wanted == self.target.wanted
        })
    }

    fn nobody_asked(&self) -> Option<Violation> {
        let before = self.story.target_before(self.target.index);
        if before.is_some_and(|before| self.is_before(before.done)) {
            // It changes nothing.
            return None;
        }
        let mut words = self.words.iter();
        let asked = words.any(|said| {
            said.what.spec.action == ActionType::Retry && said.may_be_known(self.from, self.target.index)
        });
        let words = "admitted to the same once more, and nobody asked for that";
        (!asked).then(|| self.violation(Rule::NotAdmitted, words.to_owned()))
    }

    fn people_are_against_it(&self) -> Option<Violation> {
        let (from, to) = (self.from, self.target.at);
        if is_paused(&self.words, from, to) {
            return Some(self.violation(Rule::Paused, "admitted while the rollout was paused".to_owned()));
        }
        if is_aborted(&self.words, from, to) {
            return Some(self.violation(
                Rule::Paused,
                "admitted though the rollout was given up".to_owned(),
            ));
        }
        let cluster = &self.story.cluster;
        let is_over = self.passed_over(cluster, |said| said.stood(from, to));
        is_over.then(|| {
            self.violation(
                Rule::Skipped,
                "admitted though somebody passes over it".to_owned(),
            )
        })
    }

    /// Whether somebody passes over a cluster, or over the stage that it is in. A stage is passed over for those that what rolls
    /// had not come to by then.
    fn passed_over(&self, cluster: &str, counts: impl Fn(&Said<'_, RolloutAction>) -> bool) -> bool {
        let at_once = self
            .rollout()
            .is_some_and(|rollout| rollout.direction == RolloutDirection::BackAtOnce);
        let was_told = |said: &Said<'_, RolloutAction>| {
            let mut stories = self.world.group_stories(self.id, cluster);
            stories.any(|story| {
                story
                    .targets
                    .iter()
                    .any(|target| target.release == self.rolled() && target.index < said.made.1)
            })
        };
        let stage = self.staged().and_then(|group| {
            let place = self.always_in(group, cluster)?;
            let stages = &group.spec.rollout_strategy.stages;
            Some(stages.get(place).map_or("*", |stage| &stage.name))
        });
        let mut words = self.words.iter().filter(|said| counts(said));
        words.any(|said| {
            skips(said.what, Some(cluster), None)
                || (!at_once && stage.is_some() && skips(said.what, None, stage) && !was_told(said))
        })
    }

    /// A limit as it was widest.
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

    /// The targets that a cluster was to hold just before.
    fn targets(&self, cluster: &str) -> Vec<(&'m SyncStory<'m>, &'m Target)> {
        let stories = self.world.syncs.iter().filter(|story| story.cluster == cluster);
        stories
            .filter(|story| story.owner_group() == Some((&self.id.namespace, &self.id.name)))
            .filter_map(|story| Some((story, story.target_before(self.target.index)?)))
            .collect()
    }

    fn is_before(&self, when: Option<(Timestamp, usize)>) -> bool {
        when.is_some_and(|(_, index)| index < self.target.index)
    }

    fn is_in_flight(&self, cluster: &str) -> bool {
        if !self.can_be_worked_on(cluster) {
            return false;
        }
        let targets = self.targets(cluster);
        let reachable = self.cluster_always(cluster, is_reachable);
        let is_open = |target: &Target| {
            let gave_up = targets.iter().any(|(_, other)| {
                let with_it = other.release == target.release || other.at >= target.at;
                with_it && self.is_before(other.failed)
            });
            // Older than what rolls, also where what was good is admitted beside it.
            let leftover = target.release != self.rolled() && !reachable;
            target.is_admission && !self.is_before(target.done) && !gave_up && !leftover
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
    fn may_be_late(&self, targets: &[(&SyncStory<'_>, &Target)], target: &Target) -> bool {
        let (_, latest) = self.world.history.clock.shown(self.from, self.target.at);
        self.deadline(targets, target) <= latest
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
    fn deadline(&self, targets: &[(&SyncStory<'_>, &Target)], target: &Target) -> Timestamp {
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

    /// Whether nobody has suspended the cluster or a Sync on it, and it is selected, and it can be told what to hold.
    fn can_be_worked_on(&self, cluster: &str) -> bool {
        let from = self.known_since(cluster);
        let selected = |at| {
            let mut groups = self.group.iter();
            groups.all(|group| {
                self.world
                    .hub
                    .selected(&self.id.namespace, group, at)
                    .contains(&cluster)
            })
        };
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
        selected(from) && selected(self.target.at) && active && !suspended && !is_held
    }

    /// Since when a state of a cluster may still be what the controller knows: for as long as the lag, but not since before it
    /// told the cluster what to hold, for then it knew.
    fn known_since(&self, cluster: &str) -> Timestamp {
        let told = self.targets(cluster).iter().map(|(_, target)| target.at).max();
        told.map_or(self.from, |told| told.max(self.from))
    }

    fn cluster_always(&self, cluster: &str, is: impl Fn(&starling_api::Cluster) -> bool) -> bool {
        let track = self.world.hub.cluster(cluster);
        track.is_some_and(|track| track.always(self.known_since(cluster), self.target.at, is))
    }

    fn budget_is_overdrawn(&self) -> Option<Violation> {
        let goes_on = |group: &&SyncGroup| group.spec.rollout_strategy.on_failure == OnFailure::Continue;
        if self.group.iter().any(goes_on) {
            return None;
        }
        let failed: Vec<&str> = self
            .selected
            .iter()
            .copied()
            .filter(|cluster| *cluster != self.story.cluster && self.has_failed(cluster))
            .filter(|cluster| {
                !self.passed_over(cluster, |said| said.may_be_known(self.from, self.target.index))
            })
            .collect();
        let allowed = self.widest(|group| group.spec.rollout_strategy.max_failures, down);
        let (failed, allowed, of) = if failed.len() > allowed {
            (failed, allowed, "the group")
        } else {
            self.stage_is_overdrawn(&failed)?
        };
        let words =
            format!("admitted after {failed:?} of {of} had failed with what rolls, of {allowed} at most");
        Some(self.violation(Rule::FailureBudget, words))
    }

    /// A stage that had not let go, and of which more clusters had failed than may.
    fn stage_is_overdrawn(&self, failed: &[&'m str]) -> Option<(Vec<&'m str>, usize, &'m str)> {
        let (group, rollout) = (self.staged()?, self.rollout()?);
        if rollout.direction == RolloutDirection::BackAtOnce {
            return None;
        }
        let strategy = &group.spec.rollout_strategy;
        rollout.stages.iter().enumerate().find_map(|(place, stage)| {
            // A stage without a budget of its own has the group's.
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
        let targets = self.targets(cluster);
        let ours = |target: &Target| target.is_admission && target.release == self.rolled();
        self.can_be_worked_on(cluster)
            && !targets.is_empty()
            && targets.iter().all(|(_, target)| ours(target))
            && targets.iter().any(|(story, target)| {
                let digests = &self.world.digests;
                let failing = story.track.always(self.from, self.target.at, |sync| {
                    is_failing(digests, sync, &target.wanted)
                });
                let (known, _) = self.world.history.clock.shown(self.from, self.target.at);
                let late = self.deadline(&targets, target) <= known && target.at <= self.from;
                !self.is_before(target.done) && (failing || late)
            })
    }

    /// The stage in which a cluster was all the time; those that no stage selects form the last one.
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

    /// The one group spec that was in force, if it has stages. Where it was changed at the moment, nothing is asked.
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
        let place = self.always_in(group, &self.story.cluster)?;
        let stage: &Stage = group.spec.rollout_strategy.stages.get(place)?;
        let mut selected = self.selected.iter();
        let total = { &mut selected }
            .filter(|cluster| self.ever_in(group, cluster, place))
            .count();
        let slots = up(stage.max_concurrency?, total).max(1);
        let is_here = |cluster: &&str| self.always_in(group, cluster) == Some(place);
        let others: Vec<_> = in_flight.iter().copied().filter(is_here).collect();
        (others.len() >= slots).then(|| {
            let words = format!(
                "admitted while {others:?} of stage {} were in flight, of {slots}",
                stage.name
            );
            self.violation(Rule::Concurrency, words)
        })
    }

    /// Whether its stage had not opened. What was good before is for clusters that never were told anything else.
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
            (0..=stages).any(|place| self.ever_in(group, &self.story.cluster, place) && is_open(place));
        let good = self.status.and_then(|status| status.last_known_good.as_ref());
        let is_good = good.is_some_and(|good| good.release == self.target.release);
        let before = self.story.target_before(self.target.index);
        let is_new = before.is_none_or(|before| before.wanted == self.target.wanted);
        let excused = may_be_open || (is_good && is_new);
        (!excused).then(|| {
            let words = "admitted before its stage had opened".to_owned();
            self.violation(Rule::StageOrder, words)
        })
    }

    fn violation(&self, rule: Rule, words: String) -> Violation {
        Violation {
            rule,
            at: self.target.at,
            cluster: Some(self.story.cluster.clone()),
            words,
        }
    }
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
