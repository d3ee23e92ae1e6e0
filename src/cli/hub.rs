//! The embedded management cluster: its definitions and its kubeconfig.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use starling_api::FIELD_MANAGER;
use starling_net::dial::host;
use url::Host;

/// The management cluster's name, and its context in the kubeconfig.
pub(super) const MANAGEMENT: &str = "management";
/// User-Agent of this program.
const AGENT: &str = concat!("starling/", env!("CARGO_PKG_VERSION"));
/// Timeout until a definition is established.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);

/// Installs the definitions and waits until they are served.
pub(super) async fn install(hub: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(hub.clone());
    for definition in starling_api::definitions() {
        put(&api, &definition).await?;
    }
    for definition in starling_api::definitions() {
        let name = definition.name_any();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(ESTABLISHED_WITHIN, established)
            .await
            .with_context(|| format!("{name} is not served after {ESTABLISHED_WITHIN:?}"))??;
    }
    Ok(())
}

/// Applies an object as Starling and takes its fields over.
pub(super) async fn put<K>(api: &Api<K>, object: &K) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let name = object.name_any();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("apply {} {name}", K::kind(&())))?;
    Ok(())
}

/// A client with Starling's User-Agent, for audit logs, and without kube's own retry: the caller retries, with a
/// bounded and visible wait.
pub(super) fn client_of(mut config: kube::Config) -> kube::Result<Client> {
    config.default_retry = false;
    // As in Go's clients, `HTTPS_PROXY` is not for servers on this machine.
    let server = config.cluster_url.host().map(host);
    if server.is_some_and(|server| is_loopback(&server)) {
        config.proxy_url = None;
    }
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    Client::try_from(config)
}

fn is_loopback(server: &Host<String>) -> bool {
    match server {
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
        Host::Domain(name) => name == "localhost",
    }
}

/// A client of the embedded API server.
pub(super) async fn client(kubeconfig: &str) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The server is a part of this process, whatever its address.
    config.proxy_url = None;
    Ok(client_of(config)?)
}

/// Merges kubeconfigs; the current context is that of the first one.
pub(super) fn merged<'a>(current: &str, others: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
    let mut all = Kubeconfig::from_yaml(current)?;
    for one in others {
        let one = Kubeconfig::from_yaml(one)?;
        all.clusters.extend(one.clusters);
        all.contexts.extend(one.contexts);
        all.auth_infos.extend(one.auth_infos);
    }
    // JSON is valid YAML.
    serde_json::to_string_pretty(&all).context("the kubeconfig")
}

/// Writes a file that holds tokens: readable only by its owner, and atomically.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let named = || format!("write {}", path.display());
    let new = path.with_extension("new");
    // An existing file would keep its mode.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(named),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .with_context(named)?;
    file.write_all(text.as_bytes())
        .and_then(|()| std::fs::rename(&new, path))
        .with_context(named)
}
