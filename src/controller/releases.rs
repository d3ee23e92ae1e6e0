//! Releases as they were when they were formed: the revision and the template of each entry.
//!
//! A group's spec says only what is wanted now. What rolls under `Finish`, waits in a queue or is gone back to may be of
//! an older spec, so each release is kept as a ControllerRevision of the group (what StatefulSets and DaemonSets do), which
//! survives the ledger and a move of the hub, and goes with the group.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use starling_api::{EntryRevision, GROUP_LABEL, SyncEntry, SyncGroup};
use starling_core::revision::is_named;

use super::cache::ObjectKey;
use super::hub::{Hub, HubError};

/// Releases that a group keeps beside those that it names in its status.
const KEPT: usize = 10;
/// Longest name of an object.
const NAME_LIMIT: usize = 253;

/// A release: its entries as they were when it was formed, and the revision of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vector {
    /// Its digest.
    pub digest: String,
    /// Revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// The entries.
    pub entries: Vec<SyncEntry>,
}

impl Vector {
    /// An entry of it.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&SyncEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The revision of an entry; empty where it has none.
    #[must_use]
    pub fn revision(&self, entry: &str) -> &str {
        let found = self.revisions.iter().find(|found| found.sync == entry);
        found.map_or("", |found| found.revision.as_str())
    }
}

/// What was read or written before, so that a look at a group asks nothing.
#[derive(Debug, Default)]
pub struct Releases {
    known: Mutex<HashMap<(String, String), Arc<Vector>>>,
}

