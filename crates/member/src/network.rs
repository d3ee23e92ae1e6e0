//! How members are reached: over the network of the system with TLS, or over an injected one.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryFutureExt as _};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use starling_net::clock::Clock;
use starling_net::rules::AddressRules;
use tokio::io::{AsyncRead, AsyncWrite};

use super::error::BoxError;

/// Opens a stream to the host of a URL.
pub(super) type Dial = Arc<dyn Fn(Uri) -> BoxFuture<'static, Result<Stream, BoxError>> + Send + Sync>;

/// As [`Dial`], for an injected network.
type CustomDial = Arc<dyn Fn(Uri) -> BoxFuture<'static, io::Result<Stream>> + Send + Sync>;

/// How members are reached, and the clock: a response may contain a time until which to wait.
#[derive(Clone, Default)]
pub struct Network {
    /// `None`: the network of the system.
    dial: Option<CustomDial>,
    /// The addresses of members that the operator allows.
    addresses: AddressRules,
    clock: Clock,
}

impl Network {
    /// Returns the network and clock of the system.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Returns a network whose streams are opened by `dial`. The streams carry HTTP without TLS, whatever the URL says:
    /// for simulations, which need neither encryption nor authentication.
    #[must_use]
    pub fn of(
        dial: impl Fn(Uri) -> BoxFuture<'static, io::Result<Stream>> + Send + Sync + 'static,
        clock: Clock,
    ) -> Self {
        Self {
            dial: Some(Arc::new(dial)),
            clock,
            ..Self::default()
        }
    }

    /// Connects to these addresses only.
    #[must_use]
    pub fn with_addresses(self, addresses: AddressRules) -> Self {
        Self { addresses, ..self }
    }

    pub(super) fn addresses(&self) -> &AddressRules {
        &self.addresses
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The dialler of an injected network; `None` for the network of the system.
    pub(super) fn dial(&self) -> Option<Dial> {
        let dial = self.dial.clone()?;
        Some(Arc::new(move |uri| dial(uri).map_err(Into::into).boxed()))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.dial.is_some() { "custom" } else { "system" };
        f.debug_tuple("Network").field(&of).finish()
    }
}

/// Bytes in both directions.
trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A stream to a member, encrypted or not.
pub struct Stream(TokioIo<Pin<Box<dyn Duplex>>>);

impl Stream {
    /// A stream over `io`.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self(TokioIo::new(Box::pin(io)))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
