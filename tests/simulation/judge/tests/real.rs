//! A history that really happened: the controller and the embedded API server in this process, four members, a real
//! repository, two commits. The judge accepts it, and rejects it once it has been tampered with.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling::controller::{Controller, Settings};
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_apiserver::journal::Keep;
use starling_apiserver::server::{ClusterHandle, Options, Server};
use starling_testkit::{GitRepo, wait};

use super::broken;
use crate::judge::{History, Push, Rule, Verb, Write, writes};

const NAMESPACE: &str = "fleet";
const MEMBERS: [&str; 4] = ["m1", "m2", "m3", "m4"];
/// Limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);

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

struct World {
    hub: Client,
    management: ClusterHandle,
    members: BTreeMap<String, ClusterHandle>,
    repository: GitRepo,
    pushes: Vec<Push>,
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
        })
    }

    fn push(&mut self, round: u32) -> Result<String> {
        let at = Timestamp::now();
        let objects = objects(round);
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        let commit = self.repository.commit(&[("deploy/all.yaml", &texts.join("\n---\n"))], "round")?;
        self.pushes.push(Push {
            at,
            reference: "refs/heads/main".into(),
            commit: commit.clone(),
            objects: BTreeMap::from([("deploy".to_owned(), objects)]),
        });
        Ok(commit)
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

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.hub.clone(), NAMESPACE)
    }

    /// What a user would apply.
    async fn furnish(&self) -> Result<()> {
        for definition in starling_api::definitions() {
            let mut definition = serde_json::to_value(definition)?;
            definition["apiVersion"] = "apiextensions.k8s.io/v1".into();
            definition["kind"] = "CustomResourceDefinition".into();
            let api: Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
                Api::all(self.hub.clone());
            self.put(api, definition).await?;
        }
        let served = || async { self.api::<SyncGroup>().list(&ListParams::default()).await.is_ok() };
        wait::until(PATIENCE, "the kinds are served", served).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.put(Api::<k8s_openapi::api::core::v1::Namespace>::all(self.hub.clone()), namespace).await?;
        for (name, handle) in &self.members {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"value": handle.kubeconfig()}});
            self.put(self.api::<k8s_openapi::api::core::v1::Secret>(), secret).await?;
            let cluster = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
                "spec": {"kubeConfig": {"secretRef": {"name": name}}}});
            self.put(self.api::<Cluster>(), cluster).await?;
        }
        let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
            "spec": {"url": self.repository.url(), "ref": {"branch": "main"}, "interval": "1s"}});
        self.put(self.api::<Source>(), source).await?;
        let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"}, "spec": {
            "clusterSelector": {"matchLabels": {}}, "rolloutStrategy": {"maxConcurrency": 2, "maxFailures": 0},
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy",
                "substitute": {"CLUSTER": "$(cluster.name)"}}]}});
        self.put(self.api::<SyncGroup>(), group).await
    }

    async fn succeeded(&self, commit: &str) -> Result<()> {
        let groups = self.api::<SyncGroup>();
        let look = || async {
            let status = groups.get("shop").await.ok().and_then(|group| group.status).unwrap_or_default();
            let rollout = status.rollout.clone().unwrap_or_default();
            let of = rollout.revisions.iter().any(|entry| entry.revision.ends_with(commit));
            let ready = conditions::find(&status.conditions, READY).is_some_and(|ready| ready.status == "True");
            if of && ready && rollout.phase == RolloutPhase::Succeeded { Ok(()) } else { Err(status) }
        };
        wait::until(PATIENCE, "the commit is everywhere", look).await?;
        Ok(())
    }

    /// Every Sync looks for drift once more, as at each interval.
    async fn look_again(&self) -> Result<()> {
        let (syncs, asked) = (self.api::<SyncResource>(), Timestamp::now().to_string());
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: asked}}});
        let names: Vec<String> = syncs.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
        for name in &names {
            syncs.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
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
            members: members.map(|(name, handle)| (name.clone(), writes(&handle.journal()))).collect(),
            hub: writes(&self.management.journal()),
            git: BTreeMap::from([(self.repository.url(), self.pushes.clone())]),
            quiet_since: Some(quiet_since),
            ended: Timestamp::now(),
            lag: SignedDuration::from_secs(2),
        }
    }
}

/// Two commits over four members.
async fn record() -> Result<History> {
    let server = Server::start(Options {
        journal: Keep::Everything,
        ..Options::default()
    })?;
    let _listening = server.listen(([127, 0, 0, 1], 0).into()).await?;
    let mut world = World::make(&server).await?;
    let folder = tempfile::tempdir()?;
    let first = world.push(1)?;
    world.furnish().await?;
    let settings = Settings {
        namespace: None,
        data_dir: folder.path().to_owned(),
        allow_insecure_sources: true,
        concurrency: 20,
        kustomize: None,
        sops: None,
    };
    let controller = Controller::start(world.hub.clone(), settings).await?;
    let rolled = async {
        world.succeeded(&first).await?;
        let second = world.push(2)?;
        world.succeeded(&second).await?;
        world.look_again().await?;
        let quiet_since = Timestamp::now();
        world.look_again().await?;
        Ok::<_, anyhow::Error>(world.history(quiet_since))
    };
    let history = rolled.await;
    controller.stop().await;
    history
}

#[tokio::test(flavor = "multi_thread")]
async fn what_really_happened_is_accepted_and_what_was_tampered_with_is_not() -> Result<()> {
    let history = record().await?;
    let (_, words) = broken(&history);
    ensure!(words.is_empty(), "{words}");
    if let Ok(path) = std::env::var("JUDGE_DUMP") {
        std::fs::write(path, format!("{history:#?}"))?;
    }
    Ok(())
}
