//! I2: everything finishes.

use kube::ResourceExt;
use starling_api::conditions;
use starling_api::{Source, SyncGroup, SyncResource};

use crate::judge::history::Push;
use crate::judge::hub::{Id, Track, is_reachable, ready};
use crate::judge::targets::is_failing;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// The last target of every Sync is applied, has failed with a reason, or waits with a reason; earlier targets are
/// superseded. Checked at the end of an idle run.
///
/// Evidence: the last version of each Sync.
pub(super) fn everything_admitted_finishes(world: &World<'_>) -> Vec<Violation> {
    if world.history.idle_since.is_none() {
        return Vec::new();
    }
    let unfinished = world.syncs.iter().filter_map(|timeline| {
        let message = unfinished(world, timeline)?;
        Some(Violation {
            rule: Rule::Unfinished,
            at: world.history.ended,
            cluster: Some(timeline.cluster.clone()),
            message,
        })
    });
    unfinished.collect()
}

fn unfinished(world: &World<'_>, timeline: &SyncTimeline<'_>) -> Option<String> {
    let sync = &timeline.track.at(world.history.ended)?.object;
    let target = timeline.targets.last().filter(|target| target.until.is_none())?;
    let is_leaving = sync.metadata.deletion_timestamp.is_some();
    if target.done.is_some() || is_leaving || sync.spec.template.suspend {
        return None;
    }
    let cluster = world
        .hub
        .cluster(&timeline.cluster)
        .and_then(|track| track.at(world.history.ended));
    if !cluster.is_some_and(|cluster| is_reachable(&cluster.object)) {
        return None;
    }
    if is_failing(&world.digests, sync, &target.desired) || waits(sync) {
        return None;
    }
    Some(format!(
        "{} is neither applied nor failed at the end; Ready is {:?}",
        target.desired.revision,
        reason(sync)
    ))
}

/// Whether the Sync reports a reason to wait.
fn waits(sync: &SyncResource) -> bool {
    matches!(reason(sync), "DependencyNotReady" | "SourceNotReady")
}

fn reason(sync: &SyncResource) -> &str {
    let conditions = sync.status.as_ref().map(|status| &*status.conditions);
    ready(conditions.unwrap_or_default()).map_or("", |ready| &ready.reason)
}

/// The last push is the revision of the Source, and the groups roll it out. Checked at the end of an idle run.
///
/// Evidence: the last push to the branch that a Source follows; the Source's last status, unless it reports an error;
/// the release in the last status of each group that is neither stalled nor being deleted.
pub(super) fn everything_pushed_is_rolled_out(world: &World<'_>) -> Vec<Violation> {
    let Some(since) = world.history.idle_since else {
        return Vec::new();
    };
    let ended = world.history.ended;
    let mut found = Vec::new();
    let mut violation = |message: String| {
        found.push(Violation {
            rule: Rule::Unfinished,
            at: ended,
            cluster: None,
            message,
        });
    };
    for (id, track) in &world.hub.sources {
        let Some(source) = track.at(ended) else { continue };
        let pushes = world.history.git.get(&source.object.spec.url);
        let pushes = pushes.map(Vec::as_slice).unwrap_or_default();
        if let Some(head) = followed(&source.object, pushes).filter(|push| push.at <= since)
            && !reports(&source.object, &head.commit)
        {
            violation(format!("Source {} never got to {}", id.name, head.commit));
        }
    }
    for (id, track) in &world.hub.groups {
        let Some(group) = track.at(ended) else { continue };
        if let Some(message) = not_rolled_out(world, id, &group.object) {
            violation(message);
        }
    }
    found
}

fn followed<'p>(source: &Source, pushes: &'p [Push]) -> Option<&'p Push> {
    let branch = source.spec.reference.branch.as_ref()?;
    let reference = format!("refs/heads/{branch}");
    pushes.iter().rfind(|push| push.reference == reference)
}

/// Whether a Source is at a commit, or reports why it is not.
fn reports(source: &Source, commit: &str) -> bool {
    let Some(status) = &source.status else {
        return false;
    };
    let is_bad =
        ready(&status.conditions).is_some_and(|ready| ready.status != "True" && !ready.reason.is_empty());
    status.revision.ends_with(commit) || source.spec.suspend || is_bad
}

fn not_rolled_out(world: &World<'_>, id: &Id, group: &SyncGroup) -> Option<String> {
    let status = group.status.clone().unwrap_or_default();
    let stalled = conditions::find(&status.conditions, conditions::STALLED).is_some();
    if group.metadata.deletion_timestamp.is_some() || stalled {
        return None;
    }
    // A release consists of the revisions of all Sources: if one Source has no revision, there is no release.
    let offers = group.spec.syncs.iter().map(|entry| {
        let source = Id::new(&id.namespace, &entry.template.source_ref.name);
        let track = world.hub.sources.get(&source)?;
        Some((&entry.name, offered(world, track)?))
    });
    let offers: Vec<_> = offers.collect::<Option<_>>()?;
    let rolled = status.rollout.unwrap_or_default().revisions;
    let (_, offered) = offers.into_iter().find(|(entry, offered)| {
        let mut rolled = rolled.iter().filter(|rolled| rolled.sync == **entry);
        !rolled.any(|rolled| rolled.revision == *offered)
    })?;
    let name = group.name_any();
    Some(format!(
        "group {name} does not roll out {offered}, the revision of its Source"
    ))
}

fn offered<'t>(world: &World<'_>, track: &'t Track<Source>) -> Option<&'t str> {
    let status = track.at(world.history.ended)?.object.status.as_ref()?;
    Some(status.revision.as_str()).filter(|revision| !revision.is_empty())
}
