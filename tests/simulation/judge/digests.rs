//! The meaning of the digests in statuses. The judge does not know how a digest is computed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{SyncResource, SyncSpec, SyncTemplate};

use super::hub::{Hub, Track};

/// The desired state of one Sync: the pair of a revision and a template with all values. `suspend` is not part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredState {
    pub(crate) revision: String,
    pub(crate) template: SyncTemplate,
}

impl DesiredState {
    pub(crate) fn of(revision: &str, spec: &SyncSpec) -> Self {
        Self {
            revision: revision.to_owned(),
            template: SyncTemplate {
                suspend: false,
                ..spec.template.clone()
            },
        }
    }
}

/// A digest with two meanings.
#[derive(Debug)]
pub(crate) struct AmbiguousDigest {
    pub(crate) at: Timestamp,
    pub(crate) cluster: String,
    pub(crate) message: String,
}

/// The meaning of each digest, taken from the first status that contains it.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: BTreeMap<String, DesiredState>,
    pub(crate) ambiguous_digests: Vec<AmbiguousDigest>,
}

impl Digests {
    /// Whether a digest means this desired state.
    pub(crate) fn is(&self, digest: &str, desired: &DesiredState) -> bool {
        self.known.get(digest) == Some(desired)
    }

    /// Returns the meaning of a digest.
    pub(crate) fn get(&self, digest: &str) -> Option<&DesiredState> {
        self.known.get(digest)
    }

    /// Collects the meanings of all digests.
    pub(crate) fn collect(hub: &Hub) -> Self {
        let mut digests = Self::default();
        let mut versions: Vec<(&Track<SyncResource>, usize)> = Vec::new();
        for track in hub.syncs.values() {
            versions.extend((0..track.versions().len()).map(|place| (track, place)));
        }
        versions.sort_by_key(|(track, place)| track.versions()[*place].index);
        for (track, place) in versions {
            digests.collect_from(track, place);
        }
        digests
    }

    /// Adds the digests that a status contains for the first time. A copied older status adds nothing.
    fn collect_from(&mut self, track: &Track<SyncResource>, place: usize) {
        let version = &track.versions()[place];
        let Some(status) = &version.object.status else {
            return;
        };
        let before: Vec<_> = track.versions()[..place]
            .iter()
            .filter_map(|version| version.object.status.as_ref())
            .collect();
        let spec = spec_of_generation(track, place);
        let attempted = (&status.last_attempted_target, &status.last_attempted_revision);
        let applied = (&status.last_applied_target, &status.last_applied_revision);
        let appeared_before = |digest: &str| {
            before
                .iter()
                .any(|old| old.last_applied_target == digest || old.last_attempted_target == digest)
        };
        for (digest, revision) in [attempted, applied] {
            if digest.is_empty() || appeared_before(digest) {
                continue;
            }
            let desired = DesiredState::of(revision, spec);
            match self.known.get(digest) {
                Some(known) if *known != desired => self.ambiguous_digests.push(AmbiguousDigest {
                    at: version.at,
                    cluster: spec.cluster_ref.name.clone(),
                    message: format!("target {digest} has two meanings; the second is {revision}"),
                }),
                Some(_) => {}
                None => {
                    self.known.insert(digest.clone(), desired);
                }
            }
        }
    }
}

/// Returns the spec of a status' generation.
fn spec_of_generation(track: &Track<SyncResource>, place: usize) -> &SyncSpec {
    let versions = &track.versions()[..=place];
    let current = &versions[place].object;
    let about = current
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let found = versions.iter().rfind(|version| {
        version.object.metadata.generation == about && version.object.uid() == current.uid()
    });
    found.map_or(&current.spec, |version| &version.object.spec)
}
