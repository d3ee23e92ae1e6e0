//! Git: listing refs, fetching commits, reading trees.
//!
//! An adapter over libgit2. It knows refs and commit ids as plain strings; which ref matters, and whether a
//! moved one is welcome, is decided elsewhere. One bare mirror is kept per (URL, credential), so that a
//! Source never reads what another credential fetched.
//!
//! - [`RepoUrl`], [`Credential`], [`RepoAccess`]: where a repository is and how it is reached.
//! - [`GitStore`]: the mirrors and everything done with them; work is bounded and each call has a deadline.
//! - [`GitError`]: what may go wrong; no variant carries a secret.
//!
//! libgit2 reads and writes mirrors; it never opens a connection. Servers are talked to by `http` and
//! `smart`, in async Rust: a deadline closes the connection, addresses are checked when they are dialled,
//! bytes are counted as they come. Trees are read from the object database and written by `export`; git's
//! checkout, hooks, filters, submodules and configuration are never used.

mod access;
mod dial;
mod error;
mod export;
mod http;
mod interrupt;
mod limits;
mod links;
mod local;
mod mirror;
mod pack;
mod smart;
mod store;
mod tls;
mod want;

pub use access::{Credential, RepoAccess, RepoUrl, UrlError};
pub use error::{Cause, GitError, Refusal};
pub use export::ExportStats;
pub use limits::{ExportLimits, GitLimits};
pub use links::LinkProblem;
pub use store::GitStore;
