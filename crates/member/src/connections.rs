//! The connection pool of one member: HTTP/1.1, one request at a time on each connection.
//!
//! hyper's own pool is not used. It dials whenever no connection is idle at the time of a request, and completes the
//! dial even if another connection becomes free meanwhile. A connection of that pool also becomes idle only some time
//! after its response was read. Sequential requests therefore used two connections, and each probe of a member needed a
//! second TLS handshake. Here, a connection is free before its response is returned, and a request that receives a free
//! connection stops dialling.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::Uri;
use hyper::client::conn::http1::{self, SendRequest};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::error::BoxError;
use super::network::Dial;

/// Maximum bytes of the head of a response, and of one read of a body. API servers send heads of less than one
/// kilobyte.
const HEAD_BYTES: usize = 64 * 1024;
/// Maximum header fields of a response.
const HEAD_FIELDS: usize = 100;
/// How long an idle connection is kept. That covers the pauses of an attempt and the first health checks after it. An
/// idle connection costs 30 KiB on each side, and the next drift check is minutes away. It is shorter than any interval
/// between probes: each probe has to connect again, because that determines whether the member is reachable. Only the
/// second request of a probe reuses its connection.
const IDLE: Duration = Duration::from_secs(5);
/// Idle connections that are kept for one member. A burst opens more: each that becomes free while a request waits is
/// assigned to that request, and the rest is closed.
const IDLE_AT_ONCE: usize = 2;
/// How long a connection may take to become ready after its response was read. Normally that takes one poll of a task.
/// A connection that takes longer is still transferring, and is closed.
const SETTLE: Duration = Duration::from_millis(100);

/// The body of a request.
pub(super) type Body = kube::client::Body;

/// The connection pool of one member. Clones share the pool.
#[derive(Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Dial,
    /// The limit of DNS, TCP and TLS together.
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A stack: the connection that was used last is used first.
    idle: Vec<Idle>,
    /// Requests that are dialling, and take a connection that becomes free earlier.
    waiting: VecDeque<oneshot::Sender<SendRequest<Body>>>,
    /// Whether a task runs that closes connections after [`IDLE`].
    sweeping: bool,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// A connection that is ready for a request.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Body>,
    /// Whether the connection has served a request before: the member may have closed it meanwhile.
    pub(super) used: bool,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Creates an empty pool.
    pub(super) fn new(dial: Dial, limit: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial,
                limit,
                state: Mutex::default(),
            }),
        }
    }

    /// Returns a free connection, or else the first of a connection that becomes free and a new one.
    ///
    /// # Errors
    /// No connection is free, and none could be opened in time.
    pub(super) async fn get(&self, uri: &Uri) -> Result<Connection, BoxError> {
        let mut freed = match self.shared.free_or_wait() {
            Ok(sender) => return Ok(Connection { sender, used: true }),
            Err(freed) => freed,
        };
        tokio::select! {
            biased;
            Ok(sender) = &mut freed => Ok(Connection { sender, used: true }),
            dialled = self.dial(uri) => {
                // A connection that was assigned at the same time is kept.
                freed.close();
                if let Ok(sender) = freed.try_recv() {
                    self.keep(sender);
                }
                Ok(Connection { sender: dialled?, used: false })
            }
        }
    }

    /// Returns a connection to the pool after its response was read to the end.
    pub(super) async fn release(&self, mut sender: SendRequest<Body>) {
        // A connection that the member closes is dropped.
        if let Ok(Ok(())) = timeout(SETTLE, sender.ready()).await {
            self.keep(sender);
        }
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut state = self.shared.lock();
        let Some(sender) = state.assign(sender) else {
            return;
        };
        if state.idle.len() == IDLE_AT_ONCE {
            return;
        }
        let since = Instant::now();
        state.idle.push(Idle { sender, since });
        if !std::mem::replace(&mut state.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.shared), since + IDLE));
        }
    }

    async fn dial(&self, uri: &Uri) -> Result<SendRequest<Body>, BoxError> {
        let limit = self.shared.limit;
        let connected = async {
            let stream = (self.shared.dial)(uri.clone()).await?;
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(HEAD_BYTES)
                .max_headers(HEAD_FIELDS)
                .handshake(stream)
                .await?;
            // The requests on the connection return its errors.
            tokio::spawn(async move { drop(connection.await) });
            Ok(sender)
        };
        match timeout(limit, connected).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("no connection within {limit:?}").into()),
        }
    }
}

