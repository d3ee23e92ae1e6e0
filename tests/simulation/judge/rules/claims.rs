//! I1: done is a property of a pair of cluster and target.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use starling_api::conditions;
use starling_api::{DISABLED, EntryRevision, RECONCILE, RolloutPhase, SyncGroup, SyncStatus};

use super::targets::attempt_limit;
use crate::judge::actions::{actions, skips};
use crate::judge::history::Verb;
use crate::judge::hub::{Id, Version, after, earlier, is_reachable, span, stage_of};
use crate::judge::member::{Member, is_own};
use crate::judge::render::{Expected, annotation};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// What a Sync reports of an object that another Sync took over.
const TAKEN_OVER: &str = "it belongs to another Sync by now";

/// A Sync reports a target as applied only if the member had every object that the target renders at that time, or had
/// it as Starling wrote it and another writer changed it since, or reports that another Sync took it over.
///
/// Evidence: a status with a new pair of `lastAppliedTarget` and `lastAppliedTime`, against the journal of the member
/// up to then. A write from before the member was set back is no evidence for an attempt that began after that. A copy
/// of an older status is not evidence, and neither is a time that replaces one that lies far ahead. The meaning of a
/// digest is that of the spec of the status' generation; a digest with two meanings breaks the rule too, and so does
/// the name of another cluster.
pub(super) fn claims_are_true(world: &World<'_>) -> Vec<Violation> {
    let mut found: Vec<Violation> = world
        .digests
        .ambiguous_digests
        .iter()
        .map(|wrong| violation(Rule::Claim, wrong.at, &wrong.cluster, wrong.message.clone()))
        .collect();
    for timeline in &world.syncs {
        let mut seen = BTreeSet::new();
        let mut last: Option<&SyncStatus> = None;
        for version in timeline.track.versions() {
            let Some(status) = &version.object.status else {
                continue;
            };
            let claim = (&status.last_applied_target, &status.last_applied_time);
            let is_replaced = last.replace(status).is_some_and(|last| {
                last.last_applied_target == *claim.0 && is_of_a_wrong_clock(world, last, version.at)
            });
            if version.verb == Verb::Delete || claim.0.is_empty() || !seen.insert(claim) || is_replaced {
                continue;
            }
            if let Err(message) = check_claim(world, timeline, version.at, status) {
                found.push(violation(Rule::Claim, version.at, &timeline.cluster, message));
            }
        }
    }
    found
}

/// Whether the time of the last apply lies further ahead than it can have been written.
fn is_of_a_wrong_clock(world: &World<'_>, status: &SyncStatus, at: Timestamp) -> bool {
    let (_, now) = world.history.clock.shown(at, at);
    let applied_at = status.last_applied_time.parse::<Timestamp>();
    applied_at.is_ok_and(|applied_at| conditions::is_far_ahead(applied_at, now))
}

fn check_claim(
    world: &World<'_>,
    timeline: &SyncTimeline<'_>,
    at: Timestamp,
    status: &SyncStatus,
) -> Result<(), String> {
    let revision = &status.last_applied_revision;
    let claimed =
        |target: &&Target| target.at <= at && world.digests.is(&status.last_applied_target, &target.desired);
    let Some(target) = timeline.targets.iter().rev().find(claimed) else {
        return Err(format!(
            "reports {revision} as applied, which was never a target like that"
        ));
    };
    let Some(objects) = &target.objects else {
        return Err(format!(
            "reports {revision} as applied, which has no known render"
        ));
    };
    let id = &status.last_applied_cluster_id;
    let limit = attempt_limit(world, span(target.desired.template.timeout));
    let since = earlier(at, limit);
    let claimed = status.last_applied_time.parse();
    let claimed = claimed.map_or(at, |claimed| world.history.clock.when(claimed, at));
    let set_back = set_back_before(world, timeline, claimed, limit);
    let Some(member) = world.member_by_identity(&timeline.cluster, id, since, at) else {
        return Err(format!(
            "reports {revision} as applied on cluster {id}, which does not exist"
        ));
    };
    let lacks = |object: &&Expected| !object.is_unmanaged() && !was_applied(member, set_back, object, at);
    let missing = objects.iter().filter(lacks).map(Expected::named);
    // An old ledger does not know that another Sync took the objects over. The same status says so.
    let is_told = status
        .problems
        .iter()
        .any(|problem| problem.message == TAKEN_OVER);
    let missing: Vec<String> = missing.filter(|_| !is_told).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "reports {revision} as applied, but the member did not have {}",
        missing.join(", ")
    ))
}

