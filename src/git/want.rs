//! What a fetch is to bring.

use git2::{Oid, Reference};

use super::access::RepoAccess;
use super::error::{GitError, Refusal};
use super::mirror::Mirror;
use super::smart::Advertisement;

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

    /// The same for libgit2. The right side is never written: tips are noted by [`Want::note`].
    pub(super) fn refspecs(&self) -> Vec<String> {
        match self {
            Self::Ref(name) => vec![format!("+{name}:{name}")],
            Self::Everything => ["heads", "tags"]
                .map(|kind| format!("+refs/{kind}/*:refs/{kind}/*"))
                .into(),
        }
    }

    /// The tips of `refs` that are wanted, each once.
    pub(super) fn tips(&self, refs: &Advertisement) -> Vec<Oid> {
        let mut tips: Vec<Oid> = match self {
            Self::Ref(name) => refs.tips.get(name).copied().into_iter().collect(),
            Self::Everything => refs.tips.values().copied().collect(),
        };
        tips.sort_unstable();
        tips.dedup();
        tips
    }

    /// Notes in the mirror where the refs pointed, for the next negotiation.
    pub(super) fn note(&self, mirror: &Mirror<'_>, refs: &Advertisement) -> Result<(), GitError> {
        match self {
            Self::Ref(name) => refs
                .tips
                .get(name)
                .map_or(Ok(()), |id| mirror.note_remote(name, *id)),
            Self::Everything => {
                // Tags lie on branches nearly always; noting them as well would only make the next request
                // longer.
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
