//! Four members, a management cluster and a controller in this process, and a real repository.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling::controller::{Controller, Readiness, Settings};
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_apiserver::controllers::Health;
use starling_apiserver::journal::Keep;
use starling_apiserver::server::{ClusterHandle, Options, Server};
use starling_testkit::{GitRepo, wait};

use crate::judge::{History, Push, writes};

const NAMESPACE: &str = "fleet";
pub(super) const MEMBERS: [&str; 4] = ["m1", "m2", "m3", "m4"];
/// Limit of each wait.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the objects of the folder `deploy`: the second commit changes two objects, adds one and removes one.
fn objects(round: u32) -> Vec<Value> {
    let named = |name: &str| json!({"name": name, "namespace": "shop"});
    let last = if round == 1 { "old" } else { "new" };
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named("settings"),
            "data": {"cluster": "${CLUSTER}", "round": round.to_string()}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named("constant"), "data": {"value": "same"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named(last), "data": {"value": "x"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named("web"), "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": format!("nginx:1.{round}")}]}}}}),
    ]
}

/// The clusters, the repository and the controller.
pub(super) struct World {
    hub: Client,
    pub(super) management: ClusterHandle,
    pub(super) members: BTreeMap<String, ClusterHandle>,
    pub(super) repository: GitRepo,
    pub(super) pushes: Vec<Push>,
    folder: tempfile::TempDir,
    controller: Option<Controller>,
    away: Vec<(Timestamp, Timestamp)>,
}

impl World {
    async fn make(server: &Server) -> Result<Self> {
        let management = server.create_cluster("management")?;
        let mut members = BTreeMap::new();
        for name in MEMBERS {
            members.insert(name.to_owned(), server.create_cluster(name)?);
        }
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&management.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        Ok(Self {
            hub: Client::try_from(config)?,
            management,
            members,
            repository: GitRepo::init()?,
            pushes: Vec::new(),
            folder: tempfile::tempdir()?,
            controller: None,
            away: Vec::new(),
        })
    }

    async fn start(&mut self) -> Result<()> {
        let settings = Settings {
            namespace: None,
            data_dir: self.folder.path().to_owned(),
            allow_insecure_sources: true,
            max_clusters_in_flight: None,
            concurrency: 20,
            kustomize: None,
            sops: None,
            deletions: Default::default(),
            addresses: Default::default(),
            rights: Default::default(),
        };
        self.controller = Some(Controller::start(self.hub.clone(), settings, Readiness::default()).await?);
        Ok(())
    }

    /// Crashes the controller, and starts another one with an empty disk.
    pub(super) async fn crash(&mut self) -> Result<()> {
        let from = Timestamp::now();
        drop(self.controller.take());
        self.folder = tempfile::tempdir()?;
        self.start().await?;
        self.away.push((from, Timestamp::now()));
        Ok(())
    }

    pub(super) fn push(&mut self, round: u32) -> Result<()> {
        let at = Timestamp::now();
        let objects = objects(round);
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        let commit = self
            .repository
            .commit(&[("deploy/all.yaml", &texts.join("\n---\n"))], "round")?;
        self.pushes.push(Push {
            at,
            reference: "refs/heads/main".into(),
            commit,
            objects: BTreeMap::from([("deploy".to_owned(), objects)]),
        });
        Ok(())
    }

    /// Returns the commit of a round.
    fn commit(&self, round: usize) -> &str {
        &self.pushes[round - 1].commit
    }

