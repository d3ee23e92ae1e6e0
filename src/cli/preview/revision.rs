//! Resolves the revision that a user means.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use git2::{IndexAddOption, Repository, RepositoryInitOptions, Signature};
use kube::ResourceExt as _;
use starling_api::Source;
use starling_core::revision::Revision;
use starling_git::{Credential, GitStore, RepoAccess, RepoUrl};

use crate::controller::artifacts::{Origin, reference};

/// Branch of a repository that is created from a directory.
const LOCAL: &str = "local";
/// The shortest commit prefix, as git prints them.
const SHORTEST: usize = 7;

/// A revision and the ref to fetch it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvedRevision {
    /// `main@sha1:…`.
    pub(super) text: String,
    /// The full name of the ref; `None`: the commit is fetched by its ID.
    pub(super) reference: Option<String>,
}

/// The latest revision of a Source.
pub(super) fn latest(source: &Source) -> anyhow::Result<ResolvedRevision> {
    let text = source
        .status
        .as_ref()
        .map_or("", |status| status.revision.as_str());
    if text.is_empty() {
        bail!("{} has no revision yet; give one with --revision", named(source));
    }
    let revision: Revision = text
        .parse()
        .with_context(|| format!("{}: status.revision", named(source)))?;
    Ok(ResolvedRevision {
        text: text.to_owned(),
        reference: reference(source, &revision),
    })
}

/// Resolves a branch, a tag, a commit, a commit prefix, or a revision as status shows it.
pub(super) async fn find(
    git: &GitStore,
    origin: &Origin,
    source: &Source,
    text: &str,
) -> anyhow::Result<ResolvedRevision> {
    let Origin::Git(access) = origin;
    let refs = git
        .list_refs(access, source.spec.timeout.as_std())
        .await
        .with_context(|| named(source))?;
    resolve(&refs, source.spec.reference.branch.is_some(), text).with_context(|| named(source))
}

/// The head of a repository that was created from a directory.
pub(super) async fn newest(
    git: &GitStore,
    origin: &Origin,
    source: &Source,
) -> anyhow::Result<ResolvedRevision> {
    find(git, origin, source, LOCAL).await
}

fn resolve(
    refs: &BTreeMap<String, String>,
    heads_first: bool,
    text: &str,
) -> anyhow::Result<ResolvedRevision> {
    let directories = if heads_first {
        ["heads", "tags"]
    } else {
        ["tags", "heads"]
    };
    for directory in directories {
        let refname = format!("refs/{directory}/{text}");
        if let Some(commit) = refs.get(&refname) {
            return Ok(ResolvedRevision {
                text: format!("{text}@{}", with_algorithm(commit)),
                reference: Some(refname),
            });
        }
    }
    if text.parse::<Revision>().is_ok() {
        return Ok(ResolvedRevision {
            text: text.to_owned(),
            reference: None,
        });
    }
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex && matches!(text.len(), 40 | 64) {
        return Ok(ResolvedRevision {
            text: with_algorithm(text),
            reference: None,
        });
    }
    if is_hex && text.len() >= SHORTEST {
        let mut commits: Vec<&String> = refs.values().filter(|commit| commit.starts_with(text)).collect();
        commits.sort_unstable();
        commits.dedup();
        match commits[..] {
            [] => {
                bail!("no branch or tag points to a commit with prefix {text}; give the full commit")
            }
            [commit] => {
                return Ok(ResolvedRevision {
                    text: with_algorithm(commit),
                    reference: None,
                });
            }
            _ => bail!("commit prefix {text} is ambiguous; give the full commit"),
        }
    }
    bail!("branch or tag {text:?} not found; give a branch, a tag or a full commit")
}

fn with_algorithm(commit: &str) -> String {
    let algorithm = if commit.len() == 64 { "sha256" } else { "sha1" };
    format!("{algorithm}:{commit}")
}

