//! A child process that cannot outlive its owner.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The interval at which a wait checks whether the child has exited: short compared with the seconds that a server
/// takes to stop.
const POLL: Duration = Duration::from_millis(20);

/// Clock ticks per second in `/proc/PID/stat`. The kernel reports them as USER_HZ, which is 100 on every
/// architecture that Kubernetes is built for.
const TICKS_PER_SECOND: u64 = 100;

/// How many bytes at the end of a log are read for its last lines.
const TAIL_BYTES: u64 = 8 * 1024;

/// An error of a child process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The log file could not be opened or read.
    #[error("log {path} of {name}")]
    Log {
        /// The process.
        name: String,
        /// The log file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The program could not be started.
    #[error("cannot start {name} ({program})")]
    Spawn {
        /// The process.
        name: String,
        /// The program file.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process has exited, so it receives no signal and has no usage.
    #[error("{name} has ended ({status})")]
    Ended {
        /// The process.
        name: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// The process did not end in time.
    #[error("{name} still runs after {waited:?}")]
    StillRunning {
        /// The process.
        name: String,
        /// The timeout.
        waited: Duration,
    },
    /// The operating system refused a signal or information about the process.
    #[error("cannot {what} {name}")]
    System {
        /// The process.
        name: String,
        /// The operation.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A program to start and its log file.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Name in errors and logs.
    pub name: String,
    /// The program file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables set on top of the inherited environment.
    pub env: Vec<(OsString, OsString)>,
    /// File that receives standard output and standard error; appended to.
    pub log: PathBuf,
}

impl Launch {
    /// Describes a start of `program` without arguments.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments in order.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable of the child.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }
}

/// Memory and processor time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// User and system time of all threads since the start, in steps of 10 ms.
    pub cpu: Duration,
}

/// A running child: killed and reaped on drop.
///
/// The child has its own process group, so that an interrupt from the terminal reaches the parent alone, which then
/// stops its children in its own order.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    pid: Pid,
    /// The lock prevents a signal to a process number that was reaped and reused.
    child: Mutex<Child>,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// [`ProcessError::Log`] if the log cannot be opened, [`ProcessError::Spawn`] if the program cannot be run.
    pub fn start(launch: &Launch) -> Result<Self, ProcessError> {
        let log_error = |source| ProcessError::Log {
            name: launch.name.clone(),
            path: launch.log.clone(),
            source,
        };
        let spawn_error = |source| ProcessError::Spawn {
            name: launch.name.clone(),
            program: launch.program.clone(),
            source,
        };
        let out = File::options()
            .create(true)
            .append(true)
            .open(&launch.log)
            .map_err(log_error)?;
        let err = out.try_clone().map_err(log_error)?;
        // With setpriv, a missing program would only appear as an immediate exit of setpriv.
        if launch.program.components().count() > 1 {
            launch.program.metadata().map_err(spawn_error)?;
        }
        let mut command = bound_command(&launch.program);
        command
            .args(&launch.args)
            .envs(launch.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let child = spawn_on_lasting_thread(command).map_err(spawn_error)?;
        let pid = Pid::from_child(&child);
        tracing::debug!(
            name = launch.name,
            pid = pid.as_raw_nonzero().get(),
            "process started"
        );
        Ok(Self {
            name: launch.name.clone(),
            log: launch.log.clone(),
            pid,
            child: Mutex::new(child),
        })
    }

    /// Returns the name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns the file with standard output and standard error.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Returns the last lines of the log, at most `lines`.
    ///
    /// # Errors
    /// [`ProcessError::Log`] if the file cannot be read.
    pub fn log_tail(&self, lines: usize) -> Result<String, ProcessError> {
        tail(&self.log, lines).map_err(|source| ProcessError::Log {
            name: self.name.clone(),
            path: self.log.clone(),
            source,
        })
    }

    /// Returns the exit status of the process, or nothing while it runs.
    ///
    /// # Errors
    /// [`ProcessError::System`] if the operating system does not report it.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>, ProcessError> {
        self.lock()
            .try_wait()
            .map_err(|source| self.system("look at", source))
    }

    /// Sends SIGKILL and returns when the process has exited. Has no effect on a process that has already exited.
    ///
    /// Blocks for the few milliseconds that the kernel takes, also for a paused process.
    ///
    /// # Errors
    /// [`ProcessError::System`] if the signal is refused.
    pub fn kill9(&self) -> Result<ExitStatus, ProcessError> {
        let mut child = self.lock();
        // Does nothing if the child was reaped before.
        child.kill().map_err(|source| self.system("kill", source))?;
        child.wait().map_err(|source| self.system("wait for", source))
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] if it has ended, [`ProcessError::System`] if the signal is refused.
    pub fn terminate(&self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM, "terminate")
    }

    /// Freezes the process (SIGSTOP): it keeps its connections and does not respond.
    ///
    /// Blocks until every thread has stopped. On a busy machine a thread on another core runs on for a while after the
    /// signal was sent, and could still answer a request.
    ///
    /// # Errors
    /// As for [`Self::terminate`].
    pub fn pause(&self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP, "pause")?;
        // The kernel reports the stop once the whole thread group has stopped. NOWAIT: a process that was killed
        // meanwhile is left for `exit_status`.
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid), events)
            .map(drop)
            .map_err(|errno| self.system("wait for the stop of", errno.into()))
    }

    /// Resumes a frozen process (SIGCONT).
    ///
    /// # Errors
    /// As for [`Self::terminate`].
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT, "resume")
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// [`ProcessError::StillRunning`] if it runs after `within`.
    pub async fn wait(&self, within: Duration) -> Result<ExitStatus, ProcessError> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if start.elapsed() >= within {
                return Err(ProcessError::StillRunning {
                    name: self.name.clone(),
                    waited: within,
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Terminates the process, and kills it if it still runs after `grace`.
    ///
    /// # Errors
    /// [`ProcessError::System`] if a signal is refused. A process that has exited is not an error.
    pub async fn stop(&self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        match self.terminate() {
            Ok(()) => {}
            Err(ProcessError::Ended { status, .. }) => return Ok(status),
            Err(error) => return Err(error),
        }
        match self.wait(grace).await {
            Err(ProcessError::StillRunning { .. }) => self.kill9(),
            ended => ended,
        }
    }

    /// Reads memory and processor time from `/proc`.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] if it has ended, [`ProcessError::System`] where there is no `/proc`.
    pub fn usage(&self) -> Result<Usage, ProcessError> {
        let mut child = self.lock();
        self.ensure_running(&mut child)?;
        read_usage(self.pid()).map_err(|source| self.system("read the usage of", source))
    }

    /// Sends SIGKILL without waiting for the exit, so that a drop can kill many processes concurrently.
    pub(crate) fn begin_kill(&self) {
        if let Err(error) = self.lock().kill() {
            tracing::warn!(name = self.name, %error, "process not killed");
        }
    }

    fn signal(&self, signal: Signal, what: &'static str) -> Result<(), ProcessError> {
        let mut child = self.lock();
        self.ensure_running(&mut child)?;
        kill_process(self.pid, signal).map_err(|errno| self.system(what, errno.into()))
    }

    fn ensure_running(&self, child: &mut Child) -> Result<(), ProcessError> {
        match child
            .try_wait()
            .map_err(|source| self.system("look at", source))?
        {
            Some(status) => Err(ProcessError::Ended {
                name: self.name.clone(),
                status,
            }),
            None => Ok(()),
        }
    }

    fn system(&self, what: &'static str, source: io::Error) -> ProcessError {
        ProcessError::System {
            name: self.name.clone(),
            what,
            source,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Child> {
        // A Child stays usable if another holder of the lock panicked.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill9() {
            tracing::warn!(name = self.name, %error, "process not ended");
        }
    }
}

/// Runs `program` through `setpriv`, where that exists, so that the kernel kills it with its parent.
fn bound_command(program: &Path) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let bound = *SETPRIV.get_or_init(|| {
        // Not every `setpriv` has the option (BusyBox), so it is tested once.
        let known = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !known {
            tracing::warn!("no setpriv with --pdeathsig: children outlive this process if it is killed");
        }
        known
    });
    if bound {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// Starts a command from one thread that lives as long as this process.
///
/// The kernel ties the parent-death signal of a child to the *thread* that started it, and a runtime ends idle threads:
/// a thread of the blocking pool that ends after ten idle seconds would kill the servers.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new()
            .name("process-spawner".to_owned())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    // If the caller no longer waits, the child is dropped.
                    let _ = answer.send(command.spawn());
                }
            });
        if let Err(error) = thread {
            tracing::error!(%error, "no thread to start processes from");
        }
        jobs
    });
    let (answer, outcome) = mpsc::channel();
    let ended = || io::Error::other("the thread that starts processes is gone");
    spawner.send((command, answer)).map_err(|_| ended())?;
    outcome.recv().map_err(|_| ended())?
}

fn read_usage(pid: i32) -> io::Result<Usage> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "unknown format");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program is in parentheses and may contain any character: the fields start after the last
    // parenthesis.
    let (_, fields) = stat.rsplit_once(')').ok_or_else(malformed)?;
    // proc(5): utime is field 14 and stime field 15; the first one here is field 3.
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().map_err(|_| malformed()))
        .sum::<io::Result<u64>>()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss_kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.split_whitespace().next())
        .and_then(|value| value.parse::<u64>().ok())
        .ok_or_else(malformed)?;
    Ok(Usage {
        rss_bytes: rss_kib * 1024,
        cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
    })
}

/// Reads the last `lines` lines of a file.
pub(crate) fn tail(path: &Path, lines: usize) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}
