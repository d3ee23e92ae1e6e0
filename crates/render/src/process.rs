//! Runs a program (kustomize, sops) within limits, and kills all its processes at the end.
//!
//! The program is started in its own process group. The end of the run (success, a limit, an error, or a dropped
//! future) kills the group before its leader is reaped: until then, the kernel cannot reuse the number of the group.
//! A process that has left the group is found by a mark in its environment ([`Mark`]).

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use super::{RenderError, RenderLimits};

/// Bytes that are kept of each end of stderr: Go prints the cause of a crash first, kustomize its error last.
const STDERR_HALF: usize = 4 << 10;
/// A proxy address on which nothing listens. A second protection against network access; the first is that remote
/// entries are refused.
const CLOSED_PROXY: &str = "http://127.0.0.1:1";
/// How often processes that left the group are searched, at most: one that forks without end is ended by its limits.
const MAX_SEARCHES: usize = 20;

/// The result of a run that no limit stopped.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// A program and its input.
pub(super) struct Call<'a> {
    /// The name in errors.
    pub(super) name: &'static str,
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [&'a str],
    /// Its working, home and temporary directory.
    pub(super) home: &'a Path,
    /// Variables in addition to those of every program.
    pub(super) environment: &'a [(&'a str, &'a str)],
    /// Its standard input.
    pub(super) input: Stdio,
}

/// Runs a program to its end.
///
/// The memory limit is `RLIMIT_DATA`, which counts writable memory. Large address ranges that a Go program reserves and
/// never uses do not count, as they do with `RLIMIT_AS`.
pub(super) async fn run(call: Call<'_>, limits: &RenderLimits) -> Result<Finished, RenderError> {
    let name = call.name;
    let mut running = Running::start(call, limits)?;
    let collected = tokio::time::timeout(limits.time, running.collect(limits.output_bytes)).await;
    running.group.kill();
    let status = running.child.wait().await.map_err(failed(name))?;
    running.group.reaped = true;
    let (stdout, stderr) = collected.map_err(|_| RenderError::TimedOut {
        program: name,
        limit: limits.time,
    })??;
    Ok(Finished {
        status,
        stdout,
        stderr,
    })
}

/// Returns the error of a program that cannot be started or awaited.
fn failed(program: &'static str) -> impl Fn(io::Error) -> RenderError + Copy {
    move |source| RenderError::Process { program, source }
}

/// A started program. The order of the fields matters: the group is killed before the child is reaped.
struct Running {
    name: &'static str,
    group: Group,
    /// Kills what has left the group, after the group.
    mark: Mark,
    child: Child,
    pipes: Option<(ChildStdout, ChildStderr)>,
}

impl Running {
    fn start(call: Call<'_>, limits: &RenderLimits) -> Result<Self, RenderError> {
        let name = call.name;
        let process = failed(name);
        let mut mark = Mark::new();
        let mut command = command(call, limits.memory_bytes);
        command.env(MARK, &mark.value);
        let mut child = command.spawn().map_err(process)?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or_else(|| process(io::ErrorKind::NotFound.into()))?;
        mark.leader = Some(pid);
        let group = Group {
            leader: pid,
            reaped: false,
        };
        let pipes = child.stdout.take().zip(child.stderr.take());
        let running = Self {
            name,
            group,
            mark,
            child,
            pipes,
        };
        confine(pid, limits).map_err(process)?;
        Ok(running)
    }

    /// Reads both pipes and waits until the leader exits, which also kills its remaining children.
    async fn collect(&mut self, output_bytes: usize) -> Result<(Vec<u8>, String), RenderError> {
        let Some((stdout, stderr)) = self.pipes.take() else {
            return Err(failed(self.name)(io::ErrorKind::BrokenPipe.into()));
        };
        let (name, group, mark) = (self.name, &self.group, &self.mark);
        let ended = async {
            leader_ended(name, group.leader).await?;
            // A child that outlives the leader keeps the pipes open.
            group.kill();
            mark.kill();
            Ok(())
        };
        let (stdout, stderr, ()) = tokio::try_join!(
            read_output(name, stdout, output_bytes),
            read_stderr(name, stderr),
            ended
        )?;
        Ok((stdout, stderr))
    }
}

fn command(call: Call<'_>, memory_bytes: u64) -> Command {
    let Call {
        name: _,
        program,
        arguments,
        home,
        environment,
        input,
    } = call;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(home)
        .env_clear()
        // With an empty path, neither git nor helm can be started.
        .env("PATH", "")
        .env("HOME", home)
        .env("TMPDIR", home)
        .env("GOMAXPROCS", "2")
        // The garbage collector runs more often before the hard limit is reached.
        .env("GOMEMLIMIT", (memory_bytes / 4 * 3).to_string())
        .envs(environment.iter().copied())
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    for name in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        command.env(name, CLOSED_PROXY);
    }
    command
}

