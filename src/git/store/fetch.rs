//! Bringing commits into a mirror, from a server or from a local folder.

use std::sync::Arc;

use git2::Oid;
use tokio::sync::mpsc;

use super::{Call, GitStore, Turn};
use crate::git::access::RepoAccess;
use crate::git::error::GitError;
use crate::git::http::Remote;
use crate::git::local::LocalRemote;
use crate::git::mirror::Mirror;
use crate::git::pack::{self, Negotiation};
use crate::git::tls;
use crate::git::want::Want;

/// Pieces of a pack that wait for the disk; a piece is a packet, at most 64 KiB. The server waits when there
/// are more.
const PIECES_AHEAD: usize = 16;

impl GitStore {
    /// Fetches until the mirror holds the commit; `false` if everything was fetched and it does not.
    pub(super) async fn fetch(
        &self,
        call: &Call,
        turn: &Turn,
        want: Want,
        id: Oid,
    ) -> Result<bool, GitError> {
        let mut wants = vec![Want::Everything];
        if want != Want::Everything {
            wants.push(want);
        }
        let mut replaced = false;
        while let Some(want) = wants.pop() {
            match self.fetch_once(call, turn, want.clone()).await {
                // Once: a mirror that is damaged again right after it was made anew is not the mirror's
                // fault.
                Err(GitError::Corrupt { .. }) if !replaced => {
                    replaced = true;
                    self.prepare(call).await?;
                    wants.push(want);
                }
                other => other?,
            }
            if self.holds(call, id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn fetch_once(&self, call: &Call, turn: &Turn, want: Want) -> Result<(), GitError> {
        if call.access.url().endpoint().is_some() {
            return self.fetch_http(call, turn, want).await;
        }
        self.local(call, Arc::clone(turn), move |remote, mirror| {
            remote.fetch(mirror, &want)
        })
        .await
    }

    /// Lists, negotiates, and writes the pack while it comes.
    async fn fetch_http(&self, call: &Call, turn: &Turn, want: Want) -> Result<(), GitError> {
        let permit = self.permit(call, &self.inner.network).await?;
        let remote = self.within(call, self.remote(&call.access)).await??;
        let listing = self.within(call, remote.list()).await??;
        let (tips, access) = (want.tips(&listing.refs), call.access.clone());
        let Some(Negotiation { wants, haves }) = self
            .read(call, move |mirror| pack::negotiate(mirror, &access, &tips))
            .await?
        else {
            return call
                .slot
                .judge(Err(GitError::corrupt(&call.access, "the mirror went away")));
        };
        let (pieces, mut coming) = mpsc::channel(PIECES_AHEAD);
        let fetch = async {
            if wants.is_empty() {
                // The refs moved to what is here already; there is only to note it.
                drop(pieces);
                return Ok(());
            }
            let body = listing
                .refs
                .request(&wants, &haves)
                .map_err(|error| remote.protocol(error))?;
            self.within(call, remote.fetch(&listing, body, pieces)).await?
        };
        let (path, access, interrupt) = (
            call.slot.path.clone(),
            call.access.clone(),
            Arc::clone(&call.interrupt),
        );
        let (refs, expects_pack) = (listing.refs.clone(), !wants.is_empty());
        let shared = self
            .within(call, Arc::clone(&call.slot.content).read_owned())
            .await?;
        let slot = Arc::clone(&call.slot);
        let write = self.job(call, (permit, shared, Arc::clone(turn)), move || {
            let outcome = Mirror::open(&path, &access).and_then(|mirror| {
                if expects_pack {
                    pack::receive(&mirror, &access, &mut coming, &interrupt)?;
                }
                want.note(&mirror, &refs)
            });
            slot.judge(outcome)
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

    /// Talks to a repository in a local folder.
    pub(super) async fn local<T: Send + 'static>(
        &self,
        call: &Call,
        held: impl Send + 'static,
        work: impl FnOnce(&LocalRemote, &Mirror<'_>) -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        let remote = LocalRemote::new(&call.access, Arc::clone(&call.interrupt), &self.inner.limits);
        let shared = self
            .within(call, Arc::clone(&call.slot.content).read_owned())
            .await?;
        let permit = self.permit(call, &self.inner.network).await?;
        let (path, access) = (call.slot.path.clone(), call.access.clone());
        let slot = Arc::clone(&call.slot);
        self.job(call, (permit, shared, held), move || {
            let outcome = Mirror::open(&path, &access).and_then(|mirror| work(&remote, &mirror));
            slot.judge(outcome)
        })
        .await
    }
}
