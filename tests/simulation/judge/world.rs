//! All that a history tells, put in order: each Sync's story, the members, and whose objects are whose.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::SyncResource;

use super::digests::Digests;
use super::history::{History, Key, Push, Verb, Write};
use super::hub::{Hub, Id, Track};
use super::member::{Member, owner};
use super::render::render;
use super::targets::{Target, find_ends, wanted_targets};

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

    /// A member by its name and its identity, if it was there at some moment of a span. Where journals do not tell
    /// identities, the name is enough.
    pub(crate) fn member_called(
        &self,
        cluster: &str,
        identity: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<&Member<'w>> {
        let members = self.members.get(cluster)?;
        let was_there = |place: &usize| {
            let end = members.get(place + 1).and_then(|next| next.since);
            let since = members[*place].since;
            since.is_none_or(|since| since <= to) && end.is_none_or(|end| end >= from)
        };
        let fits = |place: &usize| members.len() == 1 || members[*place].identity == identity;
        let place = (0..members.len()).rfind(|place| was_there(place) && fits(place))?;
        members.get(place)
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
    let mut targets = wanted_targets(hub, &history.clock, id, track);
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
fn pushes<'h>(history: &'h History, hub: &Hub, sync: &Id, source: &str) -> Vec<&'h Push> {
    let track = hub.sources.get(&Id::new(&sync.namespace, source));
    let mut urls: Vec<&str> = track
        .iter()
        .flat_map(|track| track.versions())
        .map(|version| version.object.spec.url.as_str())
        .collect();
    urls.dedup();
    let pushed = urls.into_iter().filter_map(|url| history.git.get(url));
    pushed.flatten().collect()
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
