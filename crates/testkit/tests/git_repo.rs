//! The repository fixture, read back through libgit2 and through a fetch.

#![allow(
    clippy::unwrap_used,
    reason = "functions shared by the tests of a file are tests too"
)]

use git2::{ObjectType, Repository};
use starling_testkit::{Change, GitRepo, GitRepoError};

fn content(repo: &GitRepo, commit: &str, path: &str) -> Option<(Vec<u8>, i32)> {
    let repository = Repository::open_bare(repo.path()).unwrap();
    let tree = repository
        .find_commit(commit.parse().unwrap())
        .unwrap()
        .tree()
        .unwrap();
    let entry = tree.get_path(path.as_ref()).ok()?;
    Some((
        repository.find_blob(entry.id()).unwrap().content().to_vec(),
        entry.filemode(),
    ))
}

#[test]
fn same_steps_give_the_same_commits() {
    let steps = || {
        let repo = GitRepo::init().unwrap();
        repo.commit(&[("a.yaml", "1"), ("deep/er/b.yaml", "2")], "first")
            .unwrap();
        repo.commit(&[("a.yaml", "3")], "second").unwrap()
    };
    assert_eq!(steps(), steps());
}

#[test]
fn commits_keep_replace_and_remove_files() {
    let repo = GitRepo::init().unwrap();
    let first = repo
        .commit(&[("a", "1"), ("dir/b", "2"), ("dir/sub/c", "3")], "first")
        .unwrap();
    let second = repo.commit(&[("a", "4")], "second").unwrap();
    assert_eq!(content(&repo, &first, "a").unwrap().0, b"1");
    assert_eq!(content(&repo, &second, "a").unwrap(), (b"4".to_vec(), 0o100_644));
    assert_eq!(content(&repo, &second, "dir/sub/c").unwrap().0, b"3");
    let third = repo.remove(&["dir", "no-such-file"], "third").unwrap();
    assert_eq!(content(&repo, &third, "dir/b"), None);
    assert_eq!(content(&repo, &third, "a").unwrap().0, b"4");
    assert_eq!(repo.head("main").unwrap(), third);

    let changes = [
        Change::WriteExecutable("run", b"#!"),
        Change::Symlink("link", "/etc/passwd"),
    ];
    let special = repo.commit_to("special", &changes, "special").unwrap();
    assert_eq!(content(&repo, &special, "run").unwrap().1, 0o100_755);
    assert_eq!(
        content(&repo, &special, "link").unwrap(),
        (b"/etc/passwd".to_vec(), 0o120_000)
    );
    // A new branch starts empty.
    assert_eq!(content(&repo, &special, "a"), None);
}

#[test]
fn a_fetch_sees_branches_tags_and_forced_pushes() {
    let repo = GitRepo::init().unwrap();
    let first = repo.commit(&[("a", "1")], "first").unwrap();
    let second = repo.commit(&[("a", "2")], "second").unwrap();
    repo.tag("v1", &first).unwrap();
    let tag_object = repo.annotated_tag("v2", &second, "release").unwrap();
    repo.branch("release", &first).unwrap();
    assert!(matches!(
        repo.branch("release", &first),
        Err(GitRepoError::Git { .. })
    ));

    let directory = tempfile::tempdir().unwrap();
    let clone = Repository::init_bare(directory.path()).unwrap();
    let fetch = || {
        let mut remote = clone.remote_anonymous(&repo.url()).unwrap();
        let mut options = git2::FetchOptions::new();
        options.prune(git2::FetchPrune::On);
        remote
            .fetch(&["+refs/*:refs/*"], Some(&mut options), None)
            .unwrap();
    };
    let resolve = |name: &str| {
        clone
            .find_reference(name)
            .ok()
            .map(|r| r.target().unwrap().to_string())
    };
    fetch();
    assert_eq!(resolve("refs/heads/main"), Some(second.clone()));
    assert_eq!(resolve("refs/heads/release"), Some(first.clone()));
    assert_eq!(resolve("refs/tags/v1"), Some(first.clone()));
    assert_eq!(resolve("refs/tags/v2"), Some(tag_object));
    let peeled = clone
        .find_reference("refs/tags/v2")
        .unwrap()
        .peel(ObjectType::Commit)
        .unwrap();
    assert_eq!(peeled.id().to_string(), second);

    repo.force_reset("main", &first).unwrap();
    repo.delete_ref("refs/tags/v1").unwrap();
    fetch();
    assert_eq!(resolve("refs/heads/main"), Some(first));
    assert_eq!(resolve("refs/tags/v1"), None);
}

#[test]
fn unknown_commits_and_references_are_named() {
    let repo = GitRepo::init().unwrap();
    assert!(matches!(repo.tag("v1", "nonsense"), Err(GitRepoError::NoCommit(name)) if name == "nonsense"));
    let missing = "0123456789012345678901234567890123456789";
    assert!(matches!(
        repo.force_reset("main", missing),
        Err(GitRepoError::NoCommit(_))
    ));
    let error = repo.delete_ref("refs/heads/none").unwrap_err();
    assert!(error.to_string().contains("refs/heads/none"), "{error}");
    assert!(matches!(repo.head("main"), Err(GitRepoError::Git { .. })));
}
