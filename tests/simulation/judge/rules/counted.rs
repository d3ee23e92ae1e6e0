//! Deletions are counted before they are sent.

use jiff::{SignedDuration, Timestamp};
use starling_api::{DeletionGrant, SyncResource};

use super::deletions::{had_begun, is_being_deleted, is_recreation};
use super::targets::attempt_limit;
use crate::judge::history::{Verb, Write};
use crate::judge::hub::{Track, Version, earlier, span};
use crate::judge::member::{owner, uid};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// The target of the grant of a Sync that is being deleted.
const DELETION: &str = "deletion";

/// Starling deletes an object of a Sync only under a grant in the status of that Sync: a number of objects, for the
/// deletion of the Sync or for a target of it, and no more objects than that since the grant was written.
///
/// A grant that was replaced or ended still counts for the requests of an attempt that was under way.
pub(super) fn deletions_are_counted(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            let deletes = member.own_writes.iter().map(|own| own.write);
            let deletes: Vec<&Write> = deletes
                .filter(|write| write.verb != Verb::Write && !had_begun(member, write))
                .filter(|write| !is_recreation(member, write))
                .collect();
            for write in &deletes {
                let Some(of) = world.owner(owner(&write.object)) else {
                    continue;
                };
                let timelines = world.timelines(of, cluster);
                if timelines
                    .iter()
                    .any(|timeline| is_granted(world, timeline, write, &deletes))
                {
                    continue;
                }
                found.push(Violation {
                    rule: Rule::Uncounted,
                    at: write.at,
                    cluster: Some(cluster.to_owned()),
                    message: format!("{} was deleted, and not counted before", write.key()),
                });
            }
        }
    }
    found
}

fn is_granted(world: &World<'_>, timeline: &SyncTimeline<'_>, write: &Write, deletes: &[&Write]) -> bool {
    let timeouts = timeline.target_at(write.at);
    let timeout = timeouts.map_or(SignedDuration::ZERO, |target| {
        span(target.desired.template.timeout)
    });
    let from = earlier(write.at, attempt_limit(world, timeout));
    let ends = is_being_deleted(timeline, write);
    timeline.track.during(from, write.at).any(|version| {
        let Some(grant) = grant(version) else {
            return false;
        };
        let since = since(timeline.track, version, grant);
        let counted = deletes.iter().filter(|other| {
            owner(&other.object) == owner(&write.object) && other.at >= since && other.at <= write.at
        });
        let mut objects: Vec<&str> = counted.map(|other| uid(&other.object)).collect();
        objects.sort_unstable();
        objects.dedup();
        (grant.target == DELETION) == ends && objects.len() <= grant.objects as usize
    })
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
