//! The simulated network: streams of turmoil without TLS, also for https URLs.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::config::AuthInfo;
use starling::controller::ports::Web;
use starling_member::{Network, Stream};
use starling_net::clock::Clock;
use starling_net::web::{Post, Reply, WebError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::{Layer as _, ServiceExt as _};
use turmoil::net::TcpStream;

/// The port of every API server.
pub(crate) const PORT: u16 = 443;

async fn dial(uri: Uri) -> io::Result<Stream> {
    let host = uri.host().unwrap_or_default().to_owned();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await?;
    Ok(Stream::new(OrderedStream(Some(stream))))
}

thread_local! {
    /// The streams of a controller while it stops.
    static CLOSED: RefCell<Option<Vec<(SocketAddr, TcpStream)>>> = const { RefCell::new(None) };
}

/// A stream of the controller. When the controller stops, its streams end in the order of their ports.
///
/// The end of a stream is a message, and the latency of a message is random: so the order matters. Without this type it
/// is the order in which tokio drops the tasks of a runtime, which depends on how many tasks the process has had.
struct OrderedStream(Option<TcpStream>);

impl OrderedStream {
    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.get_mut().0.as_mut();
        stream
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for OrderedStream {
    fn drop(&mut self) {
        let Some((stream, local)) = self.0.take().and_then(|stream| {
            let local = stream.local_addr().ok()?;
            Some((stream, local))
        }) else {
            return;
        };
        CLOSED.with_borrow_mut(|closed| match closed {
            Some(closed) => closed.push((local, stream)),
            None => drop(stream),
        });
    }
}

impl AsyncRead for OrderedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for OrderedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}

/// Held by the first task of the controller, which is dropped last when the controller stops.
pub(crate) struct LastTask;

impl Drop for LastTask {
    fn drop(&mut self) {
        // Streams that end later are added to the list and remain there: see `shut_down`.
        let mut closed =
            CLOSED.with_borrow_mut(|closed| closed.as_mut().map(std::mem::take).unwrap_or_default());
        closed.sort_by_key(|(local, _)| *local);
        for (_, stream) in closed {
            drop(stream);
        }
    }
}

/// Ends the streams of the controller in order while it stops.
///
/// # Panics
/// If streams remain: the controller ran without a [`LastTask`], or a part of it was dropped after that.
pub(crate) fn shut_down(crash: impl FnOnce()) {
    CLOSED.set(Some(Vec::new()));
    crash();
    let left = CLOSED.take().unwrap_or_default();
    assert!(
        left.is_empty(),
        "{} streams of the controller never ended",
        left.len()
    );
}

/// Returns the network of the controller.
pub(crate) fn network(clock: Clock) -> Network {
    Network::of(|uri| dial(uri).boxed(), clock)
}

/// The simulation has no webhooks and no Prometheus: no script has a stage that waits for one.
pub(crate) struct NoWeb;

impl Web for NoWeb {
    fn post<'a>(&'a self, _: &'a Post) -> BoxFuture<'a, Result<Reply, WebError>> {
        std::future::ready(Err(WebError::Url("there is no web in the simulation"))).boxed()
    }
}

/// Returns the URL of a cluster.
pub(crate) fn url(cluster: &str) -> String {
    format!("https://{cluster}:{PORT}/clusters/{cluster}")
}

/// Creates a client of a cluster as the program does: without retries.
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
