//! The embedded API server in a process of its own: this program once more, which reads a request on each line.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use starling_apiserver::server::{ClusterHandle, Options, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Environment variable that is set in the process that serves.
const ENVIRONMENT: &str = "STARLING_SCALE_SERVES";
/// The management cluster.
pub(crate) const MANAGEMENT: &str = "management";
/// Pause between two reads of the counts.
const POLL: Duration = Duration::from_millis(200);
/// Maximum time of a step.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A request to the process that serves, one a line.
#[derive(Serialize, Deserialize)]
enum Request {
    /// Creates the management cluster and this number of members.
    Create(usize),
    /// Reads the traffic of all clusters.
    Count,
}

/// Writes and requests of a set of clusters since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// Writes in their journals, including the writes of the server's own controllers.
    pub(crate) written: u64,
    /// Requests by verb.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests to the cluster with the fewest requests.
    pub(crate) fewest: u64,
}

/// Traffic of all clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) management: Traffic,
    pub(crate) members: Traffic,
    /// Requests to each member, by index.
    pub(crate) each: Vec<u64>,
}

impl Traffic {
    fn add(&mut self, cluster: &ClusterHandle) -> u64 {
        self.written += cluster.written();
        let mut all = 0;
        for (verb, count) in cluster.requests() {
            *self.requests.entry(verb.to_owned()).or_default() += u64::from(count);
            all += u64::from(count);
        }
        all
    }

    /// Returns the difference since an earlier read.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |verb: &str| earlier.requests.get(verb).copied().unwrap_or_default();
        Self {
            written: self.written - earlier.written,
            requests: self
                .requests
                .iter()
                .map(|(verb, count)| (verb.clone(), count - before(verb)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            fewest: 0,
        }
    }
}

impl Counts {
    /// Returns the difference since an earlier read.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let each: Vec<u64> = self.each.iter().zip(&earlier.each).map(|(a, b)| a - b).collect();
        Self {
            management: self.management.since(&earlier.management),
            members: Traffic {
                fewest: each.iter().copied().min().unwrap_or_default(),
                ..self.members.since(&earlier.members)
            },
            each,
        }
    }
}

/// Returns the name of a member.
pub(crate) fn member(index: usize) -> String {
    format!("member-{index}")
}

/// The process that serves. Dropping the value closes its standard input, which ends the process.
pub(crate) struct Serving {
    process: Child,
    requests: ChildStdin,
    responses: Lines<BufReader<ChildStdout>>,
}

impl Serving {
    /// Starts the process without clusters.
    pub(crate) fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .env(ENVIRONMENT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start the process that serves")?;
        let requests = process.stdin.take().context("its standard input")?;
        let responses = process.stdout.take().context("its standard output")?;
        Ok(Self {
            process,
            requests,
            responses: BufReader::new(responses).lines(),
        })
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("the process that serves has ended")
    }

    /// Creates the management cluster and this number of members; returns their kubeconfigs.
    pub(crate) async fn create(&mut self, members: usize) -> Result<BTreeMap<String, String>> {
        self.send(&Request::Create(members)).await
    }

    /// Reads the traffic of all clusters.
    pub(crate) async fn counts(&mut self) -> Result<Counts> {
        self.send(&Request::Count).await
    }

    /// Waits until the traffic since `begin` satisfies a predicate.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        begin: &Counts,
        satisfied: impl Fn(&Counts) -> bool,
    ) -> Result<()> {
        let start = std::time::Instant::now();
        loop {
            let traffic = self.counts().await?.since(begin);
            if satisfied(&traffic) {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!(
                    "waited {TIMEOUT:?} for {what}: {:?}, {:?}",
                    traffic.management,
                    traffic.members
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn send<T: for<'a> Deserialize<'a>>(&mut self, request: &Request) -> Result<T> {
        let line = serde_json::to_string(request)? + "\n";
        self.requests.write_all(line.as_bytes()).await?;
        let response = self.responses.next_line().await?;
        Ok(serde_json::from_str(
            &response.context("the process that serves has ended")?,
        )?)
    }
}

/// Returns whether this process is the one that serves.
pub(crate) fn is_called() -> bool {
    std::env::var_os(ENVIRONMENT).is_some()
}

/// Serves, and responds to requests until standard input ends.
pub(crate) fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let _inside = runtime.enter();
    let server = Server::start(Options::default())?;
    let _listening = runtime.block_on(server.listen(([127, 0, 0, 1], 0).into()))?;
    let mut members = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let response = match serde_json::from_str(&line?)? {
            Request::Create(count) => {
                members = (0..count)
                    .map(|index| server.create_cluster(&member(index)))
                    .collect::<Result<Vec<_>, _>>()?;
                let management = server.create_cluster(MANAGEMENT)?;
                let kubeconfigs: BTreeMap<_, _> = members
                    .iter()
                    .chain([&management])
                    .map(|cluster| (cluster.name().to_owned(), cluster.kubeconfig()))
                    .collect();
                serde_json::to_string(&kubeconfigs)?
            }
            Request::Count => serde_json::to_string(&count(&server, &members))?,
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{response}")?;
        out.flush()?;
    }
    Ok(())
}

fn count(server: &Server, members: &[ClusterHandle]) -> Counts {
    let mut counts = Counts::default();
    if let Some(management) = server.cluster(MANAGEMENT) {
        counts.management.add(&management);
    }
    counts.each = members
        .iter()
        .map(|cluster| counts.members.add(cluster))
        .collect();
    counts
}
