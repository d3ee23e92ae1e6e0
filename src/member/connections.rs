//! The connections to one member, each for one request at a time: HTTP/1.1.
//!
//! hyper's own pool is not used. It dials whenever no connection is idle in the very moment of a request, and lets the
//! dialled one come to its end even if another becomes free meanwhile; and a connection is idle only some moments after its answer
//! was read. So requests that followed each other took two connections, and each probe of a member a second TLS handshake.
//! Here a connection is free again before its answer is handed on, and who was handed one no longer dials.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper::client::conn::http1::{self, SendRequest};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::dial::Body;
use super::error::BoxError;
use super::network::Stream;

/// Bytes of the head of an answer, and of what is read of a body at once. API servers send less than one kilobyte.
const HEAD_BYTES: usize = 64 * 1024;
/// Fields of the head of an answer.
const HEAD_FIELDS: usize = 100;
/// How long a connection waits for the next request before it is closed: over the pauses of an attempt and the first looks at
/// health after it. Each takes 30 KiB here and as much there, and the next look for drift is minutes away. For a probe's,
/// which only its second request uses again, it is shorter than the time to the next probe in any case: that one shall connect
/// anew, and so find out whether that is possible.
const IDLE: Duration = Duration::from_secs(5);
/// Connections of a member that wait at the same time. A burst opens more, and each that ends while another request waits
/// for one is handed on; what is left over is closed.
const IDLE_AT_ONCE: usize = 2;
/// How long the end of an answer may take to make its connection free. It is a matter of a task's turn; a connection that
/// takes longer is in the middle of something, and is closed.
const SETTLE: Duration = Duration::from_millis(100);

/// Opens a stream to the host of a URL.
pub(super) type Dial = Arc<dyn Fn(Uri) -> BoxFuture<'static, Result<Stream, BoxError>> + Send + Sync>;

