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
mod requests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
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
use crate::journal::{Journal, Keep};
use crate::persist::{File, Identity, Kept, PersistError};
use crate::random::Random;
use crate::state::State;
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
    /// The server's file cannot be used.
    #[error(transparent)]
    File(#[from] PersistError),
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
    /// Where clusters are kept, if they are to outlive the process.
    file: Option<File>,
    /// Where names and UIDs come from.
    seed: u64,
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
        let seed = options.seed;
        Ok(Self::run(options, secret, authority, seed, None))
    }

    /// Opens a server whose clusters are kept in a folder, or makes the folder. What has been answered survives any
    /// end of the process; see [`crate::persist`]. One process may have it open.
    ///
    /// The authority, the secret of tokens and the seed are those of the first time, whatever the options say then.
    /// Of a seed of 0 the first time makes one by the system's generator.
    ///
    /// # Errors
    /// The folder is in use, or what is in it cannot be read.
    pub async fn open(options: Options, folder: &Path) -> Result<Self, ServerError> {
        let opened = File::open(folder, || identity(&options)).await?;
        let Identity {
            secret,
            seed,
            certificate,
            key,
        } = opened.identity;
        let secret = Secret::new(Some(secret))?;
        // Its certificate is good for the address that its kubeconfigs name.
        let mut names = options.names.clone();
        names.extend(opened.file.address().map(|address| address.ip().to_string()));
        let authority = Authority::known(&certificate, &key, &names)?;
        let server = Self::run(options, secret, authority, seed, Some(opened.file));
        for kept in opened.clusters {
            server.restore(kept);
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
            ..Settings::new(self.shared.authority.ca_pem())
        }
    }

    fn journal(&self) -> Journal {
        Journal::new(self.shared.options.journal, Arc::clone(&self.shared.numbers))
    }

    /// An empty cluster that nobody knows yet.
    fn new_cluster(&self, name: &str) -> Arc<Cluster> {
        let Shared {
            options, file, seed, ..
        } = &*self.shared;
        let id = file.as_ref().map(File::next_id);
        let random = match id {
            // A cluster of the name of one that was removed is another one.
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
            options,
            self.settings(),
            state,
            durability,
            work,
        ))
    }

    /// Puts a cluster back that was kept.
    fn restore(&self, kept: Kept) {
        let Some(file) = &self.shared.file else { return };
        let options = &self.shared.options;
        let mut state = State::restored(&kept.counters, kept.objects, options.history, self.journal());
        let (outbox, durability) = file.outbox(kept.id, false);
        state.outbox = Some(outbox);
        let work = self.shared.work.clone();
        let cluster = Cluster::new(
            &kept.name,
            options,
            self.settings(),
            state,
            Some(durability),
            work,
        );
        let cluster = Arc::new(cluster);
        self.shared
            .clusters
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kept.name, Arc::clone(&cluster));
        cluster.tell();
    }

    /// Waits until everything that has been written is on the disk; at once if nothing is kept there.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn durable(&self) -> Result<(), ServerError> {
        if let Some(file) = &self.shared.file {
            file.durable().await?;
        }
        Ok(())
    }

    /// The address that a server with a file listened on last.
    pub fn kept_address(&self) -> Option<SocketAddr> {
        self.shared.file.as_ref().and_then(File::address)
    }

    /// Writes everything to the file, closes it and gives its folder up. Writes that come later fail.
    pub async fn close(&self) {
        if let Some(file) = &self.shared.file {
            file.close().await;
        }
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
        if self.shared.cluster(name).is_some() {
            return Err(ServerError::Exists(name.to_owned()));
        }
        // Nobody sees it, and nothing of it is on the disk, before all is there that every cluster has.
        let cluster = self.new_cluster(name);
        cluster.bootstrap(self.shared.options.clock.now())?;
        {
            let mut clusters = self
                .shared
                .clusters
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if clusters.contains_key(name) {
                return Err(ServerError::Exists(name.to_owned()));
            }
            // In here, as the disk has to learn of clusters of one name in order.
            cluster.release();
            clusters.insert(name.into(), Arc::clone(&cluster));
        }
        Ok(self.handle(cluster))
    }

    /// Removes a cluster with everything in it; its watches end. Says whether there was one.
    pub fn remove_cluster(&self, name: &str) -> bool {
        let mut clusters = self
            .shared
            .clusters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let removed = clusters.remove(name);
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

/// Who a new server is.
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
        // Held for the time of a look-up; writers are clusters that come and go.
        self.clusters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }
}