/// Creates a repository from a directory, with one commit of all files that git does not ignore. The preview fetches,
/// checks and builds it like any other repository, so it shows what a push would do.
pub(super) fn of_directory(directory: &Path, copy: &Path) -> anyhow::Result<RepoAccess> {
    let directory = directory.canonicalize().context("cannot read directory")?;
    let mut options = RepositoryInitOptions::new();
    let repository = Repository::init_opts(copy, options.bare(true).initial_head(LOCAL))?;
    // Not part of the configuration: a bare repository has no work tree.
    repository.set_workdir(&directory, false)?;
    let mut index = repository.index()?;
    index.add_all(["*"], IndexAddOption::DEFAULT, None)?;
    let tree = repository.find_tree(index.write_tree()?)?;
    let nobody = Signature::now("starling", "starling@localhost")?;
    repository.commit(
        Some(&format!("refs/heads/{LOCAL}")),
        &nobody,
        &nobody,
        "a preview",
        &tree,
        &[],
    )?;
    let path = copy.canonicalize()?;
    let url = url::Url::from_file_path(&path)
        .map_err(|()| anyhow::anyhow!("{} cannot be written as a file:// URL", path.display()))?;
    Ok(RepoAccess::new(
        RepoUrl::parse(url.as_str(), true)?,
        Credential::None,
    ))
}

/// Names a Source in errors.
fn named(source: &Source) -> String {
    format!("Source {}", source.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refs() -> BTreeMap<String, String> {
        let commit = |digit: &str| digit.repeat(40);
        [
            ("refs/heads/main", commit("a")),
            ("refs/heads/v1", commit("b")),
            ("refs/tags/v1", commit("c")),
            ("refs/tags/v2", "c".repeat(7) + &"d".repeat(33)),
        ]
        .map(|(name, commit)| (name.to_owned(), commit))
        .into()
    }

    #[test]
    fn revisions_are_resolved_from_many_forms() {
        let found =
            |heads_first, text: &str| resolve(&refs(), heads_first, text).map(|revision| revision.text);
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        for (heads_first, text, expected) in [
            (true, "main", format!("main@sha1:{a}")),
            (true, "v1", format!("v1@sha1:{b}")),
            (false, "v1", format!("v1@sha1:{c}")),
            (true, &a[..7], format!("sha1:{a}")),
            (true, &a, format!("sha1:{a}")),
            (true, &"e".repeat(40), format!("sha1:{}", "e".repeat(40))),
            (true, &format!("main@sha1:{b}"), format!("main@sha1:{b}")),
            (true, &"f".repeat(64), format!("sha256:{}", "f".repeat(64))),
        ] {
            assert_eq!(found(heads_first, text).unwrap(), expected, "{text}");
        }
        for (text, expected) in [
            ("nothing", "branch or tag \"nothing\" not found"),
            ("1234567", "full commit"),
            ("ccccccc", "ambiguous"),
            ("abc", "branch or tag"),
        ] {
            let error = format!("{:#}", resolve(&refs(), true, text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_directory_becomes_a_repository_without_ignored_files() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("tree");
        std::fs::create_dir_all(directory.join("app")).unwrap();
        for (path, text) in [
            ("app/a.yaml", "a: 1"),
            (".gitignore", "secret\n"),
            ("secret", "hunter2"),
        ] {
            std::fs::write(directory.join(path), text).unwrap();
        }
        let access = of_directory(&directory, &home.path().join("copy")).unwrap();
        let git = GitStore::new(home.path().join("git"), starling_git::GitLimits::default());
        let limit = std::time::Duration::from_secs(30);
        let refs = git.list_refs(&access, limit).await.unwrap();
        let commit = &refs["refs/heads/local"];
        git.ensure_commit(&access, Some("refs/heads/local"), commit, limit)
            .await
            .unwrap();
        let out = home.path().join("out");
        git.export(&access, commit, &out, None).await.unwrap();
        assert_eq!(std::fs::read_to_string(out.join("app/a.yaml")).unwrap(), "a: 1");
        assert!(!out.join("secret").exists());
        // The directory itself is unchanged.
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3);
    }
}
