//! What may go wrong with a repository, told without its secrets.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use git2::{ErrorClass, ErrorCode};

use super::access::{RepoAccess, RepoUrl};
use super::links::LinkProblem;

/// Characters of a foreign message that are kept. Servers choose part of the text.
const MAX_MESSAGE: usize = 300;

/// Why a call on a [`super::GitStore`] failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The repository, a ref or a commit does not exist, or the credential may not see it.
    #[error("{what} was not found in {repo}")]
    NotFound {
        /// The repository asked.
        repo: RepoUrl,
        /// What was looked for.
        what: String,
    },
    /// The server wants another credential.
    #[error("{repo} refused the credential")]
    Auth {
        /// The repository asked.
        repo: RepoUrl,
        /// The server's answer.
        source: Cause,
    },
    /// The server's certificate is not trusted. Nothing was sent to it.
    #[error("the certificate of {repo} is not trusted")]
    Untrusted {
        /// The repository asked.
        repo: RepoUrl,
        /// What is wrong with the certificate.
        source: Cause,
    },
    /// The server could not be reached or broke off.
    #[error("{repo} cannot be reached")]
    Unreachable {
        /// The repository asked.
        repo: RepoUrl,
        /// Where it failed.
        source: Cause,
    },
    /// The deadline passed, in a queue of this process or at the server.
    #[error("{repo} did not finish within {} s", after.as_secs_f32())]
    Timeout {
        /// The repository asked.
        repo: RepoUrl,
        /// The time the call was given.
        after: Duration,
    },
    /// A limit or a rule forbids it; trying again changes nothing.
    #[error("{repo} is refused")]
    Refused {
        /// The repository concerned.
        repo: RepoUrl,
        /// The limit or rule.
        #[source]
        reason: Refusal,
    },
    /// The mirror does not hold what it should. The next [`super::GitStore::ensure_commit`] builds it anew.
    #[error("the mirror of {repo} is damaged")]
    Corrupt {
        /// The repository concerned.
        repo: RepoUrl,
        /// What was noticed.
        source: Cause,
    },
    /// The local disk failed; [`io::Error::kind`] tells a full one apart.
    #[error("{what} of {repo} cannot be written or read")]
    Disk {
        /// The repository concerned.
        repo: RepoUrl,
        /// Which part of the local state.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Anything else, such as an answer that is not git's protocol.
    #[error("git failed for {repo}")]
    Other {
        /// The repository concerned.
        repo: RepoUrl,
        /// What was noticed.
        source: Cause,
    },
}

