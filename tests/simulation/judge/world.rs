//! All that a history tells, put in order: what each Sync was to hold from when to when, and whose objects are whose.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, HEALTHY, STALLED};
use starling_api::{ADMITTED_AT, GROUP_MANAGER, RELEASE, SyncResource, SyncSpec, SyncTemplate};

use super::history::{History, Key, Push, Verb, Write};
use super::hub::{Hub, Id, Track, Version};
use super::member::{Member, owner};
use super::render::{Expected, render};

/// The reason with which health ends the hope for a target.
const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

/// What one Sync is to hold: the pair of a revision and a template with all values. `suspend` is none of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) revision: String,
    pub(crate) template: SyncTemplate,
}

impl Wanted {
    fn of(revision: &str, spec: &SyncSpec) -> Self {
        Self {
            revision: revision.to_owned(),
            template: SyncTemplate {
                suspend: false,
                ..spec.template.clone()
            },
        }
    }
}

/// A target of one Sync, from when it was wanted until something else was.
#[derive(Debug)]
pub(crate) struct Target {
    /// Since when, and by which write of the management cluster.
    pub(crate) at: Timestamp,
    pub(crate) index: usize,
    /// When it was decided; no later than `at`.
    pub(crate) decided: Timestamp,
    /// Whether the group admitted it with that write.
    pub(crate) is_admission: bool,
    /// Release that it was admitted with; empty for a Sync alone.
    pub(crate) release: String,
    pub(crate) wanted: Wanted,
    /// What it renders to; none where it renders to nothing that is known.
    pub(crate) objects: Option<Vec<Expected>>,
    /// Until when it was wanted, and until which write.
    pub(crate) until: Option<(Timestamp, usize)>,
    /// When its Sync first said that the cluster holds it and, with `wait`, was healthy with it; and by which write.
    pub(crate) done: Option<(Timestamp, usize)>,
    /// When its Sync first said that it failed, though it may have recovered since.
    pub(crate) failed: Option<(Timestamp, usize)>,
}

impl Target {
    /// Whether it renders an object of this name.
    pub(crate) fn renders(&self, key: &Key) -> Option<&Expected> {
        self.objects.iter().flatten().find(|expected| expected.is(key))
    }

    /// Whether it was the wanted one at some moment of a span.
    pub(crate) fn is_wanted_during(&self, from: Timestamp, to: Timestamp) -> bool {
        self.at <= to && self.until.is_none_or(|(until, _)| until >= from)
    }
}

/// Who owns objects on members: the same on all of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Entry of a group: namespace, group, entry.
    Entry(String, String, String),
    /// A Sync without a group.
    Alone(Id),
}

/// One Sync, under one name.
#[derive(Debug)]
pub(crate) struct SyncStory<'w> {
    pub(crate) id: &'w Id,
    pub(crate) track: &'w Track<SyncResource>,
    pub(crate) owner: Owner,
    pub(crate) cluster: String,
    pub(crate) targets: Vec<Target>,
}

impl SyncStory<'_> {
    /// Whether it is this entry of its group.
    pub(crate) fn is_of(&self, entry: &str) -> bool {
        matches!(&self.owner, Owner::Entry(_, _, own) if own == entry)
    }

    /// Namespace and name of its group.
    pub(crate) fn owner_group(&self) -> Option<(&String, &String)> {
        match &self.owner {
            Owner::Entry(namespace, group, _) => Some((namespace, group)),
            Owner::Alone(_) => None,
        }
    }

    /// The target that was wanted before a write of the management cluster.
    pub(crate) fn target_before(&self, index: usize) -> Option<&Target> {
        self.targets
            .iter()
            .rfind(|target| target.index < index && target.until.is_none_or(|(_, until)| until >= index))
    }

    /// The target that was wanted at a moment.
    pub(crate) fn target_at(&self, at: Timestamp) -> Option<&Target> {
        self.targets
            .iter()
            .rfind(|target| target.at <= at && target.until.is_none_or(|(until, _)| until > at))
    }
}

/// A digest that stands for two things.
#[derive(Debug)]
pub(crate) struct TwoMeanings {
    pub(crate) at: Timestamp,
    pub(crate) cluster: String,
    pub(crate) words: String,
}

