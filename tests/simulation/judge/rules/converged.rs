//! I5 and I8: what is wrong in one place stays there. Asked of the end of a run that came to rest.

use std::collections::BTreeSet;

use starling_api::conditions;
use starling_api::{IntOrPercent, SyncGroup, SyncResource};

use super::claims::was_held;
use crate::judge::hub::{Id, is_reachable, ready};
use crate::judge::targets::is_failing;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncStory, World};

/// Problems that a status names at most.
const NAMED: usize = 10;

/// Every selected cluster that can be reached was told to hold what its group rolls in the end, whatever became of the others.
/// Where a cluster was left behind, the rule is I5 if another one of the group cannot be reached, I8 if something else of
/// the group failed or cannot be read, and I2 if nothing is wrong at all.
///
/// Excused are: a group that rolls nothing yet, is suspended, stalled or held by its membership; a cluster that the group
/// names among its problems for something of its own; and all of them where more clusters have failed than `maxFailures`
/// allows and the group says so. What a cluster does with what it was told is the business of [`Rule::Dangling`].
pub(super) fn others_converge(world: &World<'_>) -> Vec<Violation> {
    if world.history.quiet_since.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let Some(group) = track.at(world.history.ended) else {
            continue;
        };
        let fleet = Fleet::new(world, id, &group.object);
        if fleet.is_held() {
            continue;
        }
        let behind = fleet.reachable.iter().filter(|cluster| fleet.is_behind(cluster));
        found.extend(behind.map(|cluster| Violation {
            rule: fleet.what_is_wrong(),
            at: world.history.ended,
            cluster: Some((*cluster).to_owned()),
            words: format!(
                "was left behind by group {}, which is said to be {}",
                id.name,
                fleet.blockers()
            ),
        }));
    }
    found
}

/// A group in the end.
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
        let since = world.history.quiet_since.unwrap_or(ended);
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

    fn says(&self, condition: &str) -> bool {
        let status = self.group.status.as_ref();
        status.is_some_and(|status| conditions::find(&status.conditions, condition).is_some())
    }

    fn is_held(&self) -> bool {
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
            || self.says(conditions::STALLED)
            || self.says(conditions::MEMBERSHIP_HELD)
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

    /// The clusters that were told what is rolled, and are not done with it.
    fn failed(&self) -> BTreeSet<&'f str> {
        let told = |cluster: &&&str| {
            self.world
                .group_stories(self.id, cluster)
                .any(|story| self.is_told(story))
        };
        let done = |cluster: &&str| {
            let mut stories = self.world.group_stories(self.id, cluster);
            stories.all(|story| story.targets.last().is_some_and(|target| target.done.is_some()))
        };
        self.selected
            .iter()
            .filter(told)
            .copied()
            .filter(|cluster| !done(cluster))
            .collect()
    }

    /// Whether the last thing that a Sync was to hold is what the group rolls.
    fn is_told(&self, story: &SyncStory<'_>) -> bool {
        let rollout = self
            .group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref());
        let mut rolled = rollout.into_iter().flat_map(|rollout| &rollout.revisions);
        let target = story.targets.last().filter(|target| target.until.is_none());
        target.is_some_and(|target| {
            rolled.any(|rolled| story.is_of(&rolled.sync) && rolled.revision == target.wanted.revision)
        })
    }

    fn is_behind(&self, cluster: &str) -> bool {
        let problems = self.group.status.iter().flat_map(|status| &status.problems);
        let named = { problems }.any(|problem| problem.cluster == cluster && !problem.reason.is_empty());
        let all_told = self.group.spec.syncs.iter().all(|entry| {
            let mut stories = self.world.group_stories(self.id, cluster);
            stories.any(|story| story.is_of(&entry.name) && self.is_told(story))
        });
        !named && !all_told
    }

    fn what_is_wrong(&self) -> Rule {
        let lost = self.selected.len() > self.reachable.len();
        let failing = self.selected.iter().any(|cluster| {
            let mut stories = self.world.group_stories(self.id, cluster);
            stories.any(|story| failing_in_the_end(self.world, story).is_some())
        });
        match (lost, failing) {
            (true, _) => Rule::Isolation,
            (false, true) => Rule::Neighbours,
            (false, false) => Rule::Dangling,
        }
    }
}

/// The Sync as it was in the end, if what it was to hold has failed.
fn failing_in_the_end<'s>(world: &World<'_>, story: &'s SyncStory<'_>) -> Option<&'s SyncResource> {
    let sync = &story.track.at(world.history.ended)?.object;
    let target = story.targets.last().filter(|target| target.until.is_none())?;
    (target.done.is_none() && is_failing(&world.digests, sync, &target.wanted)).then_some(sync)
}

/// An object that fails stops no other object of its Sync: in the end the member has all that are not named in
/// `status.problems`, and that are not in a namespace that is. What failed is named: the Sync's Ready is not `True` and has a
/// reason and a message, and its group has the cluster among its problems, of which it names ten.
///
/// Evidence: the last versions of Syncs and groups, and the members. Where no object is named, it was not an object that
/// failed; where ten are, the others may be among those that are not.
pub(super) fn neighbours_are_applied_and_the_bad_one_is_named(world: &World<'_>) -> Vec<Violation> {
    if world.history.quiet_since.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for story in &world.syncs {
        let Some(sync) = failing_in_the_end(world, story) else {
            continue;
        };
        let cluster = world
            .hub
            .cluster(&story.cluster)
            .and_then(|track| track.at(world.history.ended));
        let reachable = cluster.is_some_and(|cluster| is_reachable(&cluster.object));
        let wrong = [
            reachable
                .then(|| neighbours_missing(world, story, sync))
                .flatten(),
            not_named(world, story, sync),
        ];
        found.extend(wrong.into_iter().flatten().map(|words| Violation {
            rule: Rule::Neighbours,
            at: world.history.ended,
            cluster: Some(story.cluster.clone()),
            words,
        }));
    }
    found
}

fn neighbours_missing(world: &World<'_>, story: &SyncStory<'_>, sync: &SyncResource) -> Option<String> {
    let problems = &sync.status.as_ref()?.problems;
    let member = world.member(&story.cluster, world.history.ended)?;
    if problems.is_empty() || problems.len() >= NAMED {
        return None;
    }
    let target = story.targets.last()?;
    let is_named = |name: &str| problems.iter().any(|problem| problem.object == name);
    let missing = target.objects.iter().flatten().find(|object| {
        let mut keys = object.keys();
        let excused = problems.iter().any(|problem| object.is_called(&problem.object))
            || keys.any(|key| is_named(&format!("Namespace {}", key.namespace)));
        !excused && !object.is_left_alone() && !was_held(member, object, world.history.ended)
    })?;
    Some(format!(
        "{} was not applied, though it is not what failed",
        missing.named()
    ))
}

fn not_named(world: &World<'_>, story: &SyncStory<'_>, sync: &SyncResource) -> Option<String> {
    let conditions = sync.status.as_ref().map(|status| &*status.conditions);
    let said = ready(conditions.unwrap_or_default())
        .is_some_and(|ready| ready.status != "True" && !ready.reason.is_empty() && !ready.message.is_empty());
    if !said {
        return Some("it has failed, and its Ready does not say why".into());
    }
    let (namespace, name) = story.owner_group()?;
    let group = world
        .hub
        .groups
        .get(&Id::new(namespace, name))?
        .at(world.history.ended)?;
    let problems = &group.object.status.as_ref()?.problems;
    let named = problems.len() >= NAMED || problems.iter().any(|problem| problem.cluster == story.cluster);
    (!named).then(|| format!("it has failed, and group {name} does not name it"))
}