impl Releases {
    /// Keeps a release. One that is kept already is left as it is: equal digests are equal releases.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn keep(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        rollout: i64,
        vector: &Arc<Vector>,
    ) -> Result<(), HubError> {
        let object = object(group, rollout, vector);
        let key = ObjectKey::of(&object);
        if hub.find::<ControllerRevision>(&key).await?.is_none() {
            hub.create(&object).await?;
        }
        self.remember(group, vector.clone());
        Ok(())
    }

    /// A release that was kept; `None`: it is not there any more, or cannot be read.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn load(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        digest: &str,
    ) -> Result<Option<Arc<Vector>>, HubError> {
        let known = self.lock().get(&(uid(group), digest.to_owned())).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let namespace = group.namespace().unwrap_or_default();
        let key = ObjectKey::new(namespace, object_name(&group.name_any(), digest));
        let found: Option<ControllerRevision> = hub.find(&key).await?;
        let vector = found
            .filter(|found| is_of(found, group))
            .and_then(read)
            .filter(|vector| vector.digest == digest)
            .map(Arc::new);
        if let Some(vector) = &vector {
            self.remember(group, vector.clone());
        }
        Ok(vector)
    }

    /// The newest release that is kept in which an entry has this revision: the whole of it, or its commit, or the beginning of that,
    /// or the name of its tag.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn with_revision(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        revision: &str,
    ) -> Result<Option<Arc<Vector>>, HubError> {
        let kept = self.kept(hub, group).await?;
        let mut vectors = kept.into_iter().filter_map(read);
        let found = vectors.find(|vector| {
            let mut revisions = vector.revisions.iter();
            revisions.any(|entry| is_named(&entry.revision, revision))
        });
        Ok(found.map(|found| {
            let found = Arc::new(found);
            self.remember(group, found.clone());
            found
        }))
    }

    /// The objects that hold a group's releases, the newest first.
    async fn kept(&self, hub: &Hub, group: &SyncGroup) -> Result<Vec<ControllerRevision>, HubError> {
        let selector = format!("{GROUP_LABEL}={}", group.name_any());
        let params = ListParams::default().labels(&selector);
        let mut kept: Vec<ControllerRevision> = hub
            .list(&group.namespace().unwrap_or_default(), &params)
            .await?
            .into_iter()
            .filter(|found: &ControllerRevision| is_of(found, group))
            .collect();
        kept.sort_by_key(|found| std::cmp::Reverse(found.revision));
        Ok(kept)
    }

    /// Forgets what a group does not name any more, but for the newest.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn tidy(&self, hub: &Hub, group: &SyncGroup, named: &BTreeSet<String>) -> Result<(), HubError> {
        let kept = self.kept(hub, group).await?;
        let names: BTreeSet<String> = named
            .iter()
            .map(|digest| object_name(&group.name_any(), digest))
            .collect();
        let spare = kept
            .iter()
            .filter(|found| !names.contains(&found.name_any()))
            .skip(KEPT);
        for old in spare {
            hub.delete(old).await?;
        }
        let uid = uid(group);
        self.lock()
            .retain(|(of, digest), _| *of != uid || named.contains(digest));
        Ok(())
    }

    /// Forgets a group.
    pub fn forget(&self, uid: &str) {
        self.lock().retain(|(of, _), _| of != uid);
    }

    fn remember(&self, group: &SyncGroup, vector: Arc<Vector>) {
        self.lock().insert((uid(group), vector.digest.clone()), vector);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Arc<Vector>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of(found: &ControllerRevision, group: &SyncGroup) -> bool {
    let mut owners = found.owner_references().iter();
    owners.any(|owner| owner.uid == uid(group))
}

/// The revisions of the release that an object keeps; `None` where it cannot be read.
#[must_use]
pub fn revisions_of(kept: &ControllerRevision) -> Option<Vec<EntryRevision>> {
    Some(read(kept.clone())?.revisions)
}

/// Whether an object keeps a release of some group; StatefulSets and DaemonSets keep theirs in the same kind.
#[must_use]
pub fn is_of_a_group(found: &ControllerRevision) -> bool {
    let mut owners = found.owner_references().iter();
    owners.any(|owner| owner.kind == SyncGroup::kind(&()) && owner.api_version == SyncGroup::api_version(&()))
}

fn read(kept: ControllerRevision) -> Option<Vector> {
    serde_json::from_value(kept.data?.0).ok()
}

fn uid(group: &SyncGroup) -> String {
    group.uid().unwrap_or_default()
}

/// `<group>-<first ten hex digits of the digest>`.
fn object_name(group: &str, digest: &str) -> String {
    let hex: String = digest.trim_start_matches("sha256:").chars().take(10).collect();
    let stem: String = group.chars().take(NAME_LIMIT - hex.len() - 1).collect();
    format!("{stem}-{hex}")
}

fn object(group: &SyncGroup, rollout: i64, vector: &Vector) -> ControllerRevision {
    let mut object = ControllerRevision {
        revision: rollout,
        data: serde_json::to_value(vector).ok().map(RawExtension),
        ..ControllerRevision::default()
    };
    object.metadata.name = Some(object_name(&group.name_any(), &vector.digest));
    object.metadata.namespace = group.namespace();
    object.metadata.owner_references = group.controller_owner_ref(&()).map(|owner| vec![owner]);
    // A label holds 63 characters; a group with a longer name is found by its owner reference alone and never tidied.
    let name = group.name_any();
    object.metadata.labels = (name.len() <= 63).then(|| [(GROUP_LABEL.to_owned(), name)].into());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_enough_and_tell_releases_apart() {
        let digest = |hex: &str| format!("sha256:{}", hex.repeat(32));
        assert_eq!(object_name("shop", &digest("ab")), "shop-ababababab");
        assert_ne!(
            object_name("shop", &digest("ab")),
            object_name("shop", &digest("cd"))
        );
        assert_eq!(object_name(&"g".repeat(253), &digest("ab")).len(), 253);
    }

    #[test]
    fn what_is_kept_is_read_with_its_templates() {
        let entry: SyncEntry = serde_json::from_value(
            serde_json::json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}),
        )
        .unwrap();
        let vector = Vector {
            digest: "sha256:a".into(),
            revisions: vec![EntryRevision {
                sync: "app".into(),
                revision: "main@sha1:1".into(),
            }],
            entries: vec![entry],
        };
        let group: SyncGroup = serde_json::from_value(serde_json::json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "namespace": "fleet", "uid": "u"}, "spec": {"clusterSelector": {}}
        }))
        .unwrap();
        let kept = object(&group, 7, &vector);
        assert_eq!(kept.revision, 7);
        let read: Vector = serde_json::from_value(kept.data.unwrap().0).unwrap();
        assert_eq!(read, vector);
        assert_eq!(
            (read.revision("app"), read.revision("other")),
            ("main@sha1:1", "")
        );
        assert!(read.entry("app").is_some() && read.entry("other").is_none());
    }
}
