//! Release snapshots: the revision and the template of each entry when the release was formed.
//!
//! The spec of a group contains only the current templates. A release that rolls out under `Finish`, waits in the
//! queue, or is the target of a rollback may have older templates. So each release is stored as a ControllerRevision of
//! the group, as StatefulSets and DaemonSets do. It survives the loss of the ledger and a move of the management
//! cluster, and is deleted with the group.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use starling_api::{EntryRevision, GROUP_ID_LABEL, GROUP_LABEL, SyncGroup};
use starling_core::ids::{GroupId, ReleaseDigest, RolloutNumber, Uid};
use starling_core::revision::is_named;
use starling_core::rollout::ReleaseSnapshot;
use tokio::time::Instant;

use crate::controller::hub::{Hub, HubError};
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// Number of releases that are stored in addition to those in the status of the group.
const KEPT: usize = 10;
/// Time for which a release that was read or written counts as stored. ControllerRevisions are not watched: there are
/// many, they contain whole templates, and nearly all of them belong to other controllers. A deleted release is noticed
/// after this time, and a group in a rollout costs one request per minute for each release that it needs.
const TRUSTED: Duration = Duration::from_secs(60);
/// Maximum length of an object's name.
const NAME_LIMIT: usize = 253;

/// The known release snapshots, so that a reconcile of a group sends no request.
#[derive(Debug, Default)]
pub struct ReleaseSnapshots {
    known: Keyed<GroupSnapshots>,
}

per_object!(ReleaseSnapshots, known);

/// A group as the owner of its stored releases.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseOwner<'a> {
    /// The group.
    pub group: &'a SyncGroup,
    /// Its identity ([`starling_core::identity`]); empty: not known, so only an owner reference tells its releases.
    pub id: &'a GroupId,
}

/// The known releases of one group.
#[derive(Debug, Default)]
struct GroupSnapshots {
    /// UID of the group: another group with the same name has none of these releases.
    uid: Uid,
    by_digest: HashMap<ReleaseDigest, StoredSnapshot>,
}

/// A release, and the last time at which it was known to be stored.
#[derive(Debug)]
struct StoredSnapshot {
    snapshot: Arc<ReleaseSnapshot>,
    at: Instant,
}

