//! Helpers: a server with a data directory, requests to it, access to its file.

use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use starling_apiserver::listen::Listening;
use starling_apiserver::server::{ClusterHandle, Options, Server};

/// The limit of each wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that listens, from its start to its end.
pub(crate) struct Running {
    pub(crate) server: Server,
    _listening: Listening,
}

/// A response: code and body.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Running {
    pub(crate) async fn begin(directory: &Path) -> Self {
        Self::begin_with(Options::default(), directory).await
    }

    pub(crate) async fn begin_with(options: Options, directory: &Path) -> Self {
        let server = Server::open(options, directory).await.unwrap();
        let address = server
            .kept_address()
            .unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
        let listening = server.listen(address).await.unwrap();
        Self {
            server,
            _listening: listening,
        }
    }

    /// Stops the server in order; its connections close.
    pub(crate) async fn end(self) {
        self.server.close().await;
    }
}

/// Returns a client for a kubeconfig.
pub(crate) async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

pub(crate) async fn send(client: &Client, method: &str, path: &str, body: Value) -> Answer {
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(Body::from(bytes))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    Answer {
        code,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    }
}

/// Sends a request that has to succeed.
pub(crate) async fn must(client: &Client, method: &str, path: &str, body: Value) -> Value {
    let answer = send(client, method, path, body).await;
    assert!(answer.code < 300, "{method} {path}: {answer:?}");
    answer.body
}

/// Opens the server's file as another program would.
pub(crate) async fn file(directory: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(directory.join("apiserver.db"))
        .create_if_missing(false)
        .connect()
        .await
        .unwrap()
}

/// Waits until the controllers of a cluster are idle.
pub(crate) async fn wait_until_idle(cluster: &ClusterHandle) {
    let start = Instant::now();
    while cluster.cluster().state().queue.next().is_some() {
        assert!(start.elapsed() < TIMEOUT, "the controllers do not come to rest");
        tokio::task::yield_now().await;
    }
}
