//! I5 and I8: a failure affects nothing else. Checked at the end of an idle run.

use std::collections::BTreeSet;

use starling_api::conditions;
use starling_api::{IntOrPercent, SyncGroup, SyncResource};

use super::claims::was_applied;
use crate::judge::hub::{Id, is_reachable, ready};
use crate::judge::targets::is_failing;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Maximum number of problems in a status.
const MAX_PROBLEMS: usize = 10;

/// Every selected and reachable cluster is admitted to the last release of its group, whatever happens to the others.
/// If a cluster is behind, the rule is I5 if another cluster of the group is unreachable, I8 if something else of the
/// group failed or cannot be read, and I2 if nothing is wrong.
///
/// Exceptions: a group without a rollout, or one that is suspended, stalled or held by its membership; a cluster with a
/// problem of its own in the group's status; and all clusters if more have failed than `maxFailures` allows and the
/// group reports that. The result of an admission is the subject of [`Rule::Unfinished`].
pub(super) fn others_converge(world: &World<'_>) -> Vec<Violation> {
    if world.history.idle_since.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let Some(group) = track.at(world.history.ended) else {
            continue;
        };
        let fleet = Fleet::new(world, id, &group.object);
        if fleet.is_blocked() {
            continue;
        }
        let behind = fleet.reachable.iter().filter(|cluster| fleet.is_behind(cluster));
        found.extend(behind.map(|cluster| Violation {
            rule: fleet.broken_rule(),
            at: world.history.ended,
            cluster: Some((*cluster).to_owned()),
            message: format!("is behind group {}, which reports {}", id.name, fleet.blockers()),
        }));
    }
    found
}

/// A group at the end of the run.
struct Fleet<'f> {
    world: &'f World<'f>,
    id: &'f Id,
    group: &'f SyncGroup,
    selected: Vec<&'f str>,
    reachable: Vec<&'f str>,
}

impl<'f> Fleet<'f> {
    fn new(world: &'f World<'_>, id: &'f Id, group: &'f SyncGroup) -> Self {
        let ended = world.history.ended;
        let selected = world.hub.selected(&id.namespace, group, ended);
        let since = world.history.idle_since.unwrap_or(ended);
        let is_there = |name: &&str| {
            let track = world.hub.cluster(name);
            track.is_some_and(|track| track.always(since, ended, is_reachable))
        };
        Self {
            world,
            id,
            group,
            reachable: selected.iter().copied().filter(is_there).collect(),
            selected,
        }
    }

    fn is_true(&self, condition: &str) -> bool {
        let status = self.group.status.as_ref();
        status.is_some_and(|status| conditions::find(&status.conditions, condition).is_some())
    }

    fn is_blocked(&self) -> bool {
        let rollout = self
            .group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref());
        let rolls = rollout.is_some_and(|rollout| {
            let mut revisions = rollout.revisions.iter();
            revisions.all(|rolled| !rolled.revision.is_empty())
        });
        !rolls
            || self.group.spec.suspend
            || self.group.metadata.deletion_timestamp.is_some()
            || self.is_true(conditions::STALLED)
            || self.is_true(conditions::MEMBERSHIP_HELD)
            || (self.is_blocked_by("TooManyFailures") && self.failed().len() > self.allowed())
    }

    fn is_blocked_by(&self, reason: &str) -> bool {
        let rollout = self
            .group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref());
        rollout.is_some_and(|rollout| rollout.blocked_by.iter().any(|blocker| blocker.reason == reason))
    }

    fn blockers(&self) -> String {
        let rollout = self
            .group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref());
        let reasons: Vec<&str> = rollout
            .iter()
            .flat_map(|rollout| &rollout.blocked_by)
            .map(|blocker| blocker.reason.as_str())
            .collect();
        format!("blocked by {reasons:?}")
    }

    fn allowed(&self) -> usize {
        match self.group.spec.rollout_strategy.max_failures {
            IntOrPercent::Int(clusters) => clusters as usize,
            IntOrPercent::Percent(percent) => self.selected.len() * percent as usize / 100,
        }
    }

    /// Returns the clusters that are admitted to the current release, and not done.
    fn failed(&self) -> BTreeSet<&'f str> {
        let admitted = |cluster: &&&str| {
            self.world
                .group_timelines(self.id, cluster)
                .any(|timeline| self.is_admitted(timeline))
        };
        let done = |cluster: &&str| {
            let mut timelines = self.world.group_timelines(self.id, cluster);
            timelines.all(|timeline| {
                timeline
                    .targets
                    .last()
                    .is_some_and(|target| target.done.is_some())
            })
        };
        self.selected
            .iter()
            .filter(admitted)
            .copied()
            .filter(|cluster| !done(cluster))
            .collect()
    }

    /// Whether the last target of a Sync is that of the group's release.
    fn is_admitted(&self, timeline: &SyncTimeline<'_>) -> bool {
        let rollout = self
            .group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref());
        let mut rolled = rollout.into_iter().flat_map(|rollout| &rollout.revisions);
        let target = timeline.targets.last().filter(|target| target.until.is_none());
        target.is_some_and(|target| {
            rolled.any(|rolled| timeline.is_of(&rolled.sync) && rolled.revision == target.desired.revision)
        })
    }

    fn is_behind(&self, cluster: &str) -> bool {
        let problems = self.group.status.iter().flat_map(|status| &status.problems);
        let named = { problems }.any(|problem| problem.cluster == cluster && !problem.reason.is_empty());
        let all_admitted = self.group.spec.syncs.iter().all(|entry| {
            let mut timelines = self.world.group_timelines(self.id, cluster);
            timelines.any(|timeline| timeline.is_of(&entry.name) && self.is_admitted(timeline))
        });
        !named && !all_admitted
    }

    fn broken_rule(&self) -> Rule {
        let lost = self.selected.len() > self.reachable.len();
        let failing = self.selected.iter().any(|cluster| {
            let mut timelines = self.world.group_timelines(self.id, cluster);
            timelines.any(|timeline| failing_at_the_end(self.world, timeline).is_some())
        });
        match (lost, failing) {
            (true, _) => Rule::Isolation,
            (false, true) => Rule::FailureIsolation,
            (false, false) => Rule::Unfinished,
        }
    }
}

