//! I3: no repeated writes, and no older target after a newer one. And only admitted targets are written.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use starling_api::{OnFailure, RolloutPhase};

use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, earlier, span};
use crate::judge::member::{Member, OwnWrite, is_own, owner, uid};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{Owner, SyncTimeline, World};

/// What the controllers of a cluster make in every namespace.
const EVERYWHERE: [&str; 2] = ["kube-root-ca.crt", "default"];

/// Each write of Starling to a member belongs to a target that a Sync of its owner had by then ([`Rule::NotAdmitted`]);
/// the targets are written in their order, and one that was superseded long ago is not written any more
/// ([`Rule::Backwards`]); and for one target an object is changed once, unless another writer changed it in between
/// ([`Rule::Repeated`]).
///
/// Evidence: the object after the write. The write belongs to a target if the object contains everything that the
/// target renders, and if `managedFields` has no other field of Starling. If it belongs to several targets, the oldest
/// in order counts: equal renders of two commits cannot be distinguished. A superseded target may be written until
/// `timeout` after it was superseded: a running attempt is not stopped. A write that gives up an object that was there
/// before belongs to no target.
pub(super) fn writes_follow_targets(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (cluster, members) in &world.members {
        for member in members {
            follow(world, cluster, member, &mut found);
        }
    }
    found
}

/// The progress of one owner's writes to one member.
#[derive(Default)]
struct Progress {
    /// The target that was written last.
    floor: usize,
    /// The last written target of each object.
    written: BTreeMap<Key, usize>,
}

fn follow(world: &World<'_>, cluster: &str, member: &Member<'_>, found: &mut Vec<Violation>) {
    let mut progress: BTreeMap<&str, Progress> = BTreeMap::new();
    for own in &member.own_writes {
        if own.write.verb != Verb::Write {
            continue;
        }
        let label = owner(&own.write.object);
        // Whoever renders it later takes it again.
        let others = progress.iter_mut().filter(|(other, _)| **other != label);
        for (_, other) in others {
            other.written.remove(&own.write.key());
        }
        if relinquishes(member, own.write) {
            continue;
        }
        let progress = progress.entry(label).or_default();
        if let Err((rule, message)) = target_of(world, cluster, label, own, progress) {
            found.push(Violation {
                rule,
                at: own.write.at,
                cluster: Some(cluster.to_owned()),
                message: format!("{}: {message}", own.write.key()),
            });
        }
    }
}

/// Whether a write gives up an object that was there before its owner: it takes the label away from an object that has
/// it. A person made the object, or another Sync had it before, or the inventory does not say who made it, because the
/// attempt that claimed it was interrupted. A container is given up if objects in it stay.
fn relinquishes(member: &Member<'_>, write: &Write) -> bool {
    let versions = member.versions(&write.key());
    let before = versions
        .iter()
        .take_while(|version| !std::ptr::eq(version.write, write));
    let same: Vec<_> = before
        .filter(|version| uid(&version.write.object) == uid(&write.object))
        .collect();
    let label = same.last().map_or("", |last| owner(&last.write.object));
    let had_other = same
        .iter()
        .any(|version| ![label, ""].contains(&owner(&version.write.object)));
    let was_there = had_other || same.first().is_some_and(|first| !is_own(first.write));
    let inventories = member.inventories(write.at).into_iter();
    let mut listed = inventories.filter(|(of, key, _)| of == label && *key == write.key());
    let is_unconfirmed = listed.any(|(_, _, uid)| uid.is_empty());
    // Without a response, it is given up again.
    let mut before = same.iter().rev();
    let (last, labelled) = (before.next(), before.next());
    let gave_up = last.is_some_and(|last| is_own(last.write) && owner(&last.write.object).is_empty());
    if gave_up && labelled.is_some_and(|version| !owner(&version.write.object).is_empty()) {
        return owner(&write.object).is_empty();
    }
    (was_there || is_unconfirmed || holds_others(member, write))
        && !label.is_empty()
        && owner(&write.object).is_empty()
}

