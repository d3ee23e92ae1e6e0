//! Which commits stay in the mirror whatever happens to their branches: pins.
//!
//! A rollout may need a commit long after upstream has forgotten it: what was good, what waits for its turn, and every release that a
//! person may still go back to.

use std::collections::BTreeSet;

use starling_api::{Source, SyncGroup, SyncGroupStatus};
use starling_core::revision::Revision;

use crate::controller::cache::ObjectKey;
use crate::controller::context::Context;
use crate::controller::hub::HubError;
use crate::controller::releases::revisions_of;
use crate::git::{GitError, RepoAccess};

/// Pins a commit that a Source is about to offer, and ends the pins of those that nothing names any more: no Source, no Sync, and no
/// group, be it in its status ([`rolled`]) or among the releases that it keeps.
///
/// # Errors
/// [`GitError`]
pub(super) async fn keep(
    context: &Context,
    source: &Source,
    access: &RepoAccess,
    new: &Revision,
) -> Result<(), GitError> {
    context.git.pin(access, &name(new), new.commit().as_str()).await?;
    let mut needed = named(context);
    match kept(context, source).await {
        Ok(kept) => needed.extend(kept),
        Err(error) => {
            // What is not known to be superfluous stays until the next commit.
            tracing::warn!(source = %ObjectKey::of(source), error = %crate::chain(&error), "no pin was ended");
            return Ok(());
        }
    }
    let needed: BTreeSet<String> = needed
        .iter()
        .filter_map(|text| text.parse::<Revision>().ok())
        .chain([new.clone()])
        .map(|revision| name(&revision))
        .collect();
    for (pinned, _) in context.git.list_pins(access).await? {
        if !needed.contains(&pinned) {
            context.git.unpin(access, &pinned).await?;
        }
    }
    Ok(())
}

/// The name of a pin.
fn name(revision: &Revision) -> String {
    revision.commit().as_str().to_owned()
}

/// The revisions that objects name.
fn named(context: &Context) -> BTreeSet<String> {
    // Thousands of Syncs name few revisions.
    let mut revisions: BTreeSet<String> = BTreeSet::new();
    for source in context.sources.select(|_| true) {
        revisions.extend(source.status.as_ref().map(|status| status.revision.clone()));
    }
    for sync in context.syncs.select(|_| true) {
        if !revisions.contains(&sync.spec.revision) {
            revisions.insert(sync.spec.revision.clone());
        }
        revisions.extend(
            sync.status
                .as_ref()
                .map(|status| status.last_applied_revision.clone()),
        );
    }
    for group in context.groups.select(|_| true) {
        revisions.extend(group.status.iter().flat_map(rolled).cloned());
    }
    revisions
}

/// The revisions that a group rolls, or may roll by itself or by somebody's leave: what was good, what waits for its turn, what is held.
fn rolled(status: &SyncGroupStatus) -> impl Iterator<Item = &String> {
    let rolls = status.rollout.iter().flat_map(|rollout| &rollout.revisions);
    let good = status.last_known_good.iter().chain(&status.queue);
    let later = good.flat_map(|release| &release.revisions);
    let held = status.held_release.iter().flat_map(|held| &held.revisions);
    rolls.chain(later).chain(held).map(|entry| &entry.revision)
}

/// The revisions of all releases that are kept by groups that roll what is in the repository of a Source: `starling rollback --revision` may
/// name each. One request for each such group, at each new commit.
async fn kept(context: &Context, source: &Source) -> Result<BTreeSet<String>, HubError> {
    let of_repository: BTreeSet<ObjectKey> = context
        .sources
        .select(|other| other.spec.url == source.spec.url)
        .iter()
        .map(|source| ObjectKey::of(&**source))
        .collect();
    let mut revisions = BTreeSet::new();
    for group in context.groups.select(|group| rolls_from(group, &of_repository)) {
        for release in context.releases.kept(&context.hub, &group).await? {
            let entries = revisions_of(&release).into_iter();
            revisions.extend(entries.map(|entry| entry.revision));
        }
    }
    Ok(revisions)
}

fn rolls_from(group: &SyncGroup, sources: &BTreeSet<ObjectKey>) -> bool {
    let namespace = group.metadata.namespace.as_deref().unwrap_or_default();
    let mut entries = group.spec.syncs.iter();
    entries.any(|entry| sources.contains(&ObjectKey::new(namespace, &entry.template.source_ref.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What waits for its turn or is held was offered once, and nothing else may name it by the time it rolls.
    #[test]
    fn what_a_group_may_roll_yet_is_kept() {
        let release =
            |revision: &str| json!({"release": "r", "revisions": [{"sync": "app", "revision": revision}]});
        let mut rollout = release("rolls");
        rollout["id"] = 3.into();
        let status = json!({"rollout": rollout, "lastKnownGood": release("good"), "heldRelease": release("held"),
            "queue": [release("next"), release("newest")]});
        let status: SyncGroupStatus = serde_json::from_value(status).unwrap();
        let kept: BTreeSet<&str> = rolled(&status).map(String::as_str).collect();
        assert_eq!(kept, BTreeSet::from(["good", "held", "newest", "next", "rolls"]));
    }
}
