//! One kube-apiserver with the definitions of `crds/`, shared by the tests that only write objects, each in its own
//! namespace.

use std::path::Path;
use std::sync::{Arc, Weak};

use anyhow::Result;
use starling_controlplane::{Assets, ControlPlanes, Options};
use tokio::sync::Mutex;

use crate::kubectl::Kubectl;

/// Names of the definitions.
pub(crate) const DEFINITIONS: [&str; 4] = [
    "sources.starling.dev",
    "clusters.starling.dev",
    "syncs.starling.dev",
    "syncgroups.starling.dev",
];

/// The folder of the checked-in definitions.
pub(crate) fn crds() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds")
}

/// The server while a test uses it; the last test stops it.
static RUNNING: Mutex<Weak<ControlPlanes>> = Mutex::const_new(Weak::new());

/// A server with the definitions, and a namespace of this test alone.
pub(crate) struct Server {
    pub(crate) kubectl: Kubectl,
    pub(crate) namespace: String,
    pub(crate) planes: Arc<ControlPlanes>,
}

impl Server {
    pub(crate) async fn start(namespace: &str) -> Result<Self> {
        let planes = running().await?;
        let kubectl = Kubectl::new(planes.assets(), planes.get("management")?);
        kubectl.run(&["create", "namespace", namespace]).await?;
        Ok(Self {
            kubectl,
            namespace: namespace.to_owned(),
            planes,
        })
    }

    /// A client for requests that kubectl does not make.
    pub(crate) async fn client(&self) -> Result<kube::Client> {
        Ok(self.planes.get("management")?.client().await?)
    }
}

async fn running() -> Result<Arc<ControlPlanes>> {
    let mut running = RUNNING.lock().await;
    if let Some(planes) = running.upgrade() {
        return Ok(planes);
    }
    let planes = Arc::new(ControlPlanes::start(&Assets::find()?, &["management"], Options::default()).await?);
    let kubectl = Kubectl::new(planes.assets(), planes.get("management")?);
    install(&kubectl).await?;
    *running = Arc::downgrade(&planes);
    Ok(planes)
}

/// Installs the definitions as a user does.
pub(crate) async fn install(kubectl: &Kubectl) -> Result<()> {
    let folder = crds();
    kubectl.run(&["apply", "-f", &folder.to_string_lossy()]).await?;
    let mut wait = vec!["wait", "--for=condition=Established", "--timeout=60s", "crd"];
    wait.extend(DEFINITIONS);
    kubectl.run(&wait).await?;
    Ok(())
}
