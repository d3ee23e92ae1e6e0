//! Releases as they were when they were formed: the revision and the template of each entry.
//!
//! A group's spec says only what is wanted now. What rolls under `Finish`, waits in a queue or is rolled back to may be
//! of an older spec, so each release is kept as a ControllerRevision of the group (what StatefulSets and DaemonSets
//! do), which survives the ledger and a move of the hub, and goes with the group.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use starling_api::{EntryRevision, GROUP_LABEL, SyncGroup};
use starling_core::revision::is_named;
use starling_core::rollout::ReleaseSnapshot;
use tokio::time::Instant;

use super::cache::ObjectKey;
use crate::controller::hub::{Hub, HubError};
use crate::controller::keyed::{Keyed, per_object};

/// Releases that a group keeps beside those that it names in its status.
const KEPT: usize = 10;
/// How long a release counts as stored that was read or written. ControllerRevisions are not watched: they are many,
/// they hold whole templates, and nearly all of them belong to other controllers. One that was deleted is noticed after
/// this time, and a group at work costs one request a minute for each release that it needs.
const TRUSTED: Duration = Duration::from_secs(60);
/// Longest name of an object.
const NAME_LIMIT: usize = 253;

/// What was read or written before, so that a reconcile of a group sends no request.
#[derive(Debug, Default)]
pub struct ReleaseSnapshots {
    known: Keyed<GroupSnapshots>,
}

per_object!(ReleaseSnapshots, known);

/// What is known of one group.
#[derive(Debug, Default)]
struct GroupSnapshots {
    /// Another group of the same name has another UID, and none of these releases.
    uid: String,
    by_digest: HashMap<String, StoredSnapshot>,
}

/// A release, and when it was last seen to be stored.
#[derive(Debug)]
struct StoredSnapshot {
    snapshot: Arc<ReleaseSnapshot>,
    at: Instant,
}

