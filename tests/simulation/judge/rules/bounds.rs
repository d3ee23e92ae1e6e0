//! I4: bounds. What may start is judged at the write that starts it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::{
    ActionType, IntOrPercent, OnFailure, RolloutAction, RolloutDirection, RolloutStatus, Stage, SyncGroup,
    SyncGroupStatus,
};

use crate::judge::hub::{Id, Track, earlier, stage_of};
use crate::judge::targets::{Target, is_failing};
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
/// `progressDeadline`, and again while it has not been healthy for `minSuccessTime`; not while it is suspended, not selected, or
/// unreachable with an older release. Once it was through, it is not in flight again for the same admission; but where it failed
/// and is at work again, what is admitted on it next takes no slot of another cluster's. Nor does what is admitted where a cluster was
/// through within the lag, if clusters that were out and came back are what makes too many. The bounds are the widest that were in
/// force, or may still have been for the controller, when it was decided; what failed counts once it must have been known.
/// Percentages are of the selected clusters, or of those in the stage; concurrency rounds up and is at least one, failures round
/// down. A word of a person counts if it was there for as long as the lag.
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
pub(super) struct Moment<'m> {
    pub(super) world: &'m World<'m>,
    pub(super) id: &'m Id,
    pub(super) group: Vec<&'m SyncGroup>,
    pub(super) story: &'m SyncStory<'m>,
    pub(super) target: &'m Target,
    /// Since when what is known may be.
    pub(super) from: Timestamp,
    /// All that may have been selected.
    pub(super) selected: BTreeSet<&'m str>,
    /// The group's status before the write.
    pub(super) status: Option<&'m SyncGroupStatus>,
    /// What people said to the rollout.
    pub(super) words: Vec<Said<'m, RolloutAction>>,
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
        if !self.has_a_slot() {
            let slots = self
                .widest(|group| group.spec.rollout_strategy.max_concurrency, up)
                .max(1);
            if others.len() >= slots && !self.ended_while_too_many_were_at_work(&others, slots) {
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
    pub(super) fn rollout(&self) -> Option<&'m RolloutStatus> {
        let rollout = self.status.and_then(|status| status.rollout.as_ref());
        rollout.filter(|rollout| rollout.id == self.target.rollout)
    }

    /// The release that rolls; what is admitted may be what was good before.
    pub(super) fn rolled(&self) -> &str {
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
        let is_full = others.len() >= slots && !self.ended_while_too_many_were_at_work(&others, slots);
        is_full.then(|| {
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
