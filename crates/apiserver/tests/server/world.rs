//! Helpers: a server with clients.

use std::future::Future;
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use starling_apiserver::journal::Keep;
use starling_apiserver::listen::Listening;
use starling_apiserver::server::{ClusterHandle, Options, Server};

/// A server that listens.
pub(crate) struct World {
    pub(crate) server: Server,
    _listening: Listening,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Options {
            journal: Keep::Everything,
            ..Options::default()
        })
        .await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let server = Server::start(options).unwrap();
        let listening = server.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        Self {
            server,
            _listening: listening,
        }
    }

    /// Creates a cluster and a client for it.
    pub(crate) async fn cluster(&self, name: &str) -> (ClusterHandle, Client) {
        let cluster = self.server.create_cluster(name).unwrap();
        let client = client(&cluster).await;
        (cluster, client)
    }
}

pub(crate) async fn client(cluster: &ClusterHandle) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&cluster.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

/// Waits until a value is available.
pub(crate) async fn until<T, F>(what: &str, mut check: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what} did not come about"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
