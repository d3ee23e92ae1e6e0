//! Waits until a server is ready.

use std::time::{Duration, Instant};

use crate::error::{ControlPlaneError, ProbeError};
use crate::process::Process;

/// Pause between two probes: short compared with the second that a server takes to start.
const POLL: Duration = Duration::from_millis(50);

/// The timeout of a probe: a starting server may accept a connection and never respond.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 15;

/// Probes until the result is `Ok`, the process exits, or `within` has passed.
pub(crate) async fn await_ready<F>(
    process: &Process,
    within: Duration,
    probe: impl Fn() -> F,
) -> Result<(), ControlPlaneError>
where
    F: Future<Output = Result<(), ProbeError>>,
{
    let start = Instant::now();
    let name = process.name();
    loop {
        let last = match tokio::time::timeout(PROBE_TIMEOUT, probe()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => ProbeError::Timeout,
        };
        let log = || process.log_path().to_owned();
        let tail = || {
            process
                .log_tail(TAIL_LINES)
                .unwrap_or_else(|error| error.to_string())
        };
        if let Some(status) = process.exit_status().map_err(ControlPlaneError::process(name))? {
            return Err(ControlPlaneError::Ended {
                name: name.to_owned(),
                status,
                log: log(),
                tail: tail(),
            });
        }
        if start.elapsed() >= within {
            let name = name.to_owned();
            return Err(ControlPlaneError::NotReady {
                name,
                waited: within,
                last,
                log: log(),
                tail: tail(),
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Requests a path of a server, and fails unless the status is below 400.
pub(crate) async fn probe_path(client: &kube::Client, path: &str) -> Result<(), ProbeError> {
    let request = http::Request::get(path).body(Vec::new())?;
    client.request_text(request).await.map_err(Box::new)?;
    Ok(())
}
