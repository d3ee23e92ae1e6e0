//! The one error of starting, ending and asking control planes.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::pki::PkiError;
use crate::process::ProcessError;

/// What went wrong with a control plane or a server of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlPlaneError {
    /// A name cannot be a folder, a key prefix and a DNS label at once.
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
    /// etcd did not do what it was asked.
    #[error("etcd refused: {answer}")]
    Etcd {
        /// What it said.
        answer: String,
    },
    /// No control plane has this name.
    #[error("no control plane {name}")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The assets lack a program that was asked for.
    #[error("{name} needs {program}, which {folder} does not have")]
    MissingProgram {
        /// The control plane concerned.
        name: String,
        /// The program.
        program: &'static str,
        /// The folder of the assets.
        folder: PathBuf,
    },
    /// A file of a server could not be read or written.
    #[error("{path} of {name}")]
    File {
        /// The server concerned.
        name: String,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No port is free.
    #[error("no free port for {name}")]
    Port {
        /// The server concerned.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Keys, certificates or tokens could not be made.
    #[error("credentials of {name}")]
    Credentials {
        /// The server concerned.
        name: String,
        /// Why.
        #[source]
        source: PkiError,
    },
    /// A process could not be started, signalled or looked at.
    #[error("process of {name}")]
    Process {
        /// The server concerned.
        name: String,
        /// Why.
        #[source]
        source: ProcessError,
    },
    /// A server ended while it was waited for.
    #[error("{name} ended ({status}) before it was ready; the end of {log}:\n{tail}")]
    Ended {
        /// The server concerned.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A server did not get ready in time.
    #[error("{name} not ready after {waited:?} ({last}); the end of {log}:\n{tail}")]
    NotReady {
        /// The server concerned.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// What the last look found.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A task that started a server was cancelled or panicked.
    #[error("start of a control plane was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    /// A client could not be made from the kubeconfig.
    #[error("kubeconfig of {name}")]
    Kubeconfig {
        /// The control plane concerned.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// A client could not be made or a request failed.
    #[error("{what} of {name}")]
    Request {
        /// The control plane concerned.
        name: String,
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The server does not write an audit log.
    #[error("{name} was started without audit log")]
    NoAudit {
        /// The control plane concerned.
        name: String,
    },
    /// The audit log has a line that is not an event.
    #[error("line {line} of the audit log of {name}")]
    AuditLine {
        /// The control plane concerned.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl ControlPlaneError {
    /// Makes an adapter for errors of files.
    pub(crate) fn file(name: &str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let (name, path) = (name.to_owned(), path.into());
        move |source| Self::File { name, path, source }
    }

    /// Makes an adapter for errors of processes.
    pub(crate) fn process(name: &str) -> impl FnOnce(ProcessError) -> Self {
        let name = name.to_owned();
        move |source| Self::Process { name, source }
    }

    /// Makes an adapter for errors of keys and certificates.
    pub(crate) fn credentials(name: &str) -> impl Fn(PkiError) -> Self {
        let name = name.to_owned();
        move |source| Self::Credentials {
            name: name.clone(),
            source,
        }
    }

    /// Makes an adapter for errors of requests.
    pub(crate) fn request(name: &str, what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        let name = name.to_owned();
        move |source| Self::Request {
            name,
            what,
            source: Box::new(source),
        }
    }

    /// Tells whether a server ended because another process has taken its port.
    pub(crate) fn is_port_clash(&self) -> bool {
        matches!(self, Self::Ended { tail, .. } if tail.contains("address already in use"))
    }
}