    async fn put<K>(&self, api: Api<K>, object: Value) -> Result<()>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let name = object["metadata"]["name"].as_str().context("a name")?.to_owned();
        let params = PatchParams::apply("test").force();
        api.patch(&name, &params, &Patch::Apply(object)).await?;
        Ok(())
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.hub.clone(), NAMESPACE)
    }

    /// Applies the objects of a user.
    async fn create_objects(&self, max_failures: &str) -> Result<()> {
        for definition in starling_api::definitions() {
            let mut definition = serde_json::to_value(definition)?;
            definition["apiVersion"] = "apiextensions.k8s.io/v1".into();
            definition["kind"] = "CustomResourceDefinition".into();
            let api: Api<
                k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
            > = Api::all(self.hub.clone());
            self.put(api, definition).await?;
        }
        let served = || async { self.api::<SyncGroup>().list(&ListParams::default()).await.is_ok() };
        wait::until(TIMEOUT, "the kinds are served", served).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.put(
            Api::<k8s_openapi::api::core::v1::Namespace>::all(self.hub.clone()),
            namespace,
        )
        .await?;
        for (name, handle) in &self.members {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"value": handle.kubeconfig()}});
            self.put(self.api::<k8s_openapi::api::core::v1::Secret>(), secret)
                .await?;
            let cluster = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name, "labels": {"fleet": "yes"}},
                "spec": {"kubeConfig": {"secretRef": {"name": name}}}});
            self.put(self.api::<Cluster>(), cluster).await?;
        }
        let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
            "spec": {"url": self.repository.url(), "ref": {"branch": "main"}, "interval": "1s"}});
        self.put(self.api::<Source>(), source).await?;
        let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"}, "spec": {
            "clusterSelector": {"matchLabels": {"fleet": "yes"}}, "whenUnselected": "Delete", "rolloutStrategy": {"maxConcurrency": 2, "maxFailures": max_failures},
            "unselectedGrace": "0s",
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy", "retryInterval": "1s",
                "substitute": {"CLUSTER": "$(cluster.name)"}}]}});
        self.put(self.api::<SyncGroup>(), group).await
    }

    pub(super) async fn succeeded(&self, round: usize) -> Result<()> {
        let commit = self.commit(round);
        let (groups, syncs) = (self.api::<SyncGroup>(), self.api::<SyncResource>());
        let check = || async {
            let status = groups
                .get("shop")
                .await
                .ok()
                .and_then(|group| group.status)
                .unwrap_or_default();
            let rollout = status.rollout.clone().unwrap_or_default();
            let of = rollout
                .revisions
                .iter()
                .any(|entry| entry.revision.ends_with(commit));
            let ready =
                conditions::find(&status.conditions, READY).is_some_and(|ready| ready.status == "True");
            if of && ready && rollout.phase == RolloutPhase::Succeeded {
                return Ok(());
            }
            let list = syncs.list(&ListParams::default()).await;
            let statuses: Vec<_> = list
                .into_iter()
                .flat_map(|list| list.items)
                .map(|sync| (sync.name_any(), sync.metadata.generation, sync.status))
                .collect();
            Err((status, statuses))
        };
        wait::until(TIMEOUT, "the commit is everywhere", check).await?;
        Ok(())
    }

    /// Waits until the Source shows a commit.
    pub(super) async fn observed(&self, round: usize) -> Result<()> {
        let sources = self.api::<Source>();
        let check = || async {
            let status = sources.get("shop").await.ok().and_then(|source| source.status);
            let status = status.unwrap_or_default();
            if status.revision.ends_with(self.commit(round)) {
                Ok(())
            } else {
                Err(status)
            }
        };
        wait::until(TIMEOUT, "the Source shows the commit", check).await?;
        Ok(())
    }

    /// Waits until the last commit is applied on all clusters but one.
    pub(super) async fn applied_on_all_but(&self, cluster: &str) -> Result<()> {
        let (syncs, commit) = (self.api::<SyncResource>(), self.commit(self.pushes.len()));
        let check = || async {
            let all = syncs.list(&ListParams::default()).await.map(|list| list.items);
            let all = all.unwrap_or_default();
            let is_applied = |sync: &SyncResource| {
                let status = sync.status.clone().unwrap_or_default();
                status.last_applied_revision.ends_with(commit)
                    && status.last_healthy_target == status.last_applied_target
            };
            let others = all.iter().filter(|sync| sync.spec.cluster_ref.name != cluster);
            let open: Vec<String> = others
                .filter(|sync| !is_applied(sync))
                .map(ResourceExt::name_any)
                .collect();
            if open.is_empty() && all.len() == MEMBERS.len() {
                Ok(())
            } else {
                Err(open)
            }
        };
        wait::until(TIMEOUT, "the commit is applied on the others", check).await?;
        Ok(())
    }

    /// Requests a probe of a cluster.
    pub(super) async fn probe(&self, cluster: &str) -> Result<()> {
        let requested_at = Timestamp::now().to_string();
        self.change(
            cluster,
            json!({"metadata": {"annotations": {REQUESTED_AT: requested_at}}}),
        )
        .await
    }

    /// Changes a Cluster as an operator.
    pub(super) async fn change(&self, cluster: &str, patch: Value) -> Result<()> {
        let params = PatchParams {
            field_manager: Some("test".into()),
            ..PatchParams::default()
        };
        self.api::<Cluster>()
            .patch(cluster, &params, &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// Waits until the last commit is applied and healthy on at least `count` clusters.
    pub(super) async fn applied_on(&self, count: usize) -> Result<()> {
        let (syncs, commit) = (self.api::<SyncResource>(), self.commit(self.pushes.len()));
        let check = || async {
            let all = syncs
                .list(&ListParams::default())
                .await
                .map(|list| list.items)
                .unwrap_or_default();
            let status = all.iter().filter_map(|sync| sync.status.as_ref());
            let is_applied = status
                .filter(|status| status.last_applied_revision.ends_with(commit))
                .filter(|status| status.last_healthy_target == status.last_applied_target)
                .count();
            if is_applied >= count {
                Ok(())
            } else {
                Err(is_applied)
            }
        };
        wait::until(TIMEOUT, "the commit is applied on enough clusters", check).await?;
        Ok(())
    }

    /// Requests one more drift check of every Sync, as at each interval, and waits for it.
    pub(super) async fn reconcile_again(&self) -> Result<()> {
        let (syncs, requested_at) = (self.api::<SyncResource>(), Timestamp::now().to_string());
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: requested_at}}});
        let names: Vec<String> = syncs
            .list(&ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        for name in &names {
            syncs
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
        }
        for name in &names {
            let is_reconciled = || async {
                let status = syncs.get(name).await.ok().and_then(|sync| sync.status);
                status.is_some_and(|status| status.last_handled_reconcile_at == requested_at)
            };
            wait::until(TIMEOUT, "the Sync is reconciled", is_reconciled).await?;
        }
        Ok(())
    }

    fn history(&self, idle_since: Timestamp) -> History {
        let members = self.members.iter();
        History {
            members: members
                .map(|(name, handle)| (name.clone(), writes(&handle.journal())))
                .collect(),
            hub: writes(&self.management.journal()),
            git: BTreeMap::from([(self.repository.url(), self.pushes.clone())]),
            idle_since: Some(idle_since),
            ended: Timestamp::now(),
            away: self.away.clone(),
            lag: SignedDuration::from_secs(2),
            ..History::default()
        }
    }
}

/// Runs a controller with four members and a scenario, and returns the history.
pub(super) async fn record(
    max_failures: &str,
    scenario: impl AsyncFnOnce(&mut World) -> Result<Timestamp>,
) -> Result<History> {
    let server = Server::start(Options {
        journal: Keep::Everything,
        // Long enough that a health status without a health check is found.
        health: Health::After(SignedDuration::from_millis(300)),
        ..Options::default()
    })?;
    let _listening = server.listen(([127, 0, 0, 1], 0).into()).await?;
    let mut world = World::make(&server).await?;
    world.push(1)?;
    world.create_objects(max_failures).await?;
    world.start().await?;
    let outcome = scenario(&mut world).await;
    let history = outcome.map(|idle_since| world.history(idle_since));
    if let Some(controller) = world.controller.take() {
        controller.stop().await;
    }
    history
}
