//! The git adapter against real repositories and a real `git http-backend`.

// A fixture that cannot be built is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Trees are written as literals, which a `&` before each would make harder to read.
#![allow(clippy::needless_pass_by_value)]

#[path = "git/fixture.rs"]
mod fixture;
#[path = "git/server.rs"]
mod server;

#[path = "git/durable.rs"]
mod durable;
#[path = "git/export.rs"]
mod export;
#[path = "git/mirror.rs"]
mod mirror;
#[path = "git/network.rs"]
mod network;
#[path = "git/tree.rs"]
mod tree;

use std::time::Duration;

use starling_git::{ExportLimits, GitLimits, GitStore};
use tempfile::TempDir;

/// Long enough for a loaded machine; no test waits for it to pass.
const LONG: Duration = Duration::from_secs(60);

/// A store in a folder of its own.
struct Store {
    folder: TempDir,
    git: GitStore,
}

fn store() -> Store {
    store_with(GitLimits::default())
}

fn store_with(limits: GitLimits) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let git = GitStore::new(folder.path().join("mirrors"), limits);
    Store { folder, git }
}

fn export_limits(change: impl FnOnce(&mut ExportLimits)) -> GitLimits {
    let mut limits = GitLimits::default();
    change(&mut limits.export);
    limits
}
