//! Which commits stay in the mirrors whatever happens to their branches: pins.
//!
//! A rollout may need a commit long after upstream has forgotten it: what was good, what waits for its turn, and every release that a
//! person may still go back to. A commit is pinned before it is offered; pins that nothing needs any more are ended by the
//! housekeeping, away from everything that waits for a commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::{Source, SyncGroupStatus};
use starling_core::revision::Revision;

use super::cache::ObjectKey;
use super::context::Context;
use super::hub::HubError;
use super::releases;
use crate::git::{GitError, RepoAccess};

/// What was pinned last for each Source, and whether all pins were looked through since.
#[derive(Debug, Default)]
pub struct Pins(Mutex<Offered>);

#[derive(Debug, Default)]
struct Offered {
    /// Not yet in any status, perhaps.
    newest: BTreeMap<ObjectKey, Revision>,
    looked_through: bool,
}

/// Why pins were not looked through: none is ended then.
#[derive(Debug, thiserror::Error)]
enum NotTold {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("the release that ControllerRevision {0} keeps cannot be read")]
    Unreadable(ObjectKey),
}

impl Pins {
    fn offer(&self, source: ObjectKey, revision: Revision) {
        let mut offered = self.lock();
        offered.newest.insert(source, revision);
        offered.looked_through = false;
    }

    /// Forgets a Source.
    pub fn forget(&self, source: &ObjectKey) {
        self.lock().newest.remove(source);
    }

    /// Whether they are to be looked through now.
    fn take_turn(&self) -> bool {
        !std::mem::replace(&mut self.lock().looked_through, true)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pins a commit that a Source is about to offer.
///
/// # Errors
/// [`GitError`]
pub async fn pin(
    context: &Context,
    source: &Source,
    access: &RepoAccess,
    revision: &Revision,
) -> Result<(), GitError> {
    // Before the pin: whoever sees the pin finds that it is needed.
    context.pins.offer(ObjectKey::of(source), revision.clone());
    context
        .git
        .pin(access, &name(revision), revision.commit().as_str())
        .await
}

/// Ends the pins that nothing needs: once after a start, and where commits have come since the last time. Where that cannot be told,
/// none is ended before the next time.
pub async fn end_unneeded(context: &Context) {
    if !context.pins.take_turn() {
        return;
    }
    match look_through(context).await {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "pins ended"),
        Err(error) => {
            context.pins.lock().looked_through = false;
            tracing::warn!(error = %crate::chain(&error), "no pin was ended");
        }
    }
}

/// Returns how many pins were ended.
async fn look_through(context: &Context) -> Result<usize, NotTold> {
    // The pins first: what is pinned later is none of them, and what is named later was pinned before.
    let pinned = pinned(context).await;
    let mut needed = named(context);
    needed.extend(kept(context).await?);
    let needed: BTreeSet<String> = needed
        .iter()
        .filter_map(|text| text.parse().ok())
        .chain(context.pins.lock().newest.values().cloned())
        .map(|revision| name(&revision))
        .collect();
    let mut ended = 0;
    for (access, names) in pinned {
        for name in names.iter().filter(|name| !needed.contains(*name)) {
            match context.git.unpin(&access, name).await {
                Ok(()) => ended += 1,
                Err(error) => tracing::warn!(pin = name, error = %crate::chain(&error), "not ended"),
            }
        }
    }
    Ok(ended)
}

/// The pins of each mirror; several Sources may have one. One that cannot be opened, or whose Source has lost its Secret, is no reason
/// to leave the others.
async fn pinned(context: &Context) -> Vec<(RepoAccess, Vec<String>)> {
    let mut mirrors = BTreeMap::new();
    for source in context.sources.select(|_| true) {
        let known = context
            .repositories
            .get(&context.hub, &source, context.allow_insecure_sources);
        if let Ok(access) = known.await {
            mirrors.insert(access.fingerprint(), (ObjectKey::of(&*source), access));
        }
    }
    let mut pinned = Vec::new();
    for (source, access) in mirrors.into_values() {
        match context.git.list_pins(&access).await {
            Ok(names) => pinned.push((access, names.into_keys().collect())),
            Err(error) => tracing::warn!(%source, error = %crate::chain(&error), "pins not read"),
        }
    }
    pinned
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

/// The revisions of all releases that groups keep, whatever their spec says today: `starling rollback --revision` may name each.
async fn kept(context: &Context) -> Result<BTreeSet<String>, NotTold> {
    let groups = context.groups.select(|_| true);
    let namespaces: BTreeSet<String> = groups.iter().filter_map(|group| group.namespace()).collect();
    let mut revisions = BTreeSet::new();
    for namespace in namespaces {
        let found: Vec<ControllerRevision> = context.hub.list(&namespace, &ListParams::default()).await?;
        for release in found.iter().filter(|found| releases::is_of_a_group(found)) {
            let read =
                releases::revisions_of(release).ok_or_else(|| NotTold::Unreadable(ObjectKey::of(release)))?;
            revisions.extend(read.into_iter().map(|entry| entry.revision));
        }
    }
    Ok(revisions)
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
