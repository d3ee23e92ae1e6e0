//! A tunnel through which libgit2 reaches one server, and no other.
//!
//! libgit2 waits for ever for a silent server; its own time-outs are process-wide and only settable by `unsafe` code. So
//! it is told that there is a proxy on loopback (for http: that the server is there), and that is this file. Closing the gate cuts the connection, and
//! the blocked call returns at once. The gate also is the place where addresses are checked after the name was resolved,
//! so that a name that changes its answer gains nothing, and where received bytes are counted, the list of refs included.
//!
//! TLS runs through the tunnel, between libgit2 and the server. Another user of this machine could connect to the port
//! while a call runs; it leads to the one server and adds no credential, so nothing is gained by that.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use url::Host;

use super::access::RepoUrl;

/// Bytes of libgit2's CONNECT request. It sends four short lines; a host name has at most 253 bytes and stands there twice.
const MAX_CONNECT_REQUEST: usize = 4096;

/// Connections of one call. libgit2 uses one and opens another where the server closes it between requests.
const MAX_CONNECTIONS: usize = 16;

/// Why the gate did not let a call through.
#[derive(Debug)]
pub(super) enum Closed {
    /// The name has no address, or none accepted a connection.
    Dial(io::Error),
    /// The name leads to a local address.
    Address(IpAddr),
    /// libgit2 wanted to go elsewhere, because the server redirected it.
    Elsewhere,
    /// More than this many bytes came from the server.
    Bytes(u64),
}

/// Where a gate leads and what may pass.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) host: Host<String>,
    pub(super) port: u16,
    /// Whether libgit2 asks with CONNECT (https) or sends its requests right away (http).
    pub(super) https: bool,
    pub(super) local_addresses: bool,
    pub(super) connect_timeout: Duration,
    pub(super) max_bytes: u64,
}

/// An open tunnel; dropping it cuts every connection through it.
#[derive(Debug)]
pub(super) struct Gate {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    route: Route,
    received: AtomicU64,
    closed: Mutex<Option<Closed>>,
}

impl Gate {
    /// Opens a tunnel on a free port of loopback. Nothing is dialled before libgit2 connects.
    pub(super) async fn open(route: Route) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            address,
            route,
            received: AtomicU64::new(0),
            closed: Mutex::new(None),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            task,
        })
    }

    /// What libgit2 is told to use as its proxy.
    pub(super) fn proxy_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL that leads through the gate, for http, where libgit2 does not use a proxy.
    pub(super) fn url_for(&self, url: &RepoUrl) -> String {
        format!("http://{}{}", self.address, url.path())
    }

    /// Why the gate stopped the call, if it did. Answers once.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.shared
            .closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The connections belong to a set inside the task and end with it.
        self.task.abort();
    }
}

