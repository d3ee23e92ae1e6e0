//! Four members, a management cluster and a controller in this process, and a real repository.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling::controller::{Controller, Settings};
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
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What the folder `deploy` renders to: the second commit changes two objects, adds one and drops one.
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

/// All of it.
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
            concurrency: 20,
            kustomize: None,
            sops: None,
        };
        self.controller = Some(Controller::start(self.hub.clone(), settings).await?);
        Ok(())
    }

    /// The controller ends in the middle of what it does, and another one starts with nothing on its disk.
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

    /// The commit of a round.
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

    /// What a user would apply.
    async fn furnish(&self, max_failures: &str) -> Result<()> {
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
        wait::until(PATIENCE, "the kinds are served", served).await?;
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
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy", "retryInterval": "1s",
                "substitute": {"CLUSTER": "$(cluster.name)"}}]}});
        self.put(self.api::<SyncGroup>(), group).await
    }

    pub(super) async fn succeeded(&self, round: usize) -> Result<()> {
        let commit = self.commit(round);
        let (groups, syncs) = (self.api::<SyncGroup>(), self.api::<SyncResource>());
        let look = || async {
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
            let told: Vec<_> = list
                .into_iter()
                .flat_map(|list| list.items)
                .map(|sync| (sync.name_any(), sync.metadata.generation, sync.status))
                .collect();
            Err((status, told))
        };
        wait::until(PATIENCE, "the commit is everywhere", look).await?;
        Ok(())
    }

    /// Waits until the Source shows a commit.
    pub(super) async fn observed(&self, round: usize) -> Result<()> {
        let sources = self.api::<Source>();
        let look = || async {
            let status = sources.get("shop").await.ok().and_then(|source| source.status);
            let status = status.unwrap_or_default();
            if status.revision.ends_with(self.commit(round)) {
                Ok(())
            } else {
                Err(status)
            }
        };
        wait::until(PATIENCE, "the Source shows the commit", look).await?;
        Ok(())
    }

    /// Waits until all Syncs but that of one cluster hold the last commit.
    pub(super) async fn settled_but_for(&self, cluster: &str) -> Result<()> {
        let (syncs, commit) = (self.api::<SyncResource>(), self.commit(self.pushes.len()));
        let look = || async {
            let all = syncs.list(&ListParams::default()).await.map(|list| list.items);
            let all = all.unwrap_or_default();
            let holds = |sync: &SyncResource| {
                let status = sync.status.clone().unwrap_or_default();
                status.last_applied_revision.ends_with(commit)
                    && status.last_healthy_target == status.last_applied_target
            };
            let others = all.iter().filter(|sync| sync.spec.cluster_ref.name != cluster);
            let open: Vec<String> = others
                .filter(|sync| !holds(sync))
                .map(ResourceExt::name_any)
                .collect();
            if open.is_empty() && all.len() == MEMBERS.len() {
                Ok(())
            } else {
                Err(open)
            }
        };
        wait::until(PATIENCE, "the others hold it", look).await?;
        Ok(())
    }

    /// Somebody asks for a look at a cluster.
    pub(super) async fn probe(&self, cluster: &str) -> Result<()> {
        let asked = Timestamp::now().to_string();
        self.change(
            cluster,
            json!({"metadata": {"annotations": {REQUESTED_AT: asked}}}),
        )
        .await
    }

    /// Somebody changes a Cluster.
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

    /// Waits until so many Syncs at least hold the last commit, and are healthy.
    pub(super) async fn holding(&self, count: usize) -> Result<()> {
        let (syncs, commit) = (self.api::<SyncResource>(), self.commit(self.pushes.len()));
        let look = || async {
            let all = syncs
                .list(&ListParams::default())
                .await
                .map(|list| list.items)
                .unwrap_or_default();
            let status = all.iter().filter_map(|sync| sync.status.as_ref());
            let holds = status
                .filter(|status| status.last_applied_revision.ends_with(commit))
                .filter(|status| status.last_healthy_target == status.last_applied_target)
                .count();
            if holds >= count { Ok(()) } else { Err(holds) }
        };
        wait::until(PATIENCE, "enough Syncs hold it", look).await?;
        Ok(())
    }

    /// Every Sync looks for drift once more, as at each interval.
    pub(super) async fn look_again(&self) -> Result<()> {
        let (syncs, asked) = (self.api::<SyncResource>(), Timestamp::now().to_string());
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: asked}}});
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
            let looked = || async {
                let status = syncs.get(name).await.ok().and_then(|sync| sync.status);
                status.is_some_and(|status| status.last_handled_reconcile_at == asked)
            };
            wait::until(PATIENCE, "the Sync has looked", looked).await?;
        }
        Ok(())
    }

    fn history(&self, quiet_since: Timestamp) -> History {
        let members = self.members.iter();
        History {
            members: members
                .map(|(name, handle)| (name.clone(), writes(&handle.journal())))
                .collect(),
            hub: writes(&self.management.journal()),
            git: BTreeMap::from([(self.repository.url(), self.pushes.clone())]),
            quiet_since: Some(quiet_since),
            ended: Timestamp::now(),
            away: self.away.clone(),
            lag: SignedDuration::from_secs(2),
            ..History::default()
        }
    }
}

/// Runs a controller over four members, and lets `happen` tell what happens.
pub(super) async fn record(
    max_failures: &str,
    happen: impl AsyncFnOnce(&mut World) -> Result<Timestamp>,
) -> Result<History> {
    let server = Server::start(Options {
        journal: Keep::Everything,
        // Long enough for a claim of health that nobody looked for to be seen.
        health: Health::After(SignedDuration::from_millis(300)),
        ..Options::default()
    })?;
    let _listening = server.listen(([127, 0, 0, 1], 0).into()).await?;
    let mut world = World::make(&server).await?;
    world.push(1)?;
    world.furnish(max_failures).await?;
    world.start().await?;
    let happened = happen(&mut world).await;
    let history = happened.map(|quiet_since| world.history(quiet_since));
    if let Some(controller) = world.controller.take() {
        controller.stop().await;
    }
    history
}