impl ReleaseSnapshots {
    /// Stores a release. A stored release is left as it is, because equal digests mean equal releases; it is replaced
    /// if its content does not match its digest, since anybody may have replaced the object.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn keep(
        &self,
        hub: &Hub,
        owner: ReleaseOwner<'_>,
        rollout: RolloutNumber,
        snapshot: &Arc<ReleaseSnapshot>,
    ) -> Result<(), HubError> {
        let group = owner.group;
        let object = object(owner, rollout, snapshot);
        let key = ObjectKey::of(&object);
        let found: Option<ControllerRevision> = hub.find(&key).await?;
        let is_kept = |found: &ControllerRevision| {
            is_of(found, owner)
                && found.metadata.deletion_timestamp.is_none()
                && read_intact(found.clone()).is_some_and(|kept| kept.digest == snapshot.digest)
        };
        if !found.as_ref().is_some_and(is_kept) {
            let in_the_way = || HubError::in_the_way("store a release as", &key);
            if let Some(other) = &found {
                // The content of a ControllerRevision is immutable, so the object is replaced. An object with
                // finalizers stays.
                if !is_replaceable(other, group) || hub.delete(other).await?.is_some() {
                    return Err(in_the_way());
                }
            }
            hub.create(&object).await?;
            // `create` also succeeds if another object with this name was created in the meantime.
            let stored: Option<ControllerRevision> = hub.find(&key).await?;
            if !stored.as_ref().is_some_and(is_kept) {
                return Err(in_the_way());
            }
        }
        self.remember(group, snapshot.clone());
        Ok(())
    }

    /// Returns a stored release; `None` if it does not exist, cannot be read, or does not match its digest.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn load(
        &self,
        hub: &Hub,
        owner: ReleaseOwner<'_>,
        digest: &str,
    ) -> Result<Option<Arc<ReleaseSnapshot>>, HubError> {
        let group = owner.group;
        let known = self.known_of(group, digest);
        if known.is_some() {
            return Ok(known);
        }
        let namespace = group.namespace().unwrap_or_default();
        let key = ObjectKey::new(namespace, object_name(&group.name_any(), digest));
        let found: Option<ControllerRevision> = hub.find(&key).await?;
        let snapshot = found
            .filter(|found| is_of(found, owner))
            .and_then(read_intact)
            .filter(|snapshot| snapshot.digest == digest)
            .map(Arc::new);
        if let Some(snapshot) = &snapshot {
            self.remember(group, snapshot.clone());
        }
        Ok(snapshot)
    }

    /// Returns the newest stored release in which an entry has this revision: the whole revision, its commit, a prefix
    /// of the commit, or the name of its tag.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn with_revision(
        &self,
        hub: &Hub,
        owner: ReleaseOwner<'_>,
        revision: &str,
    ) -> Result<Option<Arc<ReleaseSnapshot>>, HubError> {
        let kept = self.kept(hub, owner).await?;
        let mut snapshots = kept.into_iter().filter_map(read_intact);
        let found = snapshots.find(|snapshot| {
            let mut revisions = snapshot.revisions.iter();
            revisions.any(|entry| is_named(&entry.revision, revision))
        });
        Ok(found.map(|found| {
            let found = Arc::new(found);
            self.remember(owner.group, found.clone());
            found
        }))
    }

    /// Returns the objects that store a group's releases, the newest first.
    async fn kept(&self, hub: &Hub, owner: ReleaseOwner<'_>) -> Result<Vec<ControllerRevision>, HubError> {
        let group = owner.group;
        let selector = format!("{GROUP_LABEL}={}", group.name_any());
        let params = ListParams::default().labels(&selector);
        let mut kept: Vec<ControllerRevision> = hub
            .list(&group.namespace().unwrap_or_default(), &params)
            .await?
            .into_iter()
            .filter(|found: &ControllerRevision| is_of(found, owner))
            .collect();
        kept.sort_by_key(|found| std::cmp::Reverse(found.revision));
        Ok(kept)
    }

    /// Deletes the releases that the group does not name, except for the newest. Releases without an owner reference to
    /// the group get one, so that they are deleted with it: a restore to another API server removes it.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn tidy(
        &self,
        hub: &Hub,
        owner: ReleaseOwner<'_>,
        named: &BTreeSet<ReleaseDigest>,
    ) -> Result<(), HubError> {
        let group = owner.group;
        let kept = self.kept(hub, owner).await?;
        for found in kept.iter().filter(|found| !is_owned(found, group)) {
            hub.set_owner(found, group).await?;
        }
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

    /// Returns whether this process has stored or loaded a release within the last minute.
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
                uid: uid(group).into(),
                by_digest: HashMap::new(),
            };
        }
        let at = Instant::now();
        of_group
            .by_digest
            .insert(snapshot.digest.clone(), StoredSnapshot { snapshot, at });
    }
}

/// Returns whether an object stores a release of this very group, and not of a former one of that name: by its label,
/// or by its owner reference. The label survives a restore to another API server. Who sets it gains nothing: the
/// content has to match its digest, and the digest has to be named by the group.
#[must_use]
pub fn is_of(found: &ControllerRevision, owner: ReleaseOwner<'_>) -> bool {
    let label = found.labels().get(GROUP_ID_LABEL);
    label.is_some_and(|id| !id.is_empty() && id == owner.id.as_str()) || is_owned(found, owner.group)
}

fn is_owned(found: &ControllerRevision, group: &SyncGroup) -> bool {
    let mut owners = found.owner_references().iter();
    owners.any(|owner| Some(&owner.uid) == group.metadata.uid.as_ref())
}

