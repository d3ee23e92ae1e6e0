//! Repositories in memory: a server with a history of commits, and the mirror of a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use starling::controller::artifacts::{Artifact, ArtifactError, Artifacts, Origin, resolve_ref};
use starling_core::digest;
use starling_core::revision::{Ancestry, RefPolicy, Revision};
use starling_git::{GitError, RepoAccess};

use crate::judge::Push;

/// Response time of the server.
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// The content of a commit: objects by folder.
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
    unavailable: bool,
    pushes: Vec<Push>,
}

/// A git server with one repository for every URL. Clones share it.
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

    /// Returns all pushes, in order.
    pub(crate) fn pushes(&self) -> Vec<Push> {
        self.history().pushes.clone()
    }

    /// Returns the head commit of a branch.
    pub(crate) fn head(&self, branch: &str) -> Option<String> {
        self.history().refs.get(&format!("refs/heads/{branch}")).cloned()
    }

    /// Sets whether the server responds.
    pub(crate) fn set_unavailable(&self, unavailable: bool) {
        self.history().unavailable = unavailable;
    }

    async fn request<T>(
        &self,
        access: &RepoAccess,
        timeout: Duration,
        read: impl FnOnce(&History) -> T,
    ) -> Result<T, GitError> {
        tokio::time::sleep(ROUND_TRIP.min(timeout)).await;
        let response = {
            let history = self.history();
            (!history.unavailable).then(|| read(&history))
        };
        if let Some(response) = response {
            return Ok(response);
        }
        tokio::time::sleep(timeout.saturating_sub(ROUND_TRIP)).await;
        Err(GitError::Timeout {
            repo: access.url().clone(),
            after: timeout,
        })
    }
}

/// The data on the disk of a mirror.
#[derive(Clone, Debug, Default)]
struct MirrorData {
    commits: BTreeMap<String, Commit>,
    pins: BTreeSet<String>,
}

/// A disk with a mirror. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    data: Arc<Mutex<MirrorData>>,
    /// The snapshots, in order.
    snapshots: Arc<Mutex<Vec<MirrorData>>>,
}

impl Disk {
    /// Replaces the disk with an empty one.
    pub(crate) fn replace(&self) {
        *self.data() = MirrorData::default();
    }

    /// Takes a snapshot.
    pub(crate) fn take_snapshot(&self) {
        let snapshot = self.data().clone();
        self.snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(snapshot);
    }

    /// Puts the disk back to a snapshot: 0 is the last one; the first one, if there are fewer.
    pub(crate) fn put_back(&self, age: usize) {
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = snapshots.iter().rev().nth(age).or(snapshots.first());
        *self.data() = snapshot.cloned().unwrap_or_default();
    }

    fn data(&self) -> MutexGuard<'_, MirrorData> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns the objects in a folder of a fetched commit.
    pub(crate) fn folder(
        &self,
        access: &RepoAccess,
        commit: &str,
        path: &str,
    ) -> Result<Vec<Value>, GitError> {
        let data = self.disk.data();
        let found = data
            .commits
            .get(commit)
            .and_then(|commit| commit.tree.get(path.trim_start_matches("./")));
        found
            .cloned()
            .ok_or_else(|| not_found(access, &format!("{path} in commit {commit}")))
    }

    async fn fetch(&self, access: &RepoAccess, commit: &str, timeout: Duration) -> Result<(), GitError> {
        if self.disk.data().commits.contains_key(commit) {
            return Ok(());
        }
        let commits = self
            .server
            .request(access, timeout, |history| history.commits.clone())
            .await?;
        self.disk.data().commits.extend(commits);
        if self.disk.data().commits.contains_key(commit) {
            return Ok(());
        }
        Err(not_found(access, &format!("commit {commit}")))
    }

    fn ancestry(&self, older: &str, newer: &str) -> Ancestry {
        let data = self.disk.data();
        if !data.commits.contains_key(older) || !data.commits.contains_key(newer) {
            return Ancestry::Missing;
        }
        let descends = |from: &str, to: &str| {
            let parent = |id: &&str| data.commits.get(*id)?.parent.as_deref();
            std::iter::successors(Some(from), parent).any(|id| id == to)
        };
        match (descends(newer, older), descends(older, newer)) {
            (true, _) => Ancestry::Descendant,
            (false, true) => Ancestry::Ancestor,
            (false, false) => Ancestry::Diverged,
        }
    }
}

fn not_found(access: &RepoAccess, what: &str) -> GitError {
    GitError::NotFound {
        repo: access.url().clone(),
        what: what.to_owned(),
    }
}

type PortFuture<'a, T> = BoxFuture<'a, Result<T, ArtifactError>>;

impl Artifacts for Mirrors {
    fn resolve<'a>(
        &'a self,
        origin: &'a Origin,
        policy: &'a RefPolicy,
        timeout: Duration,
    ) -> PortFuture<'a, Artifact> {
        async move {
            let Origin::Git(access) = origin;
            let refs = self
                .server
                .request(access, timeout, |history| history.refs.clone())
                .await?;
            Ok(resolve_ref(origin, policy, &refs)?)
        }
        .boxed()
    }

    fn fetch<'a>(&'a self, artifact: &'a Artifact, timeout: Duration) -> PortFuture<'a, ()> {
        async move {
            let Origin::Git(access) = &artifact.origin;
            Ok(self.fetch(access, artifact.digest(), timeout).await?)
        }
        .boxed()
    }

    fn fetch_all<'a>(&'a self, origin: &'a Origin, timeout: Duration) -> PortFuture<'a, ()> {
        async move {
            let Origin::Git(access) = origin;
            let commits = self
                .server
                .request(access, timeout, |history| history.commits.clone())
                .await?;
            self.disk.data().commits.extend(commits);
            Ok(())
        }
        .boxed()
    }

    fn ancestry<'a>(&'a self, older: &'a Revision, artifact: &'a Artifact) -> PortFuture<'a, Ancestry> {
        async move { Ok(self.ancestry(older.commit().as_str(), artifact.digest())) }.boxed()
    }

    fn keep<'a>(&'a self, artifact: &'a Artifact) -> PortFuture<'a, ()> {
        async move {
            let (Origin::Git(access), commit) = (&artifact.origin, artifact.digest());
            let mut data = self.disk.data();
            if !data.commits.contains_key(commit) {
                return Err(not_found(access, &format!("commit {commit}")).into());
            }
            data.pins.insert(commit.to_owned());
            Ok(())
        }
        .boxed()
    }

    fn release<'a>(&'a self, _origin: &'a Origin, digest: &'a str) -> PortFuture<'a, ()> {
        async move {
            self.disk.data().pins.remove(digest);
            Ok(())
        }
        .boxed()
    }

    fn kept<'a>(&'a self, _origin: &'a Origin) -> PortFuture<'a, BTreeSet<String>> {
        async move { Ok(self.disk.data().pins.clone()) }.boxed()
    }

    fn retain<'a>(&'a self, readers: BTreeMap<String, Option<String>>) -> BoxFuture<'a, io::Result<usize>> {
        async move {
            let mut data = self.disk.data();
            if !readers.is_empty() || data.commits.is_empty() {
                return Ok(0);
            }
            *data = MirrorData::default();
            Ok(1)
        }
        .boxed()
    }
}