impl Shared {
    fn close(&self, why: Closed) -> io::Error {
        self.closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(why);
        io::ErrorKind::ConnectionAborted.into()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    for _ in 0..MAX_CONNECTIONS {
        let Ok((client, _)) = listener.accept().await else {
            break;
        };
        let shared = Arc::clone(&shared);
        // How a connection ended is of no interest here: what matters is in `closed`, and libgit2 tells the rest.
        connections.spawn(async move { pass(client, &shared).await });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn pass(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    if shared.route.https {
        read_connect(&mut client, shared).await?;
    }
    let server = match dial(&shared.route).await {
        Ok(server) => server,
        Err(why) => {
            if shared.route.https {
                client
                    .write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                    .await?;
            }
            return Err(shared.close(why));
        }
    };
    if shared.route.https {
        client
            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .await?;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::try_join!(
        send(from_client, to_server, shared),
        receive(from_server, to_client, shared)
    )?;
    Ok(())
}

/// Reads libgit2's CONNECT and holds it against the route: a redirect to another host or port ends here.
async fn read_connect(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() >= MAX_CONNECT_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.push(client.read_u8().await?);
    }
    let expected = format!("CONNECT {}:{} HTTP/1.1\r\n", shared.route.host, shared.route.port);
    if request
        .get(..expected.len())
        .is_some_and(|line| line.eq_ignore_ascii_case(expected.as_bytes()))
    {
        return Ok(());
    }
    client
        .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        .await?;
    Err(shared.close(Closed::Elsewhere))
}

async fn dial(route: &Route) -> Result<TcpStream, Closed> {
    let found: Vec<SocketAddr> = match &route.host {
        Host::Ipv4(address) => vec![(*address, route.port).into()],
        Host::Ipv6(address) => vec![(*address, route.port).into()],
        Host::Domain(name) => lookup_host((name.as_str(), route.port))
            .await
            .map_err(Closed::Dial)?
            .collect(),
    };
    let mut last = Closed::Dial(io::ErrorKind::AddrNotAvailable.into());
    for address in found {
        if !route.local_addresses && is_local(address.ip()) {
            last = Closed::Address(address.ip());
            continue;
        }
        match tokio::time::timeout(route.connect_timeout, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // The tunnel forwards what libgit2 already gathered; waiting for more only adds delay.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = Closed::Dial(error),
            Err(_) => last = Closed::Dial(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(last)
}

async fn send(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> io::Result<()> {
    if shared.route.https {
        tokio::io::copy(&mut from, &mut to).await?;
        return to.shutdown().await;
    }
    let mut host = HostLine::new(shared.address, &shared.route);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        to.write_all(&host.rewrite(&buffer[..count])).await?;
        if count == 0 {
            to.write_all(&host.kept).await?;
            return to.shutdown().await;
        }
    }
}

/// Gives plain requests the server's own `Host` line in place of the gate's, so that name-based servers find themselves.
#[derive(Debug)]
struct HostLine {
    gate: Vec<u8>,
    server: Vec<u8>,
    /// The end of what was read, if the gate's line may go on in what is read next.
    kept: Vec<u8>,
}

impl HostLine {
    fn new(gate: SocketAddr, route: &Route) -> Self {
        let port = if route.port == 80 {
            String::new()
        } else {
            format!(":{}", route.port)
        };
        Self {
            gate: format!("Host: {gate}\r\n").into_bytes(),
            server: format!("Host: {}{port}\r\n", route.host).into_bytes(),
            kept: Vec::new(),
        }
    }

    fn rewrite(&mut self, read: &[u8]) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.kept);
        text.extend_from_slice(read);
        let mut written = Vec::with_capacity(text.len() + self.server.len());
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(self.gate.as_slice()) {
                written.extend_from_slice(&self.server);
                rest = after;
            } else if self.gate.starts_with(rest) {
                self.kept = rest.to_vec();
                break;
            } else {
                written.push(rest[0]);
                rest = &rest[1..];
            }
        }
        written
    }
}

async fn receive(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let total = shared.received.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if total > shared.route.max_bytes {
            return Err(shared.close(Closed::Bytes(shared.route.max_bytes)));
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// Loopback, link-local (where clouds keep their metadata servers) and addresses that are no host's.
///
/// Private networks are not among them: git servers live there.
fn is_local(address: IpAddr) -> bool {
    /// The metadata server of AWS, which is not link-local in IPv6.
    const AWS_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6 == AWS_METADATA
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_recognised_in_every_spelling() {
        for local in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
        ]
        .into_iter()
        .chain([
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
        ]) {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for public in [
            "10.0.0.1",
            "192.168.1.1",
            "140.82.121.4",
            "2606:50c0::1",
            "fd12::1",
        ] {
            assert!(!is_local(public.parse().unwrap()), "{public}");
        }
    }

    fn route(port: u16, https: bool) -> Route {
        Route {
            host: Host::Ipv4(Ipv4Addr::LOCALHOST),
            port,
            https,
            local_addresses: true,
            connect_timeout: Duration::from_secs(5),
            max_bytes: 10,
        }
    }

    /// A server that sends twenty bytes to whoever connects.
    async fn server() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(&[b'x'; 20]).await;
            }
        });
        port
    }

    async fn ask(gate: &Gate, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(gate.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A cut connection may end with a reset; what came before it counts.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    #[test]
    fn the_host_line_is_rewritten_wherever_the_text_is_cut() {
        let gate: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        let request = b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:4711\r\nAccept: H\r\n\r\nbody\n";
        let expected = b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:80443\r\nAccept: H\r\n\r\nbody\n";
        for cut in 0..request.len() {
            let mut host = HostLine::new(gate, &route(0, false));
            host.server = b"Host: 127.0.0.1:80443\r\n".to_vec();
            let mut written = host.rewrite(&request[..cut]);
            written.extend(host.rewrite(&request[cut..]));
            assert!(host.kept.is_empty(), "nothing may wait at the end of a request");
            assert_eq!(written, expected, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn only_the_route_itself_may_be_asked_for() {
        let port = server().await;
        let gate = Gate::open(route(port, true)).await.unwrap();
        for target in [
            format!("127.0.0.1:{}", port.wrapping_add(1)),
            "example.org:443".into(),
        ] {
            let answer = ask(&gate, format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with(b"HTTP/1.1 403"), "{target}");
        }
        let answer = ask(
            &gate,
            format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes(),
        )
        .await;
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn bytes_beyond_the_limit_close_the_gate() {
        let gate = Gate::open(route(server().await, false)).await.unwrap();
        assert!(ask(&gate, b"").await.is_empty());
        assert!(matches!(gate.closed(), Some(Closed::Bytes(10))));
    }

    #[tokio::test]
    async fn a_local_address_is_not_dialled() {
        let gate = Gate::open(Route {
            local_addresses: false,
            ..route(server().await, false)
        })
        .await
        .unwrap();
        assert!(ask(&gate, b"").await.is_empty());
        assert!(matches!(gate.closed(), Some(Closed::Address(address)) if address.is_loopback()));
    }
}
