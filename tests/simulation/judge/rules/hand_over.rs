//! An object that another Sync has is handed over, and not deleted.

use jiff::Timestamp;

use super::deletion::{Deletion, deletions};
use super::deletions::is_being_deleted;
use crate::judge::history::Key;
use crate::judge::hub::{Id, earlier};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// Starling deletes no object that another Sync of the same namespace renders on that cluster, of the same group or of
/// another: neither by a prune, nor when the Sync is deleted.
///
/// Evidence: the target of the other Sync during the whole lag before the deletion. A Sync that is being deleted itself
/// takes nothing over, and neither does one that its group does not want any more, because its cluster or its entry has
/// left: it is about to be deleted. The object may be made anew for a target that renders it and may recreate it.
pub(super) fn objects_are_handed_over(world: &World<'_>) -> Vec<Violation> {
    let all = deletions(world);
    let wrong = all.iter().filter_map(|deletion| {
        let other = world
            .syncs
            .iter()
            .find(|timeline| takes_over(timeline, deletion))?;
        let message = format!("although Sync {} renders it", other.id.name);
        (!deletion.is_recreation()).then(|| deletion.violation(Rule::HandOver, message))
    });
    wrong.collect()
}

/// Whether another Sync renders an object on the cluster of a deletion.
pub(super) fn is_rendered_by_another(deletion: &Deletion<'_>, key: &Key) -> bool {
    let mut syncs = deletion.world.syncs.iter();
    syncs.any(|timeline| {
        let mut targets = timeline.targets.iter();
        let owner = deletion.owner();
        timeline.cluster == deletion.cluster
            && Some(&timeline.owner) != owner
            && targets.any(|target| target.at <= deletion.at() && target.renders(key).is_some())
    })
}

fn takes_over(timeline: &SyncTimeline<'_>, deletion: &Deletion<'_>) -> bool {
    let key = deletion.key();
    let known = earlier(deletion.at(), deletion.world.history.lag);
    let renders = |at| {
        let target = timeline.target_at(at);
        target.is_some_and(|target| target.renders(&key).is_some())
    };
    let is_of_namespace = deletion
        .timelines()
        .iter()
        .any(|own| own.id.namespace == timeline.id.namespace && own.owner != timeline.owner);
    is_of_namespace
        && timeline.cluster == deletion.cluster
        && timeline.track.always(known, deletion.at(), |sync| {
            sync.metadata.deletion_timestamp.is_none()
        })
        && !is_being_deleted(timeline, deletion.write)
        && renders(known)
        && renders(deletion.at())
        && is_wanted(timeline, deletion, known)
}

/// Whether the group of another Sync wants it during the whole lag before a deletion.
fn is_wanted(timeline: &SyncTimeline<'_>, deletion: &Deletion<'_>, known: Timestamp) -> bool {
    let hub = deletion.world.hub;
    let Some((namespace, name)) = timeline.owner_group() else {
        return true;
    };
    let Some(groups) = hub.groups.get(&Id::new(namespace, name)) else {
        return true;
    };
    let cluster = Id::new(namespace, &timeline.cluster);
    groups.always(known, deletion.at(), |group| {
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let rolled = rollout.into_iter().flat_map(|rollout| &rollout.revisions);
        let mut entries = { group.spec.syncs.iter() }
            .map(|entry| &entry.name)
            .chain(rolled.map(|of| &of.sync));
        entries.any(|entry| timeline.is_of(entry))
            && hub.always_selected(group, &cluster, (known, deletion.at()), |_| true)
    })
}
