//! The revision of a Source: how it is resolved, and whether the Source may advance to it.
//!
//! [`RefPolicy`] is the policy of the Source, [`resolve`] resolves it among the refs of the repository, and [`advance`]
//! decides whether the result may replace the last revision. Listing and fetching are elsewhere.

mod advance;
mod name;
mod policy;
mod resolve;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use advance::{
    AdvanceDecision, AdvanceRules, Ancestry, KeepReason, OnRewrite, advance, depends_on_ancestry,
    replaced_heads,
};
pub use name::{CommitId, MAX_NAME_LEN, NameError, RefName};
pub use policy::{PolicyError, RefFields, RefPolicy};
pub use resolve::{MAX_EXAMPLES, ResolveError, resolve};

/// A commit with the name by which it was found, as in `status.revision`.
///
/// The format is `main@sha1:<commit>` or `v1.4.2@sha1:<commit>`, and `sha1:<commit>` if the Source names the commit
/// itself; `sha256:` in repositories with that object format. It is that of Flux.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Revision {
    /// The branch or tag; `None`: the Source names the commit itself.
    name: Option<RefName>,
    commit: CommitId,
}

impl Revision {
    /// Returns the revision of a commit that was found by a branch or tag, or without a name.
    #[must_use]
    pub fn new(name: Option<RefName>, commit: CommitId) -> Self {
        Self { name, commit }
    }

    /// Returns the short name of the branch or tag; empty if the Source names the commit itself.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_ref().map_or("", RefName::as_str)
    }

    /// Returns the commit.
    #[must_use]
    pub fn commit(&self) -> &CommitId {
        &self.commit
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}@")?;
        }
        write!(f, "{}:{}", self.commit.algorithm(), self.commit)
    }
}

/// Reports whether a text identifies this revision (`v1.4.2@sha1:…`): all of it, its commit or a prefix of the commit
/// (from seven digits on, as git abbreviates commits), or the name of its branch or tag.
#[must_use]
pub fn is_named(revision: &str, text: &str) -> bool {
    let (name, commit) = revision.rsplit_once('@').unwrap_or(("", revision));
    let hex = commit.split_once(':').map_or(commit, |(_, hex)| hex);
    let begins = text.len() >= 7 && hex.starts_with(text);
    !text.is_empty() && (text == revision || text == commit || text == name || begins)
}

/// The reason why a text is not a revision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// There is no algorithm before the commit, or it does not match the length of the commit.
    #[error(
        "the revision ends in neither `sha1:` and 40 hex digits nor `sha256:` and 64, as in main@sha1:2f1a…"
    )]
    Form,
    /// The text before the `@` is not the name of a branch or tag.
    #[error("the revision has no usable name before the `@`")]
    Name(#[source] NameError),
    /// The text after the algorithm is not a commit.
    #[error("the revision has no usable commit")]
    Commit(#[source] NameError),
}

impl FromStr for Revision {
    type Err = RevisionError;

    fn from_str(text: &str) -> Result<Self, RevisionError> {
        // A name may contain `@`, the part after it cannot.
        let (name, id) = match text.rsplit_once('@') {
            Some((name, id)) => (Some(RefName::new(name).map_err(RevisionError::Name)?), id),
            None => (None, text),
        };
        let (algorithm, hex) = id.split_once(':').ok_or(RevisionError::Form)?;
        let commit = CommitId::new(hex).map_err(RevisionError::Commit)?;
        if commit.algorithm() != algorithm {
            return Err(RevisionError::Form);
        }
        Ok(Self { name, commit })
    }
}

impl TryFrom<String> for Revision {
    type Error = RevisionError;

    fn try_from(text: String) -> Result<Self, RevisionError> {
        text.parse()
    }
}

impl From<Revision> for String {
    fn from(revision: Revision) -> Self {
        revision.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA1: &str = "2f1a6bb5b9b7a4ffdc32a1a3a1f0a0f8a3c9d0e1";
    const SHA256: &str = "2f1a6bb5b9b7a4ffdc32a1a3a1f0a0f8a3c9d0e12f1a6bb5b9b7a4ffdc32a1a3";

    #[test]
    fn a_revision_is_identified_by_its_common_names() {
        let whole = "v1.4.2@sha1:0123456789abcdef";
        for text in [whole, "v1.4.2", "sha1:0123456789abcdef", "0123456"] {
            assert!(is_named(whole, text), "{text}");
        }
        for text in ["", "v1.4", "012345", "1234567", "sha1"] {
            assert!(!is_named(whole, text), "{text}");
        }
    }

    #[test]
    fn text_and_back() {
        for (text, name) in [
            (format!("main@sha1:{SHA1}"), "main"),
            (format!("v1.4.2@sha1:{SHA1}"), "v1.4.2"),
            (format!("team/a@home@sha1:{SHA1}"), "team/a@home"),
            (format!("sha1:{SHA1}"), ""),
            (format!("main@sha256:{SHA256}"), "main"),
        ] {
            let revision: Revision = text.parse().unwrap();
            assert_eq!(revision.name(), name);
            assert_eq!(revision.to_string(), text);
            let json = serde_json::to_string(&revision).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Revision>(&json).unwrap(), revision);
        }
    }

    #[test]
    fn rejects_invalid_revisions() {
        for (text, wanted) in [
            (SHA1.to_owned(), RevisionError::Form),
            (format!("main@{SHA1}"), RevisionError::Form),
            (format!("main@sha256:{SHA1}"), RevisionError::Form),
            (format!("main@md5:{SHA1}"), RevisionError::Form),
            (String::new(), RevisionError::Form),
            (format!("@sha1:{SHA1}"), RevisionError::Name(NameError::Empty)),
            (
                "main@sha1:abc".to_owned(),
                RevisionError::Commit(NameError::Commit {
                    found: "abc".to_owned(),
                }),
            ),
        ] {
            assert_eq!(text.parse::<Revision>(), Err(wanted), "{text}");
        }
        assert!(matches!(
            format!("-x@sha1:{SHA1}").parse::<Revision>(),
            Err(RevisionError::Name(_))
        ));
        assert!(serde_json::from_str::<Revision>("\"main\"").is_err());
    }

    proptest! {
        #[test]
        fn every_valid_revision_survives_a_round_trip_through_text(name in "[ -~é]{1,12}", n: u128) {
            if let Ok(name) = RefName::new(&name) {
                let revision = Revision::new(Some(name), CommitId::new(&format!("{n:040x}")).unwrap());
                prop_assert_eq!(revision.to_string().parse(), Ok(revision));
            }
        }
    }
}
