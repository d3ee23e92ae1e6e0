//! The program in a folder, and kubectl with its kubeconfig.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use starling_controlplane::{Assets, Launch, Process};
use starling_testkit::{program, wait};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Limit of each wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// A folder, and the program that runs in it.
pub(crate) struct World {
    folder: tempfile::TempDir,
    kubectl: PathBuf,
    starts: u32,
    process: Option<Process>,
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            kubectl: Assets::find()?.kubectl().to_owned(),
            starts: 0,
            process: None,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    /// Starts the program without waiting for it.
    pub(crate) fn launch(&mut self, arguments: &[&str]) -> Result<()> {
        self.launch_with(arguments, &[])
    }

    /// As [`World::launch`], with variables in the environment.
    pub(crate) fn launch_with(&mut self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<()> {
        self.starts += 1;
        let log = self.folder.path().join(format!("log-{}", self.starts));
        let launch = Launch::new("server", program(), log)
            .args(["server", "--embedded", "--allow-insecure-sources", "--data-dir"])
            .arg(self.data())
            .args(arguments);
        let launch = variables
            .iter()
            .fold(launch, |launch, (name, value)| launch.env(*name, *value));
        self.process = Some(Process::start(&launch)?);
        Ok(())
    }

    /// Starts the program and waits until it serves.
    pub(crate) async fn start(&mut self, arguments: &[&str]) -> Result<()> {
        self.launch(arguments)?;
        self.serves().await
    }

    pub(crate) async fn serves(&self) -> Result<()> {
        let process = self.process()?;
        let check = async || {
            let stdout = process.log_tail(200).unwrap_or_default();
            if stdout.contains("kubectl get starling") {
                Ok(())
            } else {
                Err(stdout)
            }
        };
        wait::until(TIMEOUT, "the server serves", check).await?;
        Ok(())
    }

    pub(crate) fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("the program has not been started")
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process()?.kill9()?;
        self.process = None;
        Ok(())
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let process = self.process()?;
        let status = process.stop(TIMEOUT).await?;
        ensure!(status.success(), "{status}: {}", process.log_tail(30)?);
        self.process = None;
        Ok(())
    }

    /// Runs kubectl; `input` is its standard input.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        self.kubectl_with(&self.kubeconfig(), arguments, input).await
    }

    pub(crate) async fn kubectl_with(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        let mut child = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .env("HOME", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().context("stdin")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let output = child.wait_with_output().await?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the raw response of one of the clusters.
    pub(crate) async fn raw(&self, cluster: &str, path: &str) -> Result<String> {
        self.kubectl(&["--context", cluster, "get", "--raw", path], "")
            .await
    }

    /// The revision of a cluster.
    pub(crate) async fn revision(&self, cluster: &str) -> Result<u64> {
        let list: Value = serde_json::from_str(&self.raw(cluster, "/api/v1/nodes").await?)?;
        let revision = list["metadata"]["resourceVersion"].as_str().context("revision")?;
        Ok(revision.parse()?)
    }
}
