//! I3: nothing doubled, nothing backwards. And nothing but what was admitted.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use starling_api::{OnFailure, RolloutPhase};

use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{Id, earlier, span};
use crate::judge::member::{Member, Ours, owner};
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{Owner, SyncStory, World};

/// Each of our writes to a member is of a target that one of the Syncs of its owner was to hold by then
/// ([`Rule::NotAdmitted`]); the targets follow one another as they were wanted, and one that is long superseded is not
/// written any more ([`Rule::Backwards`]); and for one target an object is changed once, unless somebody else changed it
/// in between ([`Rule::Doubled`]).
///
/// Evidence: the object after the write. It is of a target if it has all that the target renders, and if `managedFields`
/// show nothing of ours besides. Where it is of several, the oldest that is in order counts: what two commits render alike
/// cannot be told apart. A superseded target may be written until `timeout` after it was superseded: an attempt that has
/// begun is not stopped.
pub(super) fn writes_follow_targets(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (cluster, members) in &world.members {
        for member in members {
            follow(world, cluster, member, &mut found);
        }
    }
    found
}

/// How far the writes of one owner to one member are.
#[derive(Default)]
struct Progress {
    /// The target that was written last.
    floor: usize,
    /// By object, the target that it was written for last.
    written: BTreeMap<Key, usize>,
}

fn follow(world: &World<'_>, cluster: &str, member: &Member<'_>, found: &mut Vec<Violation>) {
    let mut progress: BTreeMap<&str, Progress> = BTreeMap::new();
    for ours in &member.ours {
        if ours.write.verb != Verb::Write {
            continue;
        }
        let label = owner(&ours.write.object);
        let progress = progress.entry(label).or_default();
        if let Err((rule, words)) = place(world, cluster, label, ours, progress) {
            found.push(Violation {
                rule,
                at: ours.write.at,
                cluster: Some(cluster.to_owned()),
                words: format!("{}: {words}", ours.write.key()),
            });
        }
    }
}

/// Finds the target of a write.
fn place(
    world: &World<'_>,
    cluster: &str,
    label: &str,
    ours: &Ours<'_>,
    progress: &mut Progress,
) -> Result<(), (Rule, String)> {
    let not_admitted = |words: &str| Err((Rule::NotAdmitted, words.to_owned()));
    let write = ours.write;
    if label.is_empty() {
        return not_admitted("written without the label of an owner");
    }
    let Some(owner) = world.owner(label) else {
        return not_admitted("no Sync of this cluster renders it");
    };
    let targets = targets(world, owner, cluster);
    let by_then = |target: &&Target| target.at <= write.at;
    if !targets.iter().any(&by_then) {
        return not_admitted("its Sync was not admitted by then");
    }
    let is_of = |target: &Target| {
        let expected = target.renders(&write.key());
        expected.is_some_and(|expected| expected.was_written_as(&write.object))
    };
    let fits: Vec<usize> = (0..targets.len())
        .filter(|&place| by_then(&targets[place]) && is_of(targets[place]))
        .collect();
    let Some(&newest) = fits.last() else {
        return not_admitted("it is what no target renders that was admitted by then");
    };
    let in_order = fits.iter().copied().filter(|&place| place >= progress.floor);
    let Some(place) = { in_order }.find(|&place| is_current(world, targets[place], write)) else {
        let older = &targets[newest].wanted.revision;
        return Err((
            Rule::Backwards,
            format!("written as in {older}, which had been superseded"),
        ));
    };
    progress.floor = place;
    let before = progress.written.insert(write.key(), place);
    if ours.changed && !ours.is_repair && before == Some(place) {
        let words = format!("changed twice for {}", targets[place].wanted.revision);
        return Err((Rule::Doubled, words));
    }
    Ok(())
}

/// Everything that was wanted of an owner on a cluster, in order.
pub(super) fn targets<'w>(world: &'w World<'_>, owner: &Owner, cluster: &str) -> Vec<&'w Target> {
    let stories = world.syncs.iter();
    let stories = stories.filter(|story| story.owner == *owner && story.cluster == cluster);
    let mut targets: Vec<&Target> = stories.flat_map(|story| &story.targets).collect();
    targets.sort_by_key(|target| target.index);
    targets
}

