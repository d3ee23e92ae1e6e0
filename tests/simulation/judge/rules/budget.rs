//! Budgets of deletions: how many objects and clusters may lose something within a window.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::{DeletionBudget, DeletionPolicy, IntOrPercent, SyncGroup};

use super::approvals::{is_approved, may_leave, pruned_for};
use super::counted::{counting, grants};
use super::deletion::Deletion;
use super::deletions::begun_by_us;
use crate::judge::history::Verb;
use crate::judge::hub::{Id, Track, after, earlier, span};
use crate::judge::member::owner;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// A group without a limit of its own may lose half of its objects, and always this many.
const LEAST_OF_GROUP: usize = 100;
/// A Sync may prune half of its objects within an hour, and always one less than this.
const LEAST_OF_SYNC: usize = 10;

/// No budget of deletions is exceeded within its window, whatever the grants say: `deletionBudget` of a group and of a
/// Sync, the half of a Sync that prunes, and `maxUnselected` for the clusters that leave and lose their objects.
///
/// Evidence: the objects that Starling deleted on the members, by UID, without those that a person approved and those
/// that were made anew. A deletion belongs to the time of its grant. The limit is the widest that was current, or may
/// still have been for the controller, with shares of the most objects of that time. What was replaced is no loss: the
/// objects count by the difference of the most objects that the scope is known to have had at a grant within the window
/// and those that it has after the deletion, if that is less. A window is shorter by what the clock jumped ahead within
/// it.
pub(super) fn budgets_hold(world: &World<'_>) -> Vec<Violation> {
    let all = counting(world);
    let spent: Vec<Spent<'_>> = all
        .iter()
        .filter(|deletion| !is_approved(deletion, &all))
        .map(|deletion| Spent::new(deletion, &all))
        .collect();
    let mut found = Vec::new();
    for (id, groups) in &world.hub.groups {
        let mine: Vec<&Spent<'_>> = spent.iter().filter(|spent| spent.is_of(id)).collect();
        let scope = Scope::of_group(world, id, groups);
        found.extend(scope.exceeded(&mine));
        found.extend(clusters_that_left(world, id, groups));
    }
    for timeline in &world.syncs {
        let is_of = |spent: &&Spent<'_>| {
            let deletion = spent.deletion;
            deletion.cluster == timeline.cluster && deletion.owner() == Some(&timeline.owner)
        };
        let mine: Vec<&Spent<'_>> = spent.iter().filter(is_of).collect();
        found.extend(Scope::of_sync(world, timeline).exceeded(&mine));
        let prunes: Vec<&Spent<'_>> = mine
            .into_iter()
            .filter(|spent| !spent.deletion.is_end())
            .collect();
        let targets = prunes
            .iter()
            .filter_map(|spent| Some(pruned_for(spent.deletion)?.index));
        // Those of one target are the subject of the approvals.
        if targets.collect::<BTreeSet<usize>>().len() > 1 {
            found.extend(Scope::of_prunes(world, timeline).exceeded(&prunes));
        }
    }
    found
}

/// A deletion that counts against budgets.
struct Spent<'d> {
    deletion: &'d Deletion<'d>,
    /// When it was granted.
    granted: Timestamp,
}

impl<'d> Spent<'d> {
    fn new(deletion: &'d Deletion<'d>, all: &'d [Deletion<'d>]) -> Self {
        let granted = grants(deletion, all).min();
        Self {
            deletion,
            granted: granted.unwrap_or(deletion.at()),
        }
    }

    fn is_of(&self, id: &Id) -> bool {
        let mut timelines = self.deletion.timelines().into_iter();
        timelines.any(|timeline| timeline.owner_group() == Some((&id.namespace, &id.name)))
    }
}

/// Returns the limits that were current during a span.
type Budgets<'s> = dyn Fn(Timestamp, Timestamp) -> Vec<Limits> + 's;

/// Whether objects with an owner label belong to the scope on a cluster.
type Has<'s> = dyn Fn(&str, &str) -> bool + 's;

