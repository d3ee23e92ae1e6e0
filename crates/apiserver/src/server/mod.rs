//! The server: virtual clusters, their addresses and credentials, and the driver of their controllers.
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
mod bootstrap;
mod clock;
mod cluster;
mod credentials;
mod driver;
mod requests;
mod watches;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::mpsc;

pub(crate) use watches::WatchPermit;

pub use clock::{Clock, TokioClock};
pub use cluster::{Cluster, ClusterHandle};
pub use credentials::{Authority, CredentialError, User};

use crate::controllers::{Controllers, Health, Settings};
use crate::journal::{Journal, Keep};
use crate::persist::{File, Identity, PersistError, StoredCluster};
use crate::random::Random;
use crate::rbac::AuthorizationMode;
use crate::state::State;
use crate::store::History;
pub(crate) use admin::answer as admin_answer;
pub(crate) use credentials::{Secret, constant_time_eq};

/// The options of a server.
#[derive(Clone)]
pub struct Options {
    /// The seed of names and UIDs: the same seed and the same requests give the same names.
    pub seed: u64,
    /// The key of all tokens; `None` for a random key.
    pub secret: Option<[u8; 32]>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// How much history the store of a cluster keeps.
    pub history: History,
    /// How many writes the journal of a cluster keeps.
    pub journal: Keep,
    /// When workloads become healthy.
    pub health: Health,
    /// Which controllers run in the clusters.
    pub controllers: Controllers,
    /// The names and addresses in the server's certificate, in addition to those of this machine.
    pub names: Vec<String>,
    /// The URL in kubeconfigs, without a path; `None` for the first address that the server listens on.
    pub url: Option<String>,
    /// The limits on connections.
    pub connections: ConnectionLimits,
    /// How the server decides whether a user may send a request.
    pub authorization: AuthorizationMode,
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
            controllers: Controllers::all(),
            names: Vec::new(),
            url: None,
            connections: ConnectionLimits::default(),
            authorization: AuthorizationMode::default(),
        }
    }
}

/// The limits on connections and watches. Connections need no credentials, so anyone who reaches the address may open
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The number of connections at a time; further ones are closed at once.
    pub open: usize,
    /// The time for the TLS handshake.
    pub handshake: Duration,
    /// The number of watches that one user has open in a cluster; further ones are asked to come later.
    pub watches: usize,
}

impl Default for ConnectionLimits {
    /// As many as a fleet of thousands of clusters opens, with a client for each; ten seconds, as kube-apiserver gives;
    /// and more watches than the agents of a large cluster have with one account.
    fn default() -> Self {
        Self {
            open: 20_000,
            handshake: Duration::from_secs(10),
            watches: 2_000,
        }
    }
}

/// The errors of a server.
#[derive(Debug, Error)]
pub enum ServerError {
    /// A cluster of that name exists.
    #[error("cluster {0:?} already exists")]
    Exists(String),
    /// The name is not valid in a URL and a kubeconfig.
    #[error("invalid cluster name {name:?}: {why}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        why: String,
    },
    /// Keys or certificates could not be created.
    #[error("cannot create the credentials of the embedded API server")]
    Credentials(#[from] CredentialError),
    /// The initial objects of a cluster could not be created.
    #[error("cannot create the initial objects of cluster {name:?}: {why}")]
    Bootstrap {
        /// The cluster.
        name: String,
        /// The response of the API server.
        why: String,
    },
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    File(#[from] PersistError),
}

/// A server with any number of virtual clusters. Clones are handles of the same server.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) authority: Authority,
    pub(crate) secret: Secret,
    clusters: RwLock<BTreeMap<Box<str>, Arc<Cluster>>>,
    /// The number of removed clusters of each name.
    removals: Mutex<BTreeMap<Box<str>, u64>>,
    numbers: Arc<AtomicU64>,
    /// The data directory; `None` if clusters exist in memory only.
    file: Option<File>,
    /// The seed of names and UIDs.
    seed: u64,
    url: OnceLock<String>,
    work: mpsc::UnboundedSender<Arc<Cluster>>,
}

impl Shared {
    /// Records the address that the server listens on.
    pub(crate) fn listens_on(&self, address: SocketAddr) {
        let _ = self.url.set(format!("https://{address}"));
        if let Some(file) = &self.file {
            file.set_address(address);
        }
    }
}

