//! Finding what a Source asks for among the refs of its repository.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use semver::Version;

use super::name::{CommitId, NameError, RefName};
use super::{RefPolicy, Revision};
use crate::range::{Range, parse_version, precedence};

/// Most refs that an error shows: enough to see a slip of the pen, few enough for a status message.
pub const MAX_EXAMPLES: usize = 5;

const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// Why a Source yields no revision. Names of the repository's refs are quoted, they are foreign text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No branch of that name.
    #[error("there is no branch {name:?}{}", hint(*other_kind, "a tag of that name: set spec.ref.tag", "branches", existing))]
    NoBranch {
        /// The branch.
        name: String,
        /// Whether a tag has that name.
        other_kind: bool,
        /// Branches that exist, the most similar ones first, at most [`MAX_EXAMPLES`].
        existing: Vec<String>,
    },
    /// No tag of that name.
    #[error("there is no tag {name:?}{}", hint(*other_kind, "a branch of that name: set spec.ref.branch", "tags", existing))]
    NoTag {
        /// The tag.
        name: String,
        /// Whether a branch has that name.
        other_kind: bool,
        /// Tags that exist, the most similar ones first, at most [`MAX_EXAMPLES`].
        existing: Vec<String>,
    },
    /// No tag is a version in the range.
    #[error("no tag is a version in {range:?}{}", highest_hint(highest, *prerelease_only))]
    NoVersion {
        /// The range.
        range: String,
        /// The highest versions among the tags, at most [`MAX_EXAMPLES`].
        highest: Vec<String>,
        /// Whether all versions among the tags are prereleases, and the range names none.
        prerelease_only: bool,
    },
    /// The repository answered with something that is no commit.
    #[error("{reference:?} does not point to a commit")]
    NotACommit {
        /// The full ref.
        reference: String,
        /// What is wrong with it.
        #[source]
        source: NameError,
    },
}

fn hint(other_kind: bool, other: &str, plural: &str, existing: &[String]) -> String {
    if other_kind {
        format!("; there is {other}")
    } else if existing.is_empty() {
        format!("; the repository has no {plural}")
    } else {
        format!("; {plural} are for example {}", quoted(existing))
    }
}

fn highest_hint(highest: &[String], prerelease_only: bool) -> String {
    if highest.is_empty() {
        return "; no tag is a version at all".to_owned();
    }
    let mut text = format!("; the highest are {}", quoted(highest));
    if prerelease_only {
        text.push_str("; prereleases are taken only if the range names one, as in >=1.0.0-0");
    }
    text
}

fn quoted(names: &[String]) -> String {
    names
        .iter()
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Finds the commit that a policy stands for.
///
/// `refs` maps full names (`refs/heads/main`, `refs/tags/v1`) to commits; an annotated tag maps to the commit
/// behind it. A commit named by the policy itself need not be among them: only a fetch can tell if it exists.
///
/// Of several tags with the same version, the one with the highest build metadata wins, then the last name in
/// byte order (so `v1.2.3` before `1.2.3`): the answer depends on the refs alone, not on their order or age.
///
/// # Errors
/// [`ResolveError`] if nothing is found, with what there is instead.
pub fn resolve(policy: &RefPolicy, refs: &BTreeMap<String, String>) -> Result<Revision, ResolveError> {
    match policy {
        RefPolicy::Branch(name) => named(refs, HEADS, name).unwrap_or_else(|| {
            Err(ResolveError::NoBranch {
                name: name.as_str().to_owned(),
                other_kind: refs.contains_key(&format!("{TAGS}{name}")),
                existing: most_similar(refs, HEADS, name),
            })
        }),
        RefPolicy::Tag(name) => named(refs, TAGS, name).unwrap_or_else(|| {
            Err(ResolveError::NoTag {
                name: name.as_str().to_owned(),
                other_kind: refs.contains_key(&format!("{HEADS}{name}")),
                existing: most_similar(refs, TAGS, name),
            })
        }),
        RefPolicy::Semver(range) => highest(refs, range),
        RefPolicy::Commit(commit) => Ok(Revision::new(None, commit.clone())),
    }
}

/// The revision of one ref, or nothing if it does not exist.
fn named(
    refs: &BTreeMap<String, String>,
    prefix: &str,
    name: &RefName,
) -> Option<Result<Revision, ResolveError>> {
    let reference = format!("{prefix}{name}");
    let hex = refs.get(&reference)?;
    Some(match CommitId::new(hex) {
        Ok(commit) => Ok(Revision::new(Some(name.clone()), commit)),
        Err(source) => Err(ResolveError::NotACommit { reference, source }),
    })
}

/// The highest tag in a range.
fn highest(refs: &BTreeMap<String, String>, range: &Range) -> Result<Revision, ResolveError> {
    let mut versions: Vec<(Version, &str)> = short_names(refs, TAGS)
        .filter_map(|name| Some((parse_version(name)?, name)))
        .collect();
    let best = versions
        .iter()
        .filter(|(version, _)| range.matches(version))
        .max_by(|a, b| {
            precedence(&a.0, &b.0)
                .then_with(|| a.0.build.cmp(&b.0.build))
                .then_with(|| a.1.cmp(b.1))
        });
    // A version has no character that a name must not have.
    if let Some(name) = best.and_then(|(_, name)| RefName::new(name).ok())
        && let Some(found) = named(refs, TAGS, &name)
    {
        return found;
    }
    versions.sort_by(|a, b| precedence(&b.0, &a.0));
    Err(ResolveError::NoVersion {
        range: range.as_str().to_owned(),
        highest: versions
            .iter()
            .take(MAX_EXAMPLES)
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        prerelease_only: !versions.is_empty()
            && !range.names_prerelease()
            && versions.iter().all(|(version, _)| !version.pre.is_empty()),
    })
}

/// Short names of all branches or tags.
fn short_names<'a>(refs: &'a BTreeMap<String, String>, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    refs.range(prefix.to_owned()..)
        .map_while(move |(name, _)| name.strip_prefix(prefix))
}

/// Names that exist, those first that begin like the one wanted.
fn most_similar(refs: &BTreeMap<String, String>, prefix: &str, wanted: &RefName) -> Vec<String> {
    let wanted = folded(wanted.as_str());
    let mut names: Vec<&str> = short_names(refs, prefix)
        .filter(|name| RefName::new(name).is_ok())
        .collect();
    names.sort_by_cached_key(|name| {
        let common = folded(name)
            .chars()
            .zip(wanted.chars())
            .take_while(|(a, b)| a == b)
            .count();
        Reverse(common)
    });
    names
        .into_iter()
        .take(MAX_EXAMPLES)
        .map(ToOwned::to_owned)
        .collect()
}

/// A name without what people get wrong most often: its case and the `v` of a version.
fn folded(name: &str) -> String {
    let lower = name.to_lowercase();
    match lower.strip_prefix('v') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => rest.to_owned(),
        _ => lower,
    }
}
