//! Pins: artifacts that stay available even if their origin drops them.
//!
//! A rollout may need an artifact long after its origin has dropped it: for the last known good release, queued
//! releases, and every release that a rollback may name. An artifact is pinned before its revision is reported.
//! Housekeeping deletes unneeded pins, so that nothing that waits for an artifact waits for the deletion.

mod restore;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::{Source, SyncGroupStatus};
use starling_core::revision::Revision;
use starling_core::rollout::ReleaseSnapshot;

use super::artifacts::{Artifact, ArtifactError, Origin, digest};
use super::caches::release_snapshots;
use super::context::{Context, SourceContext};
use super::hub::HubError;
use crate::controller::object_key::ObjectKey;

pub use restore::restore;

/// Pins an artifact whose revision a Source is about to report.
///
/// # Errors
/// [`ArtifactError`]
pub async fn pin(
    context: SourceContext<'_>,
    source: &Source,
    artifact: &Artifact,
) -> Result<(), ArtifactError> {
    // The revision is recorded before the pin: a sweep that reads the pin finds that it is needed.
    context
        .pins
        .record(&ObjectKey::of(source), artifact.revision.clone());
    context.artifacts.keep(artifact).await
}

/// Deletes unneeded pins: after a start, after new commits, and from time to time. Pins whose need is unknown are kept
/// until the next sweep.
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

/// Deletes unneeded pins and returns their number.
async fn sweep(context: &Context) -> Result<usize, HubError> {
    let permit = context.writes.permit();
    // The pins are read first: a later pin is not among them, and a revision that is named later was pinned before.
    let pinned = pinned(context).await;
    let kept = kept(context).await?;
    // What is kept is read from the management cluster, which may have been set back meanwhile.
    if !permit.is_valid() {
        context.caches.source.pins.retry_sweep();
        return Ok(0);
    }
    for source in context.objects.sources.select(|_| true) {
        let key = ObjectKey::of(&*source);
        let needed = kept.of_source.get(&key).cloned().unwrap_or_default();
        context.caches.source.pins.set_needed(&key, needed);
    }
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
                    tracing::warn!(pin = digest, error = %crate::chain(&error), "cannot delete pin");
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
    /// Returns whether the needed pins are known in all namespaces.
    fn is_known(&self, unknown: &BTreeSet<String>) -> bool {
        self.namespaces.is_disjoint(unknown)
    }
}

/// Returns the pins of each origin; several Sources may share an origin. An origin that cannot be read, or whose Source
/// has no Secret, does not prevent the sweep of the others.
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
                .entry(origin.store_key())
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

/// Returns the revisions that objects name.
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

/// Returns the revisions that a group rolls out or may roll out: those of the rollout, the last known good release,
/// queued releases and the held release.
fn rolled(status: &SyncGroupStatus) -> impl Iterator<Item = &String> {
    let rolls = status.rollout.iter().flat_map(|rollout| &rollout.revisions);
    let good = status.last_known_good.iter().chain(&status.queue);
    let later = good.flat_map(|release| &release.revisions);
    let held = status.held_release.iter().flat_map(|held| &held.revisions);
    rolls.chain(later).chain(held).map(|entry| &entry.revision)
}

/// The needs of the stored releases.
#[derive(Default)]
struct KeptReleases {
    revisions: BTreeSet<String>,
    /// The revisions of each Source.
    of_source: BTreeMap<ObjectKey, BTreeSet<Revision>>,
    /// Namespaces with a lost release. Somebody may restore it, and its revisions are unknown.
    unknown: BTreeSet<String>,
}

impl KeptReleases {
    fn add(&mut self, namespace: &str, snapshot: &ReleaseSnapshot) {
        for entry in &snapshot.entries {
            let revision = snapshot.revision(&entry.name);
            self.revisions.insert(revision.to_owned());
            if let Ok(revision) = revision.parse() {
                let source = ObjectKey::new(namespace, &entry.template.source_ref.name);
                self.of_source.entry(source).or_default().insert(revision);
            }
        }
    }
}

/// Returns the revisions of all stored releases, independent of current specs: `starling rollback --revision` may name
/// each.
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
            match release_snapshots::snapshot_of(release) {
                Some(snapshot) => kept.add(&namespace, &snapshot),
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

    /// A queued or held release was once the newest, and nothing else may name its revisions when it rolls out.
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