/// A limit or rule that a repository, or a call, breaks. Paths are relative to the repository's root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A fetch or the list of refs is too long.
    #[error("more than {limit} bytes were received")]
    TransferBytes {
        /// Bytes allowed.
        limit: u64,
    },
    /// Too many heads and tags.
    #[error("there are more than {limit} heads and tags")]
    Refs {
        /// Refs allowed.
        limit: usize,
    },
    /// The host's name leads to an address that is not dialled.
    #[error("the host resolves to {address}, which is a local address")]
    Address {
        /// The address.
        address: IpAddr,
    },
    /// The server answers with a redirect to elsewhere.
    #[error("the server redirects to another place; use the final URL")]
    Redirect,
    /// The credential cannot be sent.
    #[error("the credential holds a character that no header may have (a line break at its end?)")]
    CredentialText,
    /// The additional certificate authorities cannot be read.
    #[error("the CA bundle holds no usable PEM certificate")]
    CaBundle,
    /// Not 40 hex digits.
    #[error("a commit is named by 40 hex digits")]
    CommitId,
    /// Not a full ref name.
    #[error("a ref is named in full, as in refs/heads/main")]
    RefName,
    /// Not usable as the last part of a ref's name.
    #[error("a pin's name has 1 to 100 letters, digits, '-', '_' and single inner '.'")]
    PinName,
    /// The ID names a tree, a blob or a tag.
    #[error("{id} is not a commit")]
    NotACommit {
        /// The ID.
        id: String,
    },
    /// The folder to export into is not empty, or not a folder.
    #[error("an export needs an empty folder of its own")]
    Destination,
    /// Too many entries in all trees.
    #[error("the tree has more than {limit} entries")]
    Entries {
        /// Entries allowed.
        limit: u64,
    },
    /// One file, or one folder's list, is too large.
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
    /// Folders within folders.
    #[error("{path} lies deeper than {limit} folders")]
    Depth {
        /// The folder.
        path: String,
        /// Folders allowed.
        limit: usize,
    },
    /// A name that could lead out of the tree, or into a `.git` folder.
    #[error("{path} has a forbidden name")]
    Name {
        /// The entry.
        path: String,
    },
    /// A path that a tree has twice.
    #[error("{path} exists twice")]
    Duplicate {
        /// The entry.
        path: String,
    },
    /// Neither file, folder, link nor submodule.
    #[error("{path} has an unknown kind")]
    Kind {
        /// The entry.
        path: String,
    },
    /// A symbolic link that does not lead to something in the tree.
    #[error("the symbolic link {path} is refused: {problem}; a .sourceignore file may leave it out")]
    Link {
        /// The link.
        path: String,
        /// What is wrong with it.
        problem: LinkProblem,
    },
    /// Ignore rules that cannot be read.
    #[error("{place} cannot be used: {problem}")]
    IgnoreRules {
        /// The file or field.
        place: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// A message from libgit2, the system or the server, with secrets and control characters taken out and cut to
/// a length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// Cleans a message that may have come from a server, which knows the credential and may repeat it.
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

    /// Something that is not there.
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

    /// A failure without a better name.
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

    /// The time is over.
    pub(super) fn timeout(access: &RepoAccess, after: Duration) -> Self {
        Self::Timeout {
            repo: access.url().clone(),
            after,
        }
    }

    /// The server is out of reach.
    pub(super) fn unreachable(access: &RepoAccess, message: &str) -> Self {
        Self::Unreachable {
            repo: access.url().clone(),
            source: Cause::new(message, access),
        }
    }

    /// Reads libgit2's verdict on work that only touched the mirror: what it cannot make sense of there is
    /// damage.
    ///
    /// What the system refuses is not: a mirror is not thrown away for want of memory or file handles.
    pub(super) fn from_mirror(access: &RepoAccess, error: &git2::Error) -> Self {
        if disk_is_full(error) {
            return Self::disk(access, "the mirror", io::ErrorKind::StorageFull.into());
        }
        match (error.class(), error.code()) {
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

    /// Reads libgit2's verdict on a fetch. The same errors come from a damaged mirror and from a bad pack;
    /// `mirror_is_sound` tells which, so that a good mirror is not thrown away for a bad server.
    pub(super) fn from_fetch(access: &RepoAccess, error: &git2::Error, mirror_is_sound: bool) -> Self {
        if is_missing_file(error) {
            return Self::not_found(access, "the repository");
        }
        match Self::from_mirror(access, error) {
            Self::Corrupt { repo, source } if mirror_is_sound => Self::Other { repo, source },
            other => other,
        }
    }
}

/// libgit2 says "failed to resolve path" of a file URL that leads nowhere.
fn is_missing_file(error: &git2::Error) -> bool {
    let class = matches!(
        error.class(),
        ErrorClass::Os | ErrorClass::Repository | ErrorClass::Filesystem
    );
    class && (error.code() == ErrorCode::NotFound || error.message().starts_with("failed to resolve path"))
}

/// libgit2 appends the system's text to its own.
fn disk_is_full(error: &git2::Error) -> bool {
    error.message().contains("No space left on device") || error.message().contains("Disk quota exceeded")
}

/// A path of a repository for a message: control characters and foreign bytes escaped.
pub(super) fn shown(path: &Path) -> String {
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
    use crate::git::Credential;

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
    fn a_server_that_repeats_the_credential_does_not_get_it_into_an_error() {
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
    fn verdicts_of_libgit2_are_told_apart() {
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
