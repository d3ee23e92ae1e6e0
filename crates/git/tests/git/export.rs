//! Exports of valid and malicious trees.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use starling_git::{ExportLimits, ExportStats, GitError, GitLimits, LinkProblem, Refusal};

use super::fixture::{Entry, Fixture, file, read_folder, tree};
use super::{LONG, Store, export_limits, store, store_with};

/// Commits a tree to a branch, fetches it and exports it.
async fn export(
    store: &Store,
    root: Entry,
    ignore: Option<&str>,
) -> Result<(ExportStats, BTreeMap<String, String>), GitError> {
    let fixture = Fixture::new();
    let commit = fixture.commit(&[], root);
    fixture.point("refs/heads/main", commit);
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await?;
    let out = tempfile::tempdir().unwrap();
    let outcome = store
        .git
        .export(&fixture.access(), &commit.to_string(), out.path(), ignore)
        .await;
    if outcome.is_err() {
        assert_eq!(
            read_folder(out.path()),
            BTreeMap::new(),
            "an error leaves no files"
        );
    }
    outcome.map(|stats| (stats, read_folder(out.path())))
}

async fn refusal(limits: GitLimits, root: Entry) -> Refusal {
    match export(&store_with(limits), root, None).await {
        Err(GitError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn contents<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries
        .into_iter()
        .map(|(path, content)| (path.to_owned(), content.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_tree_is_written_with_links_and_without_submodules() {
    let root = tree(vec![
        (
            "app",
            tree(vec![
                ("deployment.yaml", file("kind: Deployment")),
                ("shared", Entry::Link("../base")),
            ]),
        ),
        (
            "base",
            tree(vec![
                ("config.yaml", file("a: 1")),
                ("run.sh", Entry::Program("#!/bin/sh")),
            ]),
        ),
        ("latest", Entry::Link("app/shared/config.yaml")),
        ("vendor", Entry::Submodule),
    ]);
    let (stats, found) = export(&store(), root, None).await.unwrap();
    let expected = contents([
        ("app", "/"),
        ("app/deployment.yaml", "kind: Deployment"),
        ("app/shared", "-> ../base"),
        ("base", "/"),
        ("base/config.yaml", "a: 1"),
        ("base/run.sh", "#!/bin/sh"),
        ("latest", "-> app/shared/config.yaml"),
    ]);
    assert_eq!(found, expected);
    assert_eq!(
        stats,
        ExportStats {
            files: 3,
            bytes: 29,
            directories: 2,
            symlinks: 2,
            submodules: 1,
            first_submodule: "vendor".to_owned(),
            ignored: 0
        }
    );
}

#[tokio::test]
async fn the_executable_bit_is_kept_and_other_users_have_no_access() {
    let (store, fixture) = (store(), Fixture::new());
    let commit = fixture.commit(
        &[],
        tree(vec![
            ("a", file("")),
            ("d", tree(vec![])),
            ("x", Entry::Program("")),
        ]),
    );
    fixture.point("refs/heads/main", commit);
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let out = store.folder.path().join("out");
    store
        .git
        .export(&fixture.access(), &commit.to_string(), &out, None)
        .await
        .unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        [
            mode(&out),
            mode(&out.join("a")),
            mode(&out.join("d")),
            mode(&out.join("x"))
        ],
        [0o700, 0o600, 0o700, 0o700]
    );
}

#[tokio::test]
async fn links_that_leave_the_tree_are_refused_with_their_path() {
    let cases = [
        ("/etc/passwd", LinkProblem::Absolute),
        ("/proc/self/environ", LinkProblem::Absolute),
        ("../../../../etc/passwd", LinkProblem::Outside),
        ("../..", LinkProblem::Outside),
        ("step/../../x", LinkProblem::Outside),
        ("missing", LinkProblem::Missing),
        ("link", LinkProblem::Loop),
        ("..", LinkProblem::Ancestor),
    ];
    for (target, problem) in cases {
        let root = tree(vec![
            (
                "dir",
                tree(vec![
                    ("link", Entry::Link(target)),
                    ("step", Entry::Link("../other")),
                ]),
            ),
            ("other", tree(vec![("a", file(""))])),
        ]);
        assert_eq!(
            refusal(GitLimits::default(), root).await,
            Refusal::Link {
                path: "dir/link".into(),
                problem
            },
            "{target}"
        );
    }
}

#[tokio::test]
async fn a_folder_cannot_be_swapped_for_a_link_to_write_through_it() {
    let root = tree(vec![
        ("a", Entry::Link("/tmp")),
        ("a", tree(vec![("canary", file("escaped"))])),
    ]);
    assert_eq!(
        refusal(GitLimits::default(), root).await,
        Refusal::Duplicate { path: "a".into() }
    );
    let root = tree(vec![
        ("a", tree(vec![("canary", file("escaped"))])),
        ("a", Entry::Link("/tmp")),
    ]);
    assert_eq!(
        refusal(GitLimits::default(), root).await,
        Refusal::Duplicate { path: "a".into() }
    );
}

#[tokio::test]
async fn names_outside_of_the_folder_are_refused() {
    for name in [".git", ".GIT", "..", ".", "a/b", "../x", "/abs"] {
        let root = tree(vec![("sub", tree(vec![(name, file("x"))]))]);
        let path = match name {
            "/abs" => "/abs".into(),
            name => format!("sub/{name}"),
        };
        assert_eq!(
            refusal(GitLimits::default(), root).await,
            Refusal::Name { path },
            "{name}"
        );
    }
}

#[tokio::test]
async fn names_of_any_bytes_are_written() {
    use std::os::unix::ffi::OsStringExt as _;
    let (store, fixture) = (store(), Fixture::new());
    let name = b"na\xffme \n".to_vec();
    let commit = fixture.commit(&[], Entry::Tree(vec![(name.clone(), file("x"))]));
    fixture.point("refs/heads/main", commit);
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let out = tempfile::tempdir().unwrap();
    store
        .git
        .export(&fixture.access(), &commit.to_string(), out.path(), None)
        .await
        .unwrap();
    assert_eq!(
        std::fs::read(out.path().join(std::ffi::OsString::from_vec(name))).unwrap(),
        b"x"
    );
}

#[tokio::test]
async fn limits_are_enforced() {
    let small = || {
        tree(vec![
            ("a", file("12345")),
            ("b", file("12345")),
            ("c", tree(vec![("d", tree(vec![]))])),
        ])
    };
    let limits = |change: fn(&mut ExportLimits)| export_limits(change);
    assert!(
        export(&store_with(limits(|l| l.max_entries = 4)), small(), None)
            .await
            .is_ok()
    );
    assert_eq!(
        refusal(limits(|l| l.max_entries = 3), small()).await,
        Refusal::Entries { limit: 3 }
    );
    assert!(
        export(&store_with(limits(|l| l.max_total_bytes = 10)), small(), None)
            .await
            .is_ok()
    );
    assert_eq!(
        refusal(limits(|l| l.max_total_bytes = 9), small()).await,
        Refusal::TotalBytes { limit: 9 }
    );
    assert_eq!(
        refusal(limits(|l| l.max_depth = 1), small()).await,
        Refusal::Depth {
            path: "c/d".into(),
            limit: 1
        }
    );
    let expected = Refusal::FileBytes {
        path: "a".into(),
        bytes: 5,
        limit: 4,
    };
    assert_eq!(refusal(limits(|l| l.max_file_bytes = 4), small()).await, expected);
}

#[tokio::test]
async fn a_huge_file_of_few_bytes_in_a_pack_is_refused_before_it_is_read() {
    let root = tree(vec![("big.bin", Entry::File(vec![0; 8 << 20]))]);
    let expected = Refusal::FileBytes {
        path: "big.bin".into(),
        bytes: 8 << 20,
        limit: 1 << 20,
    };
    assert_eq!(
        refusal(export_limits(|limits| limits.max_file_bytes = 1 << 20), root).await,
        expected
    );
}

#[tokio::test]
async fn a_tree_that_repeats_the_same_folder_ends_at_the_limit() {
    // Ten entries on each of nine levels: a billion files in ten small objects.
    let store = store_with(export_limits(|limits| limits.max_entries = 2000));
    let fixture = Fixture::new();
    let mut id = fixture.write(&file("x")).1;
    let mut mode = "100644";
    for _ in 0..9 {
        let mut raw = Vec::new();
        for n in 0..10 {
            raw.extend_from_slice(format!("{mode} f{n}\0").as_bytes());
            raw.extend_from_slice(id.as_bytes());
        }
        id = fixture
            .repo
            .odb()
            .unwrap()
            .write(git2::ObjectType::Tree, &raw)
            .unwrap();
        mode = "40000";
    }
    let commit = fixture.commit_tree(&[], id);
    fixture.point("refs/heads/main", commit);
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let out = tempfile::tempdir().unwrap();
    let error = store
        .git
        .export(&fixture.access(), &commit.to_string(), out.path(), None)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            GitError::Refused {
                reason: Refusal::Entries { .. },
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(read_folder(out.path()), BTreeMap::new());
}

#[tokio::test]
async fn ignore_rules_of_the_repository_and_of_the_caller_are_applied() {
    let root = || {
        tree(vec![
            (
                ".sourceignore",
                file("# rules\n*.md\n/docs/\n!README.md\nbad-link\n"),
            ),
            ("README.md", file("kept")),
            (
                "app",
                tree(vec![
                    ("docs", tree(vec![("d.yaml", file("kept"))])),
                    ("notes.md", file("x")),
                ]),
            ),
            ("bad-link", Entry::Link("/etc/passwd")),
            ("docs", tree(vec![("a.yaml", file("x")), ("b.yaml", file("x"))])),
        ])
    };
    let rules = "# rules\n*.md\n/docs/\n!README.md\nbad-link\n";
    let (stats, found) = export(&store(), root(), None).await.unwrap();
    let expected = contents([
        (".sourceignore", rules),
        ("README.md", "kept"),
        ("app", "/"),
        ("app/docs", "/"),
        ("app/docs/d.yaml", "kept"),
    ]);
    assert_eq!(found, expected);
    assert_eq!(stats.ignored, 3);

    let (_, found) = export(&store(), root(), Some("README.md\n.sourceignore\n!/app/notes.md"))
        .await
        .unwrap();
    let expected = contents([
        ("app", "/"),
        ("app/docs", "/"),
        ("app/docs/d.yaml", "kept"),
        ("app/notes.md", "x"),
    ]);
    assert_eq!(found, expected);
}

#[tokio::test]
async fn ignore_rules_that_cannot_be_read_are_refused() {
    for rules in ["[z-a]".to_owned(), "a".repeat(100_000)] {
        let reason = refusal(GitLimits::default(), tree(vec![(".sourceignore", file(&rules))])).await;
        assert!(
            matches!(
                &reason,
                Refusal::IgnoreRules {
                    place: ".sourceignore",
                    ..
                }
            ) || matches!(&reason, Refusal::FileBytes { path, .. } if path == ".sourceignore"),
            "{reason:?}"
        );
    }
}

#[tokio::test]
async fn an_export_needs_an_empty_folder() {
    let (store, fixture) = (store(), Fixture::new());
    let commit = fixture.simple(&[], "1");
    fixture.point("refs/heads/main", commit);
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let out = tempfile::tempdir().unwrap();
    std::fs::write(out.path().join("mine"), "x").unwrap();
    let link = store.folder.path().join("link");
    std::os::unix::fs::symlink(tempfile::tempdir().unwrap().path(), &link).unwrap();
    for destination in [out.path(), &out.path().join("mine"), &link] {
        let error = store
            .git
            .export(&fixture.access(), &commit.to_string(), destination, None)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::Destination,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    assert_eq!(std::fs::read_to_string(out.path().join("mine")).unwrap(), "x");
    let absent = "ab".repeat(20);
    let error = store
        .git
        .export(&fixture.access(), &absent, &out.path().join("new"), None)
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::NotFound { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_exports_of_several_commits_at_once_agree() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let root = |n: usize| {
        tree(vec![
            ("n", file(&n.to_string())),
            ("sub", tree(vec![("link", Entry::Link("../n"))])),
        ])
    };
    let mut commits = Vec::new();
    for n in 0..3 {
        let commit = fixture.commit(
            commits.last().map(std::slice::from_ref).unwrap_or_default(),
            root(n),
        );
        commits.push(commit);
    }
    fixture.point("refs/heads/main", commits[2]);
    store
        .git
        .ensure_commit(&access, None, &commits[2].to_string(), LONG)
        .await
        .unwrap();
    let jobs = (0..30).map(|n| {
        let (store, access, commits) = (&store, &access, &commits);
        async move {
            let out = store.folder.path().join(format!("out-{n}"));
            store
                .git
                .export(access, &commits[n % 3].to_string(), &out, None)
                .await
                .unwrap();
            assert_eq!(read_folder(&out)["n"], (n % 3).to_string());
            assert_eq!(
                std::fs::read_to_string(out.join("sub/link")).unwrap(),
                (n % 3).to_string()
            );
        }
    });
    futures::future::join_all(jobs).await;
}
