//! Deletions are counted before they are sent.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::{DeletionGrant, SyncResource};

use super::deletion::{Deletion, deletions};
use crate::judge::hub::{Track, Version, earlier};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// The target of the grant of a Sync that is being deleted.
pub(super) const DELETION: &str = "deletion";

/// Starling deletes an object of a Sync only under a grant in the status of that Sync: a number of objects, for the
/// deletion of the Sync or for a target of it, and no more objects than that since the grant was written.
///
/// A grant that was replaced or ended still counts for the requests of an attempt that was under way.
pub(super) fn deletions_are_counted(world: &World<'_>) -> Vec<Violation> {
    let all: Vec<Deletion<'_>> = counting(world);
    let uncounted = all.iter().filter(|deletion| deletion.owner().is_some());
    let uncounted = uncounted.filter(|deletion| grants(deletion, &all).next().is_none());
    uncounted
        .map(|deletion| deletion.violation(Rule::Uncounted, "and not counted before"))
        .collect()
}

/// Returns the deletions that count: all but those of objects that are made anew.
pub(super) fn counting<'d>(world: &'d World<'_>) -> Vec<Deletion<'d>> {
    let mut all = deletions(world);
    all.retain(|deletion| !deletion.is_recreation());
    all
}

/// Returns when the grants were written under which an object may have been deleted.
pub(super) fn grants<'g>(
    deletion: &'g Deletion<'g>,
    all: &'g [Deletion<'g>],
) -> impl Iterator<Item = Timestamp> + 'g {
    let from = earlier(deletion.at(), deletion.limit());
    let ends = deletion.is_end();
    let timelines = deletion.timelines().into_iter();
    let versions = timelines.flat_map(move |timeline| {
        let during = timeline.track.during(from, deletion.at());
        during.map(move |version| (timeline.track, version))
    });
    versions.filter_map(move |(track, version)| {
        let grant = grant(version)?;
        let since = since(track, version, grant);
        let counted = all.iter().filter(|other| {
            let same = other.cluster == deletion.cluster && other.label == deletion.label;
            same && other.at() >= since && other.at() <= deletion.at()
        });
        let objects: BTreeSet<&str> = counted.map(Deletion::uid).collect();
        let is_granted = (grant.target == DELETION) == ends && objects.len() <= grant.objects as usize;
        is_granted.then_some(since)
    })
}

/// Whether the grant of a version is for a prune.
pub(super) fn is_prune_granted(version: &Version<SyncResource>) -> bool {
    grant(version).is_some_and(|grant| grant.target != DELETION)
}

fn grant(version: &Version<SyncResource>) -> Option<&DeletionGrant> {
    let status = version.object.status.as_ref();
    status?.deletions.as_ref()?.grant.as_ref()
}

/// Returns when the grant of a version was written.
fn since(track: &Track<SyncResource>, version: &Version<SyncResource>, of: &DeletionGrant) -> Timestamp {
    let before = track
        .versions()
        .iter()
        .rev()
        .skip_while(|other| other.index > version.index);
    let same = before.take_while(|other| grant(other) == Some(of));
    same.last().map_or(version.at, |first| first.at)
}
