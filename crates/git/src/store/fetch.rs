//! Fetches commits into a mirror, from a server or from a local directory.

use std::sync::Arc;

use git2::Oid;
use starling_net::tls;
use tokio::sync::mpsc;

use super::{Call, GitStore, ServerLock};
use crate::access::RepoAccess;
use crate::error::GitError;
use crate::http::Remote;
use crate::local::LocalRemote;
use crate::mirror::Mirror;
use crate::pack::{self, Negotiation};
use crate::want::Want;

/// Maximum chunks of a pack that wait for the disk. A chunk is a packet of at most 64 KiB. If there are more, the
/// server waits.
const QUEUED_CHUNKS: usize = 16;

impl GitStore {
    /// Fetches until the mirror contains the commit; `false` if it does not after everything was fetched.
    pub(super) async fn fetch(
        &self,
        call: &Call,
        server_lock: &ServerLock,
        want: Want,
        id: Oid,
    ) -> Result<bool, GitError> {
        let mut wants = vec![Want::Everything];
        if want != Want::Everything {
            wants.push(want);
        }
        while let Some(want) = wants.pop() {
            self.fetch_one(call, server_lock, want).await?;
            if self.contains(call, id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fetches refs, and records that the reader may read the mirror. A damaged mirror is replaced.
    pub(super) async fn fetch_one(
        &self,
        call: &Call,
        server_lock: &ServerLock,
        want: Want,
    ) -> Result<(), GitError> {
        self.ensure_capacity(call, server_lock).await?;
        match self.fetch_once(call, server_lock, want.clone()).await {
            // Once: if a new mirror is damaged immediately, the mirror is not the cause.
            Err(GitError::Corrupt { .. }) => {
                self.prepare(call).await?;
                self.fetch_once(call, server_lock, want).await?;
            }
            other => other?,
        }
        self.read(call, |mirror| mirror.add_reader()).await?;
        self.join_later(&call.access);
        Ok(())
    }

    async fn fetch_once(&self, call: &Call, server_lock: &ServerLock, want: Want) -> Result<(), GitError> {
        if call.access.url().endpoint().is_some() {
            return self.fetch_http(call, server_lock, want).await;
        }
        self.local(call, Arc::clone(server_lock), move |remote, mirror| {
            remote.fetch(mirror, &want)
        })
        .await
    }

    /// Lists, negotiates, and writes the pack while it is received.
    async fn fetch_http(&self, call: &Call, server_lock: &ServerLock, want: Want) -> Result<(), GitError> {
        let permit = self.network_permit(call).await?;
        let remote = self.within(call, self.remote(&call.access)).await??;
        let listing = self.within(call, remote.list()).await??;
        let (tips, access) = (want.tips(&listing.refs), call.access.clone());
        let Some(Negotiation { wants, haves }) = self
            .read(call, move |mirror| pack::negotiate(mirror, &access, &tips))
            .await?
        else {
            return call
                .handle
                .record_damage(Err(GitError::corrupt(&call.access, "the mirror has disappeared")));
        };
        let (chunks, mut coming) = mpsc::channel(QUEUED_CHUNKS);
        let fetch = async {
            if wants.is_empty() {
                // The refs moved to commits that the mirror already contains; only the refs are stored.
                drop(chunks);
                return Ok(());
            }
            let body = listing
                .refs
                .request(&wants, &haves)
                .map_err(|error| remote.protocol(error))?;
            self.within(call, remote.fetch(&listing, body, chunks)).await?
        };
        let (path, access, interrupt) = (
            call.handle.path.clone(),
            call.access.clone(),
            Arc::clone(&call.interrupt),
        );
        let (refs, expects_pack) = (listing.refs.clone(), !wants.is_empty());
        let shared = self
            .within(call, Arc::clone(&call.handle.content).read_owned())
            .await?;
        let (handle, limits) = (Arc::clone(&call.handle), self.inner.limits.pack.clone());
        let write = self.job(call, (permit, shared, Arc::clone(server_lock)), move || {
            let outcome = Mirror::open(&path, &access).and_then(|mirror| {
                if expects_pack {
                    pack::receive(&mirror, &access, &mut coming, &limits, &interrupt)?;
                }
                want.note(&mirror, &refs)
            });
            handle.record_damage(outcome)
        });
        let (fetched, written) = tokio::join!(fetch, write);
        // If the server failed, the mirror only saw that nothing came.
        fetched.and(written)
    }

    /// The server of a repository, as http sees it.
    pub(super) async fn remote<'a>(&'a self, access: &'a RepoAccess) -> Result<Remote<'a>, GitError> {
        let roots = self
            .inner
            .roots
            .get_or_try_init(|| tokio::task::spawn_blocking(tls::system_roots))
            .await;
        let roots = roots.map_err(|error| GitError::other(access, &error.to_string()))?;
        Remote::new(access, &self.inner.limits, roots)
    }

    /// Talks to a repository in a local directory.
    pub(super) async fn local<T: Send + 'static>(
        &self,
        call: &Call,
        guard: impl Send + 'static,
        work: impl FnOnce(&LocalRemote, &Mirror<'_>) -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        let remote = LocalRemote::new(&call.access, Arc::clone(&call.interrupt), &self.inner.limits);
        let shared = self
            .within(call, Arc::clone(&call.handle.content).read_owned())
            .await?;
        let permit = self.network_permit(call).await?;
        let (path, access) = (call.handle.path.clone(), call.access.clone());
        let handle = Arc::clone(&call.handle);
        self.job(call, (permit, shared, guard), move || {
            let outcome = Mirror::open(&path, &access).and_then(|mirror| work(&remote, &mirror));
            handle.record_damage(outcome)
        })
        .await
    }
}
