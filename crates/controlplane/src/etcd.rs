//! The etcd that all control planes of a set share.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::assets::Assets;
use crate::error::{ControlPlaneError, EtcdError, ProbeError};
use crate::ports::free_port;
use crate::process::{Launch, Process};
use crate::readiness::await_ready;

/// Name in errors and logs.
const NAME: &str = "etcd";

/// How often a start is retried with new ports after another process has taken them.
pub(crate) const PORT_ATTEMPTS: usize = 5;

/// A running etcd and its port.
#[derive(Debug)]
pub(crate) struct Etcd {
    pub(crate) process: Process,
    pub(crate) client_url: String,
    port: u16,
}

impl Etcd {
    /// Starts etcd with its data below `dir` and waits until it is healthy.
    pub(crate) async fn start(
        assets: &Assets,
        dir: &Path,
        within: Duration,
    ) -> Result<Self, ControlPlaneError> {
        let mut attempt = 1;
        loop {
            match Self::try_start(assets, dir, within).await {
                Err(error) if error.is_port_clash() && attempt < PORT_ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    async fn try_start(assets: &Assets, dir: &Path, within: Duration) -> Result<Self, ControlPlaneError> {
        let no_port = |source| ControlPlaneError::Port {
            name: NAME.to_owned(),
            source,
        };
        let port = free_port().map_err(no_port)?;
        let client_url = format!("http://127.0.0.1:{port}");
        let peer_url = format!("http://127.0.0.1:{}", free_port().map_err(no_port)?);
        let launch = Launch::new(NAME, assets.etcd(), dir.join("etcd.log")).args([
            format!("--data-dir={}", dir.join("etcd").display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
            // The data has to survive a killed process, but not a crash of the machine.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
            // Two gigabytes, the default, is little for many control planes in one store.
            format!("--quota-backend-bytes={}", 8_u64 << 30),
        ]);
        let process = Process::start(&launch).map_err(ControlPlaneError::process(NAME))?;
        await_ready(&process, within, || probe(port)).await?;
        Ok(Self {
            process,
            client_url,
            port,
        })
    }
}

impl Etcd {
    /// Compacts the history up to now: watches from an older revision are rejected.
    pub(crate) async fn compact(&self) -> Result<(), EtcdError> {
        let response = post(self.port, "/v3/kv/range", r#"{"key":"AA=="}"#).await?;
        // `"header":{…,"revision":"123",…}`: numbers of 64 bits are strings here.
        let revision = response
            .split_once("\"revision\":\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let Some((revision, _)) = revision else {
            return Err(EtcdError::NoRevision { response });
        };
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let response = post(self.port, "/v3/kv/compaction", &body).await?;
        if response.contains("\"header\"") {
            Ok(())
        } else {
            Err(EtcdError::NotCompacted { response })
        }
    }
}

/// Calls etcd's JSON gateway.
async fn post(port: u16, path: &str, body: &str) -> Result<String, EtcdError> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        std::io::Result::Ok(response)
    };
    let response = exchange.await?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response.as_str(), ""));
    if head.lines().next().is_some_and(|line| line.contains(" 200 ")) {
        Ok(body.to_owned())
    } else {
        Err(EtcdError::Status { response })
    }
}

/// Requests `/health` over a plain socket, without a client library.
async fn probe(port: u16) -> Result<(), ProbeError> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream
            .write_all(b"GET /health HTTP/1.0\r\nHost: etcd\r\n\r\n")
            .await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        std::io::Result::Ok(response)
    };
    let response = exchange.await?;
    if response.contains(r#""health":"true""#) {
        return Ok(());
    }
    Err(match response.lines().next() {
        Some(status) => ProbeError::Unhealthy {
            status: status.to_owned(),
        },
        None => ProbeError::Empty,
    })
}