/// Whether an object is a container of objects that are there and not part of every namespace.
fn holds_others(member: &Member<'_>, write: &Write) -> bool {
    let container = write.key();
    let is_within = |key: &Key| match container.kind.as_str() {
        "Namespace" => key.namespace == container.name && !EVERYWHERE.contains(&key.name.as_str()),
        "CustomResourceDefinition" => container
            .name
            .split_once('.')
            .is_some_and(|(_, group)| group == key.group),
        _ => false,
    };
    let is_there = |key: &Key| {
        let versions = member.versions(key).iter();
        let last = versions.take_while(|version| version.write.at <= write.at).last();
        last.is_some_and(|last| last.write.verb == Verb::Write)
    };
    let mut keys = member.objects.keys();
    keys.any(|key| is_within(key) && is_there(key))
}

/// Finds the target of a write.
fn target_of(
    world: &World<'_>,
    cluster: &str,
    label: &str,
    own: &OwnWrite<'_>,
    progress: &mut Progress,
) -> Result<(), (Rule, String)> {
    let not_admitted = |message: &str| Err((Rule::NotAdmitted, message.to_owned()));
    let write = own.write;
    if label.is_empty() {
        return not_admitted("written without the label of an owner");
    }
    let Some(owner) = world.owner(label) else {
        return not_admitted("no Sync of this cluster renders it");
    };
    let targets = targets(world, owner, cluster);
    let by_then = |target: &&Target| target.at <= write.at;
    if !targets.iter().any(&by_then) {
        return not_admitted("its Sync was not admitted before");
    }
    let is_of = |target: &Target| {
        let expected = target.renders(&write.key());
        expected.is_some_and(|expected| expected.is_written_as(&write.object))
    };
    let fits: Vec<usize> = (0..targets.len())
        .filter(|&index| by_then(&targets[index]) && is_of(targets[index]))
        .collect();
    let Some(&newest) = fits.last() else {
        return not_admitted("no target that was admitted before renders it");
    };
    let in_order = fits.iter().copied().filter(|&index| index >= progress.floor);
    let Some(index) = { in_order }.find(|&index| is_current(world, targets[index], write)) else {
        let older = &targets[newest].desired.revision;
        return Err((
            Rule::Backwards,
            format!("written as in {older}, which had been superseded"),
        ));
    };
    progress.floor = index;
    let before = progress.written.insert(write.key(), index);
    if own.changed && !own.is_repair && before == Some(index) {
        let message = format!("changed twice for {}", targets[index].desired.revision);
        return Err((Rule::Repeated, message));
    }
    Ok(())
}

/// Returns all targets of an owner on a cluster, in order.
pub(super) fn targets<'w>(world: &'w World<'_>, owner: &Owner, cluster: &str) -> Vec<&'w Target> {
    let timelines = world.syncs.iter();
    let timelines = timelines.filter(|timeline| timeline.owner == *owner && timeline.cluster == cluster);
    let mut targets: Vec<&Target> = timelines.flat_map(|timeline| &timeline.targets).collect();
    targets.sort_by_key(|target| target.index);
    targets
}

/// Whether an attempt at a target may have been in progress.
pub(super) fn is_current(world: &World<'_>, target: &Target, write: &Write) -> bool {
    let under_way = attempt_limit(world, span(target.desired.template.timeout));
    target.is_desired_during(earlier(write.at, under_way), write.at)
}

/// Returns how long an attempt may continue after its target was superseded.
pub(super) fn attempt_limit(world: &World<'_>, timeout: SignedDuration) -> SignedDuration {
    world
        .history
        .lag
        .checked_add(timeout)
        .unwrap_or(SignedDuration::MAX)
}

