//! CPU time and memory of a process, as the kernel counts them.

use std::time::Duration;

use anyhow::{Context, Result};

/// USER_HZ, which is the same on every common platform of Linux, whatever the tick of the kernel.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of a process so far, in steps of 10 ms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// User and system time of its own threads.
    pub(crate) own: Duration,
    /// User and system time of its children that have ended.
    pub(crate) children: Duration,
}

impl Reading {
    /// Reads the usage of a process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name of the program may contain any character; the fields start after its closing parenthesis.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // proc(5): utime is field 14; the first one here is field 3.
        let ticks = |field: usize| -> Result<u64> {
            Ok(fields
                .get(field - 3)
                .context("/proc/PID/stat is short")?
                .parse()?)
        };
        let time = |ticks: u64| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
        Ok(Self {
            own: time(ticks(14)? + ticks(15)?),
            children: time(ticks(16)? + ticks(17)?),
        })
    }

    /// Returns the usage since an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            own: self.own.saturating_sub(earlier.own),
            children: self.children.saturating_sub(earlier.children),
        }
    }
}

/// Resets the peak resident memory of a process to its current resident memory.
pub(crate) fn reset_peak(pid: u32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("reset the peak of memory")
}

/// Returns the peak resident memory of a process since its start or the last [`reset_peak`], in MiB.
pub(crate) fn peak_mib(pid: u32) -> Result<f64> {
    mib(pid, "VmHWM:")
}

/// Returns the current resident memory of a process in MiB.
#[allow(dead_code, reason = "not every benchmark uses it")]
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    mib(pid, "VmRSS:")
}

fn mib(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: u32 = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|value| value.split_whitespace().next())
        .with_context(|| format!("{field} in /proc/PID/status"))?
        .parse()?;
    Ok(f64::from(kib) / 1024.0)
}