/// The connections to one member. Clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Dial,
    /// For everything that it takes to connect: the name, TCP and TLS.
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one that was used last is used first.
    idle: Vec<Idle>,
    /// Requests that would rather have a connection that becomes free than the one that they dial.
    waiting: VecDeque<oneshot::Sender<SendRequest<Body>>>,
    /// Whether a task closes what is idle for too long.
    swept: bool,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// A connection that is ready for a request.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Body>,
    /// It has served a request before; the member may have closed it meanwhile.
    pub(super) used: bool,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// No connection yet.
    pub(super) fn new(dial: Dial, limit: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial,
                limit,
                state: Mutex::default(),
            }),
        }
    }

    /// A connection that is free, or becomes free before a new one is there, or a new one.
    ///
    /// # Errors
    /// There is none, and none could be made in time.
    pub(super) async fn get(&self, uri: &Uri) -> Result<Connection, BoxError> {
        let mut freed = match self.shared.free_or_wait() {
            Ok(sender) => return Ok(Connection { sender, used: true }),
            Err(freed) => freed,
        };
        tokio::select! {
            biased;
            Ok(sender) = &mut freed => Ok(Connection { sender, used: true }),
            dialled = self.dial(uri) => {
                // What was handed over in the same moment is not lost.
                freed.close();
                if let Ok(sender) = freed.try_recv() {
                    self.keep(sender);
                }
                Ok(Connection { sender: dialled?, used: false })
            }
        }
    }

    /// Takes a connection back whose answer was read to its end.
    pub(super) async fn give_back(&self, mut sender: SendRequest<Body>) {
        // One that the member closes is simply let go.
        if let Ok(Ok(())) = timeout(SETTLE, sender.ready()).await {
            self.keep(sender);
        }
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut state = self.shared.lock();
        let Some(sender) = state.hand_over(sender) else {
            return;
        };
        if state.idle.len() == IDLE_AT_ONCE {
            return;
        }
        let since = Instant::now();
        state.idle.push(Idle { sender, since });
        if !std::mem::replace(&mut state.swept, true) {
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
            // Its errors are those of the requests on it.
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
    /// A free connection, or what brings the next one that becomes free.
    fn free_or_wait(&self) -> Result<SendRequest<Body>, oneshot::Receiver<SendRequest<Body>>> {
        let mut state = self.lock();
        while let Some(Idle { sender, since }) = state.idle.pop() {
            if since.elapsed() < IDLE && sender.is_ready() {
                return Ok(sender);
            }
        }
        let (hand, freed) = oneshot::channel();
        state.waiting.retain(|hand| !hand.is_closed());
        state.waiting.push_back(hand);
        Err(freed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Gives a connection to whoever waits longest; back if nobody does.
    fn hand_over(&mut self, mut sender: SendRequest<Body>) -> Option<SendRequest<Body>> {
        while let Some(hand) = self.waiting.pop_front() {
            match hand.send(sender) {
                Ok(()) => return None,
                Err(back) => sender = back,
            }
        }
        Some(sender)
    }
}

/// Closes what is idle for too long, until nothing is idle.
async fn sweep(shared: Weak<Shared>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        state.idle.retain(|idle| idle.since.elapsed() < IDLE);
        match state.idle.iter().map(|idle| idle.since).min() {
            Some(oldest) => next = oldest + IDLE,
            None => {
                state.swept = false;
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

    use super::*;

    /// A member that answers with the path it is asked for; what ends with `slow` after a second, what ends with `bye` for the
    /// last time on its connection.
    #[derive(Default)]
    struct Server {
        dialled: AtomicUsize,
        open: AtomicUsize,
    }

    impl Server {
        fn connections(self: &Arc<Self>) -> Connections {
            let server = Arc::clone(self);
            let dial = move |_| {
                let (ours, theirs) = tokio::io::duplex(4096);
                server.dialled.fetch_add(1, Ordering::SeqCst);
                server.open.fetch_add(1, Ordering::SeqCst);
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(theirs), service_fn(answer));
                    drop(served.await);
                    server.open.fetch_sub(1, Ordering::SeqCst);
                });
                async move {
                    // As long as TLS takes.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok(Stream::new(ours))
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

    async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        if path.ends_with("slow") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let mut answer = Response::new(Full::from(path.clone()));
        if path.ends_with("bye") {
            let close = http::HeaderValue::from_static("close");
            answer.headers_mut().insert(http::header::CONNECTION, close);
        }
        Ok(answer)
    }

    async fn ask(connections: &Connections, path: &str) {
        let uri: Uri = "https://member".parse().unwrap();
        let Connection { mut sender, .. } = connections.get(&uri).await.unwrap();
        let request = Request::get(path).body(Body::empty()).unwrap();
        let body = sender.send_request(request).await.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), path);
        connections.give_back(sender).await;
    }

    /// Guards against a handshake too many: hyper's pool took a second connection for the second request of a probe.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn requests_one_after_the_other_share_a_connection() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        for number in 0..50 {
            ask(&connections, &format!("/{number}")).await;
        }
        assert_eq!(server.dialled(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_leaves_two_connections_and_they_end_when_they_are_idle() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        let asked = (0..6).map(|_| ask(&connections, "/slow"));
        futures::future::join_all(asked).await;
        assert_eq!(server.dialled(), 6);
        assert_eq!(server.open_after(Duration::from_millis(100)).await, IDLE_AT_ONCE);
        ask(&connections, "/a").await;
        assert_eq!(server.dialled(), 6);
        // The one that was used again ends later.
        assert_eq!(server.open_after(IDLE - Duration::from_millis(50)).await, 1);
        assert_eq!(server.open_after(IDLE).await, 0);
        ask(&connections, "/b").await;
        assert_eq!(server.dialled(), 7);
        drop(connections);
        assert_eq!(server.open_after(Duration::from_millis(10)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_takes_what_becomes_free_before_its_own_is_there() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        ask(&connections, "/a").await;
        let uri: Uri = "https://member".parse().unwrap();
        let held = connections.get(&uri).await.unwrap();
        assert!(held.used);
        let (waiting, ()) = tokio::join!(connections.get(&uri), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            connections.give_back(held.sender).await;
        });
        assert!(waiting.unwrap().used);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_member_closes_is_not_used_again() {
        let server = Arc::new(Server::default());
        let connections = server.connections();
        ask(&connections, "/bye").await;
        ask(&connections, "/a").await;
        assert_eq!(server.dialled(), 2);
    }
}
