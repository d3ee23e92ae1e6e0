//! Release snapshots: the revision and the template of every entry.

use crate::ids::ReleaseDigest;
use serde::{Deserialize, Serialize};
use starling_api::{EntryRevision, SyncEntry};

use crate::target::{self, ReleaseEntry};

/// A release, immutable and named by its digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleaseSnapshot {
    /// The digest of the release.
    pub digest: ReleaseDigest,
    /// The revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// The entries.
    pub entries: Vec<SyncEntry>,
}

impl ReleaseSnapshot {
    /// Returns an entry of the release.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&SyncEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the revision of an entry; empty if it has none.
    #[must_use]
    pub fn revision(&self, entry: &str) -> &str {
        let found = self.revisions.iter().find(|found| found.sync == entry);
        found.map_or("", |found| found.revision.as_str())
    }

    /// Whether the content matches the digest. Users with access to ControllerRevisions can edit a stored snapshot,
    /// which must not roll out under the name of another release.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let entries: Vec<ReleaseEntry<'_>> = self
            .entries
            .iter()
            .map(|entry| (entry.name.as_str(), self.revision(&entry.name), &entry.template))
            .collect();
        self.revisions.len() == self.entries.len() && target::of_release(&entries) == self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> ReleaseSnapshot {
        let entry: SyncEntry = serde_json::from_value(
            serde_json::json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}),
        )
        .unwrap();
        let digest = target::of_release(&[("app", "main@sha1:1", &entry.template)]);
        ReleaseSnapshot {
            digest,
            revisions: vec![EntryRevision {
                sync: "app".into(),
                revision: "main@sha1:1".into(),
            }],
            entries: vec![entry],
        }
    }

    #[test]
    fn a_snapshot_whose_content_does_not_match_its_digest_is_not_intact() {
        assert!(snapshot().is_intact());
        let mut path = snapshot();
        path.entries[0].template.path = "./other".into();
        let mut revision = snapshot();
        revision.revisions[0].revision = "main@sha1:2".into();
        let mut more = snapshot();
        more.revisions.push(EntryRevision {
            sync: "db".into(),
            revision: "main@sha1:1".into(),
        });
        let mut fewer = snapshot();
        fewer.entries.clear();
        let mut digest = snapshot();
        digest.digest = "sha256:0".into();
        for changed in [path, revision, more, fewer, digest] {
            assert!(!changed.is_intact(), "{changed:?}");
        }
    }
}
