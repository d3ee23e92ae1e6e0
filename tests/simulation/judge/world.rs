//! A history in an ordered form: the timeline of each Sync, the members, and the owners of objects.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::SyncResource;

use super::digests::Digests;
use super::history::{History, Key, Push, Verb, Write};
use super::hub::{Hub, Id, Track};
use super::member::{Member, owner};
use super::render::render;
use super::targets::{Target, desired_targets, find_ends};

/// The owner of objects on members: the same on all members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// An entry of a group: namespace, group, entry.
    Entry(String, String, String),
    /// A Sync without a group.
    Alone(Id),
}

/// The history of one Sync name.
#[derive(Debug)]
pub(crate) struct SyncTimeline<'w> {
    pub(crate) id: &'w Id,
    pub(crate) track: &'w Track<SyncResource>,
    pub(crate) owner: Owner,
    pub(crate) cluster: String,
    pub(crate) targets: Vec<Target>,
}

impl SyncTimeline<'_> {
    /// Whether this is the Sync of an entry.
    pub(crate) fn is_of(&self, entry: &str) -> bool {
        matches!(&self.owner, Owner::Entry(_, _, own) if own == entry)
    }

    /// Returns namespace and name of its group.
    pub(crate) fn owner_group(&self) -> Option<(&String, &String)> {
        match &self.owner {
            Owner::Entry(namespace, group, _) => Some((namespace, group)),
            Owner::Alone(_) => None,
        }
    }

    /// Returns the target before a write to the management cluster.
    pub(crate) fn target_before(&self, index: usize) -> Option<&Target> {
        self.targets
            .iter()
            .rfind(|target| target.index < index && target.until.is_none_or(|(_, until)| until >= index))
    }

    /// Returns the target at a moment.
    pub(crate) fn target_at(&self, at: Timestamp) -> Option<&Target> {
        self.targets
            .iter()
            .rfind(|target| target.at <= at && target.until.is_none_or(|(until, _)| until > at))
    }
}

/// The ordered history.
#[derive(Debug)]
pub(crate) struct World<'w> {
    pub(crate) history: &'w History,
    pub(crate) hub: &'w Hub,
    pub(crate) digests: Digests,
    pub(crate) syncs: Vec<SyncTimeline<'w>>,
    pub(crate) members: BTreeMap<&'w str, Vec<Member<'w>>>,
    owners: BTreeMap<String, Owner>,
}

impl<'w> World<'w> {
    /// Orders a history.
    pub(crate) fn new(history: &'w History, hub: &'w Hub) -> Self {
        let digests = Digests::collect(hub);
        let syncs: Vec<_> = hub
            .syncs
            .iter()
            .filter_map(|(id, track)| timeline(history, hub, &digests, id, track))
            .collect();
        let members = history
            .members
            .iter()
            .map(|(name, writes)| (name.as_str(), Member::read(writes)))
            .collect();
        let owners = if history.owners.is_empty() {
            find_owners(&syncs, &members)
        } else {
            history.owners.clone()
        };
        Self {
            history,
            hub,
            digests,
            syncs,
            members,
            owners,
        }
    }

    /// Returns a member at a moment; a rebuilt member is another one.
    pub(crate) fn member(&self, cluster: &str, at: Timestamp) -> Option<&Member<'w>> {
        let members = self.members.get(cluster)?;
        members
            .iter()
            .rfind(|member| member.since.is_none_or(|since| since <= at))
    }

    /// Returns a member by its name and its identity, if it existed at some moment of a span. Without identities in the
    /// journals, the name is enough.
    pub(crate) fn member_by_identity(
        &self,
        cluster: &str,
        identity: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<&Member<'w>> {
        let members = self.members.get(cluster)?;
        let existed = |place: &usize| {
            let end = members.get(place + 1).and_then(|next| next.since);
            let since = members[*place].since;
            since.is_none_or(|since| since <= to) && end.is_none_or(|end| end >= from)
        };
        let matches_identity = |place: &usize| members.len() == 1 || members[*place].identity == identity;
        let place = (0..members.len()).rfind(|place| existed(place) && matches_identity(place))?;
        members.get(place)
    }

    /// Returns the owner of a label.
    pub(crate) fn owner(&self, label: &str) -> Option<&Owner> {
        self.owners.get(label)
    }

    /// Returns the Syncs of an owner on a cluster: one, unless it was recreated under another name.
    pub(crate) fn timelines(&self, owner: &Owner, cluster: &str) -> Vec<&SyncTimeline<'w>> {
        let is_of_owner =
            |timeline: &&SyncTimeline<'w>| timeline.owner == *owner && timeline.cluster == cluster;
        self.syncs.iter().filter(is_of_owner).collect()
    }

    /// Returns the Syncs of a group on a cluster.
    pub(crate) fn group_timelines<'s>(
        &'s self,
        group: &'s Id,
        cluster: &'s str,
    ) -> impl Iterator<Item = &'s SyncTimeline<'w>> {
        self.syncs.iter().filter(move |timeline| {
            let is_of_group = matches!(&timeline.owner, Owner::Entry(namespace, name, _)
                if *namespace == group.namespace && *name == group.name);
            is_of_group && timeline.cluster == cluster
        })
    }
}

