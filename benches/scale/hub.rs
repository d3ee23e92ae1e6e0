//! The part of an operator: writes and reads on the management cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_testkit::fleet::Kind;

use crate::content;

/// Namespace of all objects of the benchmark.
const NAMESPACE: &str = "fleet";
/// Name of the group and of its Source.
const GROUP: &str = "shop";
/// Number of concurrent requests.
const WIDTH: usize = 64;
/// Pause between two reads.
const POLL: Duration = Duration::from_millis(100);
/// Maximum time of a step.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A client of the management cluster.
pub(crate) struct Hub {
    client: Client,
}

impl Hub {
    /// Connects to the management cluster and installs the CustomResourceDefinitions.
    pub(crate) async fn install(kubeconfig: &str) -> Result<Self> {
        let hub = Self {
            client: client(kubeconfig).await?,
        };
        let definitions: Api<CustomResourceDefinition> = Api::all(hub.client.clone());
        for definition in starling_api::definitions() {
            hub.apply(
                &definitions,
                &definition.name_any(),
                &serde_json::to_value(&definition)?,
            )
            .await?;
        }
        for definition in starling_api::definitions() {
            await_condition(definitions.clone(), &definition.name_any(), is_crd_established()).await?;
        }
        let namespaces: Api<Namespace> = Api::all(hub.client.clone());
        hub.apply(
            &namespaces,
            NAMESPACE,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        )
        .await?;
        Ok(hub)
    }

    /// Registers the members.
    pub(crate) async fn add_clusters(&self, kubeconfigs: &BTreeMap<String, String>) -> Result<()> {
        futures::stream::iter(kubeconfigs)
            .map(|(name, kubeconfig)| self.add_cluster(name, kubeconfig))
            .buffer_unordered(WIDTH)
            .try_collect()
            .await
    }

    async fn add_cluster(&self, name: &str, kubeconfig: &str) -> Result<()> {
        let secret = format!("{name}-kubeconfig");
        self.put::<Secret>(&secret, json!({"stringData": {"value": kubeconfig}}))
            .await?;
        let metadata = json!({"labels": {"colour": "blue"}});
        let spec = json!({"kubeConfig": {"secretRef": {"name": secret}}});
        self.put::<Cluster>(name, json!({"metadata": metadata, "spec": spec}))
            .await
    }

    /// Creates the group and its Source, which starts the first apply.
    pub(crate) async fn begin(&self, url: &str) -> Result<()> {
        let entry = json!({
            "name": "app", "sourceRef": {"name": GROUP}, "path": "./app",
            "substitute": {"COLOUR": "$(cluster.labels.colour)"},
        });
        let spec = json!({"clusterSelector": {}, "syncs": [entry]});
        self.put::<SyncGroup>(GROUP, json!({"spec": spec})).await?;
        let spec = json!({"url": url, "ref": {"branch": "main"}, "interval": "1s"});
        self.put::<Source>(GROUP, json!({"spec": spec})).await
    }

    /// Changes a parameter of one cluster.
    pub(crate) async fn recolour(&self, cluster: &str, colour: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"colour": colour}}}));
        self.api::<Cluster>()
            .patch(cluster, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Requests a reconcile of every Sync.
    pub(crate) async fn request_all(&self, requested: &str) -> Result<()> {
        let syncs = self.api::<SyncResource>();
        let names = syncs.list_metadata(&ListParams::default()).await?.items;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {REQUESTED_AT: requested}}}));
        futures::stream::iter(names.iter().map(ResourceExt::name_any))
            .map(async |name| {
                syncs
                    .patch(&name, &PatchParams::default(), &patch)
                    .await
                    .map(drop)
            })
            .buffer_unordered(WIDTH)
            .try_collect::<()>()
            .await?;
        Ok(())
    }

    /// Waits until every Sync has handled the request.
    pub(crate) async fn until_handled(&self, requested: &str, members: usize) -> Result<()> {
        until("a reconcile of every Sync", async || {
            let syncs = self.api::<SyncResource>().list(&ListParams::default()).await?;
            let handled = syncs
                .iter()
                .filter_map(|sync| sync.status.as_ref())
                .filter(|status| status.last_handled_reconcile_at == requested)
                .count();
            Ok((handled == members)
                .then_some(())
                .ok_or(format!("{handled} reconciled")))
        })
        .await
    }

    /// Waits until every Cluster is ready.
    pub(crate) async fn until_ready(&self, members: usize) -> Result<()> {
        until("all Clusters ready", async || {
            let clusters = self.api::<Cluster>().list(&ListParams::default()).await?;
            let ready = clusters.iter().filter(|cluster| is_ready(cluster)).count();
            Ok((ready == members).then_some(()).ok_or(format!("{ready} ready")))
        })
        .await
    }

    /// Waits until a commit is rolled out to all members.
    pub(crate) async fn until_rolled(&self, commit: &str, members: usize) -> Result<()> {
        until("the rollout", async || {
            let status = self
                .api::<SyncGroup>()
                .get(GROUP)
                .await?
                .status
                .unwrap_or_default();
            let rolled = status.rollout.as_ref().is_some_and(|rollout| {
                rollout.phase == RolloutPhase::Succeeded
                    && rollout
                        .revisions
                        .iter()
                        .all(|entry| entry.revision.ends_with(commit))
            });
            let all = usize::try_from(status.clusters.updated) == Ok(members);
            Ok((rolled && all).then_some(()).ok_or(format!("{status:?}")))
        })
        .await
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn put<K: Kind>(&self, name: &str, mut object: Value) -> Result<()> {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"]["name"] = json!(name);
        self.apply(&self.api::<K>(), name, &object).await
    }

    async fn apply<K>(&self, api: &Api<K>, name: &str, object: &Value) -> Result<()>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let params = PatchParams::apply("bench").force();
        api.patch(name, &params, &Patch::Apply(object))
            .await
            .with_context(|| format!("apply {name}"))?;
        Ok(())
    }
}

/// Reads the version and the colour of the changing object on a member.
pub(crate) async fn applied(kubeconfig: &str) -> Result<(String, String)> {
    let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, content::NAMESPACE);
    let data = api
        .get_opt(content::CHANGES)
        .await?
        .and_then(|map| map.data)
        .unwrap_or_default();
    let value = |key: &str| data.get(key).cloned().unwrap_or_default();
    Ok((value("version"), value("colour")))
}

/// Waits until a member has a version and a colour.
pub(crate) async fn until_applied(kubeconfig: &str, version: usize, colour: &str) -> Result<()> {
    let wanted = (format!("version {version}"), colour.to_owned());
    until("the change", async || {
        let found = applied(kubeconfig).await?;
        Ok((found == wanted).then_some(()).ok_or(format!("{found:?}")))
    })
    .await
}

fn is_ready(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| &status.conditions);
    conditions
        .and_then(|all| conditions::find(all, READY))
        .is_some_and(|ready| ready.status == "True")
}

async fn client(kubeconfig: &str) -> Result<Client> {
    let config = kube::Config::from_custom_kubeconfig(
        Kubeconfig::from_yaml(kubeconfig)?,
        &KubeConfigOptions::default(),
    )
    .await?;
    Ok(Client::try_from(config)?)
}

async fn until(what: &str, check: impl AsyncFn() -> Result<Result<(), String>>) -> Result<()> {
    let start = Instant::now();
    loop {
        match check().await? {
            Ok(()) => return Ok(()),
            Err(state) if start.elapsed() > TIMEOUT => bail!("waited {TIMEOUT:?} for {what}: {state}"),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
