//! Joins the packs of a mirror, and keeps a mirror within its size.

use std::sync::Arc;
use std::time::Duration;

use super::{Call, GitStore, ServerLock};
use crate::access::RepoAccess;
use crate::error::{GitError, Refusal};
use crate::mirror;

impl GitStore {
    /// Joins the packs of a mirror into one if there are more than [`crate::GitLimits::max_packs`]; returns whether it
    /// did.
    ///
    /// Removes commits that are reachable neither from a pin nor from a fetched branch. Exports continue meanwhile,
    /// except while the old packs are deleted; a fetch waits.
    ///
    /// # Errors
    /// [`GitError::Timeout`] if `timeout` is too short; then the mirror is unchanged.
    pub async fn compact(&self, access: &RepoAccess, timeout: Duration) -> Result<bool, GitError> {
        let call = self.call(access, timeout);
        let server_lock = self.lock_server(&call).await?;
        self.join(&call, &server_lock, self.inner.limits.max_packs).await
    }

    /// Ensures that the mirror may receive a fetch. A mirror that is too large is joined first, which removes what a
    /// server has rewritten.
    ///
    /// # Errors
    /// [`Refusal::MirrorBytes`] if what is in use is too large.
    pub(super) async fn ensure_capacity(
        &self,
        call: &Call,
        server_lock: &ServerLock,
    ) -> Result<(), GitError> {
        let limit = self.inner.limits.max_mirror_bytes;
        if self.pack_bytes(call).await? <= limit {
            return Ok(());
        }
        self.join(call, server_lock, 0).await?;
        let bytes = self.pack_bytes(call).await?;
        if bytes > limit {
            let reason = Refusal::MirrorBytes { bytes, limit };
            return Err(GitError::refused(&call.access, reason));
        }
        Ok(())
    }

    /// Joins the packs of a mirror after a fetch, if there are too many, while nobody waits.
    pub(super) fn join_later(&self, access: &RepoAccess) {
        let (store, access) = (self.clone(), access.clone());
        let timeout = self.inner.limits.joining_timeout;
        tokio::spawn(async move {
            match store.compact(&access, timeout).await {
                Ok(true) => tracing::info!(repo = %access.url(), "packs of the git mirror joined"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(repo = %access.url(), %error, "packs of the git mirror not joined");
                }
            }
        });
    }

    async fn pack_bytes(&self, call: &Call) -> Result<u64, GitError> {
        let bytes = self.read(call, |mirror| mirror.pack_bytes()).await?;
        Ok(bytes.unwrap_or_default())
    }

    async fn pack_count(&self, call: &Call) -> Result<usize, GitError> {
        let packs = self.read(call, |mirror| mirror.pack_count()).await?;
        Ok(packs.unwrap_or_default())
    }

    async fn join(&self, call: &Call, server_lock: &ServerLock, max_packs: usize) -> Result<bool, GitError> {
        let interrupt = Arc::clone(&call.interrupt);
        if self.pack_count(call).await? <= max_packs {
            return Ok(false);
        }
        let turn = self.permit(call, &self.inner.joins).await?;
        let shared = self
            .within(call, Arc::clone(&call.handle.content).read_owned())
            .await?;
        let guard = (turn, shared, Arc::clone(server_lock));
        let old = self
            .read_holding(call, guard, move |mirror| {
                mirror.join_packs(max_packs, &interrupt)
            })
            .await?
            .unwrap_or_default();
        if old.is_empty() {
            return Ok(false);
        }
        let alone = self
            .within(call, Arc::clone(&call.handle.content).write_owned())
            .await?;
        let owned = call.access.clone();
        let permit = self.permit(call, &self.inner.local).await?;
        self.job(call, (alone, Arc::clone(server_lock), permit), move || {
            mirror::discard(&old, &owned)
        })
        .await?;
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use git2::{Repository, Signature};

    use super::super::JOINS;
    use super::*;
    use crate::limits::GitLimits;
    use crate::{Credential, RepoUrl};

    const LONG: Duration = Duration::from_secs(60);

    fn commit(repo: &Repository) -> String {
        let tree = repo.treebuilder(None).unwrap().write().unwrap();
        let tree = repo.find_tree(tree).unwrap();
        let author = Signature::now("a", "a@example.org").unwrap();
        let commit = repo.commit(Some("refs/heads/main"), &author, &author, "one", &tree, &[]);
        commit.unwrap().to_string()
    }

    /// Joins of large mirrors last for minutes. Guards against exports that wait for them, and fail.
    #[tokio::test]
    async fn tenant_joins_keep_no_other_call_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let repo = Repository::init_bare(folder.path().join("repo.git")).unwrap();
        let id = commit(&repo);
        let url = format!("file://{}", repo.path().display());
        let access = |reader: &str| {
            let url = RepoUrl::parse(&url, true).unwrap();
            RepoAccess::new(url, Credential::None).with_reader(reader)
        };
        let limits = GitLimits {
            max_packs: 0,
            ..GitLimits::default()
        };
        let store = GitStore::new(folder.path().join("mirrors"), limits);
        let neighbour = access("b/web");
        for access in [&access("a/web"), &neighbour] {
            store
                .ensure_commit(access, Some("refs/heads/main"), &id, LONG)
                .await
                .unwrap();
        }
        let mut joins = Vec::new();
        for number in 0..JOINS {
            let reader = format!("{number}/web");
            joins.push(store.inner.joins.acquire(&reader).await.unwrap());
        }
        let mut local = Vec::new();
        for _ in 0..GitLimits::default().local_jobs / 2 {
            local.push(store.inner.local.acquire("a/other").await.unwrap());
        }
        let out = folder.path().join("out");
        store.export(&neighbour, &id, &out, None).await.unwrap();
        let waits = store.compact(&neighbour, Duration::from_millis(200)).await;
        assert!(matches!(waits, Err(GitError::Timeout { .. })), "{waits:?}");
        drop(joins);
        store.compact(&neighbour, LONG).await.unwrap();
    }
}
