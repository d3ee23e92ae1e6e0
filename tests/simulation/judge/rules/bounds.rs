//! I4: bounds. What may start is judged at the write that starts it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::{IntOrPercent, OnFailure, Stage, SyncGroup};

use crate::judge::hub::{Id, Track, after, earlier, is_reachable, span};
use crate::judge::targets::{Target, is_failing};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncStory, World};

/// An admission takes a slot unless its cluster has one, and then there is one: fewer than `maxConcurrency` others are in
/// flight, in the group and in the stage of the cluster. Nothing is admitted of a release that failed on more clusters than
/// `maxFailures` allows. Nothing is admitted in a stage before every cluster of the stages before it is done with the
/// release and has been for `minSuccessTime`, has failed, or cannot be worked on.
///
/// Evidence: the specs and statuses of the group's Syncs in the order in which the management cluster committed them. A
/// cluster is in flight from the write that admits it until its Sync says that it is done or that it failed, or until
/// `progressDeadline`; not while it is suspended, not selected, or unreachable with an older release. Once it was through, it
/// is not in flight again for the same admission; but where it failed and is at work again, what is admitted on it next takes
/// no slot of another cluster's. The bounds are the widest that were in force, or may still have been for
/// the controller, when it was decided; what failed counts once it must have been known. Percentages are of the selected
/// clusters; concurrency rounds up and is at least one, failures round down. Tasks of stages are not judged.
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
        }
    }

    fn violations(&self) -> Vec<Violation> {
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
        found.extend(self.comes_too_early());
        found
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
            let leftover = target.release != self.target.release && !reachable;
            target.is_admission && !self.is_before(target.done) && !gave_up && !leftover
        };
        targets
            .iter()
            .any(|(_, target)| is_open(target) && self.deadline(&targets, target) > self.target.at)
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
                open && self.is_before(target.failed) && self.deadline(&targets, target) > self.target.at
            })
    }

    /// When the admission of a cluster ends at the latest.
    fn deadline(&self, targets: &[(&SyncStory<'_>, &Target)], target: &Target) -> Timestamp {
        let together = targets
            .iter()
            .filter(|(_, other)| other.release == target.release);
        let last = together
            .map(|(_, other)| other.decided)
            .max()
            .unwrap_or(target.decided);
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
            .collect();
        let allowed = self.widest(|group| group.spec.rollout_strategy.max_failures, down);
        (failed.len() > allowed).then(|| {
            let words =
                format!("admitted after {failed:?} had failed with this release, of {allowed} at most");
            self.violation(Rule::FailureBudget, words)
        })
    }

    /// Whether it must have been known that the release failed on a cluster.
    fn has_failed(&self, cluster: &str) -> bool {
        let targets = self.targets(cluster);
        let ours = |target: &Target| target.is_admission && target.release == self.target.release;
        self.can_be_worked_on(cluster)
            && !targets.is_empty()
            && targets.iter().all(|(_, target)| ours(target))
            && targets.iter().any(|(story, target)| {
                let digests = &self.world.digests;
                let failing = story.track.always(self.from, self.target.at, |sync| {
                    is_failing(digests, sync, &target.wanted)
                });
                let late = self.deadline(&targets, target) <= self.from && target.at <= self.from;
                !self.is_before(target.done) && (failing || late)
            })
    }

    /// The stages, where the group has any, and which one a cluster is in; those that no stage selects form the last one.
    fn stage_of(&self, group: &'m SyncGroup, cluster: &str) -> usize {
        let stages = &group.spec.rollout_strategy.stages;
        let place = stages.iter().position(|stage| {
            let selecting = SyncGroup {
                spec: starling_api::SyncGroupSpec {
                    cluster_selector: stage.cluster_selector.clone(),
                    ..group.spec.clone()
                },
                ..group.clone()
            };
            let selected = self
                .world
                .hub
                .selected(&self.id.namespace, &selecting, self.target.at);
            selected.contains(&cluster)
        });
        place.unwrap_or(stages.len())
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
        let place = self.stage_of(group, &self.story.cluster);
        let stage: &Stage = group.spec.rollout_strategy.stages.get(place)?;
        let is_here = |cluster: &&str| self.stage_of(group, cluster) == place;
        let total = self.selected.iter().filter(|cluster| is_here(cluster)).count();
        let slots = up(stage.max_concurrency?, total).max(1);
        let others: Vec<_> = in_flight.iter().copied().filter(is_here).collect();
        (others.len() >= slots).then(|| {
            let words = format!(
                "admitted while {others:?} of stage {} were in flight, of {slots}",
                stage.name
            );
            self.violation(Rule::Concurrency, words)
        })
    }

    fn comes_too_early(&self) -> Option<Violation> {
        let group = self.staged()?;
        let own = self.stage_of(group, &self.story.cluster);
        let soak = span(group.spec.rollout_strategy.min_success_time);
        let open = self.selected.iter().copied().find(|cluster| {
            let earlier_stage = self.stage_of(group, cluster) < own;
            let asked = self.can_be_worked_on(cluster) && self.cluster_always(cluster, is_reachable);
            earlier_stage && asked && !self.is_through(group, cluster, soak)
        });
        open.map(|cluster| {
            let words =
                format!("admitted before {cluster}, of a stage before it, was through with the release");
            self.violation(Rule::StageOrder, words)
        })
    }

    fn is_through(&self, group: &SyncGroup, cluster: &str, soak: SignedDuration) -> bool {
        let targets = self.targets(cluster);
        group.spec.syncs.iter().all(|entry| {
            targets.iter().any(|(story, target)| {
                let soaked = target
                    .done
                    .is_some_and(|(at, _)| after(at, soak) <= self.target.at);
                let late = self.deadline(&targets, target) <= self.target.at;
                let of_release = target.release == self.target.release;
                let through = soaked || self.is_before(target.failed) || late;
                story.is_of(&entry.name) && of_release && through
            })
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