/// What the digests in statuses stand for, learned from the statuses that used them first.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: BTreeMap<String, Wanted>,
    pub(crate) two_meanings: Vec<TwoMeanings>,
}

impl Digests {
    /// Whether a digest stands for this.
    pub(crate) fn is(&self, digest: &str, wanted: &Wanted) -> bool {
        self.known.get(digest) == Some(wanted)
    }

    /// What it stands for.
    pub(crate) fn get(&self, digest: &str) -> Option<&Wanted> {
        self.known.get(digest)
    }

    fn learn(hub: &Hub) -> Self {
        let mut digests = Self::default();
        let mut versions: Vec<(&Track<SyncResource>, usize)> = Vec::new();
        for track in hub.syncs.values() {
            versions.extend((0..track.versions().len()).map(|place| (track, place)));
        }
        versions.sort_by_key(|(track, place)| track.versions()[*place].index);
        for (track, place) in versions {
            digests.learn_from(track, place);
        }
        digests
    }

    /// Takes in what a status says for the first time. One that is a copy of an older one says nothing new.
    fn learn_from(&mut self, track: &Track<SyncResource>, place: usize) {
        let version = &track.versions()[place];
        let Some(status) = &version.object.status else {
            return;
        };
        let before: Vec<_> = track.versions()[..place]
            .iter()
            .filter_map(|version| version.object.status.as_ref())
            .collect();
        let spec = spec_of_generation(track, place);
        let attempted = (&status.last_attempted_target, &status.last_attempted_revision);
        let applied = (&status.last_applied_target, &status.last_applied_revision);
        let said = |digest: &str| {
            before
                .iter()
                .any(|old| old.last_applied_target == digest || old.last_attempted_target == digest)
        };
        for (digest, revision) in [attempted, applied] {
            if digest.is_empty() || said(digest) {
                continue;
            }
            let wanted = Wanted::of(revision, spec);
            match self.known.get(digest) {
                Some(known) if *known != wanted => self.two_meanings.push(TwoMeanings {
                    at: version.at,
                    cluster: spec.cluster_ref.name.clone(),
                    words: format!("target {digest} stands for two things; the second is {revision}"),
                }),
                Some(_) => {}
                None => {
                    self.known.insert(digest.clone(), wanted);
                }
            }
        }
    }
}

/// The spec that a status is about.
fn spec_of_generation(track: &Track<SyncResource>, place: usize) -> &SyncSpec {
    let versions = &track.versions()[..=place];
    let current = &versions[place].object;
    let about = current
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let found = versions.iter().rfind(|version| {
        version.object.metadata.generation == about && version.object.uid() == current.uid()
    });
    found.map_or(&current.spec, |version| &version.object.spec)
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World<'w> {
    pub(crate) history: &'w History,
    pub(crate) hub: &'w Hub,
    pub(crate) digests: Digests,
    pub(crate) syncs: Vec<SyncStory<'w>>,
    pub(crate) members: BTreeMap<&'w str, Vec<Member<'w>>>,
    owners: BTreeMap<String, Owner>,
}

impl<'w> World<'w> {
    /// Puts a history in order.
    pub(crate) fn new(history: &'w History, hub: &'w Hub) -> Self {
        let digests = Digests::learn(hub);
        let syncs: Vec<_> = hub
            .syncs
            .iter()
            .filter_map(|(id, track)| story(history, hub, &digests, id, track))
            .collect();
        let members = history
            .members
            .iter()
            .map(|(name, writes)| (name.as_str(), Member::read(writes)))
            .collect();
        let owners = learn_owners(&syncs, &members);
        Self {
            history,
            hub,
            digests,
            syncs,
            members,
            owners,
        }
    }

