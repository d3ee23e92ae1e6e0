//! The mirrors of all repositories, and the operations on them.

mod fetch;
mod joining;
mod retain;

use std::collections::{BTreeMap, HashMap};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use git2::Oid;
use rustls::RootCertStore;
use tokio::sync::{OnceCell, OwnedMutexGuard, RwLock};
use tokio::time::{Instant, timeout, timeout_at};

use super::access::RepoAccess;
use super::ancestry::Ancestry;
use super::error::GitError;
use super::export::{self, ExportStats};
use super::files::TreeFiles;
use super::interrupt::{Interrupt, Stop, StopOnDrop};
use super::limits::GitLimits;
use super::mirror::{self, Mirror, commit_id};
use super::tree::TreeReader;
use super::want::Want;
use starling_net::tenant_pool::{TenantPermit, TenantPool};

/// The time that an interrupted call may take to stop. The call checks the flag every few milliseconds, so only an
/// unresponsive disk or a long walk through history takes longer.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// The number of joins of packs at a time. Each of them needs a core and the disk.
const JOINS: usize = 2;

/// The mirrors of repositories below one directory, and their worker threads.
///
/// Clones share the state. Only one store may use a directory: two processes would delete each other's files.
#[derive(Debug, Clone)]
pub struct GitStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    limits: GitLimits,
    handles: Mutex<HashMap<String, Arc<MirrorHandle>>>,
    network: TenantPool,
    local: TenantPool,
    /// Joins of packs: beside the local calls, since each takes minutes.
    joins: TenantPool,
    /// The system's certificate authorities, read at the first https call.
    roots: OnceCell<RootCertStore>,
}

/// The state of one mirror in this process.
#[derive(Debug)]
struct MirrorHandle {
    path: PathBuf,
    condition: AtomicU8,
    /// Locked shared by calls that read or add objects, and exclusively by calls that replace the mirror or delete
    /// packs.
    content: Arc<RwLock<()>>,
    /// Locked by the call that uses the server: one at a time per mirror, so that a slow server blocks one thread.
    server: Arc<tokio::sync::Mutex<()>>,
    /// Locked while a pin changes: libgit2 does not wait for the lock of a ref, but fails.
    pins_lock: tokio::sync::Mutex<()>,
}

impl MirrorHandle {
    /// Records that a mirror is damaged. Called while `content` is locked, so that a replaced mirror is never marked.
    fn record_damage<T>(&self, outcome: Result<T, GitError>) -> Result<T, GitError> {
        if matches!(outcome, Err(GitError::Corrupt { .. })) {
            self.condition.store(DAMAGED, Ordering::SeqCst);
        }
        outcome
    }
}

/// The state of a mirror on disk: not checked yet, usable, or damaged.
const UNKNOWN: u8 = 0;
const USABLE: u8 = 1;
const DAMAGED: u8 = 2;

/// The lock of the server of one mirror. Shared with the blocking call, so that it is held until the call ends.
type ServerLock = Arc<OwnedMutexGuard<()>>;

/// One call of the public interface, with its repository and deadline.
struct Call {
    access: RepoAccess,
    handle: Arc<MirrorHandle>,
    interrupt: Arc<Interrupt>,
    _stop: StopOnDrop,
}

