//! A fleet for end-to-end tests: one management cluster, members, a namespace, and the program under test.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{Cluster, RolloutPhase, Source, SyncGroup, SyncGroupStatus, SyncResource};
use starling_controlplane::{Assets, ControlPlane, ControlPlanes, Launch, Options, Process, free_port};

use crate::fault_proxy::FaultProxy;
use crate::wait;

/// Name of the management cluster.
pub const MANAGEMENT: &str = "management";
/// Namespace of all objects of the tests on the management cluster.
pub const NAMESPACE: &str = "fleet";
/// How long tests wait for a condition that takes a second on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// The options of a fleet.
#[derive(Clone, Debug, Default)]
pub struct FleetOptions {
    /// Members `m1`, `m2`, …
    pub members: usize,
    /// Whether the servers keep audit logs.
    pub audit: bool,
    /// Further flags of each kube-apiserver.
    pub apiserver_flags: Vec<String>,
    /// Whether the program connects to the management cluster and members through fault proxies.
    pub proxied: bool,
    /// Control planes with a controller manager, which deletes namespaces and collects garbage.
    pub managers: Vec<String>,
}

/// A management cluster with members, and a data directory for the program.
pub struct Fleet {
    planes: ControlPlanes,
    proxies: BTreeMap<String, Arc<FaultProxy>>,
    hub: Client,
    directory: tempfile::TempDir,
}

impl Fleet {
    /// Starts the control planes, installs the definitions, and creates the namespace. Clusters are not registered yet.
    ///
    /// # Errors
    /// If a control plane cannot be started.
    pub async fn start(options: FleetOptions) -> Result<Self> {
        let assets = Assets::find()?;
        let members: Vec<String> = (1..=options.members).map(|n| format!("m{n}")).collect();
        let names: Vec<&str> = std::iter::once(MANAGEMENT)
            .chain(members.iter().map(String::as_str))
            .collect();
        let plane_options = Options {
            audit: options.audit,
            apiserver_flags: options.apiserver_flags.clone(),
            controller_manager_for: options.managers,
            ..Options::default()
        };
        let planes = ControlPlanes::start(&assets, &names, plane_options).await?;
        let mut proxies = BTreeMap::new();
        if options.proxied {
            for plane in planes.iter() {
                proxies.insert(
                    plane.name().to_owned(),
                    Arc::new(FaultProxy::start(&**plane).await?),
                );
            }
        }
        let hub = planes.get(MANAGEMENT)?.client().await?;
        let fleet = Self {
            planes,
            proxies,
            hub,
            directory: tempfile::tempdir()?,
        };
        fleet.install().await?;
        Ok(fleet)
    }