/// Returns when a member was set back for the last time, if the attempt of a claim began after that.
fn set_back_before(
    world: &World<'_>,
    timeline: &SyncTimeline<'_>,
    claimed: Timestamp,
    limit: SignedDuration,
) -> Option<Timestamp> {
    let set_backs = world.history.set_backs.iter();
    let known =
        { set_backs }.filter(|(at, cluster)| *cluster == timeline.cluster && after(*at, limit) < claimed);
    known.map(|(at, _)| *at).max()
}

/// Whether the member has the desired object, or had it at Starling's last write since the member was set back.
pub(super) fn was_applied(
    member: &Member<'_>,
    set_back: Option<Timestamp>,
    object: &Expected,
    at: Timestamp,
) -> bool {
    object.keys().any(|key| {
        let versions = member.versions(&key);
        let versions = &versions[..versions.partition_point(|version| version.write.at <= at)];
        let now = versions.last();
        let last_written = versions.iter().rfind(|version| is_own(version.write));
        let last_written = last_written.filter(|version| set_back.is_none_or(|back| version.write.at > back));
        let unmanaged = now.is_some_and(|version| annotation(&version.write.object, RECONCILE) == DISABLED);
        unmanaged
            || [now, last_written]
                .into_iter()
                .flatten()
                .any(|version| !version.is_gone() && object.is_in(&version.write.object))
    })
}

/// A Sync reports health only for the applied target. The health of another target is not evidence.
///
/// Evidence: a status in which `lastHealthyTarget` is new for the Sync: it is the `lastAppliedTarget` of the same
/// status, and every Deployment and StatefulSet of the target was available at some moment of the target's span. The
/// health of other kinds is not checked.
pub(super) fn health_is_of_the_applied_target(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for timeline in &world.syncs {
        let mut seen = BTreeSet::new();
        for version in timeline.track.versions() {
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
            if let Err(message) = check_health(world, timeline, version.at, status) {
                found.push(violation(Rule::Health, version.at, &timeline.cluster, message));
            }
        }
    }
    found
}