fn timeline<'w>(
    history: &History,
    hub: &Hub,
    digests: &Digests,
    id: &'w Id,
    track: &'w Track<SyncResource>,
) -> Option<SyncTimeline<'w>> {
    let spec = &track.versions().last()?.object.spec;
    let owner = match &spec.group_ref {
        Some(of) => Owner::Entry(id.namespace.clone(), of.name.clone(), of.entry.clone()),
        None => Owner::Alone(id.clone()),
    };
    let mut targets = desired_targets(hub, &history.clock, id, track);
    for target in &mut targets {
        let pushes = pushes(history, hub, id, &target.desired.template.source_ref.name);
        target.objects = render(&pushes, &target.desired.revision, &target.desired.template);
        find_ends(digests, track, target);
    }
    Some(SyncTimeline {
        id,
        track,
        owner,
        cluster: spec.cluster_ref.name.clone(),
        targets,
    })
}

/// Returns the pushes to all repositories of a Source.
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

/// Finds the owner of each owner label: of the Syncs on the clusters with the label, the one that renders most of the
/// labelled objects. The judge does not know how a label is computed.
fn find_owners(
    syncs: &[SyncTimeline<'_>],
    members: &BTreeMap<&str, Vec<Member<'_>>>,
) -> BTreeMap<String, Owner> {
    let mut votes: BTreeMap<&str, BTreeMap<&Owner, usize>> = BTreeMap::new();
    for (cluster, members) in members {
        let labelled_object: Vec<(&str, Key)> = members
            .iter()
            .flat_map(|member| &member.own_writes)
            .filter_map(|own| labelled_object(own.write))
            .collect();
        for timeline in syncs.iter().filter(|timeline| timeline.cluster == **cluster) {
            for (label, key) in &labelled_object {
                if timeline
                    .targets
                    .iter()
                    .any(|target| target.renders(key).is_some())
                {
                    *votes
                        .entry(label)
                        .or_default()
                        .entry(&timeline.owner)
                        .or_default() += 1;
                }
            }
        }
    }
    clearest_first(votes)
}

/// Chooses the owner of each label by the votes. An object that moved between two groups is rendered by both, so the
/// label with the clearest votes chooses first, and an owner is chosen once, as long as there is another.
fn clearest_first(mut votes: BTreeMap<&str, BTreeMap<&Owner, usize>>) -> BTreeMap<String, Owner> {
    let mut owners: BTreeMap<String, Owner> = BTreeMap::new();
    while !votes.is_empty() {
        let choices = votes.iter().filter_map(|(label, votes)| {
            let mut left: Vec<(usize, &Owner)> = { votes.iter() }
                .filter(|(owner, _)| votes.len() == 1 || !owners.values().any(|chosen| chosen == **owner))
                .map(|(owner, count)| (*count, *owner))
                .collect();
            left.sort_unstable();
            let (most, owner) = left.pop()?;
            let second = left.pop().map_or(0, |(count, _)| count);
            Some((most - second, *label, owner.clone()))
        });
        let Some((_, label, owner)) = choices.max() else {
            break;
        };
        votes.remove(label);
        owners.insert(label.to_owned(), owner);
    }
    owners
}

fn labelled_object(write: &Write) -> Option<(&str, Key)> {
    let label = owner(&write.object);
    (write.verb == Verb::Write && !label.is_empty()).then(|| (label, write.key()))
}