    /// A member as it was then; a rebuilt one is another.
    pub(crate) fn member(&self, cluster: &str, at: Timestamp) -> Option<&Member<'w>> {
        let members = self.members.get(cluster)?;
        members
            .iter()
            .rfind(|member| member.since.is_none_or(|since| since <= at))
    }

    /// Whose label it is.
    pub(crate) fn owner(&self, label: &str) -> Option<&Owner> {
        self.owners.get(label)
    }

    /// The Syncs of an owner on a cluster: one, unless it was made anew under another name.
    pub(crate) fn stories(&self, owner: &Owner, cluster: &str) -> Vec<&SyncStory<'w>> {
        let fits = |story: &&SyncStory<'w>| story.owner == *owner && story.cluster == cluster;
        self.syncs.iter().filter(fits).collect()
    }

    /// The Syncs of a group on a cluster.
    pub(crate) fn group_stories<'s>(
        &'s self,
        group: &'s Id,
        cluster: &'s str,
    ) -> impl Iterator<Item = &'s SyncStory<'w>> {
        self.syncs.iter().filter(move |story| {
            let ours = matches!(&story.owner, Owner::Entry(namespace, name, _)
                if *namespace == group.namespace && *name == group.name);
            ours && story.cluster == cluster
        })
    }
}

fn story<'w>(
    history: &History,
    hub: &Hub,
    digests: &Digests,
    id: &'w Id,
    track: &'w Track<SyncResource>,
) -> Option<SyncStory<'w>> {
    let spec = &track.versions().last()?.object.spec;
    let owner = match &spec.group_ref {
        Some(of) => Owner::Entry(id.namespace.clone(), of.name.clone(), of.entry.clone()),
        None => Owner::Alone(id.clone()),
    };
    let mut targets = wanted_targets(hub, id, track);
    for target in &mut targets {
        let pushes = pushes(history, hub, id, &target.wanted.template.source_ref.name);
        target.objects = render(&pushes, &target.wanted.revision, &target.wanted.template);
        find_ends(digests, track, target);
    }
    Some(SyncStory {
        id,
        track,
        owner,
        cluster: spec.cluster_ref.name.clone(),
        targets,
    })
}

/// What was pushed to the repositories that a Source has named.
fn pushes(history: &History, hub: &Hub, sync: &Id, source: &str) -> Vec<Push> {
    let track = hub.sources.get(&Id::new(&sync.namespace, source));
    let mut urls: Vec<&str> = track
        .iter()
        .flat_map(|track| track.versions())
        .map(|version| version.object.spec.url.as_str())
        .collect();
    urls.dedup();
    let pushed = urls.into_iter().filter_map(|url| history.git.get(url));
    pushed.flatten().cloned().collect()
}

/// A moment at which what a Sync wants may have changed.
struct Moment<'v> {
    at: Timestamp,
    index: usize,
    sync: Option<&'v Version<SyncResource>>,
}

/// Every target, with the time in which it was wanted. A Sync alone without a revision follows its Source.
fn wanted_targets(hub: &Hub, id: &Id, track: &Track<SyncResource>) -> Vec<Target> {
    let mut moments: Vec<Moment<'_>> = track
        .versions()
        .iter()
        .map(|version| Moment {
            at: version.at,
            index: version.index,
            sync: Some(version),
        })
        .collect();
    for (_, source) in hub.sources.iter().filter(|(of, _)| of.namespace == id.namespace) {
        moments.extend(source.versions().iter().map(|version| Moment {
            at: version.at,
            index: version.index,
            sync: None,
        }));
    }
    moments.sort_by_key(|moment| moment.index);
    let mut targets: Vec<Target> = Vec::new();
    for moment in &moments {
        let next = next_target(hub, id, track, moment, targets.last());
        let Some(next) = next else { continue };
        if let Some(last) = targets.last_mut()
            && last.until.is_none()
        {
            last.until = Some((moment.at, moment.index));
        }
        targets.extend(next);
    }
    targets
}