impl GitStore {
    /// Creates a store of mirrors below `root`, which is created on first use. Nothing is read or written here.
    pub fn new(root: PathBuf, limits: GitLimits) -> Self {
        let network = TenantPool::new(limits.network_jobs);
        let local = TenantPool::new(limits.local_jobs);
        let joins = TenantPool::new(JOINS);
        let inner = Inner {
            root,
            limits,
            handles: Mutex::default(),
            network,
            local,
            joins,
            roots: OnceCell::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Requests the heads and tags of the server: full ref name to commit ID, with annotated tags resolved.
    ///
    /// Returns an empty map for an empty repository. Sends one small request and fetches nothing.
    ///
    /// # Errors
    /// If the server does not respond within `timeout`, or any other [`GitError`].
    pub async fn list_refs(
        &self,
        access: &RepoAccess,
        timeout: Duration,
    ) -> Result<BTreeMap<String, String>, GitError> {
        let call = self.call(access, timeout);
        let refs = if access.url().endpoint().is_some() {
            let permit = self.network_permit(&call).await?;
            let listing = self
                .within(&call, async { self.remote(access).await?.list().await })
                .await??;
            drop(permit);
            listing.refs
        } else {
            self.prepare(&call).await?;
            self.local(&call, (), |remote, mirror| remote.list(mirror))
                .await?
        };
        Ok(refs
            .commits()
            .into_iter()
            .map(|(name, id)| (name, id.to_string()))
            .collect())
    }

    /// Ensures that the mirror contains a commit. Uses the server only if it does not, or if the server has never sent
    /// the reader anything.
    ///
    /// With `refname`, that ref is fetched first, and all heads and tags if the commit is not on it. A damaged mirror
    /// is moved aside together with its pins, and fetched again. Commits that are needed later have to be pinned.
    ///
    /// # Errors
    /// [`GitError::NotFound`] if the server does not have the commit on any head or tag; otherwise see
    /// [`GitError`].
    pub async fn ensure_commit(
        &self,
        access: &RepoAccess,
        refname: Option<&str>,
        commit: &str,
        timeout: Duration,
    ) -> Result<(), GitError> {
        let id = commit_id(access, commit)?;
        let want = Want::parse(access, refname)?;
        let call = self.call(access, timeout);
        if self.contains(&call, id).await? {
            return Ok(());
        }
        let server_lock = self.lock_server(&call).await?;
        // The previous holder of the lock may have fetched the same commit.
        if self.contains(&call, id).await? || self.fetch(&call, &server_lock, want, id).await? {
            return Ok(());
        }
        Err(GitError::not_found(access, format!("commit {commit}")))
    }

    /// Fetches all heads and tags.
    ///
    /// # Errors
    /// As [`Self::ensure_commit`].
    pub async fn fetch_all(&self, access: &RepoAccess, timeout: Duration) -> Result<(), GitError> {
        let call = self.call(access, timeout);
        self.prepare(&call).await?;
        let server_lock = self.lock_server(&call).await?;
        self.fetch_one(&call, &server_lock, Want::Everything).await
    }

    /// Determines the relation of `newer` to `older` in the mirror, within [`GitLimits::max_ancestry_commits`] and
    /// [`GitLimits::ancestry_timeout`].
    ///
    /// # Errors
    /// [`GitError::Corrupt`] if history between them cannot be read; [`GitError::Timeout`] if the walk did not start in
    /// time.
    pub async fn ancestry(
        &self,
        access: &RepoAccess,
        older: &str,
        newer: &str,
    ) -> Result<Ancestry, GitError> {
        let (older, newer) = (commit_id(access, older)?, commit_id(access, newer)?);
        let limits = &self.inner.limits;
        let call = self.call(access, limits.ancestry_timeout);
        let (max_commits, interrupt) = (limits.max_ancestry_commits, Arc::clone(&call.interrupt));
        let answer = self
            .read_as_reader(&call, move |mirror| {
                mirror.ancestry(older, newer, max_commits, &interrupt)
            })
            .await?;
        Ok(answer.unwrap_or(Ancestry::Missing))
    }

    /// Pins a commit of the mirror under `name`, so that it is kept even if no branch contains it any more.
    ///
    /// # Errors
    /// [`GitError::NotFound`] if the mirror does not contain the commit.
    pub async fn pin(&self, access: &RepoAccess, name: &str, commit: &str) -> Result<(), GitError> {
        let id = commit_id(access, commit)?;
        let call = self.local_call(access);
        let pin = name.to_owned();
        let _pins_lock = self.within(&call, call.handle.pins_lock.lock()).await?;
        let done = self
            .read_as_reader(&call, move |mirror| mirror.pin(&pin, id))
            .await?;
        done.ok_or_else(|| GitError::not_found(access, format!("commit {commit}")))
    }

    /// Removes a pin, if the pin and its mirror exist.
    ///
    /// # Errors
    /// [`GitError::Corrupt`] or [`GitError::Disk`] if the ref cannot be deleted.
    pub async fn unpin(&self, access: &RepoAccess, name: &str) -> Result<(), GitError> {
        let call = self.local_call(access);
        let name = name.to_owned();
        let _pins_lock = self.within(&call, call.handle.pins_lock.lock()).await?;
        self.read(&call, move |mirror| mirror.unpin(&name))
            .await
            .map(|_| ())
    }

    /// All pins of the mirror: name to commit ID. Empty if there is no mirror.
    ///
    /// # Errors
    /// [`GitError::Corrupt`] if the refs cannot be read.
    pub async fn list_pins(&self, access: &RepoAccess) -> Result<BTreeMap<String, String>, GitError> {
        let call = self.local_call(access);
        Ok(self
            .read(&call, |mirror| mirror.pins())
            .await?
            .unwrap_or_default())
    }

    /// Writes the tree of a commit into `destination`, an empty directory or a new path.
    ///
    /// Writes regular files with their executable bit, directories, and symbolic links with a target inside the tree;
    /// any other link refuses the whole tree. Links to directories may form cycles, so a walk must not follow them.
    /// Submodules are counted and skipped. A `.sourceignore` file in the root, in the syntax of gitignore, excludes
    /// files; `ignore` appends lines to it. After an error, the directory is empty.
    ///
    /// # Errors
    /// [`GitError::NotFound`] if the mirror does not contain the commit, [`GitError::Refused`] with the path that
    /// breaks a rule, [`GitError::Corrupt`] if an object is missing; then the next [`GitStore::ensure_commit`] fetches
    /// again.
    pub async fn export(
        &self,
        access: &RepoAccess,
        commit: &str,
        destination: &Path,
        ignore: Option<&str>,
    ) -> Result<ExportStats, GitError> {
        let id = commit_id(access, commit)?;
        let call = self.local_call(access);
        let (limits, interrupt) = (self.inner.limits.export.clone(), Arc::clone(&call.interrupt));
        let (owned, destination) = (access.clone(), destination.to_path_buf());
        let ignore = ignore.map(str::to_owned);
        let stats = self
            .read_as_reader(&call, move |mirror| {
                export::export(
                    mirror,
                    &owned,
                    id,
                    &destination,
                    ignore.as_deref(),
                    &limits,
                    &interrupt,
                )
            })
            .await?;
        stats.ok_or_else(|| GitError::not_found(access, format!("commit {commit}")))
    }

    /// Reads the tree of a commit with `work`, on a thread and within the limits of an exported tree. Nothing is
    /// written.
    ///
    /// A `.sourceignore` file and `ignore` exclude files as in [`Self::export`].
    ///
    /// # Errors
    /// As [`Self::export`], for what `work` has looked up: the first error ends the reading, whatever `work` returns.
    pub async fn read_tree<T: Send + 'static>(
        &self,
        access: &RepoAccess,
        commit: &str,
        ignore: Option<&str>,
        work: impl FnOnce(&TreeReader<'_>) -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let id = commit_id(access, commit)?;
        let call = self.local_call(access);
        let (limits, interrupt) = (self.inner.limits.export.clone(), Arc::clone(&call.interrupt));
        let (owned, ignore) = (access.clone(), ignore.map(str::to_owned));
        let read = self
            .read_as_reader(&call, move |mirror| {
                let reader = TreeReader::open(mirror, &owned, id, ignore.as_deref(), &limits, &interrupt)?;
                let outcome = work(&reader);
                reader.finish().map(|()| outcome)
            })
            .await?;
        read.ok_or_else(|| GitError::not_found(access, format!("commit {commit}")))
    }

    /// Writes files of [`Self::read_tree`] into `destination`, an empty directory or a new path.
    ///
    /// Each link must lead to a file or directory of the list. After an error, the directory is empty.
    ///
    /// # Errors
    /// As [`Self::export`].
    pub async fn write_files(
        &self,
        access: &RepoAccess,
        files: TreeFiles,
        destination: &Path,
    ) -> Result<ExportStats, GitError> {
        let call = self.local_call(access);
        let (limits, interrupt) = (self.inner.limits.export.clone(), Arc::clone(&call.interrupt));
        let (owned, destination) = (access.clone(), destination.to_path_buf());
        let stats = self
            .read_as_reader(&call, move |mirror| {
                export::write_files(mirror, &owned, files.files(), &destination, &limits, &interrupt)
            })
            .await?;
        stats.ok_or_else(|| GitError::not_found(access, "the files of a commit".to_owned()))
    }

    fn call(&self, access: &RepoAccess, timeout: Duration) -> Call {
        let interrupt = Interrupt::new(timeout);
        Call {
            access: access.clone(),
            handle: self.handle(&access.mirror_key()),
            _stop: StopOnDrop(Arc::clone(&interrupt)),
            interrupt,
        }
    }

    fn local_call(&self, access: &RepoAccess) -> Call {
        self.call(access, self.inner.limits.local_timeout)
    }

    fn handle(&self, mirror_key: &str) -> Arc<MirrorHandle> {
        let mut handles = self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(handles.entry(mirror_key.to_owned()).or_insert_with(|| {
            Arc::new(MirrorHandle {
                path: self.inner.root.join(mirror_key),
                condition: AtomicU8::new(UNKNOWN),
                content: Arc::default(),
                server: Arc::default(),
                pins_lock: tokio::sync::Mutex::default(),
            })
        }))
    }

    /// Waits for `wait`, but not beyond the deadline of the call.
    async fn within<T>(&self, call: &Call, wait: impl Future<Output = T>) -> Result<T, GitError> {
        let deadline = Instant::from_std(call.interrupt.deadline());
        timeout_at(deadline, wait)
            .await
            .map_err(|_| GitError::timeout(&call.access, call.interrupt.after()))
    }

    async fn lock_server(&self, call: &Call) -> Result<ServerLock, GitError> {
        self.within(call, Arc::clone(&call.handle.server).lock_owned())
            .await
            .map(Arc::new)
    }

    /// Creates the mirror, or replaces a damaged one.
    async fn prepare(&self, call: &Call) -> Result<(), GitError> {
        if call.handle.condition.load(Ordering::SeqCst) == USABLE {
            return Ok(());
        }
        let alone = self
            .within(call, Arc::clone(&call.handle.content).write_owned())
            .await?;
        let (handle, access, root) = (
            Arc::clone(&call.handle),
            call.access.clone(),
            self.inner.root.clone(),
        );
        let permit = self.permit(call, &self.inner.local).await?;
        self.job(call, (alone, permit), move || {
            let condition = handle.condition.load(Ordering::SeqCst);
            if condition != USABLE {
                let created = DirBuilder::new().recursive(true).mode(0o700).create(&root);
                created.map_err(|error| GitError::disk(&access, "the directory of mirrors", error))?;
                mirror::prepare(&handle.path, &access, condition == DAMAGED)?;
                handle.condition.store(USABLE, Ordering::SeqCst);
            }
            Ok(())
        })
        .await
    }

    /// Whether the mirror contains a commit for the reader. A damaged mirror is replaced by an empty one.
    async fn contains(&self, call: &Call, id: Oid) -> Result<bool, GitError> {
        self.prepare(call).await?;
        match self.read_as_reader(call, move |mirror| mirror.contains(id)).await {
            Err(GitError::Corrupt { .. }) => self.prepare(call).await.map(|()| false),
            other => Ok(other?.unwrap_or(false)),
        }
    }

    /// Runs an operation that reads content, as [`Self::read`] does; `None` also if the server has never sent the
    /// reader anything.
    async fn read_as_reader<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&Mirror<'_>) -> Result<T, GitError> + Send + 'static,
    ) -> Result<Option<T>, GitError> {
        let read = self.read(call, move |mirror| {
            mirror.has_reader().then(|| work(mirror)).transpose()
        });
        Ok(read.await?.flatten())
    }

    /// Runs an operation on a mirror without its server; `None` if there is no mirror.
    async fn read<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&Mirror<'_>) -> Result<T, GitError> + Send + 'static,
    ) -> Result<Option<T>, GitError> {
        let shared = self
            .within(call, Arc::clone(&call.handle.content).read_owned())
            .await?;
        let permit = self.permit(call, &self.inner.local).await?;
        self.read_holding(call, (permit, shared), work).await
    }

