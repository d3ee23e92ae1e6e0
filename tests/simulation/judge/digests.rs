//! What the digests in statuses stand for. How they are made is none of the judge's business.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{SyncResource, SyncSpec, SyncTemplate};

use super::hub::{Hub, Track};

/// What one Sync is to hold: the pair of a revision and a template with all values. `suspend` is none of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) revision: String,
    pub(crate) template: SyncTemplate,
}

impl Wanted {
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

/// A digest that stands for two things.
#[derive(Debug)]
pub(crate) struct TwoMeanings {
    pub(crate) at: Timestamp,
    pub(crate) cluster: String,
    pub(crate) words: String,
}

/// What the digests in statuses stand for, learned from the statuses that used them first.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: BTreeMap<String, Wanted>,
    pub(crate) two_meanings: Vec<TwoMeanings>,
}

impl Digests {
    /// Whether a digest stands for this.
    pub(crate) fn is(&self, digest: &str, wanted: &Wanted) -> bool {
        self.known.get(digest) == Some(wanted)
    }

    /// What it stands for.
    pub(crate) fn get(&self, digest: &str) -> Option<&Wanted> {
        self.known.get(digest)
    }

    /// Learns them all.
    pub(crate) fn learn(hub: &Hub) -> Self {
        let mut digests = Self::default();
        let mut versions: Vec<(&Track<SyncResource>, usize)> = Vec::new();
        for track in hub.syncs.values() {
            versions.extend((0..track.versions().len()).map(|place| (track, place)));
        }
        versions.sort_by_key(|(track, place)| track.versions()[*place].index);
        for (track, place) in versions {
            digests.learn_from(track, place);
        }
        digests
    }

    /// Takes in what a status says for the first time. One that is a copy of an older one says nothing new.
    fn learn_from(&mut self, track: &Track<SyncResource>, place: usize) {
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
        let said = |digest: &str| {
            before
                .iter()
                .any(|old| old.last_applied_target == digest || old.last_attempted_target == digest)
        };
        for (digest, revision) in [attempted, applied] {
            if digest.is_empty() || said(digest) {
                continue;
            }
            let wanted = Wanted::of(revision, spec);
            match self.known.get(digest) {
                Some(known) if *known != wanted => self.two_meanings.push(TwoMeanings {
                    at: version.at,
                    cluster: spec.cluster_ref.name.clone(),
                    words: format!("target {digest} stands for two things; the second is {revision}"),
                }),
                Some(_) => {}
                None => {
                    self.known.insert(digest.clone(), wanted);
                }
            }
        }
    }
}

/// The spec that a status is about.
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
