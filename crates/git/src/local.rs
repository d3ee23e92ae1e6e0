//! Repositories in a local directory, by libgit2's local transport. All functions block.

use std::sync::Arc;

use git2::{AutotagOption, FetchOptions, Remote, RemoteCallbacks};

use super::access::RepoAccess;
use super::error::{GitError, Refusal};
use super::interrupt::{Interrupt, Stop};
use super::limits::GitLimits;
use super::mirror::Mirror;
use super::smart::Advertisement;
use super::want::Want;

/// A refspec that matches nothing, which makes libgit2's `download` list the refs and stop.
const NOTHING: &str = "refs/starling/nothing:refs/starling/nothing";

/// One call to a local repository.
#[derive(Debug)]
pub(super) struct LocalRemote {
    access: RepoAccess,
    interrupt: Arc<Interrupt>,
    max_transfer_bytes: u64,
    max_refs: usize,
}

impl LocalRemote {
    /// Creates a call that `interrupt` can stop.
    pub(super) fn new(access: &RepoAccess, interrupt: Arc<Interrupt>, limits: &GitLimits) -> Self {
        Self {
            access: access.clone(),
            interrupt,
            max_transfer_bytes: limits.max_transfer_bytes,
            max_refs: limits.max_refs,
        }
    }

    /// Lists heads and tags.
    pub(super) fn list(&self, mirror: &Mirror<'_>) -> Result<Advertisement, GitError> {
        self.download(mirror, &[NOTHING.to_owned()])
    }

    /// Fetches into the mirror and stores the commits of the refs.
    pub(super) fn fetch(&self, mirror: &Mirror<'_>, want: &Want) -> Result<(), GitError> {
        mirror.check()?;
        let refs = self.download(mirror, &want.refspecs())?;
        want.note(mirror, &refs)
    }

    fn download(&self, mirror: &Mirror<'_>, refspecs: &[String]) -> Result<Advertisement, GitError> {
        let connect = || -> Result<Remote<'_>, git2::Error> {
            let mut remote = mirror.repo.remote_anonymous(self.access.url().as_str())?;
            let mut options = FetchOptions::new();
            options
                .remote_callbacks(self.callbacks())
                .download_tags(AutotagOption::None)
                .update_fetchhead(false);
            remote.download(refspecs, Some(&mut options))?;
            Ok(remote)
        };
        let remote = connect().map_err(|error| self.failed(mirror, &error))?;
        let mut refs = Advertisement::default();
        for head in remote.list().map_err(|error| self.failed(mirror, &error))? {
            refs.add(head.name(), head.oid());
            if refs.tips.len() > self.max_refs {
                return Err(GitError::refused(
                    &self.access,
                    Refusal::Refs { limit: self.max_refs },
                ));
            }
        }
        Ok(refs)
    }

    fn callbacks(&self) -> RemoteCallbacks<'_> {
        let mut callbacks = RemoteCallbacks::new();
        callbacks.transfer_progress(|progress| {
            if progress.received_bytes() as u64 > self.max_transfer_bytes {
                self.interrupt.raise(Stop::Bytes);
            }
            self.interrupt.stopped().is_none()
        });
        callbacks.sideband_progress(|_| self.interrupt.stopped().is_none());
        callbacks
    }

    /// Returns the error of a failed or interrupted call. For an interrupt, libgit2 does not report the reason.
    fn failed(&self, mirror: &Mirror<'_>, error: &git2::Error) -> GitError {
        match self.interrupt.stopped() {
            Some(Stop::Bytes) => GitError::refused(
                &self.access,
                Refusal::TransferBytes {
                    limit: self.max_transfer_bytes,
                },
            ),
            Some(Stop::Deadline | Stop::Abandoned) => GitError::timeout(&self.access, self.interrupt.after()),
            None => GitError::from_fetch(&self.access, error, mirror.check().is_ok()),
        }
    }
}
