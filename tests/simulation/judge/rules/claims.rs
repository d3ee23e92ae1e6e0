//! I1: done is a pair of cluster and target.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;
use starling_api::{DISABLED, EntryRevision, RECONCILE, RolloutPhase, SyncGroup, SyncStatus};

use super::order::patience;
use crate::judge::history::Verb;
use crate::judge::hub::{Id, Version, earlier, is_reachable, span, stage_of};
use crate::judge::member::{Member, is_ours};
use crate::judge::render::{Expected, annotation};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::words::{actions, skips};
use crate::judge::world::{SyncStory, World};

/// A Sync that says that its cluster holds a target is right: at that time the member had every object that the target
/// renders, or had had it as we wrote it and somebody else has changed it since.
///
/// Evidence: a status in which `lastAppliedTarget` and `lastAppliedTime` are together for the first time, against the
/// journal of the member up to then. A status that copies an older one says nothing new. What a digest stands for is
/// learned from the spec of the generation that the status is about; one that stands for two things breaks the rule too, and
/// so does the name of another cluster.
pub(super) fn claims_are_true(world: &World<'_>) -> Vec<Violation> {
    let mut found: Vec<Violation> = world
        .digests
        .two_meanings
        .iter()
        .map(|wrong| violation(Rule::Claim, wrong.at, &wrong.cluster, wrong.words.clone()))
        .collect();
    for story in &world.syncs {
        let mut seen = BTreeSet::new();
        for version in story.track.versions() {
            let Some(status) = &version.object.status else {
                continue;
            };
            let claim = (&status.last_applied_target, &status.last_applied_time);
            if version.verb == Verb::Delete || claim.0.is_empty() || !seen.insert(claim) {
                continue;
            }
            if let Err(words) = is_true(world, story, version.at, status) {
                found.push(violation(Rule::Claim, version.at, &story.cluster, words));
            }
        }
    }
    found
}

fn is_true(
    world: &World<'_>,
    story: &SyncStory<'_>,
    at: Timestamp,
    status: &SyncStatus,
) -> Result<(), String> {
    let revision = &status.last_applied_revision;
    let claimed =
        |target: &&Target| target.at <= at && world.digests.is(&status.last_applied_target, &target.wanted);
    let Some(target) = story.targets.iter().rev().find(claimed) else {
        return Err(format!(
            "says that it holds {revision}, which it never was to hold like that"
        ));
    };
    let Some(objects) = &target.objects else {
        return Err(format!(
            "says that it holds {revision}, which renders to nothing known"
        ));
    };
    let id = &status.last_applied_cluster_id;
    let since = earlier(at, patience(world, span(target.wanted.template.timeout)));
    let Some(member) = world.member_called(&story.cluster, id, since, at) else {
        return Err(format!(
            "says that cluster {id} holds {revision}, and there was none of that name"
        ));
    };
    let missing: Vec<String> = objects
        .iter()
        .filter(|object| !object.is_left_alone() && !was_held(member, object, at))
        .map(Expected::named)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "says that it holds {revision}, but the member did not have {}",
        missing.join(", ")
    ))
}

/// Whether the member has an object as wanted, or had it when we last wrote it.
pub(super) fn was_held(member: &Member<'_>, object: &Expected, at: Timestamp) -> bool {
    object.keys().any(|key| {
        let stands = member.stands(&key);
        let stands = &stands[..stands.partition_point(|stand| stand.write.at <= at)];
        let now = stands.last();
        let ours = stands.iter().rfind(|stand| is_ours(stand.write));
        let alone = now.is_some_and(|stand| annotation(&stand.write.object, RECONCILE) == DISABLED);
        alone
            || [now, ours]
                .into_iter()
                .flatten()
                .any(|stand| !stand.is_gone() && object.is_in(&stand.write.object))
    })
}

/// A Sync that was found healthy was so with the target that it holds. What was healthy with another one says nothing.
///
/// Evidence: a status in which `lastHealthyTarget` is new for the Sync's status: it is the `lastAppliedTarget` of that very
/// status, and every Deployment and StatefulSet of it was available at some moment at which the target was wanted. The
/// health of other kinds is not judged.
pub(super) fn health_is_of_what_is_held(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for story in &world.syncs {
        let mut seen = BTreeSet::new();
        for version in story.track.versions() {
            let Some(status) = &version.object.status else {
                continue;
            };
            let claim = (
                &status.last_healthy_target,
                &status.last_applied_target,
                &status.last_applied_time,
            );
            if claim.0.is_empty() || !seen.insert(claim) {
                continue;
            }
            if let Err(words) = is_healthy(world, story, version.at, status) {
                found.push(violation(Rule::Health, version.at, &story.cluster, words));
            }
        }
    }
    found
}

fn is_healthy(
    world: &World<'_>,
    story: &SyncStory<'_>,
    at: Timestamp,
    status: &SyncStatus,
) -> Result<(), String> {
    if status.last_healthy_target != status.last_applied_target {
        return Err(format!(
            "is healthy with target {}, but holds {}",
            status.last_healthy_target, status.last_applied_target
        ));
    }
    let Some(wanted) = world.digests.get(&status.last_healthy_target) else {
        return Ok(());
    };
    let targets = story.targets.iter().filter(|target| target.at <= at);
    let Some(target) = targets.rev().find(|target| target.wanted == *wanted) else {
        return Ok(());
    };
    let Some(member) = world.member(&story.cluster, at) else {
        return Ok(());
    };
    let never = target.objects.iter().flatten().find(|object| {
        let was = object.keys().any(|key| was_available(member, &key, object, at));
        is_workload(object) && !object.is_left_alone() && !was
    });
    match never {
        Some(object) => Err(format!(
            "was found healthy with {}, but {} was never available with it",
            wanted.revision,
            object.named()
        )),
        None => Ok(()),
    }
}