/// Sets the limits of a process that has just been started; its children inherit them.
fn confine(pid: Pid, limits: &RenderLimits) -> io::Result<()> {
    // When memory ends, the kernel kills this process first, and not the controller.
    let score = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    match std::fs::write(score, "1000") {
        Err(error) if !has_ended(&error) => return Err(error),
        _ => {}
    }
    // Twice the wall-clock time on every core. This only matters if Starling itself is killed: then the limit ends the
    // orphaned program.
    let cpu_seconds = limits.time.as_secs().saturating_mul(4).saturating_add(10);
    for (resource, value) in [
        (Resource::Data, limits.memory_bytes),
        (Resource::Cpu, cpu_seconds),
        (Resource::Core, 0),
    ] {
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        match rustix::process::prlimit(Some(pid), resource, limit) {
            // The process has already exited.
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a file of a process could not be written because the process has ended.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The variable that every process of a run inherits.
const MARK: &str = "STARLING_RUN";

/// The value of [`MARK`] of one run. Processes with it are killed on drop.
struct Mark {
    value: String,
    /// The first process of the run, which its group kills and its owner reaps.
    leader: Option<Pid>,
}

impl Mark {
    fn new() -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        Self {
            value: format!("{}-{run}", std::process::id()),
            leader: None,
        }
    }

    /// Kills the processes with the mark until there are none. They are few: the group was killed before.
    fn kill(&self) {
        for _ in 0..MAX_SEARCHES {
            let found = self.processes();
            if found.is_empty() {
                return;
            }
            for pid in found {
                // An error means that the process has ended.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                // It is a child of this process if this is the first process of its container.
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }

    fn processes(&self) -> Vec<Pid> {
        let entry = format!("{MARK}={}", self.value);
        let Ok(all) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let marked = all.flatten().filter_map(|process| {
            let pid = process
                .file_name()
                .to_str()?
                .parse()
                .ok()
                .and_then(Pid::from_raw)
                .filter(|pid| Some(*pid) != self.leader)?;
            // Without an environment, the process has ended and was not reaped.
            let environment = std::fs::read(process.path().join("environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            variables
                .any(|variable| variable == entry.as_bytes())
                .then_some(pid)
        });
        marked.collect()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process group that is killed on drop.
struct Group {
    leader: Pid,
    /// Set when the leader is reaped: from then on, the number may belong to another group.
    reaped: bool,
}

impl Group {
    fn kill(&self) {
        if !self.reaped {
            // An error means that the group has no processes left.
            let _ = rustix::process::kill_process_group(self.leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the leader has exited, without reaping it. The thread ends when the group is killed, at the latest.
async fn leader_ended(name: &'static str, leader: Pid) -> Result<(), RenderError> {
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match rustix::process::waitid(WaitId::Pid(leader), options) {
                Ok(_) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(name)(error.into())),
            }
        }
    };
    tokio::task::spawn_blocking(wait)
        .await
        .map_err(|_| RenderError::Abandoned)?
}

async fn read_output(name: &'static str, pipe: ChildStdout, limit: usize) -> Result<Vec<u8>, RenderError> {
    let mut output = Vec::new();
    let cap = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read = pipe.take(cap).read_to_end(&mut output).await;
    read.map_err(failed(name))?;
    if output.len() > limit {
        return Err(RenderError::TooLarge {
            what: "the output in bytes",
            limit,
        });
    }
    Ok(output)
}

/// Reads to the end, so that the program never blocks on it, and keeps the first and the last part.
async fn read_stderr(name: &'static str, mut pipe: impl AsyncRead + Unpin) -> Result<String, RenderError> {
    let mut kept = Vec::new();
    let mut cut = false;
    let mut chunk = [0; 4096];
    loop {
        let count = pipe.read(&mut chunk).await.map_err(failed(name))?;
        if count == 0 {
            break;
        }
        kept.extend_from_slice(&chunk[..count]);
        if kept.len() > 2 * STDERR_HALF {
            cut = true;
            kept.drain(STDERR_HALF..kept.len() - STDERR_HALF);
        }
    }
    if !cut {
        return Ok(String::from_utf8_lossy(&kept).into_owned());
    }
    let (head, tail) = kept.split_at(STDERR_HALF);
    Ok(format!(
        "{} … {}",
        String::from_utf8_lossy(head),
        String::from_utf8_lossy(tail)
    ))
}