/// Returns whether an object with this name may be replaced: a release of an earlier group with the same name, or an
/// edited release. An object of another controller may not.
fn is_replaceable(found: &ControllerRevision, group: &SyncGroup) -> bool {
    let is_labelled = found.labels().get(GROUP_LABEL) == Some(&group.name_any());
    is_of_a_group(found) || (found.owner_references().is_empty() && is_labelled)
}

/// Returns a stored release; `None` if the release is lost: the object cannot be read, or does not match its digest.
#[must_use]
pub fn snapshot_of(kept: &ControllerRevision) -> Option<ReleaseSnapshot> {
    read_intact(kept.clone())
}

/// Returns the revisions of a stored release, as [`snapshot_of`].
#[must_use]
pub fn revisions_of(kept: &ControllerRevision) -> Option<Vec<EntryRevision>> {
    Some(snapshot_of(kept)?.revisions)
}

/// Returns whether an object stores a release of a group. StatefulSets and DaemonSets use the same kind.
#[must_use]
pub fn is_of_a_group(found: &ControllerRevision) -> bool {
    let owners = found.owner_references();
    let is_restored = owners.is_empty() && found.labels().contains_key(GROUP_ID_LABEL);
    is_restored
        || owners.iter().any(|owner| {
            owner.kind == SyncGroup::kind(&()) && owner.api_version == SyncGroup::api_version(&())
        })
}

/// Returns the release in an object, without checking its digest.
fn read(kept: ControllerRevision) -> Option<ReleaseSnapshot> {
    serde_json::from_value(kept.data?.0).ok()
}

/// Returns the release in an object, if it matches its digest: anybody who may write ControllerRevisions could
/// otherwise put any template under the name of an approved release.
fn read_intact(kept: ControllerRevision) -> Option<ReleaseSnapshot> {
    read(kept).filter(ReleaseSnapshot::is_intact)
}

fn uid(group: &SyncGroup) -> String {
    group.uid().unwrap_or_default()
}

/// Returns `<group>-<first ten hex digits of the digest>`.
fn object_name(group: &str, digest: &str) -> String {
    let hex: String = digest.trim_start_matches("sha256:").chars().take(10).collect();
    let stem: String = group.chars().take(NAME_LIMIT - hex.len() - 1).collect();
    format!("{stem}-{hex}")
}

fn object(owner: ReleaseOwner<'_>, rollout: RolloutNumber, snapshot: &ReleaseSnapshot) -> ControllerRevision {
    let ReleaseOwner { group, id } = owner;
    let mut object = ControllerRevision {
        revision: rollout.get(),
        data: serde_json::to_value(snapshot).ok().map(RawExtension),
        ..ControllerRevision::default()
    };
    object.metadata.name = Some(object_name(&group.name_any(), &snapshot.digest));
    object.metadata.namespace = group.namespace();
    object.metadata.owner_references = group.controller_owner_ref(&()).map(|owner| vec![owner]);
    // A label has at most 63 characters. A group with a longer name is found only by its owner reference, and its
    // releases are never tidied.
    let name = group.name_any();
    let labels = [(GROUP_LABEL, name), (GROUP_ID_LABEL, id.as_str().to_owned())].into_iter();
    let labels = labels.filter(|(_, value)| !value.is_empty() && value.len() <= 63);
    let labels = labels.map(|(key, value)| (key.to_owned(), value));
    object.metadata.labels = Some(labels.collect());
    object
}

#[cfg(test)]
mod tests {
    use std::sync::{LazyLock, Mutex};

    use http::request::Parts;
    use serde_json::{Value, json};
    use starling_api::SyncEntry;

    use super::*;
    use crate::controller::hub::testing::{failure, responding};

    static ID: LazyLock<GroupId> = LazyLock::new(|| GroupId::new("id"));

