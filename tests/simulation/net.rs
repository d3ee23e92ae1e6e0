//! The simulated network: streams of turmoil's, without TLS, for URLs that say https.

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
use starling::clock::Clock;
use starling::controller::ports::Web;
use starling::member::{Network, Stream};
use starling::web::{Post, Reply, WebError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::{Layer as _, ServiceExt as _};
use turmoil::net::TcpStream;

/// The port that every API server listens on.
pub(crate) const PORT: u16 = 443;

async fn dial(uri: Uri) -> io::Result<Stream> {
    let host = uri.host().unwrap_or_default().to_owned();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await?;
    Ok(Stream::new(Line(Some(stream))))
}

thread_local! {
    /// The streams of a controller that goes down, while it does.
    static CUT: RefCell<Option<Vec<(SocketAddr, TcpStream)>>> = const { RefCell::new(None) };
}

/// A stream of the controller's. Where the controller goes down, its streams end in the order of their ports.
///
/// The end of a stream is a message, and what a message takes on its way is drawn: so the order matters. Left to itself it is that
/// in which tokio drops the tasks of a runtime, and that depends on how many tasks the process has had so far.
struct Line(Option<TcpStream>);

impl Line {
    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.get_mut().0.as_mut();
        stream
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some((stream, local)) = self.0.take().and_then(|stream| {
            let local = stream.local_addr().ok()?;
            Some((stream, local))
        }) else {
            return;
        };
        CUT.with_borrow_mut(|cut| match cut {
            Some(cut) => cut.push((local, stream)),
            None => drop(stream),
        });
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
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

/// Held by the first task of the controller, which is the last to be dropped when the controller goes down.
pub(crate) struct LastTask;

impl Drop for LastTask {
    fn drop(&mut self) {
        // What is cut later than this finds the list there and is left in it: see `go_down`.
        let mut cut = CUT.with_borrow_mut(|cut| cut.as_mut().map(std::mem::take).unwrap_or_default());
        cut.sort_by_key(|(local, _)| *local);
        for (_, stream) in cut {
            drop(stream);
        }
    }
}

/// Has the streams of the controller end in order while it goes down.
///
/// # Panics
/// If streams are left over: the controller ran without a [`LastTask`], or something of it was dropped after that.
pub(crate) fn go_down(crash: impl FnOnce()) {
    CUT.set(Some(Vec::new()));
    crash();
    let left = CUT.take().unwrap_or_default();
    assert!(
        left.is_empty(),
        "{} streams of the controller never ended",
        left.len()
    );
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
