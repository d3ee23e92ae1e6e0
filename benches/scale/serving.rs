//! The embedded API server in a process of its own: this program once more, told what to do line by line.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use starling_apiserver::server::{ClusterHandle, Options, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Set in the process that serves.
const ENVIRONMENT: &str = "STARLING_SCALE_SERVES";
/// The management cluster.
pub(crate) const MANAGEMENT: &str = "management";
/// Pause between two looks at the counts.
const POLL: Duration = Duration::from_millis(200);
/// How long a step may take.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// What is asked of the process that serves; one line each.
#[derive(Serialize, Deserialize)]
enum Question {
    /// Make the management cluster and so many members.
    Make(usize),
    /// What has been seen.
    Count,
}

/// What a group of clusters has seen since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Writes in their journals: those of the server's own controllers too.
    pub(crate) written: u64,
    /// Requests by verb.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests to the cluster that got the fewest.
    pub(crate) fewest: u64,
}

/// What all clusters have seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) management: Seen,
    pub(crate) members: Seen,
    /// Of each member, in their order.
    pub(crate) each: Vec<u64>,
}

impl Seen {
    fn add(&mut self, cluster: &ClusterHandle) -> u64 {
        self.written += cluster.written();
        let mut all = 0;
        for (verb, count) in cluster.requests() {
            *self.requests.entry(verb.to_owned()).or_default() += u64::from(count);
            all += u64::from(count);
        }
        all
    }

    /// What was seen after an earlier look.
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
    /// What was seen after an earlier look.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let each: Vec<u64> = self.each.iter().zip(&earlier.each).map(|(a, b)| a - b).collect();
        Self {
            management: self.management.since(&earlier.management),
            members: Seen {
                fewest: each.iter().copied().min().unwrap_or_default(),
                ..self.members.since(&earlier.members)
            },
            each,
        }
    }
}

/// Name of a member.
pub(crate) fn member(index: usize) -> String {
    format!("member-{index}")
}

/// The process that serves. It ends with this value, as its standard input does.
pub(crate) struct Serving {
    process: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Serving {
    /// Starts it; it has no clusters yet.
    pub(crate) fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .env(ENVIRONMENT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start the process that serves")?;
        let questions = process.stdin.take().context("its standard input")?;
        let answers = process.stdout.take().context("its standard output")?;
        Ok(Self {
            process,
            questions,
            answers: BufReader::new(answers).lines(),
        })
    }

    /// Process ID.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("the process that serves has ended")
    }

    /// Makes the management cluster and so many members; returns their kubeconfigs.
    pub(crate) async fn make(&mut self, members: usize) -> Result<BTreeMap<String, String>> {
        self.ask(&Question::Make(members)).await
    }

    /// What has been seen.
    pub(crate) async fn counts(&mut self) -> Result<Counts> {
        self.ask(&Question::Count).await
    }

    /// Waits until what was seen since `begin` satisfies a predicate.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        begin: &Counts,
        satisfied: impl Fn(&Counts) -> bool,
    ) -> Result<()> {
        let start = std::time::Instant::now();
        loop {
            let seen = self.counts().await?.since(begin);
            if satisfied(&seen) {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!(
                    "waited {TIMEOUT:?} for {what}: {:?}, {:?}",
                    seen.management,
                    seen.members
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn ask<T: for<'a> Deserialize<'a>>(&mut self, question: &Question) -> Result<T> {
        let line = serde_json::to_string(question)? + "\n";
        self.questions.write_all(line.as_bytes()).await?;
        let answer = self.answers.next_line().await?;
        Ok(serde_json::from_str(
            &answer.context("the process that serves has ended")?,
        )?)
    }
}

/// Whether this is the process that serves.
pub(crate) fn is_called() -> bool {
    std::env::var_os(ENVIRONMENT).is_some()
}

/// Serves, and answers questions until there are no more.
pub(crate) fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let _inside = runtime.enter();
    let server = Server::start(Options::default())?;
    let _listening = runtime.block_on(server.listen(([127, 0, 0, 1], 0).into()))?;
    let mut members = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Question::Make(count) => {
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
            Question::Count => serde_json::to_string(&count(&server, &members))?,
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
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
