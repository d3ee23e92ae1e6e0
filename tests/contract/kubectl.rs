//! The real `kubectl`, with the kubeconfig of one control plane.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use starling_controlplane::{Assets, ControlPlane};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// `kubectl` against one control plane.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

/// The output of a call.
pub(crate) struct CommandOutput {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Kubectl {
    pub(crate) fn new(assets: &Assets, plane: &ControlPlane) -> Self {
        Self {
            program: assets.kubectl().to_owned(),
            kubeconfig: plane.kubeconfig_path(),
        }
    }

    /// Runs kubectl; `input` is its standard input.
    pub(crate) async fn call(&self, arguments: &[&str], input: &str) -> Result<CommandOutput> {
        let mut child = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            // Without the discovery cache, which tests would share.
            .args(["--cache-dir", "/dev/null/none"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let mut stdin = child.stdin.take().context("stdin")?;
        let text = input.to_owned();
        // A command that does not read its input closes it, which is not an error.
        let feed = tokio::spawn(async move {
            let _ = stdin.write_all(text.as_bytes()).await;
        });
        let output = child.wait_with_output().await?;
        feed.await?;
        Ok(CommandOutput {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        })
    }

    /// Runs kubectl, asserts success, and returns its output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.feed(arguments, "").await
    }

    /// As [`Self::run`], with input.
    pub(crate) async fn feed(&self, arguments: &[&str], input: &str) -> Result<String> {
        let answer = self.call(arguments, input).await?;
        ensure!(answer.ok, "kubectl {}: {}", arguments.join(" "), answer.err);
        Ok(answer.out)
    }

    /// Runs kubectl with `-o json` and parses its output.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["-o", "json"]].concat()).await?;
        Ok(serde_json::from_str(&text)?)
    }
}
