//! Reads and writes single files of valid and malicious trees.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use git2::Oid;
use proptest::prelude::*;
use starling_git::{
    ExportLimits, ExportStats, GitError, GitLimits, LinkProblem, Refusal, Trace, TreeFiles, TreeKind,
};

use super::fixture::{Entry, Fixture, file, read_folder, tree};
use super::{LONG, Store, export_limits, store, store_with};

/// A mirror of a repository with some commits.
struct Scene {
    store: Store,
    fixture: Fixture,
    commits: Vec<Oid>,
}

impl Scene {
    async fn of(limits: GitLimits, roots: Vec<Entry>) -> Self {
        let (store, fixture) = (store_with(limits), Fixture::new());
        let mut commits = Vec::new();
        for root in roots {
            let parent: Vec<Oid> = commits.last().copied().into_iter().collect();
            commits.push(fixture.commit(&parent, root));
        }
        let last = *commits.last().unwrap();
        fixture.point("refs/heads/main", last);
        let (access, id) = (fixture.access(), last.to_string());
        store.git.ensure_commit(&access, None, &id, LONG).await.unwrap();
        Self {
            store,
            fixture,
            commits,
        }
    }

    /// Looks up each step of these paths, in the commit with this index.
    async fn select(&self, index: usize, ignore: Option<&str>, paths: &[&str]) -> Result<Selected, GitError> {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        let (access, id) = (self.fixture.access(), self.commits[index].to_string());
        let read = self.store.git.read_tree(&access, &id, ignore, move |reader| {
            let mut kinds = Vec::new();
            let mut present = std::collections::BTreeSet::new();
            for path in &paths {
                for step in steps(path) {
                    match reader.kind(&step).ok()? {
                        None => break,
                        kind if step == *path => kinds.push(kind),
                        Some(_) => {}
                    }
                    present.insert(step);
                }
            }
            Some(Selected {
                files: reader.files(&present).ok()?,
                kinds,
                submodules: reader.submodules().into_iter().collect(),
                trace: reader.trace(),
            })
        });
        read.await.map(Option::unwrap)
    }

    async fn write(&self, files: TreeFiles) -> Result<(ExportStats, BTreeMap<String, String>), GitError> {
        let out = tempfile::tempdir().unwrap();
        let written = self
            .store
            .git
            .write_files(&self.fixture.access(), files, out.path())
            .await;
        let found = read_folder(out.path());
        if written.is_err() {
            assert_eq!(found, BTreeMap::new(), "an error leaves no files");
        }
        written.map(|stats| (stats, found))
    }