/// `None`: all is as before. `Some(None)`: nothing is wanted any more.
fn next_target(
    hub: &Hub,
    id: &Id,
    track: &Track<SyncResource>,
    moment: &Moment<'_>,
    last: Option<&Target>,
) -> Option<Option<Target>> {
    let open = last.filter(|last| last.until.is_none());
    let Some(current) = track.before(moment.index + 1) else {
        return open.map(|_| None);
    };
    let spec = &current.object.spec;
    let revision = if spec.revision.is_empty() && spec.group_ref.is_none() {
        let source = hub
            .sources
            .get(&Id::new(&id.namespace, &spec.template.source_ref.name));
        let offered = source.and_then(|source| source.before(moment.index + 1));
        offered
            .and_then(|offered| offered.object.status.as_ref())
            .map(|status| status.revision.clone())
            .unwrap_or_default()
    } else {
        spec.revision.clone()
    };
    if revision.is_empty() {
        return open.map(|_| None);
    }
    let wanted = Wanted::of(&revision, spec);
    let decided = current.object.annotations().get(ADMITTED_AT);
    let decided: Option<Timestamp> = decided.and_then(|at| at.parse().ok());
    let is_admission = spec.group_ref.is_some()
        && moment
            .sync
            .is_some_and(|version| version.manager == GROUP_MANAGER)
        && decided.is_none_or(|decided| open.is_none_or(|open| open.decided != decided));
    if !is_admission && open.is_some_and(|open| open.wanted == wanted) {
        return None;
    }
    Some(Some(Target {
        at: moment.at,
        index: moment.index,
        decided: decided.unwrap_or(moment.at).min(moment.at),
        is_admission,
        release: current
            .object
            .annotations()
            .get(RELEASE)
            .cloned()
            .unwrap_or_default(),
        wanted,
        objects: None,
        until: None,
        done: None,
        failed: None,
    }))
}

/// How the target ended, by what its Sync said while it was wanted.
fn find_ends(digests: &Digests, track: &Track<SyncResource>, target: &mut Target) {
    let end = target.until.map_or(usize::MAX, |(_, index)| index);
    let said = track.versions().iter().filter(|version| {
        version.index >= target.index && version.index < end && version.verb != Verb::Delete
    });
    for version in said {
        let when = (version.at, version.index);
        if target.done.is_none() && is_done(digests, &version.object, &target.wanted) {
            target.done = Some(when);
        }
        if target.failed.is_none() && is_failing(digests, &version.object, &target.wanted) {
            target.failed = Some(when);
        }
    }
}

/// Whether a Sync says that the cluster holds this and, with `wait`, was healthy with it.
pub(crate) fn is_done(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let healthy = !wanted.template.wait || status.last_healthy_target == status.last_applied_target;
    is_held(digests, sync, wanted) && healthy
}

fn is_held(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let tried_another = !status.last_attempted_target.is_empty()
        && status.last_attempted_target != status.last_applied_target;
    !tried_another && digests.is(&status.last_applied_target, wanted)
}

/// Whether a Sync says that its last attempt at this failed, or that it did not become healthy, or that it is stalled.
pub(crate) fn is_failing(digests: &Digests, sync: &SyncResource, wanted: &Wanted) -> bool {
    let Some(status) = &sync.status else { return false };
    let attempt = status.attempts > 0 && digests.is(&status.last_attempted_target, wanted);
    let generation = sync.metadata.generation.unwrap_or_default();
    let stalled = conditions::is_true(&status.conditions, STALLED, generation);
    let unhealthy = conditions::find(&status.conditions, HEALTHY)
        .is_some_and(|healthy| healthy.reason == HEALTH_CHECK_FAILED);
    attempt || stalled || (unhealthy && is_held(digests, sync, wanted) && !is_done(digests, sync, wanted))
}

/// Whose each owner label is: of the Syncs on the clusters where it was written, the one that renders most of what carries
/// it. How a label is made is none of the judge's business.
fn learn_owners(
    syncs: &[SyncStory<'_>],
    members: &BTreeMap<&str, Vec<Member<'_>>>,
) -> BTreeMap<String, Owner> {
    let mut votes: BTreeMap<&str, BTreeMap<&Owner, usize>> = BTreeMap::new();
    for (cluster, members) in members {
        let labelled: Vec<(&str, Key)> = members
            .iter()
            .flat_map(|member| &member.ours)
            .filter_map(|ours| labelled(ours.write))
            .collect();
        for story in syncs.iter().filter(|story| story.cluster == **cluster) {
            for (label, key) in &labelled {
                if story.targets.iter().any(|target| target.renders(key).is_some()) {
                    *votes.entry(label).or_default().entry(&story.owner).or_default() += 1;
                }
            }
        }
    }
    votes
        .into_iter()
        .filter_map(|(label, votes)| {
            let (owner, _) = votes.into_iter().max_by_key(|(_, count)| *count)?;
            Some((label.to_owned(), owner.clone()))
        })
        .collect()
}

fn labelled(write: &Write) -> Option<(&str, Key)> {
    let label = owner(&write.object);
    (write.verb == Verb::Write && !label.is_empty()).then(|| (label, write.key()))
}