fn check_health(
    world: &World<'_>,
    timeline: &SyncTimeline<'_>,
    at: Timestamp,
    status: &SyncStatus,
) -> Result<(), String> {
    if status.last_healthy_target != status.last_applied_target {
        return Err(format!(
            "is healthy with target {}, but has applied {}",
            status.last_healthy_target, status.last_applied_target
        ));
    }
    let Some(desired) = world.digests.get(&status.last_healthy_target) else {
        return Ok(());
    };
    let targets = timeline.targets.iter().filter(|target| target.at <= at);
    let Some(target) = targets.rev().find(|target| target.desired == *desired) else {
        return Ok(());
    };
    let Some(member) = world.member(&timeline.cluster, at) else {
        return Ok(());
    };
    // A restored member whose versions went on looks like one that was changed. The next drift check finds it.
    let mut set_backs = world.history.set_backs.iter();
    if set_backs.any(|(when, name)| *name == timeline.cluster && target.at <= *when && *when <= at) {
        return Ok(());
    }
    let never = target.objects.iter().flatten().find(|object| {
        let was = object.keys().any(|key| was_available(member, &key, object, at));
        is_workload(object) && !object.is_unmanaged() && !was
    });
    match never {
        Some(object) => Err(format!(
            "was found healthy with {}, but {} was never available with it",
            desired.revision,
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
    let versions = member
        .versions(key)
        .iter()
        .filter(|version| version.write.at <= at);
    versions
        .filter(|version| !version.is_gone())
        .any(|version| object.is_in(&version.write.object) && is_available(&version.write.object))
}

/// Whether all replicas have the newest template and are ready, by the status from the member's controllers.
fn is_available(live: &Value) -> bool {
    let number = |pointer: &str| live.pointer(pointer).and_then(Value::as_i64);
    let desired = number("/spec/replicas").unwrap_or(1);
    let seen = number("/status/observedGeneration") >= number("/metadata/generation");
    let enough = |pointer: &str| number(pointer).unwrap_or_default() >= desired;
    seen && enough("/status/updatedReplicas") && enough("/status/readyReplicas")
}

/// A group reports the success of a release and the number of updated clusters correctly.
///
/// Evidence: the statuses of its Syncs that were committed before. Not checked are a cluster that was not selected or
/// not reachable at some moment within the lag, a skipped cluster, and a status of an older rollout, which is a copy.
pub(super) fn groups_report_their_clusters(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let (mut newest, mut succeeded, mut before) = (0, BTreeSet::new(), None);
        for version in track.versions() {
            let status = version.object.status.as_ref();
            // A change of the spec by another writer is not a statement about the clusters.
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
                let message = format!(
                    "group {} counts {updated} clusters as updated: {done:?} are",
                    id.name
                );
                found.push(violation(Rule::GroupClaim, version.at, "", message));
            } else if rollout.phase == RolloutPhase::Succeeded && succeeded.insert(rollout.id) {
                let not = must_be_done(world, id, version).find(|cluster| !done.contains(cluster));
                found.extend(not.map(|cluster| {
                    let message = format!("group {} has succeeded with rollout {}", id.name, rollout.id);
                    violation(
                        Rule::GroupClaim,
                        version.at,
                        cluster,
                        message + ", the cluster has not",
                    )
                }));
            }
        }
    }
    found
}

/// Returns the clusters on which every entry was done with the revision in the status.
fn done_clusters<'w>(world: &'w World<'_>, id: &Id, version: &Version<SyncGroup>) -> BTreeSet<&'w str> {
    let clusters: BTreeSet<&str> = world
        .syncs
        .iter()
        .map(|timeline| timeline.cluster.as_str())
        .collect();
    clusters
        .into_iter()
        .filter(|cluster| {
            rolled(version).iter().all(|rolled| {
                let mut timelines = world.group_timelines(id, cluster);
                timelines.any(|timeline| {
                    timeline.is_of(&rolled.sync) && is_done_by(timeline, version, &rolled.revision)
                })
            })
        })
        .collect()
}

/// Returns the revisions of a group's rollout.
fn rolled(version: &Version<SyncGroup>) -> &[EntryRevision] {
    let status = version.object.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    rollout.map_or(&[], |rollout| &rollout.revisions)
}

fn is_done_by(timeline: &SyncTimeline<'_>, version: &Version<SyncGroup>, revision: &str) -> bool {
    timeline.targets.iter().any(|target| {
        let current = target.index < version.index;
        let done = target.done.is_some_and(|(_, index)| index < version.index);
        current && done && target.desired.revision == revision
    })
}

/// Returns the clusters that the controller knew to be selected and reachable.
fn must_be_done<'w>(
    world: &'w World<'_>,
    id: &'w Id,
    version: &'w Version<SyncGroup>,
) -> impl Iterator<Item = &'w str> {
    let from = earlier(version.at, world.history.lag);
    let selected = world.hub.selected(&id.namespace, &version.object, version.at);
    let status = version.object.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let actions = actions(world.hub, id, rollout.map_or(0, |rollout| rollout.id));
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
        let is_skipped = actions.iter().any(|action| {
            let cluster = track.and_then(|track| track.at(version.at));
            let stage = cluster.map(|cluster| stage_of(stages, &cluster.object));
            let stage = stage.map(|place| stages.get(place).map_or("*", |stage| &stage.name));
            action.may_be_known(from, version.index) && skips(action.object, Some(name), stage)
        });
        known && !is_skipped
    })
}

fn violation(rule: Rule, at: Timestamp, cluster: &str, message: String) -> Violation {
    Violation {
        rule,
        at,
        cluster: (!cluster.is_empty()).then(|| cluster.to_owned()),
        message,
    }
}
