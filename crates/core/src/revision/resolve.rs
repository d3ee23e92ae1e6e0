//! Resolves the policy of a Source to a commit among the refs of its repository.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use semver::Version;

use super::name::{CommitId, NameError, RefName};
use super::{RefPolicy, Revision};
use crate::range::{Range, is_full_version, parse_version, precedence};

/// The number of refs in an error: enough to see a typing error, few enough for a status message.
pub const MAX_EXAMPLES: usize = 5;

const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// The reason why a policy resolves to no revision. Names of refs are quoted, since they are foreign text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The branch does not exist.
    #[error("there is no branch {name:?}{}", hint(*other_kind, "a tag of that name: set spec.ref.tag", "branches", existing))]
    NoBranch {
        /// The branch.
        name: String,
        /// Whether a tag has this name.
        other_kind: bool,
        /// Existing branches, the most similar ones first, at most [`MAX_EXAMPLES`].
        existing: Vec<String>,
    },
    /// The tag does not exist.
    #[error("there is no tag {name:?}{}", hint(*other_kind, "a branch of that name: set spec.ref.branch", "tags", existing))]
    NoTag {
        /// The tag.
        name: String,
        /// Whether a branch has this name.
        other_kind: bool,
        /// Existing tags, the most similar ones first, at most [`MAX_EXAMPLES`].
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
    /// A ref of the repository is not a commit.
    #[error("{reference:?} does not point to a commit")]
    NotACommit {
        /// The full ref.
        reference: String,
        /// The error in the commit.
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

/// Resolves a policy to a commit.
///
/// `refs` maps full names (`refs/heads/main`, `refs/tags/v1`) to commits; an annotated tag maps to its commit. A commit
/// that the policy names need not be among them: only a fetch shows whether it exists.
///
/// For a range, the highest tag that can be parsed as a version wins, including short ones (`1.9`, `2`). Flux accepts
/// only full versions; a range with an upper limit prevents a tag such as `20240131` from being the highest.
///
/// Of several tags with the same version, the one with the highest build metadata wins, then a full one, then the last
/// name in byte order (so `v1.2.3` before `1.2.3`). The result depends only on the refs, not on their order or the
/// dates of the commits, which Flux uses.
///
/// # Errors
/// [`ResolveError`] with existing alternatives if nothing is found.
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

/// Returns the revision of a ref; `None`: it does not exist.
fn named(
    refs: &BTreeMap<String, String>,
    prefix: &str,
    name: &RefName,
) -> Option<Result<Revision, ResolveError>> {
    refs.get(&format!("{prefix}{name}"))
        .map(|hex| revision(prefix, name, hex))
}

fn revision(prefix: &str, name: &RefName, hex: &str) -> Result<Revision, ResolveError> {
    match CommitId::new(hex) {
        Ok(commit) => Ok(Revision::new(Some(name.clone()), commit)),
        Err(source) => Err(ResolveError::NotACommit {
            reference: format!("{prefix}{name}"),
            source,
        }),
    }
}

/// A tag that is a version.
struct Tagged<'a> {
    version: Version,
    /// Whether the version is written in full; of equal versions such a tag wins.
    full: bool,
    name: RefName,
    hex: &'a str,
}

impl Tagged<'_> {
    /// Returns the order by which the highest tag is chosen; no two tags are equal.
    fn order(&self, other: &Self) -> Ordering {
        precedence(&self.version, &other.version)
            .then_with(|| self.version.build.cmp(&other.version.build))
            .then_with(|| self.full.cmp(&other.full))
            .then_with(|| self.name.cmp(&other.name))
    }
}

/// Returns the highest tag in a range. Tags that are not versions are ignored.
fn highest(refs: &BTreeMap<String, String>, range: &Range) -> Result<Revision, ResolveError> {
    let mut tags: Vec<Tagged<'_>> = short_names(refs, TAGS)
        .filter_map(|(name, hex)| {
            Some(Tagged {
                version: parse_version(name)?,
                full: is_full_version(name),
                name: RefName::new(name).ok()?,
                hex,
            })
        })
        .collect();
    tags.sort_unstable_by(|a, b| b.order(a));
    if let Some(best) = tags.iter().find(|tag| range.matches(&tag.version)) {
        return revision(TAGS, &best.name, best.hex);
    }
    Err(ResolveError::NoVersion {
        range: range.as_str().to_owned(),
        highest: tags
            .iter()
            .take(MAX_EXAMPLES)
            .map(|tag| tag.name.as_str().to_owned())
            .collect(),
        prerelease_only: !tags.is_empty()
            && !range.names_prerelease()
            && tags.iter().all(|tag| !tag.version.pre.is_empty()),
    })
}

