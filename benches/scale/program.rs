//! The program under test, as a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use starling_controlplane::{Launch, Process, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::Options;

/// Maximum time until the controller is ready, and until it ends.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two checks.
const POLL: Duration = Duration::from_millis(20);

/// The controller.
pub(crate) struct Program {
    process: Process,
    listen: String,
}

impl Program {
    /// Starts the controller on a management cluster.
    pub(crate) fn start(folder: &Path, options: &Options) -> Result<Self> {
        let listen = format!("127.0.0.1:{}", free_port()?);
        let launch = Launch::new("starling", &options.program, folder.join("starling.log"))
            .args(["--log-filter", "warn", "controller", "--allow-insecure-sources"])
            .args(["--listen", &listen, "--concurrency", &options.concurrency])
            .arg("--kubeconfig")
            .arg(folder.join("kubeconfig"))
            .arg("--data-dir")
            .arg(folder.join("data"));
        Ok(Self {
            process: Process::start(&launch)?,
            listen,
        })
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().unsigned_abs()
    }

    /// Waits until the controller reports that it is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready().await.unwrap_or_default() {
            if start.elapsed() > TIMEOUT {
                bail!("not ready after {TIMEOUT:?}:\n{}", self.process.log_tail(20)?);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn is_ready(&self) -> Result<bool> {
        let mut stream = TcpStream::connect(&self.listen).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: starling\r\nConnection: close\r\n\r\n")
            .await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response.starts_with("HTTP/1.1 200"))
    }

    /// Stops the controller with a graceful shutdown.
    pub(crate) async fn stop(self) -> Result<()> {
        self.process.stop(TIMEOUT).await.context("stop the controller")?;
        Ok(())
    }
}