    async fn install(&self) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.hub.clone());
        for definition in starling_api::definitions() {
            put(&api, &definition).await?;
        }
        for definition in starling_api::definitions() {
            let name = definition.name_any();
            wait::until(TIMEOUT, &format!("{name} established"), async || {
                let found = api.get(&name).await.map_err(|e| e.to_string())?;
                let conditions = found.status.and_then(|s| s.conditions).unwrap_or_default();
                let established = conditions
                    .iter()
                    .any(|c| c.type_ == "Established" && c.status == "True");
                if established {
                    Ok(())
                } else {
                    Err(format!("{conditions:?}"))
                }
            })
            .await?;
        }
        let namespace: Namespace = object(json!({"metadata": {"name": NAMESPACE}}))?;
        put(&Api::all(self.hub.clone()), &namespace).await
    }

    /// A client of the management cluster without a proxy.
    #[must_use]
    pub fn hub(&self) -> &Client {
        &self.hub
    }

    /// A control plane by name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn plane(&self, name: &str) -> Result<Arc<ControlPlane>> {
        Ok(self.planes.get(name)?.clone())
    }

    /// All control planes.
    #[must_use]
    pub fn planes(&self) -> &ControlPlanes {
        &self.planes
    }

    /// The proxy in front of a control plane.
    ///
    /// # Errors
    /// If the fleet was started without proxies.
    pub fn proxy(&self, name: &str) -> Result<Arc<FaultProxy>> {
        self.proxies
            .get(name)
            .cloned()
            .with_context(|| format!("no proxy in front of {name}"))
    }

    /// A client of a member without a proxy.
    ///
    /// # Errors
    /// If there is none of that name.
    pub async fn member(&self, name: &str) -> Result<Client> {
        Ok(self.planes.get(name)?.client().await?)
    }

    /// The data directory of the program.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The kubeconfig of the program for a control plane.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn kubeconfig(&self, name: &str) -> Result<String> {
        Ok(match self.proxies.get(name) {
            Some(proxy) => proxy.kubeconfig_yaml(),
            None => self.planes.get(name)?.kubeconfig_yaml(),
        })
    }

    /// Registers a member with labels.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn add_cluster(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        self.add_cluster_at(name, &self.kubeconfig(name)?, labels).await
    }

    /// Registers a Cluster with a given kubeconfig.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn add_cluster_at(&self, name: &str, kubeconfig: &str, labels: &[(&str, &str)]) -> Result<()> {
        let secret_name = format!("{name}-kubeconfig");
        let secret = json!({"metadata": {"name": secret_name}, "stringData": {"value": kubeconfig}});
        self.put::<Secret>(secret).await?;
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        self.put::<Cluster>(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"kubeConfig": {"secretRef": {"name": secret_name}}},
        }))
        .await
    }

    /// Registers a Cluster whose address refuses connections.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn add_unreachable(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let port = free_port()?;
        let management = self.planes.get(MANAGEMENT)?;
        let kubeconfig = management
            .kubeconfig_yaml()
            .replace(management.url(), &format!("https://127.0.0.1:{port}"));
        self.add_cluster_at(name, &kubeconfig, labels).await
    }

    /// Applies a Source with an interval of one second.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn put_source(&self, name: &str, url: &str, reference: Value) -> Result<()> {
        let spec = json!({"url": url, "ref": reference, "interval": "1s"});
        self.put::<Source>(json!({"metadata": {"name": name}, "spec": spec}))
            .await
    }

    /// Applies a SyncGroup. Without `unselectedGrace` in the spec, clusters leave it at once.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn put_group(&self, name: &str, mut spec: Value) -> Result<()> {
        if let Some(fields) = spec.as_object_mut() {
            fields.entry("unselectedGrace").or_insert_with(|| "0s".into());
        }
        self.put::<SyncGroup>(json!({"metadata": {"name": name}, "spec": spec}))
            .await
    }

    /// Applies an object of the fleet's namespace as a user would; apiVersion and kind are those of the type.
    ///
    /// # Errors
    /// If it does not match its type, or the management cluster rejects the request.
    pub async fn put<K: Kind>(&self, object_json: Value) -> Result<()> {
        let mut json = object_json;
        json["apiVersion"] = Value::String(K::api_version(&()).into_owned());
        json["kind"] = Value::String(K::kind(&()).into_owned());
        let name = json["metadata"]["name"]
            .as_str()
            .context("metadata.name")?
            .to_owned();
        let params = PatchParams::apply("tests").force();
        self.api::<K>()
            .patch(&name, &params, &Patch::Apply(&json))
            .await
            .with_context(|| format!("apply {json}"))?;
        Ok(())
    }

    /// Merges a patch into an object of the fleet's namespace.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn patch<K: Kind>(&self, name: &str, patch: Value) -> Result<K> {
        Ok(self
            .api::<K>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    /// Deletes an object of the fleet's namespace.
    ///
    /// # Errors
    /// If the management cluster rejects the request.
    pub async fn delete<K: Kind>(&self, name: &str) -> Result<()> {
        self.api::<K>().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// An object of the fleet's namespace.
    ///
    /// # Errors
    /// If there is none.
    pub async fn get<K: Kind>(&self, name: &str) -> Result<K> {
        Ok(self.api::<K>().get(name).await?)
    }

    /// The API of a kind in the fleet's namespace.
    #[must_use]
    pub fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.hub.clone(), NAMESPACE)
    }

    /// All Syncs of the fleet's namespace.
    ///
    /// # Errors
    /// If the management cluster does not respond.
    pub async fn syncs(&self) -> Result<Vec<SyncResource>> {
        Ok(self
            .api::<SyncResource>()
            .list(&ListParams::default())
            .await?
            .items)
    }

    /// Waits until a group's rollout of this commit has this phase, and returns its status.
    ///
    /// # Errors
    /// On a timeout after [`TIMEOUT`]; the error contains the last status.
    pub async fn rollout(&self, group: &str, commit: &str, phase: RolloutPhase) -> Result<SyncGroupStatus> {
        self.group_status(group, &format!("{phase:?} at {commit}"), |status| {
            status.rollout.as_ref().is_some_and(|rollout| {
                rollout.phase == phase && rollout.revisions.iter().any(|r| r.revision.ends_with(commit))
            })
        })
        .await
    }

    /// Waits until a group's status satisfies a predicate, and returns it.
    ///
    /// # Errors
    /// On a timeout after [`TIMEOUT`]; the error contains the last status.
    pub async fn group_status(
        &self,
        group: &str,
        what: &str,
        satisfied: impl Fn(&SyncGroupStatus) -> bool,
    ) -> Result<SyncGroupStatus> {
        let status = wait::until(TIMEOUT, &format!("SyncGroup {group}: {what}"), async || {
            let status = self
                .get::<SyncGroup>(group)
                .await
                .map_err(|e| e.to_string())?
                .status
                .unwrap_or_default();
            if satisfied(&status) {
                Ok(status)
            } else {
                Err(format!("{status:#?}"))
            }
        })
        .await?;
        Ok(status)
    }

    /// Waits until an object of the fleet's namespace satisfies a predicate, and returns it.
    ///
    /// # Errors
    /// On a timeout after [`TIMEOUT`]; the error contains the last state.
    pub async fn until<K: Kind>(&self, name: &str, what: &str, satisfied: impl Fn(&K) -> bool) -> Result<K> {
        let kind = K::kind(&());
        let object = wait::until(TIMEOUT, &format!("{kind} {name}: {what}"), async || {
            let object = self.get::<K>(name).await.map_err(|e| e.to_string())?;
            if satisfied(&object) {
                Ok(object)
            } else {
                Err(format!("{object:#?}"))
            }
        })
        .await?;
        Ok(object)
    }

    /// The data of a ConfigMap on a member; `None` if there is none.
    ///
    /// # Errors
    /// If the member does not respond.
    pub async fn config_map(
        &self,
        member: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>> {
        let api: Api<ConfigMap> = Api::namespaced(self.member(member).await?, namespace);
        Ok(api.get_opt(name).await?.map(|map| map.data.unwrap_or_default()))
    }

    /// Patches the status of an object on a member, as its controller would: members run no workloads. `kind` is
    /// apiVersion and kind, such as `apps/v1 Deployment`.
    ///
    /// # Errors
    /// If there is no such object, or the member rejects the request.
    pub async fn patch_status(
        &self,
        member: &str,
        kind: &str,
        (namespace, name): (&str, &str),
        status: Value,
    ) -> Result<()> {
        let (version, kind) = kind.split_once(' ').context("apiVersion and kind")?;
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.member(member).await?, namespace, &resource);
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Starts the controller for this fleet. `program` is the path from [`crate::program`]; `more` may contain another
    /// `--kustomize`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn controller(&self, program: &str, more: &[&str]) -> Result<Process> {
        self.controller_at(program, &format!("127.0.0.1:{}", free_port()?), more)
    }

    /// As [`Self::controller`], with the address of the health endpoint.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn controller_at(&self, program: &str, listen: &str, more: &[&str]) -> Result<Process> {
        Ok(Process::start(&self.launch(program, listen, "info", more)?)?)
    }

    /// Returns the launch of [`Self::controller_at`] with a log filter, for callers that change it.
    ///
    /// # Errors
    /// If the kubeconfig cannot be written.
    pub fn launch(&self, program: &str, listen: &str, log_filter: &str, more: &[&str]) -> Result<Launch> {
        let kubeconfig = self.directory.path().join("management.kubeconfig");
        std::fs::write(&kubeconfig, self.kubeconfig(MANAGEMENT)?)?;
        let mut launch = Launch::new("starling", program, self.log());
        launch = launch.args([
            "--log-filter",
            log_filter,
            "controller",
            "--allow-insecure-sources",
            // Fleets have no admission policies, and tests act in any name.
            "--ignore-admission-policies",
        ]);
        launch = launch
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--data-dir")
            .arg(self.data_dir());
        launch = launch.args(["--listen", listen]);
        let has_kustomize = more.contains(&"--kustomize");
        if let Some(kustomize) = self.planes.assets().kustomize().filter(|_| !has_kustomize) {
            launch = launch.arg("--kustomize").arg(kustomize);
        }
        Ok(launch.args(more))
    }

    /// The log file of the program.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.path().join("starling.log")
    }

    /// A directory for files of a test.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// A namespaced kind with a default dynamic type.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
{
}

fn object<K: DeserializeOwned>(value: Value) -> Result<K> {
    Ok(serde_json::from_value(value)?)
}

async fn put<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PatchParams::apply("tests").force();
    api.patch(&object.name_any(), &params, &Patch::Apply(object))
        .await?;
    Ok(())
}
