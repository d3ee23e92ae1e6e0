//! The simulated network: streams of turmoil's, without TLS, for URLs that say https.

use std::io;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::config::AuthInfo;
use starling::clock::Clock;
use starling::controller::ports::Web;
use starling::member::{Network, Stream};
use starling::web::{Post, Reply, WebError};
use tower::{Layer as _, ServiceExt as _};
use turmoil::net::TcpStream;

/// The port that every API server listens on.
pub(crate) const PORT: u16 = 443;

async fn dial(uri: Uri) -> io::Result<Stream> {
    let host = uri.host().unwrap_or_default().to_owned();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await?;
    Ok(Stream::new(stream))
}

/// How the controller reaches its members.
pub(crate) fn network(clock: Clock) -> Network {
    Network::of(|uri| dial(uri).boxed(), clock)
}

/// Nobody's webhook and no Prometheus is in the simulation: no script has a stage that waits for one.
pub(crate) struct NoWeb;

impl Web for NoWeb {
    fn post<'a>(&'a self, _: &'a Post) -> BoxFuture<'a, Result<Reply, WebError>> {
        std::future::ready(Err(WebError::Url("there is no web in the simulation"))).boxed()
    }
}

/// Where a cluster is.
pub(crate) fn url(cluster: &str) -> String {
    format!("https://{cluster}:{PORT}/clusters/{cluster}")
}

/// A client of a cluster, as the program makes its own: no retries.
pub(crate) fn client(cluster: &str, token: &str) -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::new(url(cluster).parse()?);
    config.auth_info = AuthInfo {
        token: Some(token.to_owned().into()),
        ..AuthInfo::default()
    };
    let http = HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build::<_, Body>(tower::service_fn(|uri| dial(uri).boxed()));
    let service = match config.auth_layer()? {
        Some(layer) => layer.layer(http.map_err(tower::BoxError::from)).boxed(),
        None => http.map_err(tower::BoxError::from).boxed(),
    };
    Ok(kube::Client::new(
        config.base_uri_layer().layer(service),
        "default",
    ))
}