    /// The refusal of these paths, of the look-up or of the writing.
    async fn refusal(&self, paths: &[&str]) -> Refusal {
        let outcome = match self.select(0, None, paths).await {
            Ok(selected) => self.write(selected.files).await.map(|(_, found)| found),
            Err(error) => Err(error),
        };
        match outcome {
            Err(GitError::Refused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn is_unchanged(&self, index: usize, ignore: Option<&str>, trace: &Trace) -> bool {
        let (access, id) = (self.fixture.access(), self.commits[index].to_string());
        let trace = trace.clone();
        let read = self
            .store
            .git
            .read_tree(&access, &id, ignore, move |reader| reader.is_unchanged(&trace));
        read.await.unwrap()
    }
}

struct Selected {
    kinds: Vec<Option<TreeKind>>,
    files: TreeFiles,
    submodules: Vec<PathBuf>,
    trace: Trace,
}

/// Returns `a`, `a/b`, `a/b/c` for the last one.
fn steps(path: &Path) -> Vec<PathBuf> {
    let mut steps: Vec<PathBuf> = path.ancestors().map(Path::to_path_buf).collect();
    steps.pop();
    steps.reverse();
    steps
}

fn app() -> Entry {
    tree(vec![
        ("a.yaml", file("kind: A")),
        ("link.yaml", Entry::Link("../lib/b.yaml")),
        ("run.sh", Entry::Program("#!/bin/sh")),
    ])
}

#[tokio::test]
async fn selected_files_are_written_and_nothing_else() {
    let root = tree(vec![
        (".sourceignore", file("*.md\n/secret\n")),
        ("app", app()),
        (
            "lib",
            tree(vec![("b.yaml", file("kind: B")), ("c.yaml", file("kind: C"))]),
        ),
        ("note.md", file("")),
        ("secret", tree(vec![("d.yaml", file(""))])),
        ("vendor", Entry::Submodule),
    ]);
    let scene = Scene::of(GitLimits::default(), vec![root]).await;
    let paths = [
        "app/a.yaml",
        "app/link.yaml",
        "app/run.sh",
        "lib/b.yaml",
        "note.md",
        "secret/d.yaml",
        "vendor/e.yaml",
        "app/none",
        "app/a.yaml/none",
    ];
    let selected = scene.select(0, Some("run.sh\n"), &paths).await.unwrap();
    let link = TreeKind::Link("../lib/b.yaml".into());
    let kinds = [TreeKind::File, link, TreeKind::File].map(Some).to_vec();
    assert_eq!(selected.kinds, kinds);
    assert_eq!(selected.submodules, [PathBuf::from("vendor")]);
    let (stats, found) = scene.write(selected.files).await.unwrap();
    let expected = [
        ("app", "/"),
        ("app/a.yaml", "kind: A"),
        ("app/link.yaml", "-> ../lib/b.yaml"),
        ("lib", "/"),
        ("lib/b.yaml", "kind: B"),
    ];
    let expected = expected.map(|(path, content)| (path.to_owned(), content.to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
    assert_eq!((stats.files, stats.symlinks, stats.directories), (2, 1, 2));
}

/// Guards against somebody else's entry that stops the builds of a whole repository, and against such an entry in the
/// build itself that passes.
#[tokio::test]
async fn tenant_what_breaks_the_rules_is_refused_by_name_where_it_is_read_and_only_there() {
    let limits = || export_limits(|limits| (limits.max_file_bytes, limits.max_depth) = (100, 3));
    let deep = tree(vec![(
        "1",
        tree(vec![("2", tree(vec![("3", tree(vec![("f", file(""))]))]))]),
    )]);
    let link = |path: &str, problem| Refusal::Link {
        path: path.into(),
        problem,
    };
    for (name, entry, path, expected) in [
        (
            "big",
            file(&"x".repeat(101)),
            "x/big",
            Refusal::FileBytes {
                path: "x/big".into(),
                bytes: 101,
                limit: 100,
            },
        ),
        (
            "absolute",
            Entry::Link("/etc/passwd"),
            "x/absolute",
            link("x/absolute", LinkProblem::Absolute),
        ),
        (
            "dangling",
            Entry::Link("nowhere"),
            "x/dangling",
            link("x/dangling", LinkProblem::Missing),
        ),
        (
            "outside",
            Entry::Link("../../x"),
            "x/outside",
            link("x/outside", LinkProblem::Outside),
        ),
        (
            // In the repository, and not in the list.
            "unlisted",
            Entry::Link("../fine/b"),
            "x/unlisted",
            link("x/unlisted", LinkProblem::Missing),
        ),
        (
            "self",
            Entry::Link("../x"),
            "x/self",
            link("x/self", LinkProblem::Ancestor),
        ),
        (
            ".git",
            file("x"),
            "x/.git",
            Refusal::Name {
                path: "x/.git".into(),
            },
        ),
        (
            "deep",
            deep,
            "x/deep/1/2/3/f",
            Refusal::Depth {
                path: "x/deep/1/2".into(),
                limit: 3,
            },
        ),
    ] {
        let fine = tree(vec![("a", file("kind: A")), ("b", file("kind: B"))]);
        let root = tree(vec![("fine", fine), ("x", tree(vec![(name, entry)]))]);
        let scene = Scene::of(limits(), vec![root]).await;
        assert_eq!(scene.refusal(&[path]).await, expected, "{name}");
        let selected = scene.select(0, None, &["fine/a"]).await.unwrap();
        let (_, found) = scene.write(selected.files).await.unwrap();
        assert_eq!(found["fine/a"], "kind: A", "{name}");
    }
}

#[tokio::test]
async fn tenant_the_limits_of_exported_trees_hold_for_selected_files() {
    let many = |names: usize| {
        let names = (0..names).map(|n| (format!("f{n:03}").into_bytes(), file("12345")));
        Entry::Tree(names.collect())
    };
    let root = || tree(vec![("a", many(3)), ("b", many(50))]);
    let paths = ["a/f000", "a/f001"];
    let limits = |change: fn(&mut ExportLimits)| export_limits(change);

    // A directory and two files. The fifty files elsewhere do not count.
    let scene = Scene::of(limits(|l| l.max_entries = 3), vec![root()]).await;
    let selected = scene.select(0, None, &paths).await.unwrap();
    scene.write(selected.files).await.unwrap();
    let scene = Scene::of(limits(|l| l.max_entries = 2), vec![root()]).await;
    assert_eq!(scene.refusal(&paths).await, Refusal::Entries { limit: 2 });

    let scene = Scene::of(limits(|l| l.max_total_bytes = 10), vec![root()]).await;
    let selected = scene.select(0, None, &paths).await.unwrap();
    scene.write(selected.files).await.unwrap();
    let scene = Scene::of(limits(|l| l.max_total_bytes = 9), vec![root()]).await;
    assert_eq!(scene.refusal(&paths).await, Refusal::TotalBytes { limit: 9 });
}

/// Reads and lists until an error, and returns how far it came.
async fn listing(scene: &Scene, directory: &'static str) -> Result<Vec<OsString>, GitError> {
    let (access, id) = (scene.fixture.access(), scene.commits[0].to_string());
    let read = scene.store.git.read_tree(&access, &id, None, move |reader| {
        reader.names(Path::new(directory))
    });
    Ok(read.await?.unwrap())
}

#[tokio::test]
async fn tenant_listed_directories_are_checked_as_a_whole() {
    let scene = |root| Scene::of(export_limits(|limits| limits.max_entries = 6), vec![root]);
    let three = tree(vec![("a", file("")), ("b", file("")), ("c", Entry::Submodule)]);
    let names = listing(&scene(tree(vec![("d", three)])).await, "d")
        .await
        .unwrap();
    assert_eq!(names, ["a", "b", "c"]);
    for (entries, expected) in [
        (
            vec![("a", file("1")), ("a", file("2"))],
            Refusal::Duplicate { path: "d/a".into() },
        ),
        (vec![("..", file("1"))], Refusal::Name { path: "d/..".into() }),
        (
            ["1", "2", "3", "4", "5", "6"]
                .map(|name| (name, file("")))
                .to_vec(),
            Refusal::Entries { limit: 6 },
        ),
    ] {
        let scene = scene(tree(vec![("d", tree(entries))])).await;
        match listing(&scene, "d").await {
            Err(GitError::Refused { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
    }
    let gone = listing(&scene(tree(vec![])).await, "d").await;
    assert!(matches!(gone, Err(GitError::NotFound { .. })), "{gone:?}");
}

/// What is read is compared with a later commit.
#[tokio::test]
async fn a_commit_that_changes_nothing_that_was_looked_up_is_recognised() {
    let root = |app: Entry, lib: &str, other: &str, extra: Vec<(&'static str, Entry)>| {
        let mut entries = vec![
            ("app", app),
            ("lib", tree(vec![("b.yaml", file(lib)), ("c.yaml", file(other))])),
            ("other", tree(vec![("d.yaml", file(other))])),
        ];
        entries.extend(extra);
        entries.sort_by_key(|(name, _)| *name);
        tree(entries)
    };
    let mut changed = app();
    if let Entry::Tree(entries) = &mut changed {
        entries[0].1 = Entry::Program("kind: A");
    }
    let scene = Scene::of(
        GitLimits::default(),
        vec![
            root(app(), "1", "1", vec![]),
            root(app(), "1", "2", vec![("new", file(""))]),
            root(app(), "2", "1", vec![]),
            root(changed, "1", "1", vec![]),
            root(app(), "1", "1", vec![(".sourceignore", file("*.md"))]),
            root(Entry::Submodule, "1", "1", vec![]),
            root(app(), "1", "1", vec![("none", file(""))]),
        ],
    )
    .await;
    let paths = ["app/a.yaml", "app/link.yaml", "lib/b.yaml", "none"];
    let first = scene.select(0, None, &paths).await.unwrap();
    for (index, expected) in [
        (0, true),
        (1, true),
        (2, false), // a file
        (3, false), // a mode
        (4, false), // the rules, which could ignore anything
        (5, false), // a directory
        (6, false), // a file that was not there
    ] {
        let unchanged = scene.is_unchanged(index, None, &first.trace).await;
        assert_eq!(unchanged, expected, "{index}");
    }
    // The whole commit, by its root.
    assert!(first.trace.len() < 10, "{:?}", first.trace);
}

/// Trees of a few names, so that two of them often agree in part.
fn trees() -> impl Strategy<Value = Entry> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let leaf = prop_oneof![
        prop::sample::select(vec!["1", "2"]).prop_map(file),
        Just(Entry::Link("a")),
        Just(Entry::Submodule),
    ];
    let node = leaf.prop_recursive(3, 20, 3, move |inner| {
        prop::collection::btree_map(name(), inner, 0..3).prop_map(|entries| Entry::Tree(by_name(entries)))
    });
    prop::collection::btree_map(name(), node, 0..4).prop_map(|entries| Entry::Tree(by_name(entries)))
}

fn by_name(entries: BTreeMap<&'static str, Entry>) -> Vec<(Vec<u8>, Entry)> {
    let entries = entries.into_iter();
    entries
        .map(|(name, entry)| (name.as_bytes().to_vec(), entry))
        .collect()
}

#[derive(Debug, Clone)]
enum LookUp {
    Kind(PathBuf),
    Names(PathBuf),
    Read(PathBuf),
}

fn look_ups() -> impl Strategy<Value = Vec<LookUp>> {
    let step = prop::sample::select(vec!["a", "b", "c"]);
    let path = prop::collection::vec(step, 0..4).prop_map(|steps| steps.iter().collect::<PathBuf>());
    let look_up = (path, 0..4).prop_map(|(path, kind)| match kind {
        0 => LookUp::Names(path),
        1 => LookUp::Read(path),
        _ => LookUp::Kind(path),
    });
    prop::collection::vec(look_up, 1..6)
}

/// The answers to look-ups; those that would be errors are left out.
async fn answers(scene: &Scene, index: usize, look_ups: &[LookUp]) -> (Vec<String>, Trace) {
    let (access, id) = (scene.fixture.access(), scene.commits[index].to_string());
    let look_ups = look_ups.to_vec();
    let read = scene.store.git.read_tree(&access, &id, None, move |reader| {
        let mut answers = Vec::new();
        for look_up in look_ups {
            let (LookUp::Kind(path) | LookUp::Names(path) | LookUp::Read(path)) = &look_up;
            let kind = reader.kind(path).unwrap();
            answers.push(format!("{kind:?}"));
            answers.push(match (&look_up, kind) {
                (LookUp::Names(_), Some(TreeKind::Directory)) => {
                    format!("{:?}", reader.names(path).unwrap())
                }
                (LookUp::Read(_), Some(TreeKind::File)) => {
                    format!("{:?}", reader.read(path, 10).unwrap())
                }
                _ => String::new(),
            });
        }
        (answers, reader.trace())
    });
    read.await.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Two trees that are taken for the same give the same answers to the same look-ups.
    #[test]
    fn trees_that_seem_unchanged_give_the_same_answers(
        one in trees(),
        two in trees(),
        look_ups in look_ups(),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let scene = Scene::of(GitLimits::default(), vec![one, two]).await;
            let (before, trace) = answers(&scene, 0, &look_ups).await;
            assert!(scene.is_unchanged(0, None, &trace).await);
            let (after, _) = answers(&scene, 1, &look_ups).await;
            if scene.is_unchanged(1, None, &trace).await {
                assert_eq!(before, after);
            }
        });
    }
}

#[tokio::test]
async fn files_of_a_mirror_that_is_gone_are_not_written() {
    let scene = Scene::of(GitLimits::default(), vec![tree(vec![("a", file("1"))])]).await;
    let selected = scene.select(0, None, &["a"]).await.unwrap();
    let other = store();
    let out = other.folder.path().join("out");
    let written = other
        .git
        .write_files(&scene.fixture.access(), selected.files, &out)
        .await;
    assert!(matches!(written, Err(GitError::NotFound { .. })), "{written:?}");
}
