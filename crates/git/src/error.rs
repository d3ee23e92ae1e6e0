//! Errors of repositories, without secrets.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use git2::{ErrorClass, ErrorCode};

use super::access::{RepoAccess, RepoUrl};
use super::links::LinkProblem;

/// Maximum characters of an external message. A server chooses part of the text.
const MAX_MESSAGE: usize = 300;

/// Why a call on a [`super::GitStore`] failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The repository, a ref or a commit does not exist, or the credential may not see it.
    #[error("{what} was not found in {repo}")]
    NotFound {
        /// The repository.
        repo: RepoUrl,
        /// The repository, ref or commit.
        what: String,
    },
    /// The server rejected the credential.
    #[error("{repo} refused the credential")]
    Auth {
        /// The repository.
        repo: RepoUrl,
        /// The response of the server.
        source: Cause,
    },
    /// The server's certificate is not trusted. Nothing was sent to it.
    #[error("the certificate of {repo} is not trusted")]
    Untrusted {
        /// The repository.
        repo: RepoUrl,
        /// The problem with the certificate.
        source: Cause,
    },
    /// The server could not be reached, or the connection failed.
    #[error("{repo} cannot be reached")]
    Unreachable {
        /// The repository.
        repo: RepoUrl,
        /// The cause.
        source: Cause,
    },
    /// The deadline passed, in a queue of this process or at the server.
    #[error("{repo} did not finish within {} s", after.as_secs_f32())]
    Timeout {
        /// The repository.
        repo: RepoUrl,
        /// The timeout of the call.
        after: Duration,
    },
    /// A limit or a rule forbids the call; a retry fails too.
    #[error("{repo} is refused")]
    Refused {
        /// The repository.
        repo: RepoUrl,
        /// The limit or rule.
        #[source]
        reason: Refusal,
    },
    /// The mirror is damaged. The next [`super::GitStore::ensure_commit`] replaces it.
    #[error("the mirror of {repo} is damaged")]
    Corrupt {
        /// The repository.
        repo: RepoUrl,
        /// The cause.
        source: Cause,
    },
    /// The local disk failed; [`io::Error::kind`] identifies a full disk.
    #[error("{what} of {repo} cannot be written or read")]
    Disk {
        /// The repository.
        repo: RepoUrl,
        /// The part of the local state.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Any other error, such as a response that violates git's protocol.
    #[error("git failed for {repo}")]
    Other {
        /// The repository.
        repo: RepoUrl,
        /// The cause.
        source: Cause,
    },
}

