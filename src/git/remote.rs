//! The conversation with a server. Everything here blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use git2::{
    AutotagOption, FetchOptions, Oid, ProxyOptions, Reference, Remote, RemoteCallbacks, RemoteRedirect,
};

use super::access::RepoAccess;
use super::error::{GitError, Refusal};
use super::gate::Gate;
use super::interrupt::{Interrupt, Stop};
use super::limits::GitLimits;
use super::mirror::Mirror;
use super::trust::{self, Trust};

/// A refspec that matches nothing: what makes libgit2's `download` list the refs and stop.
///
/// libgit2's `connect` would do, but it takes neither headers nor a rule for redirects.
const NOTHING: &str = "refs/starling/nothing:refs/starling/nothing";

/// What to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    /// One ref, by its full name.
    Ref(String),
    /// All heads and tags. A server need not hand out a commit by its ID.
    Everything,
}

impl Want {
    /// Checks a ref's name; `None` wants everything.
    pub(super) fn parse(access: &RepoAccess, refname: Option<&str>) -> Result<Self, GitError> {
        match refname {
            None => Ok(Self::Everything),
            // Validity rules out `*`, `:` and blanks, so a name cannot turn into another refspec.
            Some(name) if name.starts_with("refs/") && Reference::is_valid_name(name) => {
                Ok(Self::Ref(name.to_owned()))
            }
            Some(_) => Err(GitError::refused(access, Refusal::RefName)),
        }
    }

    fn refspecs(&self) -> Vec<String> {
        match self {
            Self::Ref(name) => vec![format!("+{name}:{name}")],
            // The right side is never written: tips are noted by `Mirror::note_remote`.
            Self::Everything => ["heads", "tags"]
                .map(|kind| format!("+refs/{kind}/*:refs/{kind}/*"))
                .into(),
        }
    }
}

/// One call to a server: where, as whom, until when.
#[derive(Debug)]
pub(super) struct Conversation {
    access: RepoAccess,
    interrupt: Arc<Interrupt>,
    url: String,
    proxy: Option<String>,
    header: Option<String>,
    trust: Option<Trust>,
    max_transfer_bytes: u64,
    max_refs: usize,
}

impl Conversation {
    /// Checks what can be checked before anything is sent.
    pub(super) fn new(
        access: &RepoAccess,
        interrupt: Arc<Interrupt>,
        gate: Option<&Gate>,
        limits: &GitLimits,
    ) -> Result<Self, GitError> {
        let header = access.credential().header();
        let header = header.ok_or_else(|| GitError::refused(access, Refusal::CredentialText))?;
        let trust = access
            .ca_pem()
            .map(|pem| Trust::from_pem(pem).ok_or_else(|| GitError::refused(access, Refusal::CaBundle)));
        let (url, proxy) = match gate {
            // libgit2 uses a proxy for https only; for http the gate stands in the URL.
            Some(gate) if access.url().is_https() => (access.url().to_string(), Some(gate.proxy_url())),
            Some(gate) => (gate.url_for(access.url()), None),
            None => (access.url().to_string(), None),
        };
        Ok(Self {
            access: access.clone(),
            interrupt,
            url,
            proxy,
            header,
            trust: trust.transpose()?,
            max_transfer_bytes: limits.max_transfer_bytes,
            max_refs: limits.max_refs,
        })
    }

    /// Lists heads and tags; an annotated tag gives what it finally points at.
    pub(super) fn list(&self, mirror: &Mirror<'_>) -> Result<BTreeMap<String, Oid>, GitError> {
        self.download(mirror, &[NOTHING.to_owned()])
    }

    /// Fetches into the mirror and notes where the refs pointed.
    pub(super) fn fetch(&self, mirror: &Mirror<'_>, want: &Want) -> Result<(), GitError> {
        let heads = self.download(mirror, &want.refspecs())?;
        match want {
            Want::Ref(name) => heads.get(name).map_or(Ok(()), |id| self.note(mirror, name, *id)),
            Want::Everything => {
                // Tags lie on branches nearly always; noting them as well would only make the next negotiation longer.
                let branches = || heads.iter().filter(|(name, _)| name.starts_with("refs/heads/"));
                branches().try_for_each(|(name, id)| self.note(mirror, name, *id))?;
                mirror.forget_remote_except(branches().map(|(name, _)| name.as_str()))
            }
        }
    }

