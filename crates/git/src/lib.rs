//! Git: listing refs, fetching commits, reading trees.
//!
//! An adapter over libgit2. Refs and commit IDs are plain strings; core decides which ref is used, and whether it may
//! move. There is one bare mirror per URL and name of a Secret. A Source reads from it only what the server would send
//! to that Source: nothing before its first fetch, whoever else has filled the mirror.
//!
//! - [`RepoUrl`], [`Credential`], [`RepoAccess`]: the URL of a repository and the credential for it.
//! - [`GitStore`]: the mirrors and all operations on them; work is limited and each call has a deadline.
//! - [`TreeReader`]: single entries of the tree of a commit, read without a file on disk; [`Trace`]: which ones.
//! - [`GitError`]: errors; no variant contains a secret.
//!
//! libgit2 reads and writes mirrors; it never opens a connection. `http` and `smart` communicate with servers, in async
//! Rust: a deadline closes the connection, addresses are checked when they are dialled, and received bytes are counted.
//! What a pack declares is checked by `scan` before libgit2 allocates memory for it. Trees are read from the object
//! database and written by `export`; git's checkout, hooks, filters and submodules are never used, nor is the
//! configuration of the system or a user.

mod access;
mod ancestry;
mod configuration;
mod error;
mod export;
mod files;
#[cfg(test)]
mod fuzz;
mod http;
mod interrupt;
mod kind;
mod limits;
mod links;
mod local;
mod mirror;
mod pack;
mod readers;
mod scan;
mod smart;
mod store;
mod trace;
mod tree;
mod want;

pub use access::{Credential, RepoAccess, RepoUrl, UrlError};
pub use ancestry::Ancestry;
pub use error::{Cause, GitError, Refusal};
pub use export::ExportStats;
pub use files::{TreeFile, TreeFiles};
pub use limits::{ExportLimits, GitLimits, PackLimits};
pub use links::LinkProblem;
pub use store::GitStore;
pub use trace::Trace;
pub use tree::{TreeKind, TreeReader};
