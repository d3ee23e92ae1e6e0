//! No write while suspended, or after a restore.

use jiff::SignedDuration;
use starling_api::SyncGroup;
use starling_api::conditions::{self, RESTORE_DETECTED};

use super::targets::attempt_limit;
use crate::judge::hub::{Id, earlier, span};
use crate::judge::member::owner;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// Nothing is written to a member whose Cluster is suspended, or by a suspended Sync.
///
/// Evidence: Starling's writes, against the spec of the Cluster, and of the Sync in the object's owner label. A running
/// attempt is not stopped, so a suspension counts from `timeout` after the controller must have known of it.
pub(super) fn nothing_is_written_while_suspended(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for write in members
            .iter()
            .flat_map(|member| &member.own_writes)
            .map(|own| own.write)
        {
            let of = world.owner(owner(&write.object));
            let timelines = of
                .map(|owner| world.timelines(owner, cluster))
                .unwrap_or_default();
            let timeouts = timelines
                .iter()
                .filter_map(|timeline| timeline.target_at(write.at));
            let timeout = timeouts.map(|target| span(target.desired.template.timeout)).max();
            let from = earlier(
                write.at,
                attempt_limit(world, timeout.unwrap_or(SignedDuration::ZERO)),
            );
            let track = world.hub.cluster(cluster);
            let cluster_suspended =
                track.is_some_and(|track| track.always(from, write.at, |cluster| cluster.spec.suspend));
            let sync_suspended = timelines.iter().any(|timeline| {
                timeline
                    .track
                    .always(from, write.at, |sync| sync.spec.template.suspend)
            });
            if cluster_suspended || sync_suspended {
                found.push(Violation {
                    rule: Rule::Suspended,
                    at: write.at,
                    cluster: Some(cluster.to_owned()),
                    message: format!("{} was written while suspended", write.key()),
                });
            }
        }
    }
    found
}

/// After a restore of the management cluster no object is written on a member, until a person releases it.
///
/// Evidence: the condition `RestoreDetected` of the group of the Sync in the owner label. An attempt under way is not
/// stopped.
pub(super) fn nothing_is_written_after_a_restore(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for write in members
            .iter()
            .flat_map(|member| &member.own_writes)
            .map(|own| own.write)
        {
            let of = world.owner(owner(&write.object));
            let timelines = of
                .map(|owner| world.timelines(owner, cluster))
                .unwrap_or_default();
            let is_held = timelines.iter().any(|timeline| {
                let target = timeline.target_at(write.at);
                let timeout = target.map_or(SignedDuration::ZERO, |target| {
                    span(target.desired.template.timeout)
                });
                let from = earlier(write.at, attempt_limit(world, timeout));
                let groups = timeline
                    .owner_group()
                    .and_then(|(namespace, name)| world.hub.groups.get(&Id::new(namespace, name)));
                groups.is_some_and(|groups| groups.always(from, write.at, is_set_back))
            });
            if is_held {
                found.push(Violation {
                    rule: Rule::AfterRestore,
                    at: write.at,
                    cluster: Some(cluster.to_owned()),
                    message: format!("{} was written after a restore", write.key()),
                });
            }
        }
    }
    found
}

/// Whether a group reports that the management cluster was set back.
pub(super) fn is_set_back(group: &SyncGroup) -> bool {
    let status = group.status.as_ref();
    let found = status.and_then(|status| conditions::find(&status.conditions, RESTORE_DETECTED));
    found.is_some_and(|condition| condition.status == "True")
}