fn is_workload(object: &Expected) -> bool {
    object
        .keys()
        .any(|key| key.group == "apps" && matches!(key.kind.as_str(), "Deployment" | "StatefulSet"))
}

fn was_available(
    member: &Member<'_>,
    key: &crate::judge::history::Key,
    object: &Expected,
    at: Timestamp,
) -> bool {
    let stands = member.stands(key).iter().filter(|stand| stand.write.at <= at);
    stands
        .filter(|stand| !stand.is_gone())
        .any(|stand| object.is_in(&stand.write.object) && is_available(&stand.write.object))
}

/// All replicas are of the newest template and ready, as the controllers of the member say.
fn is_available(live: &Value) -> bool {
    let number = |pointer: &str| live.pointer(pointer).and_then(Value::as_i64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    let seen = number("/status/observedGeneration") >= number("/metadata/generation");
    let enough = |pointer: &str| number(pointer).unwrap_or_default() >= wanted;
    seen && enough("/status/updatedReplicas") && enough("/status/readyReplicas")
}

/// A group that says that a release has succeeded, or on how many clusters it is, is right.
///
/// Evidence: the statuses of its Syncs that were committed before. A cluster that was not selected or not reachable at some
/// moment within the lag is left out; so is one that somebody passes over, and a status of an older rollout, which is a copy.
pub(super) fn groups_claim_what_their_clusters_do(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let (mut newest, mut told, mut before) = (0, BTreeSet::new(), None);
        for version in track.versions() {
            let status = version.object.status.as_ref();
            // Somebody else's change of the spec says nothing of the clusters.
            if std::mem::replace(&mut before, status) == status {
                continue;
            }
            let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) else {
                continue;
            };
            if rollout.id < newest || version.verb != Verb::Write {
                continue;
            }
            newest = rollout.id;
            let updated = status.map_or(0, |status| status.clusters.updated);
            let done = done_clusters(world, id, version);
            if usize::try_from(updated).is_ok_and(|updated| updated > done.len()) {
                let words = format!(
                    "group {} counts {updated} clusters as updated: {done:?} are",
                    id.name
                );
                found.push(violation(Rule::GroupClaim, version.at, "", words));
            } else if rollout.phase == RolloutPhase::Succeeded && told.insert(rollout.id) {
                let not = must_be_done(world, id, version).find(|cluster| !done.contains(cluster));
                found.extend(not.map(|cluster| {
                    let words = format!("group {} has succeeded with rollout {}", id.name, rollout.id);
                    violation(
                        Rule::GroupClaim,
                        version.at,
                        cluster,
                        words + ", the cluster has not",
                    )
                }));
            }
        }
    }
    found
}

/// The clusters on which every entry was done with the revision that the status names.
fn done_clusters<'w>(world: &'w World<'_>, id: &Id, version: &Version<SyncGroup>) -> BTreeSet<&'w str> {
    let clusters: BTreeSet<&str> = world.syncs.iter().map(|story| story.cluster.as_str()).collect();
    clusters
        .into_iter()
        .filter(|cluster| {
            rolled(version).iter().all(|rolled| {
                let mut stories = world.group_stories(id, cluster);
                stories.any(|story| story.is_of(&rolled.sync) && is_done_by(story, version, &rolled.revision))
            })
        })
        .collect()
}

/// What a group says that it rolls.
fn rolled(version: &Version<SyncGroup>) -> &[EntryRevision] {
    let status = version.object.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    rollout.map_or(&[], |rollout| &rollout.revisions)
}

fn is_done_by(story: &SyncStory<'_>, version: &Version<SyncGroup>, revision: &str) -> bool {
    story.targets.iter().any(|target| {
        let current = target.index < version.index;
        let done = target.done.is_some_and(|(_, index)| index < version.index);
        current && done && target.wanted.revision == revision
    })
}

/// The clusters that the controller knew to be selected and reachable.
fn must_be_done<'w>(
    world: &'w World<'_>,
    id: &'w Id,
    version: &'w Version<SyncGroup>,
) -> impl Iterator<Item = &'w str> {
    let from = earlier(version.at, world.history.lag);
    let selected = world.hub.selected(&id.namespace, &version.object, version.at);
    let status = version.object.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let words = actions(world.hub, id, rollout.map_or(0, |rollout| rollout.id));
    selected.into_iter().filter(move |name| {
        let group = world.hub.groups.get(id).and_then(|track| track.at(from));
        let cluster = Id::new(&id.namespace, name);
        let known = group.is_some_and(|group| {
            let span = (from, version.at);
            world
                .hub
                .always_selected(&group.object, &cluster, span, is_reachable)
        });
        let track = world.hub.cluster(name);
        let stages = &version.object.spec.rollout_strategy.stages;
        let passed_over = words.iter().any(|said| {
            let cluster = track.and_then(|track| track.at(version.at));
            let stage = cluster.map(|cluster| stage_of(stages, &cluster.object));
            let stage = stage.map(|place| stages.get(place).map_or("*", |stage| &stage.name));
            said.may_be_known(from, version.index) && skips(said.what, Some(name), stage)
        });
        known && !passed_over
    })
}

fn violation(rule: Rule, at: Timestamp, cluster: &str, words: String) -> Violation {
    Violation {
        rule,
        at,
        cluster: (!cluster.is_empty()).then(|| cluster.to_owned()),
        words,
    }
}