/// Whether an attempt at a target may have been under way.
pub(super) fn is_current(world: &World<'_>, target: &Target, write: &Write) -> bool {
    let under_way = patience(world, span(target.wanted.template.timeout));
    target.is_wanted_during(earlier(write.at, under_way), write.at)
}

/// How long an attempt goes on that nobody would begin any more.
pub(super) fn patience(world: &World<'_>, timeout: SignedDuration) -> SignedDuration {
    world
        .history
        .lag
        .checked_add(timeout)
        .unwrap_or(SignedDuration::MAX)
}

/// What a group admits is what it says that it rolls, or what it says was good before, a revision that the Source had by then; and
/// on no cluster an older one follows a newer one, unless a rollback was asked for, or the cluster is told what was good before
/// as if it were new: which one is, is the business of [`Rule::StageOrder`].
///
/// Evidence: every change of `Source.status.revision` is an observation; a revision counts as of the last time that it was
/// observed before the admission, so a branch that is set back is not a step back. A rollback is asked for where the group's
/// `onFailure` is `Rollback`, or its rollout is `RollingBack`. Another Source begins anew.
pub(super) fn admissions_follow_the_source(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<(&Owner, &str), (&str, usize)> = BTreeMap::new();
    let mut admissions: Vec<(&SyncStory<'_>, &Target)> = world
        .syncs
        .iter()
        .flat_map(|story| story.targets.iter().map(move |target| (story, target)))
        .filter(|(_, target)| target.is_admission)
        .collect();
    admissions.sort_by_key(|(_, target)| target.index);
    for (story, target) in admissions {
        let mut wrong = |rule, words: String| {
            found.push(Violation {
                rule,
                at: target.at,
                cluster: Some(story.cluster.clone()),
                words,
            });
        };
        let revision = &target.wanted.revision;
        if !is_rolled(world, story, target) {
            wrong(
                Rule::NotAdmitted,
                format!("{revision} was admitted, which the group does not roll"),
            );
            continue;
        }
        let source = target.wanted.template.source_ref.name.as_str();
        let Some(seen) = observed(world, story.id, source, target) else {
            wrong(
                Rule::NotAdmitted,
                format!("{revision} was admitted before any Source had it"),
            );
            continue;
        };
        let before = last.insert((&story.owner, &story.cluster), (source, seen));
        let is_older = before.is_some_and(|(of, before)| of == source && before > seen);
        let is_new = story.target_before(target.index).is_none();
        if is_older && !is_new && !rollback_is_asked_for(world, story, target) {
            wrong(
                Rule::Backwards,
                format!("{revision} was admitted after a newer one"),
            );
        }
    }
    found
}

fn group_of<'s>(story: &'s SyncStory<'_>) -> Option<(Id, &'s str)> {
    match &story.owner {
        Owner::Entry(namespace, group, entry) => Some((Id::new(namespace, group), entry)),
        Owner::Alone(_) => None,
    }
}

/// Whether the group said that it rolls this, or that it was good before, when it was decided or later.
fn is_rolled(world: &World<'_>, story: &SyncStory<'_>, target: &Target) -> bool {
    let Some((group, entry)) = group_of(story) else {
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
        let good = status
            .filter(|_| has_stages)
            .and_then(|status| status.last_known_good.as_ref());
        let good = good.map(|good| &good.revisions);
        rolled
            .into_iter()
            .chain(good)
            .flatten()
            .any(|rolled| rolled.sync == entry && rolled.revision == target.wanted.revision)
    })
}

/// The place of a revision among those that a Source has shown: that of its last showing before an admission.
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
    shown.iter().rposition(|shown| *shown == target.wanted.revision)
}

fn rollback_is_asked_for(world: &World<'_>, story: &SyncStory<'_>, target: &Target) -> bool {
    let Some((group, _)) = group_of(story) else {
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
