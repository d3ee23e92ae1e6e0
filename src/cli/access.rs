//! The caller's access to clusters: kubeconfigs, contexts, and clients that sign in as the caller.
//!
//! Credential plugins and files, which the controller refuses in a Secret, are allowed here: they belong to the caller,
//! on the caller's machine. Only the address and the certificates of the member leave this module.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::Handle;

use super::hub;
use super::kube_errors;
use starling_member::Endpoint;

/// Timeout of a sign-in: users type passwords and confirm in a browser.
const SIGN_IN: Duration = Duration::from_secs(180);

/// A context of a kubeconfig.
#[derive(Clone)]
pub(super) struct Access {
    kubeconfig: Kubeconfig,
    /// Name of the context.
    pub(super) context: String,
}

impl Access {
    /// The context `name` of a kubeconfig, or the current one. `flag` is the option that selects it.
    pub(super) fn of(kubeconfig: Kubeconfig, name: Option<String>, flag: &str) -> anyhow::Result<Self> {
        let context = name
            .or_else(|| kubeconfig.current_context.clone())
            .filter(|name| !name.is_empty())
            .ok_or_else(|| anyhow!("the kubeconfig has no current-context; give one with {flag}"))?;
        let mut names: Vec<&str> = kubeconfig.contexts.iter().map(|c| c.name.as_str()).collect();
        if !names.contains(&context.as_str()) {
            names.sort_unstable();
            bail!(
                "context {context:?} not found in the kubeconfig; contexts: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            );
        }
        Ok(Self { kubeconfig, context })
    }

    /// Signs in. kube runs credential plugins with blocking calls while it creates a client, hence the thread and the
    /// timeout.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let runtime = Handle::current();
        let made = tokio::task::spawn_blocking(move || {
            let options = KubeConfigOptions {
                context: Some(context),
                ..KubeConfigOptions::default()
            };
            let config = runtime.block_on(Config::from_custom_kubeconfig(kubeconfig, &options));
            let config = config.map_err(|error| kube_errors::kubeconfig(&error))?;
            // A user at a terminal needs an error, not a retry after minutes.
            hub::client_of(config).map_err(kube_errors::request)
        });
        tokio::time::timeout(SIGN_IN, made)
            .await
            .map_err(|_| anyhow!("sign-in timed out after {} s", SIGN_IN.as_secs()))
            .and_then(|made| made?)
            .with_context(|| format!("context {:?}{}", self.context, self.program()))
    }

    /// The credential plugin of the context, for errors: its name only, since arguments may be secrets.
    fn program(&self) -> String {
        let user = self.entry().and_then(|context| context.user.as_deref());
        let named = self
            .kubeconfig
            .auth_infos
            .iter()
            .find(|named| Some(named.name.as_str()) == user);
        let exec = named.and_then(|named| named.auth_info.as_ref()?.exec.as_ref()?.command.as_deref());
        exec.map(|command| format!(" (credential plugin: {command})"))
            .unwrap_or_default()
    }

    /// The endpoint of the cluster, in the form that the controller accepts.
    ///
    /// `server` replaces the address, for a controller that reaches the cluster at another one.
    pub(super) fn endpoint(&self, server: Option<&str>) -> anyhow::Result<Endpoint> {
        let (name, cluster) = self.cluster()?;
        let field = |field: &str| format!("clusters[{name}].{field}");
        if cluster.insecure_skip_tls_verify == Some(true) {
            bail!(
                "{} is set, but the controller always verifies certificates; set the certificate authority instead: \
                 kubectl config set-cluster {name} --certificate-authority=FILE --embed-certs --insecure-skip-tls-verify=false",
                field("insecure-skip-tls-verify")
            );
        }
        if cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            bail!(
                "{} is set, but the controller connects directly; use a context with a server that it reaches without a proxy",
                field("proxy-url")
            );
        }
        let server = server.or(cluster.server.as_deref()).unwrap_or_default();
        if server.is_empty() {
            bail!(
                "{} is empty; expected the https:// address of the cluster",
                field("server")
            );
        }
        let endpoint = Endpoint {
            server: server.to_owned(),
            certificate_authority: authority(&name, &cluster)?,
            tls_server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
        };
        endpoint
            .check()
            .map_err(|error| anyhow!("context {:?}: {error}", self.context))?;
        Ok(endpoint)
    }

    /// The namespace of the context.
    pub(super) fn namespace(&self) -> Option<&str> {
        let namespace = self.entry()?.namespace.as_deref();
        namespace.filter(|namespace| !namespace.is_empty())
    }

    fn entry(&self) -> Option<&kube::config::Context> {
        let mut contexts = self.kubeconfig.contexts.iter();
        contexts
            .find(|context| context.name == self.context)?
            .context
            .as_ref()
    }

    fn cluster(&self) -> anyhow::Result<(String, Cluster)> {
        let context = self
            .entry()
            .ok_or_else(|| anyhow!("contexts[{}].context is missing", self.context))?;
        let cluster = self
            .kubeconfig
            .clusters
            .iter()
            .find(|cluster| cluster.name == context.cluster)
            .and_then(|cluster| cluster.cluster.clone())
            .ok_or_else(|| {
                anyhow!(
                    "contexts[{}].cluster: cluster {:?} not found",
                    self.context,
                    context.cluster
                )
            })?;
        Ok((context.cluster.clone(), cluster))
    }
}

