//! Which commit is meant.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use git2::{IndexAddOption, Repository, RepositoryInitOptions, Signature};
use starling_api::Source;
use starling_core::revision::Revision;

use super::bench::named;
use crate::controller::builds::refname;
use crate::git::{Credential, GitStore, RepoAccess, RepoUrl};

/// The branch of a repository that is made of a folder.
const LOCAL: &str = "local";
/// The shortest beginning of a commit that is taken for one, as git writes them.
const SHORTEST: usize = 7;

/// A revision, and how it is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// `main@sha1:…`.
    pub(super) text: String,
    /// The full name of its ref.
    pub(super) refname: Option<String>,
}

/// What the Source offers now.
pub(super) fn offered(source: &Source) -> anyhow::Result<Wanted> {
    let text = source
        .status
        .as_ref()
        .map_or("", |status| status.revision.as_str());
    if text.is_empty() {
        bail!(
            "{} offers no revision yet; give one with --revision",
            named(source)
        );
    }
    let revision: Revision = text
        .parse()
        .with_context(|| format!("{}: status.revision", named(source)))?;
    Ok(Wanted {
        text: text.to_owned(),
        refname: refname(source, &revision),
    })
}

/// What a person means by a text: a branch, a tag, a commit in full or its beginning, or a revision as status shows it.
pub(super) async fn find(
    git: &GitStore,
    access: &RepoAccess,
    source: &Source,
    text: &str,
) -> anyhow::Result<Wanted> {
    let refs = git
        .list_refs(access, source.spec.timeout.as_std())
        .await
        .with_context(|| named(source))?;
    among(&refs, source.spec.reference.branch.is_some(), text).with_context(|| named(source))
}

/// The head of a repository that was made of a folder.
pub(super) async fn newest(git: &GitStore, access: &RepoAccess, source: &Source) -> anyhow::Result<Wanted> {
    find(git, access, source, LOCAL).await
}

fn among(refs: &BTreeMap<String, String>, heads_first: bool, text: &str) -> anyhow::Result<Wanted> {
    let folders = if heads_first {
        ["heads", "tags"]
    } else {
        ["tags", "heads"]
    };
    for folder in folders {
        let refname = format!("refs/{folder}/{text}");
        if let Some(commit) = refs.get(&refname) {
            return Ok(Wanted {
                text: format!("{text}@{}", with_algorithm(commit)),
                refname: Some(refname),
            });
        }
    }
    if text.parse::<Revision>().is_ok() {
        return Ok(Wanted {
            text: text.to_owned(),
            refname: None,
        });
    }
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex && matches!(text.len(), 40 | 64) {
        return Ok(Wanted {
            text: with_algorithm(text),
            refname: None,
        });
    }
    if is_hex && text.len() >= SHORTEST {
        let mut commits: Vec<&String> = refs.values().filter(|commit| commit.starts_with(text)).collect();
        commits.sort_unstable();
        commits.dedup();
        match commits[..] {
            [] => {
                bail!("no branch or tag stands at a commit that begins with {text}; give the commit in full")
            }
            [commit] => {
                return Ok(Wanted {
                    text: with_algorithm(commit),
                    refname: None,
                });
            }
            _ => bail!("several commits begin with {text}; give the commit in full"),
        }
    }
    bail!("there is no branch or tag {text:?}; give a branch, a tag, or a commit in full")
}

fn with_algorithm(commit: &str) -> String {
    let algorithm = if commit.len() == 64 { "sha256" } else { "sha1" };
    format!("{algorithm}:{commit}")
}

/// Makes a repository of a folder as it is, with one commit of all that git would take in. It is then fetched, checked and rendered as
/// any other: what a preview shows is what a push would do.
pub(super) fn of_folder(folder: &Path, copy: &Path) -> anyhow::Result<RepoAccess> {
    let folder = folder
        .canonicalize()
        .context("it is no folder that can be read")?;
    let mut options = RepositoryInitOptions::new();
    let repository = Repository::init_opts(copy, options.bare(true).initial_head(LOCAL))?;
    // Not written down in its configuration: a bare repository has none.
    repository.set_workdir(&folder, false)?;
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
        .map_err(|()| anyhow::anyhow!("{} is no path of a URL", path.display()))?;
    Ok(RepoAccess::new(
        RepoUrl::parse(url.as_str(), true)?,
        Credential::None,
    ))
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
    fn people_name_revisions_in_many_ways() {
        let found = |heads_first, text: &str| among(&refs(), heads_first, text).map(|wanted| wanted.text);
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
        for (text, told) in [
            ("nothing", "no branch or tag \"nothing\""),
            ("1234567", "in full"),
            ("ccccccc", "several commits"),
            ("abc", "no branch or tag"),
        ] {
            let error = format!("{:#}", among(&refs(), true, text).unwrap_err());
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_folder_becomes_a_repository_as_git_would_take_it_in() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("tree");
        std::fs::create_dir_all(folder.join("app")).unwrap();
        for (path, text) in [
            ("app/a.yaml", "a: 1"),
            (".gitignore", "secret\n"),
            ("secret", "hunter2"),
        ] {
            std::fs::write(folder.join(path), text).unwrap();
        }
        let access = of_folder(&folder, &home.path().join("copy")).unwrap();
        let git = GitStore::new(home.path().join("git"), crate::git::GitLimits::default());
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
        // The folder itself is as it was.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
    }
}