/// Returns the last version of a Sync, if its last target has failed.
fn failing_at_the_end<'s>(world: &World<'_>, timeline: &'s SyncTimeline<'_>) -> Option<&'s SyncResource> {
    let sync = &timeline.track.at(world.history.ended)?.object;
    let target = timeline.targets.last().filter(|target| target.until.is_none())?;
    (target.done.is_none() && is_failing(&world.digests, sync, &target.desired)).then_some(sync)
}

/// An object that fails stops no other object of its Sync: at the end the member has all objects that are not in
/// `status.problems`, and whose namespace is not. The failure is reported: the Sync's Ready is not `True` and has a
/// reason and a message, and the cluster is in the first ten problems of the group's status.
///
/// Evidence: the last versions of Syncs and groups, and the members. Without an object in the status, the failure is
/// not that of an object; with ten, further failed objects may be missing.
pub(super) fn other_objects_are_applied_and_failures_are_named(world: &World<'_>) -> Vec<Violation> {
    if world.history.idle_since.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for timeline in &world.syncs {
        let Some(sync) = failing_at_the_end(world, timeline) else {
            continue;
        };
        let cluster = world
            .hub
            .cluster(&timeline.cluster)
            .and_then(|track| track.at(world.history.ended));
        let reachable = cluster.is_some_and(|cluster| is_reachable(&cluster.object));
        let wrong = [
            reachable.then(|| missing_object(world, timeline, sync)).flatten(),
            unnamed_failure(world, timeline, sync),
        ];
        found.extend(wrong.into_iter().flatten().map(|message| Violation {
            rule: Rule::FailureIsolation,
            at: world.history.ended,
            cluster: Some(timeline.cluster.clone()),
            message,
        }));
    }
    found
}

fn missing_object(world: &World<'_>, timeline: &SyncTimeline<'_>, sync: &SyncResource) -> Option<String> {
    let problems = &sync.status.as_ref()?.problems;
    let member = world.member(&timeline.cluster, world.history.ended)?;
    if problems.is_empty() || problems.len() >= MAX_PROBLEMS {
        return None;
    }
    let target = timeline.targets.last()?;
    let is_named = |name: &str| problems.iter().any(|problem| problem.object == name);
    let missing = target.objects.iter().flatten().find(|object| {
        let mut keys = object.keys();
        let excused = problems
            .iter()
            .any(|problem| object.has_display_name(&problem.object))
            || keys.any(|key| is_named(&format!("Namespace {}", key.namespace)));
        !excused && !object.is_unmanaged() && !was_applied(member, None, object, world.history.ended)
    })?;
    Some(format!(
        "{} was not applied, although another object failed",
        missing.named()
    ))
}

fn unnamed_failure(world: &World<'_>, timeline: &SyncTimeline<'_>, sync: &SyncResource) -> Option<String> {
    let conditions = sync.status.as_ref().map(|status| &*status.conditions);
    let is_explained = ready(conditions.unwrap_or_default())
        .is_some_and(|ready| ready.status != "True" && !ready.reason.is_empty() && !ready.message.is_empty());
    if !is_explained {
        return Some("it has failed, and its Ready has no reason".into());
    }
    let (namespace, name) = timeline.owner_group()?;
    let group = world
        .hub
        .groups
        .get(&Id::new(namespace, name))?
        .at(world.history.ended)?;
    let problems = &group.object.status.as_ref()?.problems;
    let named =
        problems.len() >= MAX_PROBLEMS || problems.iter().any(|problem| problem.cluster == timeline.cluster);
    (!named).then(|| format!("it has failed, and group {name} does not report it"))
}