/// Reads the kubeconfig as kubectl does: `path`, or the merged files of `KUBECONFIG` without missing ones, or the one
/// in the home directory.
pub(super) fn read(path: Option<&Path>) -> anyhow::Result<Kubeconfig> {
    if let Some(path) = path {
        return read_file(path);
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<PathBuf> = std::env::split_paths(&listed)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    if paths.is_empty() {
        paths.extend(std::env::home_dir().map(|home| home.join(".kube").join("config")));
    }
    let mut merged: Option<Kubeconfig> = None;
    for path in paths.iter().filter(|path| path.exists()) {
        let next = read_file(path)?;
        merged = Some(match merged {
            None => next,
            Some(before) => before
                .merge(next)
                .map_err(|error| kube_errors::kubeconfig(&error))?,
        });
    }
    merged.ok_or_else(|| {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        anyhow!(
            "no kubeconfig at {}; give one with --kubeconfig",
            paths.join(", ")
        )
    })
}

fn read_file(path: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(path)
        .map_err(|error| kube_errors::kubeconfig(&error))
        .with_context(|| format!("kubeconfig {}", path.display()))
}

/// The certificate authority of a cluster, from the entry or from its file.
fn authority(name: &str, cluster: &Cluster) -> anyhow::Result<Vec<u8>> {
    if let Some(data) = cluster
        .certificate_authority_data
        .as_deref()
        .filter(|data| !data.is_empty())
    {
        return BASE64
            .decode(data.trim())
            .map_err(|_| anyhow!("clusters[{name}].certificate-authority-data is not base64"));
    }
    match cluster
        .certificate_authority
        .as_deref()
        .filter(|file| !file.is_empty())
    {
        Some(file) => {
            std::fs::read(file).with_context(|| format!("clusters[{name}].certificate-authority: {file}"))
        }
        None => bail!(
            "clusters[{name}] has no certificate authority, and the controller does not use the trust store of this machine; \
             add one: kubectl config set-cluster {name} --certificate-authority=FILE --embed-certs"
        ),
    }
}

/// Whether the address of a server is a loopback address.
pub(super) fn is_loopback(server: &str) -> bool {
    match url::Url::parse(server).ok().as_ref().and_then(url::Url::host) {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----\n";

    fn access(cluster: &str) -> Access {
        let text = format!(
            "clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{}}}}]\n\
             contexts: [{{name: prod, context: {{cluster: c, user: u}}}}]\ncurrent-context: prod\n"
        );
        Access::of(Kubeconfig::from_yaml(&text).unwrap(), None, "--context").unwrap()
    }

    #[test]
    fn an_endpoint_that_the_controller_refuses_is_refused_with_a_hint() {
        let ca = format!("certificate-authority-data: {}", BASE64.encode(AUTHORITY));
        for (cluster, expected) in [
            (
                format!("server: 'https://h', insecure-skip-tls-verify: true, {ca}"),
                "--certificate-authority=FILE",
            ),
            (
                format!("server: 'https://h', proxy-url: 'http://p', {ca}"),
                "without a proxy",
            ),
            (
                "server: 'https://h'".to_owned(),
                "--certificate-authority=FILE --embed-certs",
            ),
            (
                format!("server: 'http://h', {ca}"),
                "clusters[starling].server must start with https://",
            ),
            (
                format!("server: 'https://u:p@h', {ca}"),
                "must not contain a user or password",
            ),
            (ca, "clusters[c].server is empty"),
            (
                "server: 'https://h', certificate-authority-data: '%'".to_owned(),
                "clusters[c].certificate-authority-data is not base64",
            ),
            (
                "server: 'https://h', certificate-authority: /nowhere/ca.crt".to_owned(),
                "clusters[c].certificate-authority: /nowhere/ca.crt",
            ),
        ] {
            let error = format!("{:#}", access(&cluster).endpoint(None).expect_err(&cluster));
            assert!(error.contains(expected), "{cluster}: {error}");
        }
    }

    #[test]
    fn a_missing_context_is_refused_with_the_existing_ones() {
        let kubeconfig = access("server: 'https://h'").kubeconfig;
        let error = Access::of(kubeconfig, Some("dev".into()), "--context")
            .err()
            .map(|e| e.to_string());
        assert_eq!(
            error.as_deref(),
            Some("context \"dev\" not found in the kubeconfig; contexts: prod")
        );
        for (access, flag) in [
            (
                Access::of(Kubeconfig::default(), None, "--hub-context"),
                "--hub-context",
            ),
            (Access::of(Kubeconfig::default(), None, "--context"), "--context"),
        ] {
            let error = access.err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.ends_with(&format!("give one with {flag}")), "{error}");
        }
    }

    #[test]
    fn loopback_addresses_are_detected() {
        for server in [
            "https://localhost:6443",
            "https://127.0.0.1:6443",
            "https://[::1]",
            "https://kind.localhost",
        ] {
            assert!(is_loopback(server), "{server}");
        }
        for server in ["https://10.0.0.1", "https://eu-1.example.com", "nothing"] {
            assert!(!is_loopback(server), "{server}");
        }
    }
}
