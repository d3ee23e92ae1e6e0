//! A real API server that all tests share, and one owner with its own namespaces for each test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use starling_api::OWNER_LABEL;
use starling_controlplane::{Assets, ControlPlane, ControlPlanes, Options};
use starling_core::apply::{ApprovedDeletions, ApprovedDigests};
use starling_core::apply::{Grace, Record, SiblingObjects};
use starling_core::ids::OwnerLabel;
use starling_core::ignore::IgnoreRules;
use starling_core::inventory::Inventory;
use starling_core::object::{Directives, GroupKind, ObjectId, Phase, RenderedObject, RenderedSet};
use starling_member::{
    ApplyJob, ApplyOutcome, Change, DeleteJob, DeleteOutcome, DriftReport, Member, MemberConfig,
    MemberLimits, NoBudgets, OtherOwner, Siblings,
};
use starling_testkit::FaultProxy;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The API server while a test uses it; the last test stops it.
static SERVER: Mutex<Weak<ControlPlanes>> = Mutex::const_new(Weak::new());

async fn server() -> Arc<ControlPlanes> {
    let mut server = SERVER.lock().await;
    if let Some(running) = server.upgrade() {
        return running;
    }
    let assets = Assets::find().expect("etcd and kube-apiserver");
    let started = Arc::new(
        ControlPlanes::start(&assets, &["member"], Options::default())
            .await
            .unwrap(),
    );
    *server = Arc::downgrade(&started);
    started
}

/// Other Syncs that render nothing of this one.
#[derive(Debug)]
struct Neighbours<'a>(&'a BTreeMap<OwnerLabel, OtherOwner>);

impl Siblings for Neighbours<'_> {
    fn objects(&self) -> BoxFuture<'_, SiblingObjects> {
        async { SiblingObjects::nothing() }.boxed()
    }

    fn has_given_up(&self, _owner: &str) -> bool {
        false
    }

    fn owners(&self) -> BTreeMap<OwnerLabel, OtherOwner> {
        self.0.clone()
    }
}

/// The state of one Sync, and a client (`kube`) of another user.
pub(crate) struct World {
    servers: Arc<ControlPlanes>,
    pub(crate) member: Member,
    pub(crate) other: kube::Client,
    pub(crate) owner: OwnerLabel,
    /// The namespace of this test; it exists.
    pub(crate) namespace: String,
    pub(crate) records: BTreeMap<ObjectId, Record>,
    pub(crate) drifted: BTreeSet<ObjectId>,
    pub(crate) former: BTreeMap<ObjectId, BTreeSet<OwnerLabel>>,
    pub(crate) kept: BTreeMap<ObjectId, String>,
    /// The other Syncs on the member.
    pub(crate) owners: BTreeMap<OwnerLabel, OtherOwner>,
    /// A reconcile of the Sync was requested.
    pub(crate) compare: bool,
    /// `ignore` of the Sync.
    pub(crate) ignore: IgnoreRules,
    /// `timeout` of the Sync.
    pub(crate) timeout: Duration,
    pub(crate) prune: bool,
    pub(crate) allow_empty: bool,
    pub(crate) conflicts_override: bool,
    pub(crate) recreate: bool,
    pub(crate) confirm: BTreeSet<GroupKind>,
    pub(crate) grace: Grace<'static>,
    pub(crate) approved: ApprovedDigests,
}

impl World {
    pub(crate) async fn new(test: &str) -> Self {
        Self::with_limits(test, MemberLimits::default()).await
    }

    pub(crate) async fn with_limits(test: &str, limits: MemberLimits) -> Self {
        let servers = server().await;
        let plane = servers.get("member").unwrap();
        let member = connect(plane, limits);
        let other = plane.client().await.unwrap();
        let owner = OwnerLabel::new(&hex::encode(Sha256::digest(test))[..32]);
        let namespace = format!("t-{test}");
        let world = Self {
            servers,
            member,
            other,
            owner,
            namespace,
            records: BTreeMap::new(),
            drifted: BTreeSet::new(),
            kept: BTreeMap::new(),
            former: BTreeMap::new(),
            owners: BTreeMap::new(),
            compare: false,
            ignore: IgnoreRules::default(),
            timeout: Duration::from_secs(60),
            prune: true,
            allow_empty: false,
            conflicts_override: false,
            recreate: false,
            confirm: BTreeSet::new(),
            grace: Grace::none(),
            approved: ApprovedDigests::default(),
        };
        world.create_namespace(&world.namespace).await;
        world
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        self.servers.get("member").unwrap()
    }

    /// Compacts the history of the member's etcd.
    pub(crate) async fn compact(&self) {
        self.servers.compact().await.unwrap();
    }

