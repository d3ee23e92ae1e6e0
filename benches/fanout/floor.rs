//! The floor: the same requests from a bare client, on all members at once.
//!
//! The floor runs as a process of its own, so that its CPU time is measured apart. It opens its connections before the
//! measurement starts, because the program under test has open connections as well when a revision arrives. The floor
//! limits, retries and records nothing.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::usage::Reading;

/// Environment variable that is set in the process of the floor.
pub(crate) const ENVIRONMENT: &str = "STARLING_BENCH_FLOOR";

/// Address and credentials of a member.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) address: String,
    pub(crate) ca_pem: String,
    pub(crate) token: String,
}

/// One request, the same for all members.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) body: String,
}

/// Input of the floor.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) members: Vec<Member>,
    pub(crate) calls: Vec<Call>,
    /// Number of connections to each member. Each connection carries one request at a time.
    pub(crate) connections: usize,
}

/// Measurements of the floor.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Time from the first request to the last byte of the last response.
    pub(crate) wall: Duration,
    /// CPU time of the process in that time.
    pub(crate) cpu: Duration,
}

impl Job {
    /// Runs the job in a process of its own.
    pub(crate) async fn run(&self) -> Result<Sample> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .env(ENVIRONMENT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start the floor")?;
        let mut stdin = child.stdin.take().context("stdin of the floor")?;
        stdin.write_all(&serde_json::to_vec(self)?).await?;
        drop(stdin);
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!("the floor ended with {}", output.status);
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Runs the process of the floor: reads a job from stdin and writes the measurements to stdout.
pub(crate) fn main() -> Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let job: Job = serde_json::from_slice(&text)?;
    let taken = tokio::runtime::Runtime::new()?.block_on(work(job))?;
    std::io::stdout().write_all(&serde_json::to_vec(&taken)?)?;
    Ok(())
}

async fn work(job: Job) -> Result<Sample> {
    let mut connections = Vec::new();
    for member in &job.members {
        let calls: VecDeque<_> = job
            .calls
            .iter()
            .map(|call| request(call, member))
            .collect::<Result<_>>()?;
        let width = job.connections.min(calls.len());
        let queue = Arc::new(Mutex::new(calls));
        let connector = connector(member)?;
        for _ in 0..width {
            connections.push((connect(member, &connector).await?, queue.clone()));
        }
    }
    let pid = std::process::id();
    let before = Reading::of(pid)?;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (sender, queue) in connections {
        running.spawn(send_all(sender, queue));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let wall = start.elapsed();
    let cpu = Reading::of(pid)?.since(&before).own;
    Ok(Sample { wall, cpu })
}

type Queue = Arc<Mutex<VecDeque<Request<Full<Bytes>>>>>;

async fn send_all(mut sender: SendRequest<Full<Bytes>>, queue: Queue) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(request) = next else { return Ok(()) };
        let path = request.uri().clone();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
    }
}

fn connector(member: &Member) -> Result<TlsConnector> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(member.ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn connect(member: &Member, connector: &TlsConnector) -> Result<SendRequest<Full<Bytes>>> {
    let tcp = TcpStream::connect(&member.address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1")?;
    let tls = connector.connect(name, tcp).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn request(call: &Call, member: &Member) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::builder()
        .method(Method::from_bytes(call.method.as_bytes())?)
        .uri(&call.path)
        .header(HOST, &member.address)
        .header(AUTHORIZATION, format!("Bearer {}", member.token))
        .header(ACCEPT, &call.accept);
    if !call.content_type.is_empty() {
        request = request.header(CONTENT_TYPE, &call.content_type);
    }
    Ok(request.body(Full::new(Bytes::from(call.body.clone())))?)
}