/// A group admits the revision of its rollout, or the last known good one, which the Source had by then; and on no
/// cluster an older revision follows a newer one, unless a rollback was requested, or the last known good revision is
/// admitted on a new cluster: which one is allowed is the subject of [`Rule::StageOrder`].
///
/// Evidence: every change of `Source.status.revision` is an observation; a revision counts as of the last time that it
/// was observed before the admission, so a branch that is reset is not a step back. A rollback is requested if the
/// group's `onFailure` is `Rollback`, or its rollout is `RollingBack`. Another Source starts a new order. A Sync that
/// gave its slot back before anything was applied is admitted as on a new cluster. A management cluster that was
/// set back starts a new order: the rollout that was restored goes on once a person releases it.
pub(super) fn admissions_follow_the_source(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<(&Owner, &str), (&str, usize, Timestamp)> = BTreeMap::new();
    let mut admissions: Vec<(&SyncTimeline<'_>, &Target)> = world
        .syncs
        .iter()
        .flat_map(|timeline| timeline.targets.iter().map(move |target| (timeline, target)))
        .filter(|(_, target)| target.is_admission)
        .collect();
    admissions.sort_by_key(|(_, target)| target.index);
    for (timeline, target) in admissions {
        let mut wrong = |rule, message: String| {
            found.push(Violation {
                rule,
                at: target.at,
                cluster: Some(timeline.cluster.clone()),
                message,
            });
        };
        let revision = &target.desired.revision;
        if !is_rolled(world, timeline, target) {
            wrong(
                Rule::NotAdmitted,
                format!("{revision} was admitted, which is not in the group's rollout"),
            );
            continue;
        }
        let source = target.desired.template.source_ref.name.as_str();
        let Some(index) = observed(world, timeline.id, source, target) else {
            wrong(
                Rule::NotAdmitted,
                format!("{revision} was admitted before any Source had it"),
            );
            continue;
        };
        let before = last.insert(
            (&timeline.owner, &timeline.cluster),
            (source, index, target.decided),
        );
        let is_older = before.is_some_and(|(of, before, decided)| {
            let mut set_backs = world.history.hub_set_backs();
            // Also if it was decided by the lost state, just before the restore was noticed.
            let decided = earlier(decided, world.history.lag);
            of == source && before > index && !set_backs.any(|back| decided <= back && back <= target.at)
        });
        let last_target = timeline.target_before(target.index);
        let is_new =
            last_target.is_none_or(|last| last.returned.is_some_and(|(_, returned)| returned < target.index));
        if is_older && !is_new && !rollback_is_requested(world, timeline, target) {
            wrong(
                Rule::Backwards,
                format!("{revision} was admitted after a newer one"),
            );
        }
    }
    found
}

fn group_of<'s>(timeline: &'s SyncTimeline<'_>) -> Option<(Id, &'s str)> {
    match &timeline.owner {
        Owner::Entry(namespace, group, entry) => Some((Id::new(namespace, group), entry)),
        Owner::Alone(_) => None,
    }
}

/// Whether this is the revision of the group's rollout or the last known good one, at the decision or later.
fn is_rolled(world: &World<'_>, timeline: &SyncTimeline<'_>, target: &Target) -> bool {
    let Some((group, entry)) = group_of(timeline) else {
        return true;
    };
    let Some(track) = world.hub.groups.get(&group) else {
        return false;
    };
    let from = earlier(target.decided, world.history.lag);
    let before = track.before(target.index).into_iter();
    before.chain(track.during(from, target.at)).any(|version| {
        let status = version.object.status.as_ref();
        let rolled = status
            .and_then(|status| status.rollout.as_ref())
            .map(|rollout| &rollout.revisions);
        let has_stages = !version.object.spec.rollout_strategy.stages.is_empty();
        let last_good = status
            .filter(|_| has_stages)
            .and_then(|status| status.last_known_good.as_ref());
        let last_good = last_good.map(|last_good| &last_good.revisions);
        rolled
            .into_iter()
            .chain(last_good)
            .flatten()
            .any(|rolled| rolled.sync == entry && rolled.revision == target.desired.revision)
    })
}

/// Returns the index of a revision in the revisions of a Source: that of its last observation before an admission.
fn observed(world: &World<'_>, sync: &Id, source: &str, target: &Target) -> Option<usize> {
    let track = world.hub.sources.get(&Id::new(&sync.namespace, source))?;
    let mut shown: Vec<&str> = Vec::new();
    for version in track
        .versions()
        .iter()
        .filter(|version| version.index < target.index)
    {
        let revision = version
            .object
            .status
            .as_ref()
            .map_or("", |status| &status.revision);
        if !revision.is_empty() && shown.last() != Some(&revision) {
            shown.push(revision);
        }
    }
    shown.iter().rposition(|shown| *shown == target.desired.revision)
}

fn rollback_is_requested(world: &World<'_>, timeline: &SyncTimeline<'_>, target: &Target) -> bool {
    let Some((group, _)) = group_of(timeline) else {
        return true;
    };
    let track = world.hub.groups.get(&group);
    track
        .and_then(|track| track.before(target.index))
        .is_some_and(|version| {
            let rollout = version
                .object
                .status
                .as_ref()
                .and_then(|status| status.rollout.as_ref());
            version.object.spec.rollout_strategy.on_failure == OnFailure::Rollback
                || rollout.is_some_and(|rollout| {
                    rollout.phase == RolloutPhase::RollingBack || !rollout.direction.is_forward()
                })
        })
}