impl Shared {
    /// Returns a free connection, or a receiver of the next connection that becomes free.
    fn free_or_wait(&self) -> Result<SendRequest<Body>, oneshot::Receiver<SendRequest<Body>>> {
        let mut state = self.lock();
        while let Some(Idle { sender, since }) = state.idle.pop() {
            if since.elapsed() < IDLE && sender.is_ready() {
                return Ok(sender);
            }
        }
        let (waiter, freed) = oneshot::channel();
        state.waiting.retain(|waiter| !waiter.is_closed());
        state.waiting.push_back(waiter);
        Err(freed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Assigns a connection to the request that waits longest. Returns the connection if no request waits.
    fn assign(&mut self, mut sender: SendRequest<Body>) -> Option<SendRequest<Body>> {
        while let Some(waiter) = self.waiting.pop_front() {
            match waiter.send(sender) {
                Ok(()) => return None,
                Err(returned) => sender = returned,
            }
        }
        Some(sender)
    }
}

/// Closes connections that are idle for too long. Ends when no connection is idle.
async fn sweep(shared: Weak<Shared>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        state.idle.retain(|idle| idle.since.elapsed() < IDLE);
        match state.idle.iter().map(|idle| idle.since).min() {
            Some(oldest) => next = oldest + IDLE,
            None => {
                state.sweeping = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures::FutureExt as _;
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::super::network::Stream;
    use super::*;

    /// A member that responds with the requested path: after a second if the path ends with `slow`, and with
    /// `Connection: close` if the path ends with `bye`.
    #[derive(Default)]
    struct Server {
        dialled: AtomicUsize,
        open: AtomicUsize,
    }

    impl Server {
        fn connections(self: &Arc<Self>) -> Connections {
            let server = Arc::clone(self);
            let dial = move |_| {
                let (client_end, server_end) = tokio::io::duplex(4096);
                server.dialled.fetch_add(1, Ordering::SeqCst);
                server.open.fetch_add(1, Ordering::SeqCst);
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(server_end), service_fn(respond));
                    drop(served.await);
                    server.open.fetch_sub(1, Ordering::SeqCst);
                });
                async move {
                    // The time of a TLS handshake.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok(Stream::new(client_end))
                }
                .boxed()
            };
            Connections::new(Arc::new(dial), Duration::from_secs(1))
        }

        fn dialled(&self) -> usize {
            self.dialled.load(Ordering::SeqCst)
        }

        async fn open_after(&self, wait: Duration) -> usize {
            tokio::time::sleep(wait).await;
            self.open.load(Ordering::SeqCst)
        }
    }

    async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        if path.ends_with("slow") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let mut respond = Response::new(Full::from(path.clone()));
        if path.ends_with("bye") {
            let close = http::HeaderValue::from_static("close");
            respond.headers_mut().insert(http::header::CONNECTION, close);
        }
        Ok(respond)
    }

    async fn request_path(connections: &Connections, path: &str) {
        let uri: Uri = "https://member".parse().unwrap();
        let Connection { mut sender, .. } = connections.get(&uri).await.unwrap();
        let request = Request::get(path).body(Body::empty()).unwrap();
        let body = sender.send_request(request).await.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), path);
        connections.release(sender).await;
    }

    /// Guards against an unneeded handshake: hyper's pool opened a second connection for the second request of a probe.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn sequential_requests_share_a_connection() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        for number in 0..50 {
            request_path(&connections, &format!("/{number}")).await;
        }
        assert_eq!(server.dialled(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_leaves_two_connections_that_close_when_idle() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        let requests = (0..6).map(|_| request_path(&connections, "/slow"));
        futures::future::join_all(requests).await;
        assert_eq!(server.dialled(), 6);
        assert_eq!(server.open_after(Duration::from_millis(100)).await, IDLE_AT_ONCE);
        request_path(&connections, "/a").await;
        assert_eq!(server.dialled(), 6);
        // The reused connection closes later.
        assert_eq!(server.open_after(IDLE - Duration::from_millis(50)).await, 1);
        assert_eq!(server.open_after(IDLE).await, 0);
        request_path(&connections, "/b").await;
        assert_eq!(server.dialled(), 7);
        drop(connections);
        assert_eq!(server.open_after(Duration::from_millis(10)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_takes_a_freed_connection_before_its_own_is_dialled() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        request_path(&connections, "/a").await;
        let uri: Uri = "https://member".parse().unwrap();
        let held = connections.get(&uri).await.unwrap();
        assert!(held.used);
        let (waiting, ()) = tokio::join!(connections.get(&uri), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            connections.release(held.sender).await;
        });
        assert!(waiting.unwrap().used);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_the_member_closed_is_not_reused() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        request_path(&connections, "/bye").await;
        request_path(&connections, "/a").await;
        assert_eq!(server.dialled(), 2);
    }
}
