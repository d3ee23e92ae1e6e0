//! Serving connections, over TCP or any stream.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::http;
use crate::server::{Server, ServerError};

/// An address that the server listens on, until this value is dropped.
pub struct Listening {
    address: SocketAddr,
    task: AbortHandle,
    /// Ends the connections when the value is dropped.
    connections: tokio::sync::watch::Sender<bool>,
}

impl Listening {
    /// Returns the address with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Keeps listening until the process ends.
    pub fn forever(self) {
        std::mem::forget(self);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
        self.connections.send_replace(true);
    }
}

impl Server {
    /// Listens on an address with TLS. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is not available.
    pub async fn listen(&self, address: SocketAddr) -> Result<Listening, ServerError> {
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        self.shared.listens_on(address);
        let (connections, ended) = tokio::sync::watch::channel(false);
        let server = self.clone();
        let limit = self.shared.options.connections.open;
        let free = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        // Closed at once: waiting for a free place would let idle connections stop the server.
                        let Ok(place) = free.clone().try_acquire_owned() else {
                            tracing::warn!(limit, "too many connections; one closed");
                            continue;
                        };
                        let _ = stream.set_nodelay(true);
                        let server = server.clone();
                        let mut ended = ended.clone();
                        tokio::spawn(async move {
                            let _place = place;
                            tokio::select! {
                                () = server.serve_tls(stream) => {}
                                _ = ended.wait_for(|ended| *ended) => {}
                            }
                        });
                    }
                    Err(error) => {
                        // Usually too many open files, which is temporary.
                        tracing::warn!(%error, "failed to accept a connection");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(Listening {
            address,
            task: task.abort_handle(),
            connections,
        })
    }

    /// Serves one connection with TLS over any stream.
    pub async fn serve_tls<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = TlsAcceptor::from(self.shared.authority.tls()).accept(stream);
        match tokio::time::timeout(self.shared.options.connections.handshake, handshake).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake not finished in time"),
        }
    }

    /// Serves one connection over any stream: HTTP/1.1, or HTTP/2 if the client starts with it.
    pub async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let server = self.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (shared, server) = (Arc::clone(&shared), server.clone());
            async move { http::answer(&server, &shared, request).await }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(1000);
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            // The client closed the connection, or a fault did.
            tracing::debug!(error, "connection ended");
        }
    }
}
