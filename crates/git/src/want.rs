//! The refs to fetch.

use git2::{Oid, Reference};

use super::access::RepoAccess;
use super::error::{GitError, Refusal};
use super::mirror::Mirror;
use super::smart::Advertisement;

/// The refs to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    /// One ref, by its full name.
    Ref(String),
    /// All heads and tags. A server may refuse to send a commit by its ID.
    Everything,
}

impl Want {
    /// Checks a ref name; `None` fetches everything.
    pub(super) fn parse(access: &RepoAccess, refname: Option<&str>) -> Result<Self, GitError> {
        match refname {
            None => Ok(Self::Everything),
            // A valid name has no `*`, `:` and blanks, so it cannot change the refspec.
            Some(name) if name.starts_with("refs/") && Reference::is_valid_name(name) => {
                Ok(Self::Ref(name.to_owned()))
            }
            Some(_) => Err(GitError::refused(access, Refusal::RefName)),
        }
    }

    /// Returns the refspecs for libgit2. Their right side is never written: [`Want::note`] stores the tips.
    pub(super) fn refspecs(&self) -> Vec<String> {
        match self {
            Self::Ref(name) => vec![format!("+{name}:{name}")],
            Self::Everything => ["heads", "tags"]
                .map(|kind| format!("+refs/{kind}/*:refs/{kind}/*"))
                .into(),
        }
    }

    /// Returns the tips of `refs` to fetch, each once.
    pub(super) fn tips(&self, refs: &Advertisement) -> Vec<Oid> {
        let mut tips: Vec<Oid> = match self {
            Self::Ref(name) => refs.tips.get(name).copied().into_iter().collect(),
            Self::Everything => refs.tips.values().copied().collect(),
        };
        tips.sort_unstable();
        tips.dedup();
        tips
    }

    /// Stores the commits of the refs in the mirror, for the next negotiation.
    pub(super) fn note(&self, mirror: &Mirror<'_>, refs: &Advertisement) -> Result<(), GitError> {
        mirror.sync_packs()?;
        match self {
            Self::Ref(name) => refs
                .tips
                .get(name)
                .map_or(Ok(()), |id| mirror.note_remote(name, *id)),
            Self::Everything => {
                // Tagged commits are nearly always on branches; storing tags too would only enlarge the next request.
                let branches = || {
                    refs.tips
                        .iter()
                        .filter(|(name, _)| name.starts_with("refs/heads/"))
                };
                branches().try_for_each(|(name, id)| mirror.note_remote(name, *id))?;
                mirror.forget_remote_except(branches().map(|(name, _)| name.as_str()))
            }
        }
    }
}
