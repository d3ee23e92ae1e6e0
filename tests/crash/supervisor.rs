//! Starts the program, kills it, and starts it again in the same data folder.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use starling_testkit::fleet::{Fleet, TIMEOUT};
use starling_testkit::{Process, program, wait};

/// The process of the program; shared with the hooks that kill it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supervisor(Arc<Mutex<Option<Arc<Process>>>>);

impl Supervisor {
    /// Starts the program; the previous process must have exited.
    pub(crate) fn start(&self, fleet: &Fleet) -> Result<()> {
        self.adopt(fleet.controller(program(), &[])?)
    }

    /// Uses a program that was started elsewhere.
    pub(crate) fn adopt(&self, process: Process) -> Result<()> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = &*slot
            && before.exit_status()?.is_none()
        {
            bail!("the program runs already");
        }
        *slot = Some(Arc::new(process));
        Ok(())
    }

    /// The last started process.
    pub(crate) fn process(&self) -> Result<Arc<Process>> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone().context("the program was never started")
    }

    /// Sends SIGKILL and waits for the exit. Fails if the process has already exited, because callers rely on the kill.
    pub(crate) fn kill(&self) -> Result<()> {
        let process = self.process()?;
        if let Some(status) = process.exit_status()? {
            bail!("the program ended by itself: {status}\n{}", process.log_tail(40)?);
        }
        process.kill9()?;
        Ok(())
    }

    /// Sends SIGTERM and waits for the exit; `None` if the process had to be killed.
    pub(crate) async fn stop(&self, within: Duration) -> Result<Option<ExitStatus>> {
        let process = self.process()?;
        process.terminate()?;
        match process.wait(within).await {
            Ok(status) => Ok(Some(status)),
            Err(_) => {
                process.kill9()?;
                Ok(None)
            }
        }
    }

    /// Waits until the process has exited for any reason.
    pub(crate) async fn ended(&self, what: &str) -> Result<()> {
        let process = self.process()?;
        wait::until(
            TIMEOUT,
            format!("the end of the program: {what}"),
            async || match process.exit_status() {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err("it runs".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        )
        .await?;
        Ok(())
    }
}
