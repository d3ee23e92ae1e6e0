//! Repositories in memory: a server with a history of commits, and the mirror that a controller has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use starling::controller::ports;
use starling::git::{GitError, RepoAccess};
use starling_core::digest;

use crate::judge::Push;

/// How long the server takes to answer.
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// What a commit holds: objects by the folder that they are in.
pub(crate) type Tree = BTreeMap<String, Vec<Value>>;

/// A commit.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) parent: Option<String>,
    pub(crate) tree: Tree,
}

#[derive(Debug, Default)]
struct History {
    refs: BTreeMap<String, String>,
    commits: BTreeMap<String, Commit>,
    away: bool,
    pushes: Vec<Push>,
}

/// A git server with one repository, whatever the URL. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct GitServer(Arc<Mutex<History>>);

impl GitServer {
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a commit on a branch; returns its ID.
    pub(crate) fn push(&self, at: Timestamp, branch: &str, tree: Tree) -> String {
        let mut history = self.history();
        let name = format!("refs/heads/{branch}");
        let parent = history.refs.get(&name).cloned();
        let id: String = digest::of(&("commit", &parent, &tree))
            .chars()
            .skip("sha256:".len())
            .take(40)
            .collect();
        history.commits.insert(
            id.clone(),
            Commit {
                parent,
                tree: tree.clone(),
            },
        );
        history.pushes.push(Push {
            at,
            reference: name.clone(),
            commit: id.clone(),
            objects: tree,
        });
        history.refs.insert(name, id.clone());
        id
    }

    /// All that was pushed, in order.
    pub(crate) fn pushes(&self) -> Vec<Push> {
        self.history().pushes.clone()
    }

    /// The commit that a branch is at.
    pub(crate) fn head(&self, branch: &str) -> Option<String> {
        self.history().refs.get(&format!("refs/heads/{branch}")).cloned()
    }

    /// Whether the server does not answer.
    pub(crate) fn set_away(&self, away: bool) {
        self.history().away = away;
    }

    async fn ask<T>(
        &self,
        access: &RepoAccess,
        timeout: Duration,
        question: impl FnOnce(&History) -> T,
    ) -> Result<T, GitError> {
        tokio::time::sleep(ROUND_TRIP.min(timeout)).await;
        let answer = {
            let history = self.history();
            (!history.away).then(|| question(&history))
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        tokio::time::sleep(timeout.saturating_sub(ROUND_TRIP)).await;
        Err(GitError::Timeout {
            repo: access.url().clone(),
            after: timeout,
        })
    }
}

/// What is on the disk of a mirror.
#[derive(Debug, Default)]
struct Kept {
    commits: BTreeMap<String, Commit>,
    pins: BTreeMap<String, String>,
}

/// A disk with a mirror. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Kept>>);

impl Disk {
    /// It breaks, and another one takes its place.
    pub(crate) fn lose(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mirrors of a controller.
#[derive(Clone, Debug)]
pub(crate) struct Mirrors {
    server: GitServer,
    disk: Disk,
}

impl Mirrors {
    pub(crate) fn new(server: GitServer, disk: Disk) -> Self {
        Self { server, disk }
    }

    /// The objects in a folder of a commit that is at hand.
    pub(crate) fn folder(
        &self,
        access: &RepoAccess,
        commit: &str,
        path: &str,
    ) -> Result<Vec<Value>, GitError> {
        let kept = self.disk.kept();
        let found = kept
            .commits
            .get(commit)
            .and_then(|commit| commit.tree.get(path.trim_start_matches("./")));
        found
            .cloned()
            .ok_or_else(|| not_found(access, &format!("{path} in commit {commit}")))
    }

    async fn fetch(&self, access: &RepoAccess, commit: &str, timeout: Duration) -> Result<(), GitError> {
        if self.disk.kept().commits.contains_key(commit) {
            return Ok(());
        }
        let commits = self
            .server
            .ask(access, timeout, |history| history.commits.clone())
            .await?;
        self.disk.kept().commits.extend(commits);
        if self.disk.kept().commits.contains_key(commit) {
            return Ok(());
        }
        Err(not_found(access, &format!("commit {commit}")))
    }

    fn descends(&self, older: &str, newer: &str) -> Option<bool> {
        let kept = self.disk.kept();
        kept.commits.get(older)?;
        kept.commits.get(newer)?;
        let mut at = Some(newer);
        while let Some(id) = at {
            if id == older {
                return Some(true);
            }
            at = kept.commits.get(id)?.parent.as_deref();
        }
        Some(false)
    }
}

fn not_found(access: &RepoAccess, what: &str) -> GitError {
    GitError::NotFound {
        repo: access.url().clone(),
        what: what.to_owned(),
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, GitError>>;

impl ports::Git for Mirrors {
    fn list_refs<'a>(
        &'a self,
        access: &'a RepoAccess,
        timeout: Duration,
    ) -> Answer<'a, BTreeMap<String, String>> {
        self.server
            .ask(access, timeout, |history| history.refs.clone())
            .boxed()
    }

    fn ensure_commit<'a>(
        &'a self,
        access: &'a RepoAccess,
        _refname: Option<&'a str>,
        commit: &'a str,
        timeout: Duration,
    ) -> Answer<'a, ()> {
        self.fetch(access, commit, timeout).boxed()
    }

    fn is_descendant<'a>(
        &'a self,
        _access: &'a RepoAccess,
        older: &'a str,
        newer: &'a str,
    ) -> Answer<'a, Option<bool>> {
        async move { Ok(self.descends(older, newer)) }.boxed()
    }

    fn pin<'a>(&'a self, access: &'a RepoAccess, name: &'a str, commit: &'a str) -> Answer<'a, ()> {
        async move {
            let mut kept = self.disk.kept();
            if !kept.commits.contains_key(commit) {
                return Err(not_found(access, &format!("commit {commit}")));
            }
            kept.pins.insert(name.to_owned(), commit.to_owned());
            Ok(())
        }
        .boxed()
    }

    fn unpin<'a>(&'a self, _access: &'a RepoAccess, name: &'a str) -> Answer<'a, ()> {
        async move {
            self.disk.kept().pins.remove(name);
            Ok(())
        }
        .boxed()
    }

    fn list_pins<'a>(&'a self, _access: &'a RepoAccess) -> Answer<'a, BTreeMap<String, String>> {
        async move { Ok(self.disk.kept().pins.clone()) }.boxed()
    }

    fn retain<'a>(&'a self, keep: BTreeSet<String>) -> BoxFuture<'a, io::Result<usize>> {
        async move {
            let mut kept = self.disk.kept();
            if !keep.is_empty() || kept.commits.is_empty() {
                return Ok(0);
            }
            *kept = Kept::default();
            Ok(1)
        }
        .boxed()
    }
}
