//! One control plane: a kube-apiserver and optionally a kube-controller-manager.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::assets::Assets;
use crate::audit::{self, AuditEvent};
use crate::error::ControlPlaneError;
use crate::etcd::PORT_ATTEMPTS;
use crate::metrics::RequestCounts;
use crate::pki::{Authority, SigningKeys, Token};
use crate::ports::free_port;
use crate::process::{Launch, Process, Usage};
use crate::readiness::{await_ready, probe_path};

/// How long a server may take to stop; it normally takes a second.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The parameters of a control plane.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) etcd_url: String,
    pub(crate) audit: bool,
    pub(crate) extra_flags: Vec<String>,
    pub(crate) ready_timeout: Duration,
}

/// A kube-apiserver with its own URL, authority, token and objects.
///
/// Every method takes `&self`: a fault hook can kill a server that the test is talking to.
#[derive(Debug)]
pub struct ControlPlane {
    blueprint: Blueprint,
    url: String,
    ca_pem: String,
    token: Token,
    launch: Launch,
    /// The server, running or stopped. Replaced by a restart.
    server: Mutex<Arc<Process>>,
    /// The controller manager; empty if none was requested.
    controller_manager: Mutex<Option<Arc<Process>>>,
}

impl ControlPlane {
    /// Writes the files of a control plane, starts its server and waits until it is ready.
    pub(crate) async fn start(assets: &Assets, blueprint: Blueprint) -> Result<Self, ControlPlaneError> {
        let (ca_pem, token) = write_credentials(&blueprint)?;
        if blueprint.audit {
            write(&blueprint, "audit-policy.yaml", audit::POLICY)?;
        }
        let mut attempt = 1;
        loop {
            match Self::try_start(assets, &blueprint, &ca_pem, &token).await {
                Err(error) if error.is_port_clash() && attempt < PORT_ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    async fn try_start(
        assets: &Assets,
        blueprint: &Blueprint,
        ca_pem: &str,
        token: &Token,
    ) -> Result<Self, ControlPlaneError> {
        let name = &blueprint.name;
        let port = free_port().map_err(|source| ControlPlaneError::Port {
            name: name.clone(),
            source,
        })?;
        let launch = Launch::new(
            name,
            assets.kube_apiserver(),
            blueprint.dir.join("kube-apiserver.log"),
        )
        .args(flags(blueprint, port));
        let server = Process::start(&launch).map_err(ControlPlaneError::process(name))?;
        let plane = Self {
            blueprint: blueprint.clone(),
            url: format!("https://127.0.0.1:{port}"),
            ca_pem: ca_pem.to_owned(),
            token: token.clone(),
            launch,
            server: Mutex::new(Arc::new(server)),
            controller_manager: Mutex::new(None),
        };
        write(blueprint, "kubeconfig", &plane.kubeconfig_yaml())?;
        plane.ready().await?;
        Ok(plane)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.blueprint.name
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the certificate of the authority to trust, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns the token of a member of `system:masters`.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Returns the directory with the logs, keys and the kubeconfig.
    pub fn dir(&self) -> &Path {
        &self.blueprint.dir
    }

    /// Returns a file with [`Self::kubeconfig_yaml`], for `kubectl`.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.dir().join("kubeconfig")
    }

    /// Returns a kubeconfig for a member of `system:masters` with all data inline. It contains the token.
    pub fn kubeconfig_yaml(&self) -> String {
        kubeconfig_yaml(self.name(), &self.url, &self.ca_pem, &self.token)
    }

    /// Creates a client from [`Self::kubeconfig_yaml`], without retries: one call is one request to the server.
    ///
    /// # Errors
    /// As for [`client_from_kubeconfig`].
    pub async fn client(&self) -> Result<kube::Client, ControlPlaneError> {
        client_from_kubeconfig(self.name(), &self.kubeconfig_yaml()).await
    }

    /// Creates a client for another server with a certificate of the same authority.
    pub(crate) async fn client_for(&self, url: &str) -> Result<kube::Client, ControlPlaneError> {
        let yaml = kubeconfig_yaml(self.name(), url, &self.ca_pem, &self.token);
        client_from_kubeconfig(self.name(), &yaml).await
    }

    /// Terminates the server, kills it after 15 s, and returns when it has exited.
    ///
    /// # Errors
    /// [`ControlPlaneError::Process`] if a signal is refused. A stopped server is not an error.
    pub async fn stop(&self) -> Result<(), ControlPlaneError> {
        let outcome = self.server().stop(STOP_GRACE).await;
        outcome.map(drop).map_err(ControlPlaneError::process(self.name()))
    }

    /// Kills the server (SIGKILL) and returns when it has exited. The controller manager, if any, continues to retry.
    ///
    /// # Errors
    /// As for [`Self::stop`].
    pub fn kill(&self) -> Result<(), ControlPlaneError> {
        self.server()
            .kill9()
            .map(drop)
            .map_err(ControlPlaneError::process(self.name()))
    }

    /// Starts the server again on the same port with the same data, and waits until it is ready.
    /// A server that runs is killed first.
    ///
    /// # Errors
    /// As for the first start.
    pub async fn restart(&self) -> Result<(), ControlPlaneError> {
        self.kill()?;
        let server = Process::start(&self.launch).map_err(ControlPlaneError::process(self.name()))?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(server);
        self.ready().await
    }

    /// Freezes the server (SIGSTOP): the kernel accepts connections, but there are no responses.
    ///
    /// # Errors
    /// [`ControlPlaneError::Process`] if the server has ended.
    pub fn pause(&self) -> Result<(), ControlPlaneError> {
        self.server()
            .pause()
            .map_err(ControlPlaneError::process(self.name()))
    }

    /// Resumes a frozen server.
    ///
    /// # Errors
    /// As for [`Self::pause`].
    pub fn resume(&self) -> Result<(), ControlPlaneError> {
        self.server()
            .resume()
            .map_err(ControlPlaneError::process(self.name()))
    }

    /// Waits until the server is ready, at most for the timeout of the options.
    ///
    /// # Errors
    /// [`ControlPlaneError::Ended`] or [`ControlPlaneError::NotReady`], with the end of the log.
    pub async fn ready(&self) -> Result<(), ControlPlaneError> {
        let client = self.client().await?;
        let server = self.server();
        await_ready(&server, self.blueprint.ready_timeout, || {
            probe_path(&client, "/readyz")
        })
        .await
    }

    /// Returns the process of the server, running or stopped.
    pub fn server(&self) -> Arc<Process> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the process of the controller manager, if there is one.
    pub fn controller_manager(&self) -> Option<Arc<Process>> {
        self.controller_manager
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_controller_manager(&self, process: Process) {
        *self
            .controller_manager
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(process));
    }

    /// Reads memory and processor time of the server.
    ///
    /// # Errors
    /// [`ControlPlaneError::Process`] if the server has ended.
    pub fn usage(&self) -> Result<Usage, ControlPlaneError> {
        self.server()
            .usage()
            .map_err(ControlPlaneError::process(self.name()))
    }

    /// Reads the audit log: one event for each completed request, in the order of the responses.
    ///
    /// Events of earlier runs in the same directory come first. The server writes an event just after the response, so
    /// a test has to wait for the event of a response.
    ///
    /// # Errors
    /// [`ControlPlaneError::NoAudit`] without the option, [`ControlPlaneError::File`] or
    /// [`ControlPlaneError::AuditLine`] if the log cannot be read.
    pub fn audit_events(&self) -> Result<Vec<AuditEvent>, ControlPlaneError> {
        if !self.blueprint.audit {
            return Err(ControlPlaneError::NoAudit {
                name: self.name().to_owned(),
            });
        }
        audit::read(self.name(), &self.dir().join(audit::LOG))
    }

    /// Reads the server's own count of requests (`apiserver_request_total`) since its start.
    ///
    /// See [`RequestCounts::by_verb`] for the requests of the server itself, which do not count.
    ///
    /// # Errors
    /// [`ControlPlaneError::Request`] if the server does not respond.
    pub async fn request_counts(&self) -> Result<RequestCounts, ControlPlaneError> {
        let failed = ControlPlaneError::request(self.name(), "metrics");
        let request = http::Request::get("/metrics")
            .body(Vec::new())
            .map_err(kube::Error::HttpError);
        let text = match request {
            Ok(request) => self.client().await?.request_text(request).await,
            Err(error) => Err(error),
        };
        Ok(RequestCounts::parse(&text.map_err(failed)?))
    }

    /// Sends SIGKILL to all processes without waiting for them.
    pub(crate) fn begin_kill(&self) {
        for process in self.controller_manager().into_iter().chain([self.server()]) {
            process.begin_kill();
        }
    }

    /// Kills all processes and waits until they exit.
    pub(crate) fn kill_all(&self) {
        for process in self.controller_manager().into_iter().chain([self.server()]) {
            if let Err(error) = process.kill9() {
                tracing::warn!(name = process.name(), %error, "process not ended");
            }
        }
    }
}

/// Generates keys, certificates and a token, and writes the files of the servers.
fn write_credentials(blueprint: &Blueprint) -> Result<(String, Token), ControlPlaneError> {
    let name = &blueprint.name;
    let failed = ControlPlaneError::credentials(name);
    let authority = Authority::new(name).map_err(&failed)?;
    // The names of a real API server inside its cluster.
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "10.0.0.1",
    ];
    let identity = authority.issue(name, &names).map_err(&failed)?;
    let token = Token::random().map_err(&failed)?;
    fs::create_dir_all(&blueprint.dir).map_err(ControlPlaneError::file(name, &blueprint.dir))?;
    write(blueprint, "ca.crt", &authority.ca_pem())?;
    write(blueprint, "tls.crt", &identity.certificate_pem)?;
    write(blueprint, "tls.key", &identity.key_pem)?;
    let signing = SigningKeys::new(name).map_err(&failed)?;
    write(blueprint, "service-account.key", &signing.private_pem)?;
    write(blueprint, "service-account.pub", &signing.public_pem)?;
    write(
        blueprint,
        "tokens.csv",
        &format!("{},admin,admin,\"system:masters\"\n", token.reveal()),
    )?;
    Ok((authority.ca_pem(), token))
}

/// Writes a file that only its owner may read, because most files contain a secret.
fn write(blueprint: &Blueprint, file: &str, content: &str) -> Result<(), ControlPlaneError> {
    let path = blueprint.dir.join(file);
    fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .map_err(ControlPlaneError::file(&blueprint.name, path))
}

fn flags(blueprint: &Blueprint, port: u16) -> Vec<String> {
    let file = |flag: &str, file: &str| format!("--{flag}={}", blueprint.dir.join(file).display());
    let mut flags = vec![
        format!("--etcd-servers={}", blueprint.etcd_url),
        format!("--etcd-prefix=/{}", blueprint.name),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        // Endpoints may not point to the loopback address; without this the server tries it every ten seconds.
        "--endpoint-reconciler-type=none".to_owned(),
        file("cert-dir", ""),
        file("tls-cert-file", "tls.crt"),
        file("tls-private-key-file", "tls.key"),
        file("token-auth-file", "tokens.csv"),
        file("service-account-key-file", "service-account.pub"),
        file("service-account-signing-key-file", "service-account.key"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        // Without a controller manager, there is no default service account for Pods.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--profiling=false".to_owned(),
    ];
    if blueprint.audit {
        flags.push(file("audit-policy-file", "audit-policy.yaml"));
        flags.push(file("audit-log-path", audit::LOG));
    }
    flags.extend(blueprint.extra_flags.iter().cloned());
    flags
}

/// Writes a kubeconfig with one cluster, one user and one context, all data inline.
///
/// `name` and `url` are not quoted in the YAML: a DNS label and a URL need no quotes.
pub fn kubeconfig_yaml(name: &str, url: &str, ca_pem: &str, token: &Token) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {name}\n  \
           cluster:\n    \
             server: {url}\n    \
             certificate-authority-data: {ca}\n\
         users:\n\
         - name: {name}\n  \
           user:\n    \
             token: {token}\n\
         contexts:\n\
         - name: {name}\n  \
           context:\n    \
             cluster: {name}\n    \
             user: {name}\n\
         current-context: {name}\n",
        ca = STANDARD.encode(ca_pem),
        token = token.reveal(),
    )
}

/// Creates a client from a kubeconfig, without the retries of the library.
///
/// By default, kube retries responses with status 429, 503 or 504 up to fifteen times, hidden from the caller: a test
/// would count other requests than it sent, and not receive the responses that it provoked.
///
/// # Errors
/// [`ControlPlaneError::Kubeconfig`] or [`ControlPlaneError::Request`] if the kubeconfig cannot be used.
pub async fn client_from_kubeconfig(name: &str, yaml: &str) -> Result<kube::Client, ControlPlaneError> {
    let malformed = |source| ControlPlaneError::Kubeconfig {
        name: name.to_owned(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::from_yaml(yaml).map_err(malformed)?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(malformed)?;
    config.default_retry = false;
    // The servers run on this machine, whatever `HTTPS_PROXY` says.
    config.proxy_url = None;
    kube::Client::try_from(config).map_err(ControlPlaneError::request(name, "client"))
}
