//! The policy of a Source: `spec.ref`.

use std::fmt;

use super::name::{CommitId, NameError, RefName};
use crate::range::{Range, RangeError};

/// The policy by which a Source selects a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefPolicy {
    /// The head of a branch.
    Branch(RefName),
    /// One tag.
    Tag(RefName),
    /// The highest tag in a range of versions. The range keeps its text.
    Semver(Range),
    /// One commit.
    Commit(CommitId),
}

/// The fields of `spec.ref`: exactly one has to be set.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefFields<'a> {
    /// `spec.ref.branch`
    pub branch: Option<&'a str>,
    /// `spec.ref.semver`
    pub semver: Option<&'a str>,
    /// `spec.ref.tag`
    pub tag: Option<&'a str>,
    /// `spec.ref.commit`
    pub commit: Option<&'a str>,
}

/// An error in `spec.ref`; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not exactly one field is set.
    #[error("spec.ref must set exactly one of branch, semver, tag and commit; set: {set}")]
    Count {
        /// The fields that are set, or `none`.
        set: String,
    },
    /// A name or a commit is invalid.
    #[error("{field} is not usable")]
    Name {
        /// The path of the field.
        field: &'static str,
        /// The error in the name or commit.
        #[source]
        source: NameError,
    },
    /// The range is invalid.
    #[error("spec.ref.semver is not usable")]
    Range(#[source] RangeError),
}

impl RefPolicy {
    /// Follows the head of a branch.
    ///
    /// # Errors
    /// [`PolicyError::Name`] if the name breaks the rules of git.
    pub fn branch(name: &str) -> Result<Self, PolicyError> {
        RefName::new(name)
            .map(Self::Branch)
            .map_err(named("spec.ref.branch"))
    }

    /// Follows one tag.
    ///
    /// # Errors
    /// [`PolicyError::Name`] if the name breaks the rules of git.
    pub fn tag(name: &str) -> Result<Self, PolicyError> {
        RefName::new(name).map(Self::Tag).map_err(named("spec.ref.tag"))
    }

    /// Follows the highest tag in a range.
    ///
    /// # Errors
    /// [`PolicyError::Range`] if the range cannot be parsed.
    pub fn semver(range: &str) -> Result<Self, PolicyError> {
        Range::parse(range).map(Self::Semver).map_err(PolicyError::Range)
    }

    /// Stays at one commit.
    ///
    /// # Errors
    /// [`PolicyError::Name`] if it is not a full commit ID.
    pub fn commit(hex: &str) -> Result<Self, PolicyError> {
        CommitId::new(hex)
            .map(Self::Commit)
            .map_err(named("spec.ref.commit"))
    }

    /// Parses `spec.ref`.
    ///
    /// # Errors
    /// [`PolicyError::Count`] unless exactly one field is set, otherwise what is wrong with that field.
    pub fn from_fields(fields: RefFields<'_>) -> Result<Self, PolicyError> {
        match fields {
            RefFields {
                branch: Some(name),
                semver: None,
                tag: None,
                commit: None,
            } => Self::branch(name),
            RefFields {
                branch: None,
                semver: Some(range),
                tag: None,
                commit: None,
            } => Self::semver(range),
            RefFields {
                branch: None,
                semver: None,
                tag: Some(name),
                commit: None,
            } => Self::tag(name),
            RefFields {
                branch: None,
                semver: None,
                tag: None,
                commit: Some(hex),
            } => Self::commit(hex),
            RefFields {
                branch,
                semver,
                tag,
                commit,
            } => {
                let fields = [
                    ("branch", branch),
                    ("semver", semver),
                    ("tag", tag),
                    ("commit", commit),
                ];
                let set: Vec<&str> = fields
                    .into_iter()
                    .filter_map(|(name, value)| value.map(|_| name))
                    .collect();
                let set = if set.is_empty() {
                    "none".to_owned()
                } else {
                    set.join(", ")
                };
                Err(PolicyError::Count { set })
            }
        }
    }
}

fn named(field: &'static str) -> impl FnOnce(NameError) -> PolicyError {
    move |source| PolicyError::Name { field, source }
}

impl fmt::Display for RefPolicy {
    /// Writes `branch main` or `semver >=1.2.0 <2.0.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Semver(range) => write!(f, "semver {range}"),
            Self::Commit(commit) => write!(f, "commit {commit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn exactly_one_field_is_required() {
        let sha = "0f".repeat(20);
        let fields = RefFields::default();
        for (fields, text) in [
            (
                RefFields {
                    branch: Some("main"),
                    ..fields
                },
                "branch main".to_owned(),
            ),
            (
                RefFields {
                    semver: Some(">=1 <2"),
                    ..fields
                },
                "semver >=1 <2".to_owned(),
            ),
            (
                RefFields {
                    tag: Some("v1"),
                    ..fields
                },
                "tag v1".to_owned(),
            ),
            (
                RefFields {
                    commit: Some(&sha),
                    ..fields
                },
                format!("commit {sha}"),
            ),
        ] {
            assert_eq!(RefPolicy::from_fields(fields).unwrap().to_string(), text);
        }
        for (fields, set) in [
            (fields, "none"),
            (
                RefFields {
                    branch: Some("main"),
                    commit: Some(&sha),
                    ..fields
                },
                "branch, commit",
            ),
            (
                RefFields {
                    semver: Some(""),
                    tag: Some(""),
                    ..fields
                },
                "semver, tag",
            ),
        ] {
            assert_eq!(
                RefPolicy::from_fields(fields),
                Err(PolicyError::Count { set: set.to_owned() })
            );
        }
    }

    #[test]
    fn errors_name_the_field_and_their_source_has_the_reason() {
        for (result, field, why) in [
            (RefPolicy::branch("-x"), "spec.ref.branch", "start with `-`"),
            (RefPolicy::tag("a..b"), "spec.ref.tag", "`..`"),
            (
                RefPolicy::semver("latest"),
                "spec.ref.semver",
                "1.2.3, 1.2 or 1.x",
            ),
            (RefPolicy::commit("abc1234"), "spec.ref.commit", "40 hex digits"),
        ] {
            let error = result.unwrap_err();
            assert!(error.to_string().starts_with(field), "{error}");
            let source = error.source().unwrap().to_string();
            assert!(source.contains(why), "{source}");
        }
    }
}