    /// A new process of Starling without caches and records.
    pub(crate) fn restarted(&mut self) {
        self.member = connect(self.plane(), *self.member.limits());
        self.records.clear();
        self.drifted.clear();
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let namespace = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::<Namespace>::all(self.other.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }

    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.other.clone(), &self.namespace)
    }

    pub(crate) fn system_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.other.clone(), "starling-system")
    }

    /// A ConfigMap of this test, as rendered.
    pub(crate) fn map(&self, name: &str, data: &Value) -> RenderedObject {
        self.rendered("v1", "ConfigMap", &self.namespace, name, json!({"data": data}))
    }

    /// Any object, as rendered: with the owner label.
    pub(crate) fn rendered(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        mut body: Value,
    ) -> RenderedObject {
        body["apiVersion"] = api_version.into();
        body["kind"] = kind.into();
        body["metadata"] = json!({"name": name, "labels": {OWNER_LABEL: self.owner}});
        if !namespace.is_empty() {
            body["metadata"]["namespace"] = namespace.into();
        }
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let body = Bytes::from(body.to_string());
        RenderedObject {
            key: key(group, kind, namespace, name),
            api_version: api_version.into(),
            digest: digest(&body),
            body,
            directives: Directives::default(),
        }
    }

    /// Applies a render and keeps the resulting records, as the controller does.
    pub(crate) async fn apply(&mut self, objects: &[RenderedObject]) -> ApplyOutcome {
        let mut objects = objects.to_vec();
        objects.sort_by_key(|object| Phase::of(&object.key));
        let desired = self.ignore.apply_to(RenderedSet {
            digest: String::new(),
            objects,
            secrets: Default::default(),
        });
        let scoped = self.member.scoped(&desired, soon()).await.unwrap();
        let job = ApplyJob {
            owner: &self.owner,
            desired: scoped.as_ref().unwrap_or(&desired),
            records: &self.records,
            drifted: &self.drifted,
            kept: &self.kept,
            former: &self.former,
            compare: self.compare,
            prune: self.prune,
            allow_empty: self.allow_empty,
            conflicts_override: self.conflicts_override,
            recreate: self.recreate,
            siblings: &Neighbours(&self.owners),
            earlier: Default::default(),
            budgets: &NoBudgets,
            confirm: &self.confirm,
            grace: self.grace,
            approval: ApprovedDeletions {
                subject: Default::default(),
                digests: &self.approved,
            },
            deadline: Instant::now() + self.timeout,
        };
        let outcome = self.member.apply(job).await;
        for applied in &outcome.applied {
            self.records.insert(applied.key.clone(), applied.record.clone());
            self.drifted.remove(&applied.key);
        }
        let left = outcome.deleted.iter().chain(&outcome.released);
        for key in left.chain(&outcome.relinquished).chain(&outcome.undeleted) {
            self.records.remove(key);
        }
        outcome
    }

    /// Deletes all objects of the owner; `siblings` render these.
    pub(crate) async fn delete(&self, siblings: &BTreeSet<ObjectId>) -> DeleteOutcome {
        let job = DeleteJob {
            owner: &self.owner,
            siblings,
            owners: &self.owners,
            budgets: &NoBudgets,
            confirm: &self.confirm,
            approval: Default::default(),
            deadline: soon(),
        };
        self.member.delete(job).await
    }

    /// Applies a render that must succeed, and returns the changes, such as `created a`, ordered by key.
    pub(crate) async fn apply_ok(&mut self, objects: &[RenderedObject]) -> Vec<String> {
        let outcome = self.apply(objects).await;
        assert!(outcome.is_complete(), "{outcome:?}");
        let change = |change| match change {
            Change::Created => "created",
            Change::Configured => "configured",
            Change::Unchanged => "unchanged",
        };
        let mut done: Vec<_> = outcome
            .applied
            .iter()
            .map(|one| format!("{} {}", change(one.change), one.key.name))
            .collect();
        done.extend(outcome.deleted.iter().map(|key| format!("deleted {}", key.name)));
        done.extend(
            outcome
                .released
                .iter()
                .map(|key| format!("released {}", key.name)),
        );
        done
    }

    pub(crate) async fn find_drift(&self) -> DriftReport {
        self.member.find_drift(&self.owner, &self.records, soon()).await
    }

    pub(crate) async fn inventory(&self) -> Inventory {
        self.member.read_inventory(&self.owner, soon()).await.unwrap()
    }

    /// Names of the inventory, in order.
    pub(crate) async fn inventory_names(&self) -> Vec<String> {
        self.inventory()
            .await
            .iter()
            .map(|(key, _)| key.name.clone())
            .collect()
    }

    /// Patches a ConfigMap, as `kubectl edit` does.
    pub(crate) async fn edit(&self, name: &str, patch: &Value) {
        let params = PatchParams {
            field_manager: Some("kubectl-edit".into()),
            ..PatchParams::default()
        };
        self.maps()
            .patch(name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub(crate) async fn create_map(&self, name: &str, data: &Value) -> String {
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
        let params = PostParams {
            field_manager: Some("somebody".into()),
            ..PostParams::default()
        };
        self.maps()
            .create(&params, &map)
            .await
            .unwrap()
            .metadata
            .uid
            .unwrap()
    }

    pub(crate) async fn delete_map(&self, name: &str) {
        self.maps().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// One value of a ConfigMap; `None` without the object or the key.
    pub(crate) async fn value(&self, name: &str, key: &str) -> Option<String> {
        self.maps().get_opt(name).await.unwrap()?.data?.remove(key)
    }

    pub(crate) async fn version(&self, name: &str) -> String {
        self.maps()
            .get(name)
            .await
            .unwrap()
            .metadata
            .resource_version
            .unwrap()
    }

    /// The key of a ConfigMap of this test.
    pub(crate) fn map_key(&self, name: &str) -> ObjectId {
        key("", "ConfigMap", &self.namespace, name)
    }
}

pub(crate) fn connect(plane: &ControlPlane, limits: MemberLimits) -> Member {
    let config = MemberConfig::from_kubeconfig(&plane.kubeconfig_yaml()).unwrap();
    Member::connect(config, limits).unwrap()
}

/// A client of Starling that goes through a proxy.
pub(crate) fn connect_to(proxy: &FaultProxy) -> Member {
    let config = MemberConfig::from_kubeconfig(&proxy.kubeconfig_yaml()).unwrap();
    Member::connect(config, MemberLimits::default()).unwrap()
}

pub(crate) fn key(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
    ObjectId {
        group: group.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn digest(body: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(body)))
}
