//! I2: nothing is lost.

use kube::ResourceExt;
use starling_api::conditions;
use starling_api::{Source, SyncGroup, SyncResource};

use crate::judge::history::Push;
use crate::judge::hub::{Id, Track, is_reachable, ready};
use crate::judge::targets::is_failing;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncStory, World};

/// Every target that was wanted last is applied, or has failed with a reason, or waits for something that is named; those
/// before were superseded. Asked of the end of a run that came to rest.
///
/// Evidence: the last version of each Sync.
pub(super) fn everything_admitted_ends(world: &World<'_>) -> Vec<Violation> {
    if world.history.quiet_since.is_none() {
        return Vec::new();
    }
    let dangling = world.syncs.iter().filter_map(|story| {
        let words = dangling(world, story)?;
        Some(Violation {
            rule: Rule::Dangling,
            at: world.history.ended,
            cluster: Some(story.cluster.clone()),
            words,
        })
    });
    dangling.collect()
}

fn dangling(world: &World<'_>, story: &SyncStory<'_>) -> Option<String> {
    let sync = &story.track.at(world.history.ended)?.object;
    let target = story.targets.last().filter(|target| target.until.is_none())?;
    let is_leaving = sync.metadata.deletion_timestamp.is_some();
    if target.done.is_some() || is_leaving || sync.spec.template.suspend {
        return None;
    }
    let cluster = world
        .hub
        .cluster(&story.cluster)
        .and_then(|track| track.at(world.history.ended));
    if !cluster.is_some_and(|cluster| is_reachable(&cluster.object)) {
        return None;
    }
    if is_failing(&world.digests, sync, &target.wanted) || waits(sync) {
        return None;
    }
    Some(format!(
        "{} is neither applied nor failed in the end; Ready says {:?}",
        target.wanted.revision,
        reason(sync)
    ))
}

/// Whether something else is named that has to happen first.
fn waits(sync: &SyncResource) -> bool {
    matches!(reason(sync), "DependencyNotReady" | "SourceNotReady")
}

fn reason(sync: &SyncResource) -> &str {
    let conditions = sync.status.as_ref().map(|status| &*status.conditions);
    ready(conditions.unwrap_or_default()).map_or("", |ready| &ready.reason)
}

/// What was pushed last is what the Source says, and what the groups roll, in the end of a run that came to rest.
///
/// Evidence: the last push to the branch that a Source follows; the Source's last status, unless it says why not; the
/// release in the last status of each group that is not stalled and not on its way out.
pub(super) fn everything_pushed_is_rolled(world: &World<'_>) -> Vec<Violation> {
    let Some(since) = world.history.quiet_since else {
        return Vec::new();
    };
    let ended = world.history.ended;
    let mut found = Vec::new();
    let mut lost = |words: String| {
        found.push(Violation {
            rule: Rule::Dangling,
            at: ended,
            cluster: None,
            words,
        });
    };
    for (id, track) in &world.hub.sources {
        let Some(source) = track.at(ended) else { continue };
        let pushes = world.history.git.get(&source.object.spec.url);
        let pushes = pushes.map(Vec::as_slice).unwrap_or_default();
        if let Some(head) = followed(&source.object, pushes).filter(|push| push.at <= since)
            && !says(&source.object, &head.commit)
        {
            lost(format!("Source {} never came to {}", id.name, head.commit));
        }
    }
    for (id, track) in &world.hub.groups {
        let Some(group) = track.at(ended) else { continue };
        if let Some(words) = not_rolled(world, id, &group.object) {
            lost(words);
        }
    }
    found
}

fn followed<'p>(source: &Source, pushes: &'p [Push]) -> Option<&'p Push> {
    let branch = source.spec.reference.branch.as_ref()?;
    let reference = format!("refs/heads/{branch}");
    pushes.iter().rfind(|push| push.reference == reference)
}

/// Whether a Source is at a commit, or says why it is not.
fn says(source: &Source, commit: &str) -> bool {
    let Some(status) = &source.status else {
        return false;
    };
    let is_bad =
        ready(&status.conditions).is_some_and(|ready| ready.status != "True" && !ready.reason.is_empty());
    status.revision.ends_with(commit) || source.spec.suspend || is_bad
}

fn not_rolled(world: &World<'_>, id: &Id, group: &SyncGroup) -> Option<String> {
    let status = group.status.clone().unwrap_or_default();
    let stalled = conditions::find(&status.conditions, conditions::STALLED).is_some();
    if group.metadata.deletion_timestamp.is_some() || stalled {
        return None;
    }
    // A release is formed of all Sources: while one of them offers nothing, there is none.
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
        "group {name} does not roll {offered} in the end, which its Source offers"
    ))
}

fn offered<'t>(world: &World<'_>, track: &'t Track<Source>) -> Option<&'t str> {
    let status = track.at(world.history.ended)?.object.status.as_ref()?;
    Some(status.revision.as_str()).filter(|revision| !revision.is_empty())
}
