//! The server: virtual clusters, their addresses and credentials, and what drives their controllers.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use starling_apiserver::server::{Options, Server};
//!
//! let server = Server::start(Options::default())?;
//! server.listen(([127, 0, 0, 1], 0).into()).await?;
//! let member = server.create_cluster("member-1")?;
//! std::fs::write("kubeconfig", member.kubeconfig())?;
//! # Ok(())
//! # }
//! ```

mod admin;
mod clock;
mod cluster;
mod credentials;
mod driver;
mod listen;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use thiserror::Error;
use tokio::sync::mpsc;

pub use clock::{Clock, TokioClock};
pub use cluster::{Cluster, ClusterHandle};
pub use credentials::{Authority, CredentialError, User};
pub use listen::Listening;

use crate::controllers::Health;
use crate::controllers::Settings;
use crate::journal::Keep;
use crate::store::History;
pub(crate) use admin::answer as admin_answer;
pub(crate) use credentials::{Secret, same};

/// How a server is started.
#[derive(Clone)]
pub struct Options {
    /// Where names and UIDs come from: the same seed and the same requests give the same.
    pub seed: u64,
    /// Where tokens come from; none for the system's generator.
    pub secret: Option<[u8; 32]>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// How much of the past a cluster keeps.
    pub history: History,
    /// How many writes a cluster's journal keeps.
    pub journal: Keep,
    /// When what is deployed becomes healthy.
    pub health: Health,
    /// Names and addresses, besides those of this machine, that the server's certificate is good for.
    pub names: Vec<String>,
    /// The URL in kubeconfigs, without a path; none for that of the first address listened on.
    pub url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            secret: None,
            clock: Arc::new(TokioClock::new()),
            history: History::default(),
            journal: Keep::Nothing,
            health: Health::After(jiff::SignedDuration::ZERO),
            names: Vec::new(),
            url: None,
        }
    }
}

/// Why something cannot be done with a server.
#[derive(Debug, Error)]
pub enum ServerError {
    /// There is a cluster of that name.
    #[error("cluster {0:?} exists already")]
    Exists(String),
    /// The name cannot stand in a URL and a kubeconfig.
    #[error("{name:?} is no name for a cluster: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Keys or certificates could not be made.
    #[error("credentials of the embedded API server")]
    Credentials(#[from] CredentialError),
    /// The first objects of a cluster could not be made.
    #[error("first objects of cluster {name:?}: {why}")]
    Bootstrap {
        /// The cluster.
        name: String,
        /// The answer.
        why: String,
    },
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// A server with any number of virtual clusters. Cloning gives another handle of the same one.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) authority: Authority,
    pub(crate) secret: Secret,
    clusters: RwLock<BTreeMap<Box<str>, Arc<Cluster>>>,
    numbers: Arc<AtomicU64>,
    url: OnceLock<String>,
    work: mpsc::UnboundedSender<Arc<Cluster>>,
}

impl Server {
    /// Starts a server without clusters, inside a runtime. It serves nothing until it listens or is given streams.
    ///
    /// # Errors
    /// Keys or certificates cannot be made.
    pub fn start(options: Options) -> Result<Self, ServerError> {
        let secret = Secret::new(options.secret)?;
        let authority = Authority::new(&options.names)?;
        let (work, queue) = mpsc::unbounded_channel();
        let url = OnceLock::new();
        if let Some(given) = &options.url {
            let _ = url.set(given.clone());
        }
        let shared = Arc::new(Shared {
            authority,
            secret,
            clusters: RwLock::default(),
            numbers: Arc::default(),
            url,
            work,
            options,
        });
        tokio::spawn(driver::run(queue, Arc::clone(&shared.options.clock)));
        Ok(Self { shared })
    }

    /// Makes a cluster.
    ///
    /// # Errors
    /// The name is taken, or is none.
    pub fn create_cluster(&self, name: &str) -> Result<ClusterHandle, ServerError> {
        if let Some(why) = crate::object::names::dns_subdomain(name).pop() {
            return Err(ServerError::Name {
                name: name.to_owned(),
                why,
            });
        }
        let options = &self.shared.options;
        let settings = Settings {
            health: options.health,
            ..Settings::new(self.shared.authority.ca_pem())
        };
        let cluster = Cluster::new(
            name,
            options,
            settings,
            Arc::clone(&self.shared.numbers),
            self.shared.work.clone(),
        );
        let cluster = Arc::new(cluster);
        {
            let mut clusters = self
                .shared
                .clusters
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if clusters.contains_key(name) {
                return Err(ServerError::Exists(name.to_owned()));
            }
            clusters.insert(name.into(), Arc::clone(&cluster));
        }
        cluster.bootstrap(options.clock.now())?;
        Ok(self.handle(cluster))
    }

    /// Removes a cluster with everything in it; its watches end. Says whether there was one.
    pub fn remove_cluster(&self, name: &str) -> bool {
        let removed = self
            .shared
            .clusters
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
        if let Some(cluster) = &removed {
            cluster.close();
        }
        removed.is_some()
    }

    /// A cluster by its name.
    pub fn cluster(&self, name: &str) -> Option<ClusterHandle> {
        self.shared.cluster(name).map(|cluster| self.handle(cluster))
    }

    /// The names of the clusters, in order.
    pub fn clusters(&self) -> Vec<String> {
        self.shared
            .clusters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    /// The URL of the server; none before it listens, if no URL was given.
    pub fn url(&self) -> Option<&str> {
        self.shared.url.get().map(String::as_str)
    }

    /// The certificate of the authority to trust, as PEM.
    pub fn ca_pem(&self) -> Arc<str> {
        self.shared.authority.ca_pem()
    }

    /// The token for `/admin`.
    pub fn admin_token(&self) -> String {
        self.shared.secret.admin_token()
    }

    fn handle(&self, cluster: Arc<Cluster>) -> ClusterHandle {
        ClusterHandle {
            cluster,
            server: self.clone(),
        }
    }
}

impl Shared {
    pub(crate) fn cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        // Held for the time of a look-up; writers are clusters that come and go.
        self.clusters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }
}