impl ReleaseSnapshots {
    /// Keeps a release. One that is kept already is left as it is, unless its content is not what its digest names:
    /// equal digests are equal releases, and somebody may have put another object in its place.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn keep(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        rollout: i64,
        snapshot: &Arc<ReleaseSnapshot>,
    ) -> Result<(), HubError> {
        let object = object(group, rollout, snapshot);
        let key = ObjectKey::of(&object);
        let found: Option<ControllerRevision> = hub.find(&key).await?;
        let is_kept = |found: &ControllerRevision| {
            is_of(found, group)
                && found.metadata.deletion_timestamp.is_none()
                && read_intact(found.clone()).is_some_and(|kept| kept.digest == snapshot.digest)
        };
        if !found.as_ref().is_some_and(is_kept) {
            let in_the_way = || HubError::in_the_way("store a release as", &key);
            if let Some(other) = &found {
                // The content of a ControllerRevision cannot be changed. What has finalizers stays.
                if !is_replaceable(other, group) || hub.delete(other).await?.is_some() {
                    return Err(in_the_way());
                }
            }
            hub.create(&object).await?;
            // Another object may have been faster, which `create` takes for ours.
            let stored: Option<ControllerRevision> = hub.find(&key).await?;
            if !stored.as_ref().is_some_and(is_kept) {
                return Err(in_the_way());
            }
        }
        self.remember(group, snapshot.clone());
        Ok(())
    }

    /// A release that was kept; `None`: it is not there any more, cannot be read, or is not what its digest names.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn load(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        digest: &str,
    ) -> Result<Option<Arc<ReleaseSnapshot>>, HubError> {
        let known = self.known_of(group, digest);
        if known.is_some() {
            return Ok(known);
        }
        let namespace = group.namespace().unwrap_or_default();
        let key = ObjectKey::new(namespace, object_name(&group.name_any(), digest));
        let found: Option<ControllerRevision> = hub.find(&key).await?;
        let snapshot = found
            .filter(|found| is_of(found, group))
            .and_then(read_intact)
            .filter(|snapshot| snapshot.digest == digest)
            .map(Arc::new);
        if let Some(snapshot) = &snapshot {
            self.remember(group, snapshot.clone());
        }
        Ok(snapshot)
    }

    /// The newest release that is kept in which an entry has this revision: the whole of it, or its commit, or the
    /// beginning of that, or the name of its tag.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn with_revision(
        &self,
        hub: &Hub,
        group: &SyncGroup,
        revision: &str,
    ) -> Result<Option<Arc<ReleaseSnapshot>>, HubError> {
        let kept = self.kept(hub, group).await?;
        let mut snapshots = kept.into_iter().filter_map(read_intact);
        let found = snapshots.find(|snapshot| {
            let mut revisions = snapshot.revisions.iter();
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
        if let Some(known) = self.known.lock().get_mut(&ObjectKey::of(group)) {
            known.by_digest.retain(|digest, _| named.contains(digest));
        }
        Ok(())
    }

    /// Whether this process has stored or loaded a release within the last minute.
    #[must_use]
    pub fn is_known(&self, group: &SyncGroup, digest: &str) -> bool {
        self.known_of(group, digest).is_some()
    }

    fn known_of(&self, group: &SyncGroup, digest: &str) -> Option<Arc<ReleaseSnapshot>> {
        let known = self.known.lock();
        let known = known.get(&ObjectKey::of(group))?;
        let stored = known.by_digest.get(digest).filter(|_| known.uid == uid(group))?;
        (stored.at.elapsed() < TRUSTED).then(|| stored.snapshot.clone())
    }

    pub(in crate::controller) fn remember(&self, group: &SyncGroup, snapshot: Arc<ReleaseSnapshot>) {
        let mut known = self.known.lock();
        let of_group = known.entry(ObjectKey::of(group)).or_default();
        if of_group.uid != uid(group) {
            *of_group = GroupSnapshots {
                uid: uid(group),
                by_digest: HashMap::new(),
            };
        }
        let at = Instant::now();
        of_group
            .by_digest
            .insert(snapshot.digest.clone(), StoredSnapshot { snapshot, at });
    }
}

fn is_of(found: &ControllerRevision, group: &SyncGroup) -> bool {
    let mut owners = found.owner_references().iter();
    owners.any(|owner| owner.uid == uid(group))
}

/// Whether an object of this name may be replaced: a release of a former group of the name, or what somebody has put in
/// its place. An object of another controller may not.
fn is_replaceable(found: &ControllerRevision, group: &SyncGroup) -> bool {
    let is_labelled = found.labels().get(GROUP_LABEL) == Some(&group.name_any());
    is_of_a_group(found) || (found.owner_references().is_empty() && is_labelled)
}

/// The revisions of the release that an object keeps; `None` where the release is lost: the object cannot be read, or is
/// not what its digest names.
#[must_use]
pub fn revisions_of(kept: &ControllerRevision) -> Option<Vec<EntryRevision>> {
    Some(read_intact(kept.clone())?.revisions)
}

/// Whether an object keeps a release of some group; StatefulSets and DaemonSets keep theirs in the same kind.
#[must_use]
pub fn is_of_a_group(found: &ControllerRevision) -> bool {
    let mut owners = found.owner_references().iter();
    owners.any(|owner| owner.kind == SyncGroup::kind(&()) && owner.api_version == SyncGroup::api_version(&()))
}

/// The release that an object says it keeps.
fn read(kept: ControllerRevision) -> Option<ReleaseSnapshot> {
    serde_json::from_value(kept.data?.0).ok()
}

/// The release that an object keeps. What is not what its digest names is not believed: whoever may write
/// ControllerRevisions could put any template under the name of a release that was approved.
fn read_intact(kept: ControllerRevision) -> Option<ReleaseSnapshot> {
    read(kept).filter(ReleaseSnapshot::is_intact)
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

fn object(group: &SyncGroup, rollout: i64, snapshot: &ReleaseSnapshot) -> ControllerRevision {
    let mut object = ControllerRevision {
        revision: rollout,
        data: serde_json::to_value(snapshot).ok().map(RawExtension),
        ..ControllerRevision::default()
    };
    object.metadata.name = Some(object_name(&group.name_any(), &snapshot.digest));
    object.metadata.namespace = group.namespace();
    object.metadata.owner_references = group.controller_owner_ref(&()).map(|owner| vec![owner]);
    // A label holds 63 characters; a group with a longer name is found by its owner reference alone and never tidied.
    let name = group.name_any();
    object.metadata.labels = (name.len() <= 63).then(|| [(GROUP_LABEL.to_owned(), name)].into());
    object
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::request::Parts;
    use serde_json::{Value, json};
    use starling_api::SyncEntry;

    use super::*;
    use crate::controller::hub::testing::{failure, responding};

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
    fn a_group_of_the_same_name_has_none_of_the_former_ones_releases() {
        let group = |uid: &str| -> SyncGroup {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
                "metadata": {"name": "shop", "namespace": "fleet", "uid": uid}, "spec": {"clusterSelector": {}}
            }))
            .unwrap()
        };
        let snapshot = |digest: &str| {
            Arc::new(ReleaseSnapshot {
                digest: digest.to_owned(),
                revisions: Vec::new(),
                entries: Vec::new(),
            })
        };
        let releases = ReleaseSnapshots::default();
        releases.remember(&group("former"), snapshot("sha256:a"));
        assert!(releases.known_of(&group("former"), "sha256:a").is_some());
        assert!(releases.known_of(&group("present"), "sha256:a").is_none());
        releases.remember(&group("present"), snapshot("sha256:b"));
        assert!(releases.known_of(&group("present"), "sha256:a").is_none());
        assert!(releases.known_of(&group("present"), "sha256:b").is_some());
    }

    #[test]
    fn an_object_of_another_controller_is_not_replaced() {
        let group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "namespace": "fleet", "uid": "u"}, "spec": {"clusterSelector": {}}
        }))
        .unwrap();
        let snapshot = ReleaseSnapshot {
            digest: "sha256:a".into(),
            revisions: Vec::new(),
            entries: Vec::new(),
        };
        let ours = object(&group, 7, &snapshot);
        assert!(is_replaceable(&ours, &group));
        // Its group was deleted with `--cascade=orphan`.
        let mut orphan = ours.clone();
        orphan.metadata.owner_references = None;
        assert!(is_replaceable(&orphan, &group));
        orphan.metadata.labels = None;
        assert!(!is_replaceable(&orphan, &group));
        let mut foreign = ours;
        for owner in foreign.metadata.owner_references.iter_mut().flatten() {
            (owner.kind, owner.api_version) = ("StatefulSet".into(), "apps/v1".into());
        }
        assert!(!is_replaceable(&foreign, &group));
    }

    #[test]
    fn what_is_kept_is_read_with_its_templates() {
        let entry: SyncEntry =
            serde_json::from_value(json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}))
                .unwrap();
        let snapshot = ReleaseSnapshot {
            digest: "sha256:a".into(),
            revisions: vec![EntryRevision {
                sync: "app".into(),
                revision: "main@sha1:1".into(),
            }],
            entries: vec![entry],
        };
        let kept = object(&shop(), 7, &snapshot);
        assert_eq!(kept.revision, 7);
        let read: ReleaseSnapshot = serde_json::from_value(kept.data.unwrap().0).unwrap();
        assert_eq!(read, snapshot);
        assert_eq!(
            (read.revision("app"), read.revision("other")),
            ("main@sha1:1", "")
        );
        assert!(read.entry("app").is_some() && read.entry("other").is_none());
    }

    /// A management cluster with at most one ControllerRevision.
    type Server = Arc<Mutex<Option<Value>>>;

    fn hub(server: &Server) -> Hub {
        let server = server.clone();
        responding(move |parts, body| answer(&server, parts, body))
    }

    fn answer(server: &Server, parts: &Parts, body: &[u8]) -> (u16, Value) {
        let mut known = server.lock().unwrap();
        match (parts.method.as_str(), known.as_mut()) {
            ("POST", None) => {
                let mut made: Value = serde_json::from_slice(body).unwrap();
                made["metadata"]["uid"] = json!("uid");
                *known = Some(made.clone());
                (201, made)
            }
            ("POST", Some(_)) => failure(parts, 409, "AlreadyExists"),
            ("GET" | "DELETE", None) => failure(parts, 404, "NotFound"),
            ("GET", Some(object)) => (200, object.clone()),
            // It waits for its finalizers.
            ("DELETE", Some(object)) if object["metadata"]["finalizers"].is_array() => {
                object["metadata"]["deletionTimestamp"] = json!("2026-11-01T00:00:00Z");
                (200, object.clone())
            }
            ("DELETE", Some(_)) => {
                *known = None;
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
                (200, status)
            }
            (method, _) => panic!("{method}"),
        }
    }

    fn shop() -> SyncGroup {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "namespace": "fleet", "uid": "u"}, "spec": {"clusterSelector": {}}
        }))
        .unwrap()
    }

    fn intact() -> Arc<ReleaseSnapshot> {
        let entry: SyncEntry =
            serde_json::from_value(json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}))
                .unwrap();
        let digest = starling_core::target::of_release(&[("app", "main@sha1:1", &entry.template)]);
        Arc::new(ReleaseSnapshot {
            digest,
            revisions: vec![EntryRevision {
                sync: "app".into(),
                revision: "main@sha1:1".into(),
            }],
            entries: vec![entry],
        })
    }

    /// It would not be stored again while it is offered, and could not be rolled back to after a restart.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_somebody_deleted_is_not_known_to_be_stored() {
        let (server, group, release) = (Server::default(), shop(), intact());
        let (hub, releases) = (hub(&server), ReleaseSnapshots::default());
        releases.keep(&hub, &group, 1, &release).await.unwrap();
        assert!(releases.is_known(&group, &release.digest));
        *server.lock().unwrap() = None;
        tokio::time::advance(TRUSTED).await;
        let known = releases.is_known(&group, &release.digest);
        let loaded = releases.load(&hub, &group, &release.digest).await.unwrap();
        assert_eq!((known, loaded), (false, None), "nothing is stored");
    }

    /// Somebody edited a stored release and gave it a finalizer. It is deleted, stays, and the one that is to take its
    /// place is answered with AlreadyExists, which counts as stored.
    #[tokio::test]
    async fn a_release_is_not_stored_as_long_as_another_object_has_its_place() {
        let (server, group, release) = (Server::default(), shop(), intact());
        let mut edited = serde_json::to_value(object(&group, 1, &release)).unwrap();
        edited["metadata"]["finalizers"] = json!(["example.com/keep"]);
        edited["metadata"]["uid"] = json!("uid");
        edited["data"]["entries"][0]["path"] = json!("./evil");
        *server.lock().unwrap() = Some(edited);
        let (hub, releases) = (hub(&server), ReleaseSnapshots::default());
        assert_eq!(releases.load(&hub, &group, &release.digest).await.unwrap(), None);
        let kept = releases.keep(&hub, &group, 1, &release).await;
        // What the next process finds.
        let later = ReleaseSnapshots::default()
            .load(&hub, &group, &release.digest)
            .await;
        assert!(
            kept.is_err() || later.unwrap().is_some(),
            "it is said to be stored, and is not"
        );
    }
}