impl Server {
    /// Starts a server without clusters, on the current runtime. It serves nothing until it listens or is given
    /// streams.
    ///
    /// # Errors
    /// Keys or certificates cannot be created.
    pub fn start(options: Options) -> Result<Self, ServerError> {
        let secret = Secret::new(options.secret)?;
        let authority = Authority::new(&options.names)?;
        let seed = options.seed;
        Ok(Self::run(options, secret, authority, seed, None))
    }

    /// Opens a server whose clusters are stored in a directory; creates the directory if it is missing. A crash loses
    /// no acknowledged write; see [`crate::persist`]. Only one process can open a directory at a time.
    ///
    /// The authority, the token key and the seed are those of the first start; later options do not change them. If
    /// the seed of the first start is 0, the server draws a random one.
    ///
    /// # Errors
    /// Another process uses the directory, or its content cannot be read.
    pub async fn open(options: Options, directory: &Path) -> Result<Self, ServerError> {
        let opened = File::open(directory, || identity(&options)).await?;
        let Identity {
            secret,
            seed,
            certificate,
            key,
        } = opened.identity;
        let secret = Secret::new(Some(secret))?;
        // The certificate has to be valid for the address that existing kubeconfigs name.
        let mut names = options.names.clone();
        names.extend(opened.file.address().map(|address| address.ip().to_string()));
        let authority = Authority::known(&certificate, &key, &names)?;
        let server = Self::run(options, secret, authority, seed, Some(opened.file));
        *server
            .shared
            .removals
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = opened.removals;
        for stored in opened.clusters {
            server.restore(stored)?;
        }
        Ok(server)
    }

    fn run(options: Options, secret: Secret, authority: Authority, seed: u64, file: Option<File>) -> Self {
        let (work, queue) = mpsc::unbounded_channel();
        let url = OnceLock::new();
        if let Some(given) = &options.url {
            let _ = url.set(given.clone());
        }
        let shared = Arc::new(Shared {
            authority,
            secret,
            clusters: RwLock::default(),
            removals: Mutex::default(),
            numbers: Arc::default(),
            file,
            seed,
            url,
            work,
            options,
        });
        tokio::spawn(driver::run(queue, Arc::clone(&shared.options.clock)));
        Self { shared }
    }

    fn settings(&self) -> Settings {
        Settings {
            health: self.shared.options.health,
            controllers: self.shared.options.controllers.clone(),
            ..Settings::new(self.shared.authority.ca_pem())
        }
    }

    fn journal(&self) -> Journal {
        Journal::new(self.shared.options.journal, Arc::clone(&self.shared.numbers))
    }

    /// Returns an empty cluster that is not registered yet.
    fn new_cluster(&self, name: &str) -> Arc<Cluster> {
        let Shared {
            options, file, seed, ..
        } = &*self.shared;
        let id = file.as_ref().map(File::next_id);
        let random = match id {
            // A new cluster gets other names and UIDs than a removed one of the same name.
            Some(id) => Random::named(*seed, &format!("{id}/{name}")),
            None => Random::named(*seed, name),
        };
        let mut state = State::new(random, options.history, self.journal());
        let mut durability = None;
        if let (Some(file), Some(id)) = (file, id) {
            let (outbox, waits) = file.outbox(id, true);
            (state.outbox, durability) = (Some(outbox), Some(waits));
        }
        let work = self.shared.work.clone();
        Arc::new(Cluster::new(
            name,
            self.shared.token_scope(name),
            options,
            self.settings(),
            state,
            durability,
            work,
        ))
    }

    /// Registers a cluster that was read from the disk.
    fn restore(&self, stored: StoredCluster) -> Result<(), ServerError> {
        let Some(file) = &self.shared.file else {
            return Ok(());
        };
        let options = &self.shared.options;
        let mut state = State::restored(&stored.counters, stored.objects, options.history, self.journal());
        let (outbox, durability) = file.outbox(stored.id, false);
        state.outbox = Some(outbox);
        let work = self.shared.work.clone();
        let cluster = Cluster::new(
            &stored.name,
            self.shared.token_scope(&stored.name),
            options,
            self.settings(),
            state,
            Some(durability),
            work,
        );
        let cluster = Arc::new(cluster);
        if options.authorization == AuthorizationMode::Rbac {
            cluster.bootstrap_policy(options.clock.now())?;
        }
        self.shared
            .clusters
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(stored.name, Arc::clone(&cluster));
        cluster.schedule();
        Ok(())
    }

