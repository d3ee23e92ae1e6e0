//! Errors of control planes.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::pki::PkiError;
use crate::process::ProcessError;

/// An error of a control plane or one of its servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlPlaneError {
    /// A name is not valid as a directory, a key prefix and a DNS label.
    #[error("control plane name {name:?} is not a DNS label")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// A name was given twice.
    #[error("control plane {name} exists already")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// etcd failed.
    #[error("etcd failed: {error}")]
    Etcd {
        /// The failure.
        error: EtcdError,
    },
    /// No control plane has this name.
    #[error("no control plane {name}")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The assets lack a requested program.
    #[error("{name} needs {program}, which {folder} does not have")]
    MissingProgram {
        /// The control plane.
        name: String,
        /// The program.
        program: &'static str,
        /// The directory of the assets.
        folder: PathBuf,
    },
    /// A file of a server could not be read or written.
    #[error("{path} of {name}")]
    File {
        /// The server.
        name: String,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No port is free.
    #[error("no free port for {name}")]
    Port {
        /// The server.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Keys, certificates or tokens could not be generated.
    #[error("credentials of {name}")]
    Credentials {
        /// The server.
        name: String,
        /// The cause.
        #[source]
        source: PkiError,
    },
    /// A process could not be started, signalled or inspected.
    #[error("process of {name}")]
    Process {
        /// The server.
        name: String,
        /// The cause.
        #[source]
        source: ProcessError,
    },
    /// A server exited before it was ready.
    #[error("{name} ended ({status}) before it was ready; the end of {log}:\n{tail}")]
    Ended {
        /// The server.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A server did not become ready in time.
    #[error("{name} not ready after {waited:?} ({last}); the end of {log}:\n{tail}")]
    NotReady {
        /// The server.
        name: String,
        /// The timeout.
        waited: Duration,
        /// The result of the last probe.
        last: ProbeError,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A task that started a server was cancelled or panicked.
    #[error("start of a control plane was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    /// A client could not be created from the kubeconfig.
    #[error("kubeconfig of {name}")]
    Kubeconfig {
        /// The control plane.
        name: String,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// A client could not be created or a request failed.
    #[error("{what} of {name}")]
    Request {
        /// The control plane.
        name: String,
        /// The request.
        what: &'static str,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The server does not write an audit log.
    #[error("{name} was started without audit log")]
    NoAudit {
        /// The control plane.
        name: String,
    },
    /// The audit log has a line that is not an event.
    #[error("line {line} of the audit log of {name}")]
    AuditLine {
        /// The control plane.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The server did not respond in time.
    #[error("no response")]
    Timeout,
    /// The connection to the server failed.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The request could not be built.
    #[error(transparent)]
    Path(#[from] http::Error),
    /// The request failed, or the server responded with an error.
    #[error(transparent)]
    Request(#[from] Box<kube::Error>),
    /// etcd responded that it is not healthy.
    #[error("{status}")]
    Unhealthy {
        /// The first line of the response.
        status: String,
    },
    /// etcd closed the connection without a response.
    #[error("empty answer")]
    Empty,
}

/// Why etcd failed to compact its history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The response has another status than 200.
    #[error("{response}")]
    Status {
        /// The whole response.
        response: String,
    },
    /// The response does not have the current revision.
    #[error("no revision in {response}")]
    NoRevision {
        /// The body of the response.
        response: String,
    },
    /// The history was not compacted.
    #[error("{response}")]
    NotCompacted {
        /// The body of the response.
        response: String,
    },
}

impl ControlPlaneError {
    /// Creates an adapter for errors of files.
    pub(crate) fn file(name: &str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let (name, path) = (name.to_owned(), path.into());
        move |source| Self::File { name, path, source }
    }

    /// Creates an adapter for errors of processes.
    pub(crate) fn process(name: &str) -> impl FnOnce(ProcessError) -> Self {
        let name = name.to_owned();
        move |source| Self::Process { name, source }
    }

    /// Creates an adapter for errors of keys and certificates.
    pub(crate) fn credentials(name: &str) -> impl Fn(PkiError) -> Self {
        let name = name.to_owned();
        move |source| Self::Credentials {
            name: name.clone(),
            source,
        }
    }

    /// Creates an adapter for errors of requests.
    pub(crate) fn request(name: &str, what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        let name = name.to_owned();
        move |source| Self::Request {
            name,
            what,
            source: Box::new(source),
        }
    }

    /// Whether a server exited because another process has taken its port.
    pub(crate) fn is_port_clash(&self) -> bool {
        matches!(self, Self::Ended { tail, .. } if tail.contains("address already in use"))
    }
}
