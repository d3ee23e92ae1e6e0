//! Starts the program, kills it, and starts it again in the same data folder.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use starling_testkit::fleet::{Fleet, PATIENCE};
use starling_testkit::{Process, wait};

use crate::PROGRAM;

/// The one process of the program; shared with the hooks that kill it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supervisor(Arc<Mutex<Option<Arc<Process>>>>);

impl Supervisor {
    /// Starts the program; the one before must have ended.
    pub(crate) fn start(&self, fleet: &Fleet) -> Result<()> {
        self.adopt(fleet.controller(PROGRAM, &[])?)
    }

    /// Takes over a program that was started elsewhere.
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

    /// The process that was started last.
    pub(crate) fn process(&self) -> Result<Arc<Process>> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone().context("the program was never started")
    }

    /// SIGKILL; the process is gone when this returns. One that has ended before is an error: whoever kills
    /// relies on having been the cause of death.
    pub(crate) fn kill(&self) -> Result<()> {
        let process = self.process()?;
        if let Some(status) = process.exit_status()? {
            bail!("the program ended by itself: {status}\n{}", process.log_tail(40)?);
        }
        process.kill9()?;
        Ok(())
    }

    /// SIGTERM, and the end of the process; `None` if it had to be killed.
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

    /// Waits until the process has ended, whatever ended it.
    pub(crate) async fn ended(&self, what: &str) -> Result<()> {
        let process = self.process()?;
        wait::until(
            PATIENCE,
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