    /// Runs an operation on a mirror with the lock of its content and a permit, which it holds until the end.
    async fn read_holding<T: Send + 'static>(
        &self,
        call: &Call,
        guard: impl Send + 'static,
        work: impl FnOnce(&Mirror<'_>) -> Result<T, GitError> + Send + 'static,
    ) -> Result<Option<T>, GitError> {
        let (path, access) = (call.handle.path.clone(), call.access.clone());
        let handle = Arc::clone(&call.handle);
        self.job(call, guard, move || {
            if !path.exists() {
                return Ok(None);
            }
            let outcome = Mirror::open(&path, &access).and_then(|mirror| work(&mirror));
            handle.record_damage(outcome).map(Some)
        })
        .await
    }

    async fn network_permit(&self, call: &Call) -> Result<TenantPermit, GitError> {
        self.permit(call, &self.inner.network).await
    }

    async fn permit(&self, call: &Call, pool: &TenantPool) -> Result<TenantPermit, GitError> {
        let permit = self.within(call, pool.acquire(call.access.reader())).await?;
        // The semaphores are never closed.
        permit.map_err(|error| GitError::other(&call.access, &error.to_string()))
    }

    /// Runs blocking work on a thread. `guard` is dropped when the work ends, even if no caller waits any more.
    async fn job<T: Send + 'static>(
        &self,
        call: &Call,
        guard: impl Send + 'static,
        work: impl FnOnce() -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        let mut job = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            work()
        });
        let joined = match self.within(call, &mut job).await {
            Ok(joined) => joined,
            Err(late) => {
                call.interrupt.raise(Stop::Deadline);
                timeout(STOP_GRACE, job).await.map_err(|_| late)?
            }
        };
        joined.map_err(|error| GitError::other(&call.access, &error.to_string()))?
    }
}