    fn owned(group: &SyncGroup) -> ReleaseOwner<'_> {
        ReleaseOwner { group, id: &ID }
    }

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
                digest: digest.into(),
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
        let ours = object(owned(&group), RolloutNumber::new(7), &snapshot);
        assert!(is_replaceable(&ours, &group));
        // The group was deleted with `--cascade=orphan`.
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
        let kept = object(owned(&shop()), RolloutNumber::new(7), &snapshot);
        assert_eq!(kept.revision, 7);
        let read: ReleaseSnapshot = serde_json::from_value(kept.data.unwrap().0).unwrap();
        assert_eq!(read, snapshot);
        assert_eq!(
            (read.revision("app"), read.revision("other")),
            ("main@sha1:1", "")
        );
        assert!(read.entry("app").is_some() && read.entry("other").is_none());
    }

    /// A restore to another API server gives the group another UID, and removes the owner references.
    #[test]
    fn a_restored_release_belongs_to_its_group_and_not_to_a_new_one_of_the_name() {
        let snapshot = ReleaseSnapshot {
            digest: "sha256:a".into(),
            revisions: Vec::new(),
            entries: Vec::new(),
        };
        let mut kept = object(owned(&shop()), RolloutNumber::new(7), &snapshot);
        kept.metadata.owner_references = None;
        let mut restored = shop();
        restored.metadata.uid = Some("another".into());
        let is_of = |kept: &ControllerRevision, id: &str| {
            let (group, id) = (&restored, &GroupId::new(id));
            is_of(kept, ReleaseOwner { group, id })
        };
        assert!(is_of(&kept, "id") && is_of_a_group(&kept));
        assert!(!is_of(&kept, "new") && !is_of(&kept, ""));
        let mut unlabelled = kept;
        unlabelled.metadata.labels = None;
        assert!(!is_of(&unlabelled, "") && !is_of_a_group(&unlabelled));
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
            // The object waits for its finalizers.
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

    /// Otherwise the release would not be stored again while its Sources still select it, and no rollback to it would
    /// be possible after a restart.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_somebody_deleted_is_not_known_to_be_stored() {
        let (server, group, release) = (Server::default(), shop(), intact());
        let (hub, releases) = (hub(&server), ReleaseSnapshots::default());
        releases
            .keep(&hub, owned(&group), RolloutNumber::new(1), &release)
            .await
            .unwrap();
        assert!(releases.is_known(&group, &release.digest));
        *server.lock().unwrap() = None;
        tokio::time::advance(TRUSTED).await;
        let known = releases.is_known(&group, &release.digest);
        let loaded = releases.load(&hub, owned(&group), &release.digest).await.unwrap();
        assert_eq!((known, loaded), (false, None), "nothing is stored");
    }

    /// A stored release was edited and got a finalizer. The deletion waits for the finalizer, and the server answers
    /// the creation of the replacement with AlreadyExists, which counts as stored.
    #[tokio::test]
    async fn a_release_is_not_stored_as_long_as_another_object_has_its_place() {
        let (server, group, release) = (Server::default(), shop(), intact());
        let mut edited =
            serde_json::to_value(object(owned(&group), RolloutNumber::new(1), &release)).unwrap();
        edited["metadata"]["finalizers"] = json!(["example.com/keep"]);
        edited["metadata"]["uid"] = json!("uid");
        edited["data"]["entries"][0]["path"] = json!("./evil");
        *server.lock().unwrap() = Some(edited);
        let (hub, releases) = (hub(&server), ReleaseSnapshots::default());
        assert_eq!(
            releases.load(&hub, owned(&group), &release.digest).await.unwrap(),
            None
        );
        let kept = releases
            .keep(&hub, owned(&group), RolloutNumber::new(1), &release)
            .await;
        // The view of the next process.
        let later = ReleaseSnapshots::default()
            .load(&hub, owned(&group), &release.digest)
            .await;
        assert!(
            kept.is_err() || later.unwrap().is_some(),
            "it is said to be stored, and is not"
        );
    }
}