/// A limit or rule that a repository, or a call, breaks. Paths are relative to the repository's root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A fetch or the list of refs is too large.
    #[error("more than {limit} bytes were received")]
    TransferBytes {
        /// Bytes allowed.
        limit: u64,
    },
    /// The commits that a mirror keeps are too large together.
    #[error("the mirror has {bytes} bytes, more than {limit}, and all of it is in use")]
    MirrorBytes {
        /// Bytes of the mirror.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A pack has too many objects.
    #[error("a pack has more than {limit} objects")]
    Objects {
        /// Objects allowed.
        limit: u32,
    },
    /// An object of the history is too large, decompressed.
    #[error("the history contains a {what} of {bytes} bytes; at most {limit} are allowed")]
    ObjectBytes {
        /// The kind of the object.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A tree, commit or tag says that an object is of another kind than it is.
    #[error("{path} is of another kind than what refers to it says")]
    OtherKind {
        /// The entry.
        path: String,
    },
    /// Too many heads and tags.
    #[error("there are more than {limit} heads and tags")]
    Refs {
        /// Refs allowed.
        limit: usize,
    },
    /// The name of the host resolves to an address that is never connected to.
    #[error("the host resolves to {address}, which is a local address")]
    Address {
        /// The address.
        address: IpAddr,
    },
    /// The name of the host resolves to an address that the lists of the operator exclude.
    #[error("the host resolves to {address}, which the operator of Starling does not allow")]
    DeniedAddress {
        /// The address.
        address: IpAddr,
    },
    /// The server redirects to another server.
    #[error("the server redirects to another server; use the final URL")]
    Redirect,
    /// The credential cannot be sent.
    #[error("the credential contains a character that is not valid in a header (a line break at its end?)")]
    CredentialText,
    /// The additional certificate authorities cannot be read.
    #[error("the CA bundle contains no usable PEM certificate")]
    CaBundle,
    /// Not 40 hex digits.
    #[error("a commit is named by 40 hex digits")]
    CommitId,
    /// Not a full ref name.
    #[error("a ref is named in full, as in refs/heads/main")]
    RefName,
    /// Not valid as the last part of a ref name.
    #[error("a pin's name has 1 to 100 letters, digits, '-', '_' and single inner '.'")]
    PinName,
    /// The ID names a tree, a blob or a tag.
    #[error("{id} is not a commit")]
    NotACommit {
        /// The ID.
        id: String,
    },
    /// The directory to export into is not empty, or not a directory.
    #[error("an export requires an empty directory")]
    Destination,
    /// Too many entries in all trees.
    #[error("the tree has more than {limit} entries")]
    Entries {
        /// Entries allowed.
        limit: u64,
    },
    /// One file, or one directory's list, is too large.
    #[error("{path} has {bytes} bytes, more than {limit}; a .sourceignore file may leave it out")]
    FileBytes {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// All files together are too large.
    #[error("the files have more than {limit} bytes; a .sourceignore file may leave some out")]
    TotalBytes {
        /// Bytes allowed.
        limit: u64,
    },
    /// Directories within directories.
    #[error("{path} is nested more than {limit} directories deep")]
    Depth {
        /// The directory.
        path: String,
        /// Directories allowed.
        limit: usize,
    },
    /// A name that could point outside of the tree, or into a `.git` directory.
    #[error("{path} has a forbidden name")]
    Name {
        /// The entry.
        path: String,
    },
    /// A path that occurs twice in a tree.
    #[error("{path} exists twice")]
    Duplicate {
        /// The entry.
        path: String,
    },
    /// Neither file, directory, link nor submodule.
    #[error("{path} has an unknown kind")]
    Kind {
        /// The entry.
        path: String,
    },
    /// A symbolic link without a target in the tree.
    #[error("the symbolic link {path} is refused: {problem}; a .sourceignore file may leave it out")]
    Link {
        /// The link.
        path: String,
        /// The problem.
        problem: LinkProblem,
    },
    /// Ignore rules that cannot be read.
    #[error("{place} cannot be used: {problem}")]
    IgnoreRules {
        /// The file or field.
        place: &'static str,
        /// The problem.
        problem: String,
    },
}

/// A message of libgit2, the system or the server, without secrets and control characters, and truncated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// Redacts a message, which may come from a server that received the credential and may quote it.
    pub(super) fn new(message: &str, access: &RepoAccess) -> Self {
        let mut text = message.to_owned();
        for secret in access.credential().secrets() {
            text = text.replace(&secret, "[redacted]");
        }
        let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        Self(printable.take(MAX_MESSAGE).collect())
    }
}

impl GitError {
    /// A refusal of this repository.
    pub(super) fn refused(access: &RepoAccess, reason: Refusal) -> Self {
        Self::Refused {
            repo: access.url().clone(),
            reason,
        }
    }

    /// Something that does not exist.
    pub(super) fn not_found(access: &RepoAccess, what: impl Into<String>) -> Self {
        Self::NotFound {
            repo: access.url().clone(),
            what: what.into(),
        }
    }

    /// A failure of the local disk.
    pub(super) fn disk(access: &RepoAccess, what: &'static str, source: io::Error) -> Self {
        Self::Disk {
            repo: access.url().clone(),
            what,
            source,
        }
    }

    /// Any other failure.
    pub(super) fn other(access: &RepoAccess, message: &str) -> Self {
        Self::Other {
            repo: access.url().clone(),
            source: Cause::new(message, access),
        }
    }

    /// A damaged mirror.
    pub(super) fn corrupt(access: &RepoAccess, message: &str) -> Self {
        Self::Corrupt {
            repo: access.url().clone(),
            source: Cause::new(message, access),
        }
    }

    /// The timeout passed.
    pub(super) fn timeout(access: &RepoAccess, after: Duration) -> Self {
        Self::Timeout {
            repo: access.url().clone(),
            after,
        }
    }

    /// The server is unreachable.
    pub(super) fn unreachable(access: &RepoAccess, message: &str) -> Self {
        Self::Unreachable {
            repo: access.url().clone(),
            source: Cause::new(message, access),
        }
    }

    /// Converts an error of libgit2 in an operation on the mirror alone: unexpected content there is damage.
    ///
    /// Errors of the system are not damage: a mirror is not replaced because memory or file handles are exhausted.
    pub(super) fn from_mirror(access: &RepoAccess, error: &git2::Error) -> Self {
        if disk_is_full(error) {
            return Self::disk(access, "the mirror", io::ErrorKind::StorageFull.into());
        }
        match (error.class(), error.code()) {
            // An ID is the digest of the kind and the content, so the object that names it is wrong, and the mirror is
            // not damaged.
            (ErrorClass::Invalid, _) if error.message().contains("requested type does not match") => {
                let path = "an object of the history".to_owned();
                Self::refused(access, Refusal::OtherKind { path })
            }
            _ if error.message().starts_with("failed to lock file") => Self::other(access, error.message()),
            (ErrorClass::Os | ErrorClass::Filesystem | ErrorClass::NoMemory, code)
                if code != ErrorCode::NotFound =>
            {
                Self::disk(
                    access,
                    "the mirror",
                    io::Error::other(Cause::new(error.message(), access)),
                )
            }
            _ => Self::corrupt(access, error.message()),
        }
    }

    /// Converts an error of libgit2 in a fetch. A damaged mirror and an invalid pack cause the same errors;
    /// `mirror_is_valid` distinguishes them, so that a valid mirror is not replaced because of a faulty server.
    pub(super) fn from_fetch(access: &RepoAccess, error: &git2::Error, mirror_is_valid: bool) -> Self {
        if is_missing_file(error) {
            return Self::not_found(access, "the repository");
        }
        match Self::from_mirror(access, error) {
            Self::Corrupt { repo, source } if mirror_is_valid => Self::Other { repo, source },
            other => other,
        }
    }
}

/// libgit2 reports "failed to resolve path" for a file URL that does not exist.
fn is_missing_file(error: &git2::Error) -> bool {
    let class = matches!(
        error.class(),
        ErrorClass::Os | ErrorClass::Repository | ErrorClass::Filesystem
    );
    class && (error.code() == ErrorCode::NotFound || error.message().starts_with("failed to resolve path"))
}

/// libgit2 appends the message of the system to its own.
fn disk_is_full(error: &git2::Error) -> bool {
    error.message().contains("No space left on device") || error.message().contains("Disk quota exceeded")
}

/// Returns a path of a repository for a message, with control characters and invalid bytes escaped.
pub(super) fn printable(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars().take(MAX_MESSAGE) {
        if c.is_control() {
            let _ = write!(text, "{}", c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Credential;

    fn access() -> RepoAccess {
        let url = RepoUrl::parse("https://example.org/a", false).unwrap();
        RepoAccess::new(
            url,
            Credential::Basic {
                username: "bob".into(),
                password: "hunter2".into(),
            },
        )
    }

    #[test]
    fn a_credential_in_a_message_of_the_server_is_redacted() {
        let answer = format!(
            "denied: hunter2 (Ym9iOmh1bnRlcjI=)\r\n\u{1b}[2J{}",
            "x".repeat(5000)
        );
        let cause = Cause::new(&answer, &access()).to_string();
        assert!(
            !cause.contains("hunter2") && !cause.contains("Ym9i") && !cause.contains('\u{1b}'),
            "{cause}"
        );
        assert!(
            cause.starts_with("denied: [redacted] ([redacted])") && cause.len() <= MAX_MESSAGE,
            "{cause}"
        );
    }

    #[test]
    fn errors_of_libgit2_are_distinguished() {
        use ErrorClass as Class;
        use ErrorCode as Code;
        let kind = |error| match error {
            GitError::NotFound { .. } => "not found",
            GitError::Corrupt { .. } => "corrupt",
            GitError::Disk { source, .. } if source.kind() == io::ErrorKind::StorageFull => "full",
            GitError::Disk { .. } => "disk",
            GitError::Other { .. } => "other",
            error => panic!("{error:?}"),
        };
        let cases = [
            (
                Code::NotFound,
                Class::Odb,
                "object not found",
                ["corrupt", "corrupt", "other"],
            ),
            (
                Code::GenericError,
                Class::Zlib,
                "stream aborted",
                ["corrupt", "corrupt", "other"],
            ),
            (
                Code::GenericError,
                Class::Indexer,
                "packfile is malformed",
                ["corrupt", "corrupt", "other"],
            ),
            (
                Code::NotFound,
                Class::Os,
                "failed to resolve path '/x'",
                ["corrupt", "not found", "not found"],
            ),
            (
                Code::GenericError,
                Class::Os,
                "write: No space left on device",
                ["full", "full", "full"],
            ),
            (
                Code::GenericError,
                Class::Os,
                "open: Too many open files",
                ["disk", "disk", "disk"],
            ),
            (
                Code::GenericError,
                Class::Os,
                "failed to lock file 'x'",
                ["other", "other", "other"],
            ),
        ];
        for (code, class, message, expected) in cases {
            let error = git2::Error::new(code, class, message);
            let found = [
                kind(GitError::from_mirror(&access(), &error)),
                kind(GitError::from_fetch(&access(), &error, false)),
                kind(GitError::from_fetch(&access(), &error, true)),
            ];
            assert_eq!(found, expected, "{message}");
        }
    }
}