/// What a budget counts.
struct Scope<'s> {
    world: &'s World<'s>,
    name: String,
    /// The budgets of a span.
    budgets: Box<Budgets<'s>>,
    /// The Syncs, by cluster and owner label.
    has: Box<Has<'s>>,
}

/// The limits of a budget.
#[derive(Clone, Copy)]
struct Limits {
    window: SignedDuration,
    objects: Option<(IntOrPercent, usize)>,
    clusters: Option<IntOrPercent>,
}

impl Limits {
    fn of(budget: Option<DeletionBudget>, default: Option<(IntOrPercent, usize)>) -> Self {
        let budget = budget.unwrap_or_default();
        Self {
            window: span(budget.window),
            objects: budget.objects.map(|limit| (limit, 0)).or(default),
            clusters: budget.clusters,
        }
    }
}

impl<'s> Scope<'s> {
    fn of_group(world: &'s World<'_>, id: &'s Id, groups: &'s Track<SyncGroup>) -> Self {
        let default = Some((IntOrPercent::Percent(50), LEAST_OF_GROUP));
        let limits = move |group: &SyncGroup| Limits::of(group.spec.deletion_budget, default);
        Self {
            world,
            name: format!("group {}", id.name),
            budgets: Box::new(move |from, to| {
                groups
                    .during(from, to)
                    .map(|group| limits(&group.object))
                    .collect()
            }),
            has: Box::new(move |cluster, label| {
                let owner = world.owner(label);
                let timelines = owner.map_or_else(Vec::new, |owner| world.timelines(owner, cluster));
                { timelines.iter() }.any(|one| one.owner_group() == Some((&id.namespace, &id.name)))
            }),
        }
    }

    fn of_sync(world: &'s World<'_>, timeline: &'s SyncTimeline<'_>) -> Self {
        let budget = |sync: &starling_api::SyncResource| Limits::of(sync.spec.deletion_budget, None);
        Self {
            budgets: Box::new(move |from, to| {
                let during = timeline.track.during(from, to);
                during.map(|sync| budget(&sync.object)).collect()
            }),
            ..Self::of_prunes(world, timeline)
        }
    }

    fn of_prunes(world: &'s World<'_>, timeline: &'s SyncTimeline<'_>) -> Self {
        let hour = SignedDuration::from_hours(1);
        let half = Limits {
            window: hour,
            objects: Some((IntOrPercent::Percent(50), LEAST_OF_SYNC - 1)),
            clusters: None,
        };
        Self {
            world,
            name: format!("Sync {}", timeline.id.name),
            budgets: Box::new(move |_, _| vec![half]),
            has: Box::new(move |cluster, label| {
                cluster == timeline.cluster && world.owner(label) == Some(&timeline.owner)
            }),
        }
    }

