//! Pins: the artifacts that stay at hand whatever happens at their origin.
//!
//! A rollout may need an artifact long after its origin has dropped it: the last known good release, queued releases,
//! and every release that a rollback may name. An artifact is pinned before it is offered; pins that nothing needs any
//! more are ended by the housekeeping, away from everything that waits for an artifact.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::{Source, SyncGroupStatus};

use super::artifacts::{Artifact, ArtifactError, Origin, digest};
use super::cache::ObjectKey;
use super::caches::release_snapshots;
use super::context::{Context, SourceContext};
use super::hub::HubError;

/// Pins an artifact that a Source is about to offer.
///
/// # Errors
/// [`ArtifactError`]
pub async fn pin(
    context: SourceContext<'_>,
    source: &Source,
    artifact: &Artifact,
) -> Result<(), ArtifactError> {
    // Before the pin: a sweep that sees the pin finds that it is needed.
    context
        .pins
        .offer(&ObjectKey::of(source), artifact.revision.clone());
    context.artifacts.keep(artifact).await
}

/// Ends the pins that nothing needs: once after a start, and where commits have come since the last time. Where it is
/// not known which are needed, none is ended before the next sweep.
pub async fn end_unneeded(context: &Context) {
    if !context.caches.source.pins.begin_sweep() {
        return;
    }
    match sweep(context).await {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "unneeded pins deleted"),
        Err(error) => {
            context.caches.source.pins.retry_sweep();
            tracing::warn!(error = %crate::chain(&error), "cannot delete unneeded pins");
        }
    }
}

/// Returns how many pins were ended.
async fn sweep(context: &Context) -> Result<usize, HubError> {
    // The pins first: what is pinned later is none of them, and what is named later was pinned before.
    let pinned = pinned(context).await;
    let kept = kept(context).await?;
    let mut needed = named(context);
    needed.extend(kept.revisions);
    let needed: BTreeSet<String> = needed
        .iter()
        .filter_map(|text| text.parse().ok())
        .chain(context.caches.source.pins.newest())
        .map(|revision| digest(&revision).to_owned())
        .collect();
    let mut ended = 0;
    for pins in pinned.iter().filter(|pins| pins.is_known(&kept.unknown)) {
        for digest in pins.digests.difference(&needed) {
            match context.adapters.artifacts.release(&pins.origin, digest).await {
                Ok(()) => ended += 1,
                Err(error) => {
                    tracing::warn!(pin = digest, error = %crate::chain(&error), "cannot delete pin")
                }
            }
        }
    }
    Ok(ended)
}

/// The pins of an origin.
struct Pins {
    origin: Origin,
    /// Namespaces of the Sources with this origin.
    namespaces: BTreeSet<String>,
    digests: BTreeSet<String>,
}

impl Pins {
    /// Whether it is known in all namespaces which pins are needed.
    fn is_known(&self, unknown: &BTreeSet<String>) -> bool {
        self.namespaces.is_disjoint(unknown)
    }
}

/// The pins of each origin; several Sources may have one. An origin that cannot be opened, or whose Source has lost its
/// Secret, does not keep the others from being swept.
async fn pinned(context: &Context) -> Vec<Pins> {
    let mut origins: BTreeMap<String, (Origin, BTreeSet<String>)> = BTreeMap::new();
    for source in context.objects.sources.select(|_| true) {
        let known = context
            .caches
            .source
            .origins
            .get(&context.hub, &source, context.allow_insecure_sources);
        if let Ok(origin) = known.await {
            let (_, namespaces) = origins
                .entry(origin.fingerprint())
                .or_insert((origin, BTreeSet::new()));
            namespaces.insert(ObjectKey::of(&*source).namespace);
        }
    }
    let mut pinned = Vec::new();
    for (origin, namespaces) in origins.into_values() {
        match context.adapters.artifacts.kept(&origin).await {
            Ok(digests) => pinned.push(Pins {
                origin,
                namespaces,
                digests,
            }),
            Err(error) => tracing::warn!(?namespaces, error = %crate::chain(&error), "cannot read pins"),
        }
    }
    pinned
}

/// The revisions that objects name.
fn named(context: &Context) -> BTreeSet<String> {
    // Thousands of Syncs name few revisions.
    let mut revisions: BTreeSet<String> = BTreeSet::new();
    for source in context.objects.sources.select(|_| true) {
        revisions.extend(source.status.as_ref().map(|status| status.revision.clone()));
    }
    for sync in context.objects.syncs.select(|_| true) {
        if !revisions.contains(&sync.spec.revision) {
            revisions.insert(sync.spec.revision.clone());
        }
        revisions.extend(
            sync.status
                .as_ref()
                .map(|status| status.last_applied_revision.clone()),
        );
    }
    for group in context.objects.groups.select(|_| true) {
        revisions.extend(group.status.iter().flat_map(rolled).cloned());
    }
    revisions
}

/// The revisions that a group rolls or may roll: of the rollout, the last known good release, queued releases and the
/// held release.
fn rolled(status: &SyncGroupStatus) -> impl Iterator<Item = &String> {
    let rolls = status.rollout.iter().flat_map(|rollout| &rollout.revisions);
    let good = status.last_known_good.iter().chain(&status.queue);
    let later = good.flat_map(|release| &release.revisions);
    let held = status.held_release.iter().flat_map(|held| &held.revisions);
    rolls.chain(later).chain(held).map(|entry| &entry.revision)
}

/// What the releases need that groups keep.
#[derive(Default)]
struct KeptReleases {
    revisions: BTreeSet<String>,
    /// Namespaces with a release that is lost. Somebody may restore it, and what it needs is not known.
    unknown: BTreeSet<String>,
}

/// The revisions of all releases that groups keep, whatever their spec says today: `starling rollback --revision` may
/// name each.
async fn kept(context: &Context) -> Result<KeptReleases, HubError> {
    let groups = context.objects.groups.select(|_| true);
    let namespaces: BTreeSet<String> = groups.iter().filter_map(|group| group.namespace()).collect();
    let mut kept = KeptReleases::default();
    for namespace in namespaces {
        let found: Vec<ControllerRevision> = context.hub.list(&namespace, &ListParams::default()).await?;
        for release in found
            .iter()
            .filter(|found| release_snapshots::is_of_a_group(found))
        {
            match release_snapshots::revisions_of(release) {
                Some(read) => kept
                    .revisions
                    .extend(read.into_iter().map(|entry| entry.revision)),
                None => {
                    let release = ObjectKey::of(release);
                    tracing::warn!(%release, "stored release not readable; no pin is deleted in its namespace");
                    kept.unknown.insert(namespace.clone());
                }
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_git::{Credential, RepoAccess, RepoUrl};

    use super::*;

    #[test]
    fn a_lost_release_keeps_the_pins_of_its_namespace() {
        let url = RepoUrl::parse("https://git.example.com/a.git", false).unwrap();
        let pins = |namespaces: &[&str]| Pins {
            origin: Origin::Git(RepoAccess::new(url.clone(), Credential::None)),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            digests: BTreeSet::new(),
        };
        let unknown = BTreeSet::from(["shop".to_owned()]);
        for (namespaces, known) in [
            (&["fleet"][..], true),
            (&["shop"], false),
            (&["fleet", "shop"], false),
        ] {
            assert_eq!(pins(namespaces).is_known(&unknown), known, "{namespaces:?}");
        }
    }

    /// A queued or held release was the newest once, and nothing else may name its revisions by the time it rolls.
    #[test]
    fn revisions_that_a_group_may_roll_are_needed() {
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
