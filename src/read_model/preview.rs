//! The preview of a rollout: what an apply would change on each cluster.

use std::collections::BTreeMap;

use serde::Serialize;
use starling_core::preview::Overview;

use super::removals::PlannedRemoval;

/// The preview of a group, or of one of its clusters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewReport {
    /// Name of the group.
    pub group: String,
    /// Namespace of the group.
    pub namespace: String,
    /// The previewed revision of each entry.
    pub revisions: BTreeMap<String, String>,
    /// The release digest, which an approval is for; `None`: an entry cannot be built.
    pub release_digest: Option<String>,
    /// Reason why there is no release digest.
    pub release_digest_error: Option<String>,
    /// The removals: objects that the previewed release no longer has, and Syncs that the group no longer wants.
    pub removals: Vec<PlannedRemoval>,
    /// The clusters by equal difference.
    pub overview: Overview,
}

/// The result of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewResult {
    /// The rollout would change nothing.
    NoChanges,
    /// The rollout would change objects.
    Changes,
    /// A cluster would fail or could not be previewed, or an entry cannot be built.
    Incomplete,
}

impl PreviewReport {
    /// The result of the preview.
    #[must_use]
    pub fn result(&self) -> PreviewResult {
        let is_complete = self.overview.is_sound() && self.release_digest.is_some();
        let changes = self.overview.changes_anything() || !self.removals.is_empty();
        match (is_complete, changes) {
            (false, _) => PreviewResult::Incomplete,
            (true, true) => PreviewResult::Changes,
            (true, false) => PreviewResult::NoChanges,
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_api::DeletionPolicy;
    use starling_core::preview::ClusterPreview;

    use super::*;
    use crate::read_model::removals::RemovalCause;

    fn report(preview: ClusterPreview, digest: Option<&str>) -> PreviewReport {
        PreviewReport {
            group: "web".into(),
            namespace: "shop".into(),
            revisions: BTreeMap::new(),
            release_digest: digest.map(str::to_owned),
            release_digest_error: None,
            removals: Vec::new(),
            overview: Overview::of([("eu".to_owned(), preview)].into()),
        }
    }

    #[test]
    fn a_preview_without_a_digest_or_with_failures_is_incomplete() {
        let mut failing = ClusterPreview::default();
        failing.fail("app", "refused".into());
        for (preview, digest, expected) in [
            (
                ClusterPreview::default(),
                Some("sha256:1"),
                PreviewResult::NoChanges,
            ),
            (ClusterPreview::default(), None, PreviewResult::Incomplete),
            (failing, Some("sha256:1"), PreviewResult::Incomplete),
        ] {
            assert_eq!(report(preview, digest).result(), expected);
        }
        let mut removing = report(ClusterPreview::default(), Some("sha256:1"));
        removing.removals.push(PlannedRemoval {
            cause: RemovalCause::EntryRemoved { entry: "old".into() },
            policy: DeletionPolicy::Delete,
            objects: 12,
            clusters: vec!["eu".into(), "us".into()],
        });
        assert_eq!(removing.result(), PreviewResult::Changes);
    }

    /// Programs read this form.
    #[test]
    fn the_json_form_is_stable() {
        let value = serde_json::to_value(report(ClusterPreview::default(), None)).unwrap();
        let expected = serde_json::json!({
            "group": "web", "namespace": "shop", "revisions": {}, "releaseDigest": null, "releaseDigestError": null,
            "removals": [], "overview": {"clusters": 1, "unchanged": ["eu"], "suspended": [], "changes": [], "noted": [], "failing": [],
                "unknown": []},
        });
        assert_eq!(value, expected);
    }
}