    /// Returns the first deletion with which a budget was exceeded.
    fn exceeded(&self, spent: &[&Spent<'_>]) -> Option<Violation> {
        let mut in_order = spent.to_vec();
        in_order.sort_by_key(|spent| (spent.granted, spent.deletion.at()));
        in_order.iter().enumerate().find_map(|(place, last)| {
            let at = last.granted;
            let limits = (self.budgets)(earlier(at, last.deletion.limit()), last.deletion.at());
            let least = |excess: fn(&Self, &[&Spent<'_>], Limits) -> Option<String>| {
                let excesses = limits.iter().map(|limits| {
                    let from = window_start(self.world, at, limits.window);
                    // The management cluster was set back within the window: the numbers of objects in the status of
                    // its Syncs are those of the backup until each of them has made an attempt.
                    if from > earlier(at, limits.window)
                        && self.world.history.hub_set_backs().any(|back| back == from)
                    {
                        return None;
                    }
                    let within = { in_order[..=place].iter().copied() }.filter(|spent| spent.granted > from);
                    excess(self, &within.collect::<Vec<_>>(), *limits)
                });
                // The widest limit counts: one that allows the deletions is enough.
                let all: Option<Vec<String>> = excesses.collect();
                all.and_then(|all| all.into_iter().next())
            };
            let excess = least(Self::objects_exceeded).or_else(|| least(Self::clusters_exceeded))?;
            let message = format!("although {} has a budget: {excess}", self.name);
            Some(last.deletion.violation(Rule::Budget, message))
        })
    }

    fn objects_exceeded(&self, within: &[&Spent<'_>], limits: Limits) -> Option<String> {
        let (limit, least) = limits.objects?;
        let last = within.last()?;
        let deleted: BTreeSet<(&str, &str)> = { within.iter() }
            .map(|spent| (spent.deletion.cluster, spent.deletion.uid()))
            .collect();
        let from = window_start(self.world, last.granted, limits.window);
        let until = within.iter().map(|spent| spent.deletion.at()).max()?;
        let objects = self.objects_until(until);
        // What an attempt creates is known when it ends.
        let known = within.iter().map(|spent| {
            let sure = earlier(spent.granted, spent.deletion.limit());
            objects.at(sure, spent.granted)
        });
        let lost = known.max()?.saturating_sub(objects.at(until, until));
        let lost = deleted.len().min(lost);
        let most = objects.most(from);
        let allowed = limit.of_rounded_down(most).max(least);
        (lost > allowed).then(|| format!("{lost} of {most} objects, {allowed} at most"))
    }

    fn clusters_exceeded(&self, within: &[&Spent<'_>], limits: Limits) -> Option<String> {
        let limit = limits.clusters?;
        let clusters: BTreeSet<&str> = within.iter().map(|spent| spent.deletion.cluster).collect();
        let has = |cluster: &&&str| {
            let labels = labels(self.world, cluster);
            labels.iter().any(|label| (self.has)(cluster, label))
        };
        let all = self.world.members.keys().filter(has).count();
        let allowed = limit.of_rounded_down(all);
        (clusters.len() > allowed).then(|| format!("{} of {all} clusters, {allowed} at most", clusters.len()))
    }

    /// Returns the objects of the scope until a time: what its inventories list and is there.
    fn objects_until(&self, to: Timestamp) -> Objects {
        let mut spans = Vec::new();
        for (cluster, members) in &self.world.members {
            for versions in members.iter().flat_map(|member| member.objects.values()) {
                let (mut since, mut is_of_scope) = (None, false);
                for version in versions.iter().filter(|version| version.write.at <= to) {
                    let label = owner(&version.write.object);
                    let begins = version.write.verb == Verb::Write;
                    if begins {
                        is_of_scope = !label.is_empty() && (self.has)(cluster, label);
                    }
                    // An object that was handed over or given up is no loss, whatever its next owner does with it.
                    let is_there = if is_of_scope { begins } else { since.is_some() };
                    if is_there {
                        since.get_or_insert(version.write.at);
                    } else if let Some(since) = since.take() {
                        spans.push((since, version.write.at));
                    }
                }
                spans.extend(since.map(|since| (since, Timestamp::MAX)));
            }
        }
        Objects(spans)
    }
}

/// The objects of a scope: from when until when each was there.
struct Objects(Vec<(Timestamp, Timestamp)>);

impl Objects {
    /// Returns how many of those that were there at one time still were at another.
    fn at(&self, since: Timestamp, at: Timestamp) -> usize {
        let is_there = |(from, to): &&(Timestamp, Timestamp)| *from <= since && at < *to;
        self.0.iter().filter(is_there).count()
    }

    /// Returns the most objects at any time since this one.
    fn most(&self, from: Timestamp) -> usize {
        let begins = self.0.iter().map(|(since, _)| (*since).max(from));
        let begins: BTreeSet<Timestamp> = begins.collect();
        begins
            .iter()
            .map(|at| self.at(*at, *at))
            .max()
            .unwrap_or_default()
    }
}

/// Returns the owner labels of the objects that a member ever had.
fn labels<'w>(world: &'w World<'_>, cluster: &str) -> BTreeSet<&'w str> {
    let members = world.members.get(cluster).into_iter().flatten();
    let versions = members.flat_map(|member| member.objects.values().flatten());
    let labels = versions.map(|version| owner(&version.write.object));
    labels.filter(|label| !label.is_empty()).collect()
}

/// Returns the start of the window that ends at a time: later by what the clock jumped ahead, and not before the
/// management cluster was set back: the counts are in its objects, and it has those of its backup.
fn window_start(world: &World<'_>, at: Timestamp, window: SignedDuration) -> Timestamp {
    let from = earlier(at, window);
    let mut offset = SignedDuration::ZERO;
    let mut ahead = SignedDuration::ZERO;
    for (since, off) in &world.history.clock.0 {
        let by = off.checked_sub(offset).unwrap_or(SignedDuration::ZERO);
        if *since > from && *since <= at && by.is_positive() {
            ahead = ahead.checked_add(by).unwrap_or(SignedDuration::MAX);
        }
        offset = *off;
    }
    let set_back = world.history.hub_set_backs().filter(|back| *back <= at).max();
    set_back.map_or(after(from, ahead), |back| back.max(after(from, ahead)))
}

/// The clusters that leave a group within a window and lose their objects are no more than `maxUnselected` allows.
fn clusters_that_left(world: &World<'_>, id: &Id, groups: &Track<SyncGroup>) -> Option<Violation> {
    let mut left: Vec<(Timestamp, usize, &str)> = Vec::new();
    for timeline in &world.syncs {
        if timeline.owner_group() != Some((&id.namespace, &id.name)) {
            continue;
        }
        for version in begun_by_us(timeline) {
            let group = groups.before(version.index).map(|group| &group.object);
            let leaves = group.is_some_and(|group| {
                let selected = world.hub.selected(&id.namespace, group, version.at);
                let is_ending = group.metadata.deletion_timestamp.is_some();
                // With its entry a Sync goes, selected cluster or not, and the others of the cluster stay.
                let has_entry = group.spec.syncs.iter().any(|entry| timeline.is_of(&entry.name));
                !is_ending && has_entry && !selected.contains(&timeline.cluster.as_str())
            });
            let deletes = version.object.spec.template.deletion_policy == DeletionPolicy::Delete;
            let is_approved = may_leave(world, id, &timeline.cluster, version.index);
            if leaves && deletes && !is_approved {
                left.push((version.at, version.index, &timeline.cluster));
            }
        }
    }
    left.sort_unstable();
    left.iter().enumerate().find_map(|(place, (at, index, cluster))| {
        let group = &groups.before(*index)?.object;
        let window = Limits::of(group.spec.deletion_budget, None).window;
        let from = window_start(world, *at, window);
        let within = left[..=place].iter().filter(|(at, ..)| *at > from);
        let within: BTreeSet<&str> = within.map(|(.., cluster)| *cluster).collect();
        let of = clusters_within(world, id, from, *at);
        let widest =
            { groups.during(from, *at) }.map(|group| group.object.spec.max_unselected.of_rounded_down(of));
        let allowed = widest.max().unwrap_or_default().max(1);
        (within.len() > allowed).then(|| Violation {
            rule: Rule::Budget,
            at: *at,
            cluster: Some((*cluster).to_owned()),
            message: format!(
                "{} of {of} clusters left within {window}, {allowed} at most",
                within.len()
            ),
        })
    })
}

/// Returns the number of clusters on which a group had a Sync within a span.
fn clusters_within(world: &World<'_>, id: &Id, from: Timestamp, to: Timestamp) -> usize {
    let of_group = world.syncs.iter().filter(|timeline| {
        let is_of_group = timeline.owner_group() == Some((&id.namespace, &id.name));
        is_of_group && timeline.track.during(from, to).next().is_some()
    });
    let clusters: BTreeSet<&str> = of_group.map(|timeline| timeline.cluster.as_str()).collect();
    clusters.len()
}