/// Returns the short names of all branches or tags, with their commits.
fn short_names<'a>(
    refs: &'a BTreeMap<String, String>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    refs.range(prefix.to_owned()..)
        .map_while(move |(name, hex)| Some((name.strip_prefix(prefix)?, hex.as_str())))
}

/// Returns existing names, those first that begin like the wanted one.
fn most_similar(refs: &BTreeMap<String, String>, prefix: &str, wanted: &RefName) -> Vec<String> {
    let wanted = folded(wanted.as_str());
    let mut names: Vec<&str> = short_names(refs, prefix)
        .map(|(name, _)| name)
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

/// Returns a name in lower case without the `v` of a version, which are the most common typing errors.
fn folded(name: &str) -> String {
    let lower = name.to_lowercase();
    match lower.strip_prefix('v') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => rest.to_owned(),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns refs with different commits: the n-th one has the number n in hex.
    fn mk_refs(names: &[&str]) -> BTreeMap<String, String> {
        (1..)
            .zip(names)
            .map(|(n, name)| ((*name).to_owned(), mk_commit(n)))
            .collect()
    }

    fn mk_commit(n: u32) -> String {
        format!("{n:040x}")
    }

    fn semver(range: &str, tags: &[&str]) -> Result<String, ResolveError> {
        let refs: Vec<String> = tags.iter().map(|tag| format!("refs/tags/{tag}")).collect();
        let refs = mk_refs(&refs.iter().map(String::as_str).collect::<Vec<_>>());
        resolve(&RefPolicy::semver(range).unwrap(), &refs).map(|found| {
            assert_eq!(
                found.commit().as_str(),
                refs[&format!("refs/tags/{}", found.name())]
            );
            found.name().to_owned()
        })
    }

    #[test]
    fn finds_branch_tag_and_commit() {
        let refs = mk_refs(&[
            "refs/heads/main",
            "refs/tags/main",
            "refs/heads/team/a",
            "refs/tags/v1",
            "HEAD",
        ]);
        for (policy, text) in [
            (RefPolicy::branch("main"), format!("main@sha1:{}", mk_commit(1))),
            (RefPolicy::tag("main"), format!("main@sha1:{}", mk_commit(2))),
            (
                RefPolicy::branch("team/a"),
                format!("team/a@sha1:{}", mk_commit(3)),
            ),
            (RefPolicy::tag("v1"), format!("v1@sha1:{}", mk_commit(4))),
            (
                RefPolicy::commit(&mk_commit(99)),
                format!("sha1:{}", mk_commit(99)),
            ),
        ] {
            assert_eq!(resolve(&policy.unwrap(), &refs).unwrap().to_string(), text);
        }
    }

    #[test]
    fn semver_chooses_the_highest_tag_in_the_range() {
        let tags = [
            "v1.0.0",
            "v1.2.0",
            "1.10.0",
            "v1.9",
            "v2.0.0-rc.1",
            "v2.0.0",
            "3",
            "latest",
            "release-9.0.0",
            "deploy/v9.0.0",
            "v9.0.0.0",
        ];
        for (range, wanted) in [
            (">=1.2.0 <2.0.0", "1.10.0"),
            ("<1.10", "v1.9"),
            ("1.9", "v1.9"),
            (">=3", "3"),
            ("1.2.x || 1.0.x", "v1.2.0"),
            ("*", "3"),
            ("2.x", "v2.0.0"),
            (">=1.0.0-0 <2.0.0", "v2.0.0-rc.1"),
            ("1.0.0", "v1.0.0"),
        ] {
            assert_eq!(semver(range, &tags).as_deref(), Ok(wanted), "{range}");
        }
    }

    #[test]
    fn equal_versions_have_one_winner() {
        for (tags, wanted) in [
            (["v1.2.3", "1.2.3"], "v1.2.3"),
            (["1.2", "1.2.0"], "1.2.0"),
            (["1.2.3", "1.2.3+1"], "1.2.3+1"),
            (["1.2.3+2", "v1.2.3+10"], "v1.2.3+10"),
            (["1.2.3+10", "v1.2.3+2"], "1.2.3+10"),
            (["v1.2.3+b", "v1.2.4-rc.1"], "v1.2.3+b"),
        ] {
            assert_eq!(semver("1.x", &tags).as_deref(), Ok(wanted));
        }
    }

    #[test]
    fn tags_with_invalid_names_are_not_chosen() {
        // Only a broken or hostile server has them.
        assert_eq!(
            semver("1.x", &["1.0.0", "1.5.0-a.lock", "1.6.0+b.lock"]).as_deref(),
            Ok("1.0.0")
        );
    }

    #[test]
    fn a_missing_branch_or_tag_is_reported_with_existing_ones() {
        let refs = mk_refs(&[
            "refs/heads/main",
            "refs/heads/feature/b",
            "refs/heads/feature/a",
            "refs/heads/dev",
            "refs/heads/x",
            "refs/heads/bad\nname",
            "refs/heads/z",
            "refs/tags/v1.2.0",
            "refs/tags/v1.3.0",
            "refs/tags/old",
        ]);
        for (policy, text) in [
            (
                RefPolicy::branch("Feature/c"),
                r#"there is no branch "Feature/c"; branches are for example "feature/a", "feature/b", "dev", "main", "x""#,
            ),
            (
                RefPolicy::branch("old"),
                r#"there is no branch "old"; there is a tag of that name: set spec.ref.tag"#,
            ),
            (
                RefPolicy::tag("main"),
                r#"there is no tag "main"; there is a branch of that name: set spec.ref.branch"#,
            ),
            (
                RefPolicy::tag("1.3.0"),
                r#"there is no tag "1.3.0"; tags are for example "v1.3.0", "v1.2.0", "old""#,
            ),
        ] {
            assert_eq!(resolve(&policy.unwrap(), &refs).unwrap_err().to_string(), text);
        }
        let error = resolve(&RefPolicy::branch("main").unwrap(), &BTreeMap::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"there is no branch "main"; the repository has no branches"#
        );
    }

    #[test]
    fn a_range_without_a_version_is_reported_with_existing_ones() {
        for (range, tags, text) in [
            (
                ">=9",
                &[
                    "v1.0.0",
                    "v1.1.0",
                    "v1.2.0",
                    "v1.10.0",
                    "2.0.0-rc.1",
                    "v0.1.0",
                    "latest",
                ][..],
                r#"no tag is a version in ">=9"; the highest are "2.0.0-rc.1", "v1.10.0", "v1.2.0", "v1.1.0", "v1.0.0""#,
            ),
            (
                ">=1",
                &["v1.0.0-rc.1", "v1.0.0-rc.2"],
                r#"no tag is a version in ">=1"; the highest are "v1.0.0-rc.2", "v1.0.0-rc.1"; prereleases are taken only if the range names one, as in >=1.0.0-0"#,
            ),
            (
                ">=1",
                &["latest"],
                r#"no tag is a version in ">=1"; no tag is a version at all"#,
            ),
            (
                ">=2-0",
                &["v1.0.0-rc.1"],
                r#"no tag is a version in ">=2-0"; the highest are "v1.0.0-rc.1""#,
            ),
        ] {
            assert_eq!(semver(range, tags).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_ref_that_is_not_a_commit_is_an_error_and_not_skipped() {
        let refs = BTreeMap::from([
            ("refs/tags/v1.0.0".to_owned(), mk_commit(1)),
            ("refs/tags/v1.1.0".to_owned(), "ref: refs/heads/main".to_owned()),
        ]);
        for policy in [RefPolicy::semver("1.x"), RefPolicy::tag("v1.1.0")] {
            let error = resolve(&policy.unwrap(), &refs).unwrap_err();
            assert!(
                matches!(&error, ResolveError::NotACommit { reference, .. } if reference == "refs/tags/v1.1.0")
            );
        }
    }

    /// Tags that are versions, with small numbers so that they collide.
    fn mk_tags() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("v?[0-3]\\.[0-3](\\.[0-3])?(-[ab0-2])?(\\+[ab0-2])?", 0..12)
    }

    proptest! {
        #[test]
        fn no_tag_in_the_range_is_higher_than_the_chosen_one(
            tags in mk_tags(),
            range in "(\\^|~|>=|<=|<|>|!=)?[0-3](\\.[0-3x])?(-0)?",
        ) {
            let parsed = Range::parse(&range).unwrap();
            let inside = |tag: &String| parse_version(tag).filter(|version| parsed.matches(version));
            match semver(&range, &tags.iter().map(String::as_str).collect::<Vec<_>>()) {
                Ok(chosen) => {
                    let chosen = inside(&chosen).unwrap();
                    for version in tags.iter().filter_map(inside) {
                        prop_assert!(precedence(&version, &chosen).is_le(), "{version} is above {chosen}");
                    }
                }
                Err(error) => {
                    let no_version = matches!(error, ResolveError::NoVersion { .. });
                    prop_assert!(no_version, "{error}");
                    prop_assert_eq!(tags.iter().find_map(inside), None);
                }
            }
        }

        #[test]
        fn tags_outside_the_range_change_nothing(tags in mk_tags(), range in "[0-3]\\.x", noise in mk_tags()) {
            let parsed = Range::parse(&range).unwrap();
            let noise = noise.iter().filter(|tag| !parse_version(tag).is_some_and(|v| parsed.matches(&v)));
            let alone: Vec<&str> = tags.iter().map(String::as_str).collect();
            let among: Vec<&str> = alone.iter().copied().chain(noise.map(String::as_str)).collect();
            prop_assert_eq!(semver(&range, &alone).ok(), semver(&range, &among).ok());
        }
    }
}