    /// Waits until all writes so far are on the disk; returns at once without a data directory.
    ///
    /// # Errors
    /// The writes cannot reach the disk.
    pub async fn durable(&self) -> Result<(), ServerError> {
        if let Some(file) = &self.shared.file {
            file.durable().await?;
        }
        Ok(())
    }

    /// Returns the address that a server with a data directory last listened on.
    pub fn kept_address(&self) -> Option<SocketAddr> {
        self.shared.file.as_ref().and_then(File::address)
    }

    /// Commits the queued writes, closes the file and unlocks the directory. Later writes fail.
    pub async fn close(&self) {
        if let Some(file) = &self.shared.file {
            file.close().await;
        }
    }

    /// Creates a cluster.
    ///
    /// # Errors
    /// The name is taken or invalid.
    pub fn create_cluster(&self, name: &str) -> Result<ClusterHandle, ServerError> {
        if let Some(why) = crate::object::names::dns_subdomain(name).pop() {
            return Err(ServerError::Name {
                name: name.to_owned(),
                why,
            });
        }
        if self.shared.cluster(name).is_some() {
            return Err(ServerError::Exists(name.to_owned()));
        }
        // The cluster is registered, and queued for the disk, only after its initial objects exist.
        let cluster = self.new_cluster(name);
        let options = &self.shared.options;
        cluster.bootstrap(options.authorization, options.clock.now())?;
        {
            let mut clusters = self
                .shared
                .clusters
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if clusters.contains_key(name) {
                return Err(ServerError::Exists(name.to_owned()));
            }
            // Under the lock, so that the disk sees clusters of the same name in order.
            cluster.release();
            clusters.insert(name.into(), Arc::clone(&cluster));
        }
        Ok(self.handle(cluster))
    }

    /// Removes a cluster with all its objects; its watches end, and its tokens are void, also for a later cluster of
    /// its name. Returns whether it existed.
    pub fn remove_cluster(&self, name: &str) -> bool {
        let mut clusters = self
            .shared
            .clusters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let removed = clusters.remove(name);
        if let Some(cluster) = &removed {
            cluster.close(self.shared.count_removal(name));
        }
        removed.is_some()
    }

    /// Returns a cluster by its name.
    pub fn cluster(&self, name: &str) -> Option<ClusterHandle> {
        self.shared.cluster(name).map(|cluster| self.handle(cluster))
    }

    /// Returns the names of the clusters, in order.
    pub fn clusters(&self) -> Vec<String> {
        self.shared
            .clusters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    /// Returns the URL of the server; `None` before it listens, unless the options set one.
    pub fn url(&self) -> Option<&str> {
        self.shared.url.get().map(String::as_str)
    }

    /// Returns the certificate of the authority, as PEM.
    pub fn ca_pem(&self) -> Arc<str> {
        self.shared.authority.ca_pem()
    }

    /// Returns the token for `/admin`.
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

/// Returns the identity of a new server.
fn identity(options: &Options) -> Result<Identity, ServerError> {
    let (certificate, key) = Authority::make()?;
    let seed = match options.seed {
        0 => u64::from_le_bytes(credentials::random()?),
        given => given,
    };
    Ok(Identity {
        secret: options.secret.map_or_else(credentials::random, Ok)?,
        seed,
        certificate,
        key,
    })
}

impl Shared {
    pub(crate) fn cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        // The lock is held for a lookup only; writers are rare.
        self.clusters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Counts the removal of a cluster of this name.
    fn count_removal(&self, name: &str) -> u64 {
        let mut removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        let count = removals.entry(name.into()).or_default();
        *count += 1;
        *count
    }

    fn token_scope(&self, name: &str) -> Box<str> {
        let removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        credentials::token_scope(name, removals.get(name).copied().unwrap_or(0))
    }

    /// Returns the cluster whose administrator or service account has a token.
    ///
    /// It tries the key of every cluster, since a token does not name its cluster; only requests without the path of a
    /// cluster need it.
    pub(crate) fn cluster_of_token(&self, token: &str, now: Timestamp) -> Option<Arc<Cluster>> {
        let clusters = self.clusters.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |scope: &str| {
            constant_time_eq(token.as_bytes(), self.secret.cluster_token(scope).as_bytes())
                || self.secret.account_claims(scope, token, now).is_some()
        };
        clusters
            .values()
            .find(|cluster| fits(cluster.token_scope()))
            .map(Arc::clone)
    }
}