    /// Notes a tip that arrived. A server may name one and not send it; then there is nothing to note.
    fn note(&self, mirror: &Mirror<'_>, name: &str, id: Oid) -> Result<(), GitError> {
        if mirror.repo.find_commit(id).is_ok() {
            mirror.note_remote(name, id)
        } else {
            Ok(())
        }
    }

    fn download(&self, mirror: &Mirror<'_>, refspecs: &[String]) -> Result<BTreeMap<String, Oid>, GitError> {
        let talk = || -> Result<Remote<'_>, git2::Error> {
            let mut remote = mirror.repo.remote_anonymous(&self.url)?;
            remote.download(refspecs, Some(&mut self.options()))?;
            Ok(remote)
        };
        let mut remote = talk().map_err(|error| self.failed(mirror, &error))?;
        let heads = remote.list().map_err(|error| self.failed(mirror, &error))?;
        let heads = self.heads(heads.iter().map(|head| (head.name(), head.oid())))?;
        // What was asked for is here; a server that does not take leave properly changes nothing.
        let _ = remote.disconnect();
        Ok(heads)
    }

    fn heads<'n>(
        &self,
        all: impl Iterator<Item = (&'n str, Oid)>,
    ) -> Result<BTreeMap<String, Oid>, GitError> {
        let mut heads = BTreeMap::new();
        let mut peeled = BTreeMap::new();
        for (name, id) in
            all.filter(|(name, _)| name.starts_with("refs/heads/") || name.starts_with("refs/tags/"))
        {
            match name.strip_suffix("^{}") {
                Some(tag) => peeled.insert(tag.to_owned(), id),
                None if Reference::is_valid_name(name) => heads.insert(name.to_owned(), id),
                None => None,
            };
            if heads.len() > self.max_refs {
                return Err(GitError::refused(
                    &self.access,
                    Refusal::Refs { limit: self.max_refs },
                ));
            }
        }
        for (tag, id) in peeled {
            if let Some(head) = heads.get_mut(&tag) {
                *head = id;
            }
        }
        Ok(heads)
    }

    fn options(&self) -> FetchOptions<'_> {
        let mut options = FetchOptions::new();
        options
            .remote_callbacks(self.callbacks())
            .follow_redirects(RemoteRedirect::None)
            .download_tags(AutotagOption::None)
            .update_fetchhead(false);
        if let Some(proxy) = &self.proxy {
            let mut through = ProxyOptions::new();
            through.url(proxy);
            options.proxy_options(through);
        }
        if let Some(header) = &self.header {
            options.custom_headers(&[header.as_str()]);
        }
        options
    }

    /// No credentials callback: the header was sent with the first request, and a server that says 401 to it means it.
    fn callbacks(&self) -> RemoteCallbacks<'_> {
        let mut callbacks = RemoteCallbacks::new();
        callbacks
            .certificate_check(|certificate, host| Ok(trust::check(self.trust.as_ref(), certificate, host)));
        callbacks.transfer_progress(|progress| {
            if progress.received_bytes() as u64 > self.max_transfer_bytes {
                self.interrupt.raise(Stop::Bytes);
            }
            self.interrupt.stopped().is_none()
        });
        callbacks.sideband_progress(|_| self.interrupt.stopped().is_none());
        callbacks
    }

    /// An error says why the call was stopped, if it was; libgit2 only knows that it was.
    fn failed(&self, mirror: &Mirror<'_>, error: &git2::Error) -> GitError {
        match self.interrupt.stopped() {
            Some(Stop::Bytes) => GitError::refused(
                &self.access,
                Refusal::TransferBytes {
                    limit: self.max_transfer_bytes,
                },
            ),
            Some(Stop::Deadline | Stop::Abandoned) => GitError::timeout(&self.access, self.interrupt.after()),
            None => match GitError::from_remote(&self.access, error) {
                // The same libgit2 error comes from a bad pack; a good mirror is not thrown away for that.
                GitError::Corrupt { repo, source } if mirror.is_sound() => GitError::Other { repo, source },
                other => other,
            },
        }
    }
}
