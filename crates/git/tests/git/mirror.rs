//! Refs, ancestry, pins, damage: with `file://` repositories.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use starling_git::{Ancestry, Credential, GitError, GitLimits, GitStore, Refusal, RepoAccess, RepoUrl};

use super::fixture::{Fixture, file, tree};
use super::{LONG, Store, store, store_with};

async fn refs(store: &Store, access: &RepoAccess) -> BTreeMap<String, String> {
    store.git.list_refs(access, LONG).await.unwrap()
}

async fn ensure(
    store: &Store,
    fixture: &Fixture,
    name: Option<&str>,
    commit: git2::Oid,
) -> Result<(), GitError> {
    store
        .git
        .ensure_commit(&fixture.access(), name, &commit.to_string(), LONG)
        .await
}

fn mirror_path(store: &Store, access: &RepoAccess) -> PathBuf {
    store.folder.path().join("mirrors").join(access.mirror_key())
}

#[tokio::test]
async fn an_empty_repository_has_no_refs() {
    let (store, fixture) = (store(), Fixture::new());
    assert_eq!(refs(&store, &fixture.access()).await, BTreeMap::new());
}

#[tokio::test]
async fn refs_are_listed_and_annotated_tags_give_their_commit() {
    let (store, fixture) = (store(), Fixture::new());
    let first = fixture.simple(&[], "1");
    let second = fixture.simple(&[first], "2");
    fixture.point("refs/heads/main", second);
    fixture.point("refs/tags/light", first);
    fixture.point("refs/pull/1/head", first);
    let tag = fixture.annotate("v1", first);
    assert_ne!(tag, first);
    let expected = [
        ("refs/heads/main", second),
        ("refs/tags/light", first),
        ("refs/tags/v1", first),
    ]
    .map(|(n, id)| (n.into(), id.to_string()));
    assert_eq!(refs(&store, &fixture.access()).await, BTreeMap::from(expected));

    fixture.annotate("v1", second);
    fixture.delete("refs/tags/light");
    let expected =
        [("refs/heads/main", second), ("refs/tags/v1", second)].map(|(n, id)| (n.into(), id.to_string()));
    assert_eq!(refs(&store, &fixture.access()).await, BTreeMap::from(expected));
}

#[tokio::test]
async fn a_repository_that_does_not_exist_is_not_found() {
    let (store, fixture) = (store(), Fixture::new());
    let url = format!("file://{}/absent.git", fixture.folder.path().display());
    let access = RepoAccess::new(RepoUrl::parse(&url, true).unwrap(), Credential::None);
    let error = store.git.list_refs(&access, LONG).await.unwrap_err();
    assert!(matches!(error, GitError::NotFound { .. }), "{error:?}");
}

#[tokio::test]
async fn a_force_push_is_visible_as_lost_ancestry_and_the_old_commit_stays_readable() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let base = fixture.simple(&[], "base");
    let old = fixture.simple(&[base], "old");
    fixture.point("refs/heads/main", old);
    ensure(&store, &fixture, Some("refs/heads/main"), old)
        .await
        .unwrap();

    let rewritten = fixture.simple(&[base], "rewritten");
    fixture.point("refs/heads/main", rewritten);
    let ask = async |older: git2::Oid, newer: git2::Oid| {
        store
            .git
            .ancestry(&access, &older.to_string(), &newer.to_string())
            .await
            .unwrap()
    };
    assert_eq!(ask(old, rewritten).await, Ancestry::Missing, "not fetched yet");
    ensure(&store, &fixture, Some("refs/heads/main"), rewritten)
        .await
        .unwrap();
    assert_eq!(ask(old, rewritten).await, Ancestry::Diverged);
    assert_eq!(ask(base, rewritten).await, Ancestry::Descendant);
    assert_eq!(ask(rewritten, base).await, Ancestry::Ancestor);
    assert_eq!(ask(old, old).await, Ancestry::Descendant);
    ensure(&store, &fixture, Some("refs/heads/main"), old)
        .await
        .unwrap();
}

#[tokio::test]
async fn ancestry_beyond_its_limits_is_too_long_and_the_mirror_stays_usable() {
    let store = store_with(GitLimits {
        max_ancestry_commits: 10,
        ..GitLimits::default()
    });
    let fixture = Fixture::new();
    let access = fixture.access();
    let mut all = vec![fixture.simple(&[], "0")];
    for n in 1..30 {
        all.push(fixture.simple(&all[n - 1..], &n.to_string()));
    }
    let orphan = fixture.simple(&[], "orphan");
    fixture.point("refs/heads/main", all[29]);
    fixture.point("refs/heads/orphan", orphan);
    ensure(&store, &fixture, None, all[29]).await.unwrap();
    for (older, newer, expected) in [
        (all[0], all[29], Ancestry::TooLong),
        (all[29], all[0], Ancestry::TooLong),
        (all[29], orphan, Ancestry::TooLong),
        (all[25], all[29], Ancestry::Descendant),
        (all[29], all[25], Ancestry::Ancestor),
    ] {
        let (older, newer) = (older.to_string(), newer.to_string());
        assert_eq!(
            store.git.ancestry(&access, &older, &newer).await.unwrap(),
            expected
        );
    }
}

#[tokio::test]
async fn a_commit_on_another_ref_is_found() {
    let (store, fixture) = (store(), Fixture::new());
    let main = fixture.simple(&[], "main");
    let other = fixture.simple(&[main], "other");
    let tagged = fixture.simple(&[main], "tagged");
    fixture.point("refs/heads/main", main);
    fixture.point("refs/heads/other", other);
    fixture.annotate("v1", tagged);
    ensure(&store, &fixture, Some("refs/heads/main"), other)
        .await
        .unwrap();
    ensure(&store, &fixture, Some("refs/heads/gone"), tagged)
        .await
        .unwrap();
    // A bare commit that is no tip.
    ensure(&store, &fixture, None, main).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_commit_is_not_found() {
    let (store, fixture) = (store(), Fixture::new());
    let main = fixture.simple(&[], "main");
    let dangling = fixture.simple(&[main], "dangling");
    fixture.point("refs/heads/main", main);
    for name in [None, Some("refs/heads/main")] {
        let error = ensure(&store, &fixture, name, dangling).await.unwrap_err();
        assert!(
            matches!(&error, GitError::NotFound { what, .. } if what.contains(&dangling.to_string())),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_branch_that_becomes_a_folder_of_branches_is_fetched() {
    let (store, fixture) = (store(), Fixture::new());
    let first = fixture.simple(&[], "1");
    fixture.point("refs/heads/a", first);
    ensure(&store, &fixture, None, first).await.unwrap();
    fixture.delete("refs/heads/a");
    let second = fixture.simple(&[first], "2");
    fixture.point("refs/heads/a/b", second);
    ensure(&store, &fixture, None, second).await.unwrap();
}

#[tokio::test]
async fn names_and_ids_are_checked_before_any_request() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let id = "0123456789012345678901234567890123456789";
    for commit in [
        "",
        "main",
        "0123456",
        &id[1..],
        "zz23456789012345678901234567890123456789",
    ] {
        let error = store
            .git
            .ensure_commit(&access, None, commit, LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::CommitId,
                    ..
                }
            ),
            "{commit}"
        );
    }
    for name in [
        "main",
        "refs/heads/*",
        "refs/heads/a:refs/heads/b",
        "+refs/heads/a",
        "refs/heads/a b",
        "refs/heads/..",
    ] {
        let error = store
            .git
            .ensure_commit(&access, Some(name), id, LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::RefName,
                    ..
                }
            ),
            "{name}"
        );
    }
    assert!(
        !store.folder.path().join("mirrors").exists(),
        "nothing was created"
    );
}

#[tokio::test]
async fn a_tree_or_tag_is_not_a_commit() {
    let (store, fixture) = (store(), Fixture::new());
    let commit = fixture.simple(&[], "1");
    let tag = fixture.annotate("v1", commit);
    ensure(&store, &fixture, None, commit).await.unwrap();
    let error = ensure(&store, &fixture, None, tag).await.unwrap_err();
    assert!(
        matches!(
            error,
            GitError::Refused {
                reason: Refusal::NotACommit { .. },
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn pins_are_set_moved_listed_and_removed() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let first = fixture.simple(&[], "1");
    let second = fixture.simple(&[first], "2");
    fixture.point("refs/heads/main", second);
    assert_eq!(store.git.list_pins(&access).await.unwrap(), BTreeMap::new());
    let error = store.git.pin(&access, "a", &first.to_string()).await.unwrap_err();
    assert!(matches!(error, GitError::NotFound { .. }), "{error:?}");

    ensure(&store, &fixture, None, second).await.unwrap();
    store.git.pin(&access, "a", &first.to_string()).await.unwrap();
    store.git.pin(&access, "b", &first.to_string()).await.unwrap();
    store.git.pin(&access, "b", &second.to_string()).await.unwrap();
    let expected = BTreeMap::from([("a".into(), first.to_string()), ("b".into(), second.to_string())]);
    assert_eq!(store.git.list_pins(&access).await.unwrap(), expected);
    store.git.unpin(&access, "a").await.unwrap();
    store.git.unpin(&access, "a").await.unwrap();
    assert_eq!(
        store.git.list_pins(&access).await.unwrap(),
        BTreeMap::from([("b".into(), second.to_string())])
    );
    for name in ["", "..", "a/b", "a b", "x.lock", "é", &"x".repeat(101)] {
        let error = store
            .git
            .pin(&access, name, &first.to_string())
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::PinName,
                    ..
                }
            ),
            "{name}"
        );
    }
}

#[tokio::test]
async fn concurrent_pins_are_all_kept() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let commit = fixture.simple(&[], "1");
    fixture.point("refs/heads/main", commit);
    ensure(&store, &fixture, None, commit).await.unwrap();
    let id = commit.to_string();
    let names: Vec<_> = (0..20).map(|n| format!("pin-{}", n % 10)).collect();
    futures::future::try_join_all(names.iter().map(|name| store.git.pin(&access, name, &id)))
        .await
        .unwrap();
    assert_eq!(store.git.list_pins(&access).await.unwrap().len(), 10);
}

fn packs(mirror: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(mirror.join("objects/pack"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|end| end == "pack"))
        .collect()
}

#[tokio::test]
async fn packs_are_joined_and_pins_and_branches_survive() {
    let store = store();
    let fixture = Fixture::new();
    let access = fixture.access();
    let mut last = fixture.simple(&[], "0");
    let mut all = vec![last];
    for n in 1..=5 {
        fixture.point("refs/heads/main", last);
        ensure(&store, &fixture, Some("refs/heads/main"), last)
            .await
            .unwrap();
        last = fixture.simple(&[last], &n.to_string());
        all.push(last);
    }
    let pinned = fixture.simple(&[], "elsewhere");
    fixture.point("refs/heads/main", pinned);
    ensure(&store, &fixture, Some("refs/heads/main"), pinned)
        .await
        .unwrap();
    store.git.pin(&access, "keep", &all[4].to_string()).await.unwrap();

    let mirror = mirror_path(&store, &access);
    assert!(packs(&mirror).len() > 3);
    let limits = GitLimits {
        max_packs: 3,
        ..GitLimits::default()
    };
    let git = GitStore::new(store.folder.path().join("mirrors"), limits);
    let store = Store { git, ..store };
    assert!(store.git.compact(&access, LONG).await.unwrap());
    assert_eq!(packs(&mirror).len(), 1);
    assert!(
        !store.git.compact(&access, LONG).await.unwrap(),
        "nothing to do a second time"
    );
    fixture.delete("refs/heads/main");
    for commit in &all[..5] {
        // No branch contains the commit: it comes from the mirror.
        ensure(&store, &fixture, None, *commit).await.unwrap();
        let out = store.folder.path().join(commit.to_string());
        store
            .git
            .export(&access, &commit.to_string(), &out, None)
            .await
            .unwrap();
    }
    ensure(&store, &fixture, None, pinned).await.unwrap();
}

#[tokio::test]
async fn a_damaged_mirror_is_moved_aside_and_fetched_again() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 5] = [
        ("rotten packs", |mirror| {
            for pack in packs(mirror) {
                let mut bytes = std::fs::read(&pack).unwrap();
                let end = bytes.len() - 20;
                bytes[12..end].fill(0xff);
                replace(&pack, &bytes);
            }
        }),
        ("zeroed packs", |mirror| {
            for pack in packs(mirror) {
                let size = std::fs::metadata(&pack).unwrap().len();
                replace(&pack, &vec![0; usize::try_from(size).unwrap()]);
            }
        }),
        ("truncated packs", |mirror| {
            packs(mirror).iter().for_each(|pack| replace(pack, b"PACK"));
        }),
        ("no HEAD", |mirror| {
            std::fs::remove_file(mirror.join("HEAD")).unwrap();
        }),
        ("packs gone", |mirror| {
            std::fs::remove_dir_all(mirror.join("objects/pack")).unwrap();
        }),
    ];
    for (name, damage) in damages {
        let (first, fixture) = (store(), Fixture::new());
        let access = fixture.access();
        let base = fixture.simple(&[], "base");
        let main = fixture.simple(&[base], "main");
        fixture.point("refs/heads/main", main);
        ensure(&first, &fixture, Some("refs/heads/main"), main)
            .await
            .unwrap();
        damage(&mirror_path(&first, &access));

        // Once in the process that created the mirror, and once in a new process.
        for again in [
            first.git.clone(),
            starling_git::GitStore::new(first.folder.path().join("mirrors"), GitLimits::default()),
        ] {
            again
                .ensure_commit(&access, Some("refs/heads/main"), &main.to_string(), LONG)
                .await
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            let out = tempfile::tempdir().unwrap();
            let stats = again
                .export(&access, &main.to_string(), out.path(), None)
                .await
                .unwrap();
            assert_eq!(stats.files, 1, "{name}");
            damage(&mirror_path(&first, &access));
        }
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn the_export_detects_a_missing_object_and_the_next_fetch_repairs_it() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let commit = fixture.commit(
        &[],
        tree(vec![
            ("sub", tree(vec![("a", file("alpha"))])),
            ("z", file("omega")),
        ]),
    );
    fixture.point("refs/heads/main", commit);
    ensure(&store, &fixture, None, commit).await.unwrap();

    // The same mirror without one blob: its pack is unpacked object by object.
    let mirror = git2::Repository::open_bare(mirror_path(&store, &access)).unwrap();
    let missing_blob = fixture.write(&file("alpha")).1;
    let mut objects = Vec::new();
    let odb = mirror.odb().unwrap();
    odb.foreach(|id| {
        let object = odb.read(*id).unwrap();
        objects.push((*id, object.kind(), object.data().to_vec()));
        true
    })
    .unwrap();
    for pack in packs(mirror.path()) {
        std::fs::remove_file(pack.with_extension("idx")).unwrap();
        std::fs::remove_file(pack).unwrap();
    }
    let bare = git2::Repository::open_bare(mirror.path()).unwrap();
    let loose_objects = bare.odb().unwrap();
    for (id, kind, data) in objects.iter().filter(|(id, _, _)| *id != missing_blob) {
        assert_eq!(loose_objects.write(*kind, data).unwrap(), *id);
    }

    let out = tempfile::tempdir().unwrap();
    let error = store
        .git
        .export(&access, &commit.to_string(), out.path(), None)
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::Corrupt { .. }), "{error:?}");
    assert_eq!(
        std::fs::read_dir(out.path()).unwrap().count(),
        0,
        "the written files are removed"
    );
    ensure(&store, &fixture, None, commit).await.unwrap();
    store
        .git
        .export(&access, &commit.to_string(), out.path(), None)
        .await
        .unwrap();
}

#[tokio::test]
async fn files_of_a_killed_process_are_removed_on_first_use() {
    let (first, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let commit = fixture.simple(&[], "1");
    fixture.point("refs/heads/main", commit);
    ensure(&first, &fixture, None, commit).await.unwrap();
    first.git.pin(&access, "a", &commit.to_string()).await.unwrap();
    let mirror = mirror_path(&first, &access);
    let stale_files =
        ["objects/pack/pack_git2_abcdef", "refs/starling/pins/a.lock"].map(|path| mirror.join(path));
    for path in &stale_files {
        std::fs::write(path, b"half").unwrap();
    }
    let error = first
        .git
        .pin(&access, "a", &commit.to_string())
        .await
        .unwrap_err();
    assert!(
        matches!(error, GitError::Other { .. }),
        "a lock is not damage: {error:?}"
    );

    let restarted = starling_git::GitStore::new(first.folder.path().join("mirrors"), GitLimits::default());
    restarted
        .ensure_commit(&access, None, &commit.to_string(), LONG)
        .await
        .unwrap();
    restarted.pin(&access, "a", &commit.to_string()).await.unwrap();
    assert!(stale_files.iter().all(|path| !path.exists()));
}

/// The mirror of each reader.
fn readers(all: &[&RepoAccess]) -> BTreeMap<String, Option<String>> {
    let reader = |access: &&RepoAccess| (access.reader().to_owned(), Some(access.mirror_key()));
    all.iter().map(reader).collect()
}

#[tokio::test]
async fn mirrors_are_private_and_deleted_without_a_reader() {
    let (store, fixture) = (store(), Fixture::new());
    let plain = fixture.access().with_reader("shop/plain");
    let other = fixture.access().with_secret("shop/git").with_reader("shop/other");
    let commit = fixture.simple(&[], "1");
    fixture.point("refs/heads/main", commit);
    for access in [&plain, &other] {
        store
            .git
            .ensure_commit(access, None, &commit.to_string(), LONG)
            .await
            .unwrap();
        let mode = std::fs::metadata(mirror_path(&store, access))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    let unrelated = store.folder.path().join("mirrors/lost+found");
    std::fs::create_dir(&unrelated).unwrap();
    assert_eq!(store.git.retain(readers(&[&plain, &other])).await.unwrap(), 0);
    assert_eq!(store.git.retain(readers(&[&plain])).await.unwrap(), 1);
    assert!(
        mirror_path(&store, &plain).exists() && !mirror_path(&store, &other).exists() && unrelated.exists()
    );
    // A deleted mirror is fetched again when needed.
    store
        .git
        .ensure_commit(&other, None, &commit.to_string(), LONG)
        .await
        .unwrap();
}

/// A repository whose mirror pins a commit that is gone upstream. Returns the pinned commit and the head.
async fn pinned_and_rewritten(
    store: &Store,
    fixture: &Fixture,
    access: &RepoAccess,
) -> (git2::Oid, git2::Oid) {
    let pinned = fixture.simple(&[], "pinned");
    fixture.point("refs/heads/main", pinned);
    let main = Some("refs/heads/main");
    let (git, id) = (&store.git, pinned.to_string());
    git.ensure_commit(access, main, &id, LONG).await.unwrap();
    git.pin(access, &id, &id).await.unwrap();
    let head = fixture.simple(&[], "head");
    fixture.point("refs/heads/main", head);
    git.ensure_commit(access, main, &head.to_string(), LONG)
        .await
        .unwrap();
    (pinned, head)
}

async fn can_export(store: &Store, access: &RepoAccess, commit: git2::Oid) -> bool {
    let out = tempfile::tempdir().unwrap();
    let exported = store
        .git
        .export(access, &commit.to_string(), &out.path().join("tree"), None)
        .await;
    match exported {
        Ok(_) => true,
        Err(GitError::NotFound { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// The Source names another Secret: its mirror has to be fetched before the old one is deleted, and gets the pins.
#[tokio::test]
async fn a_mirror_stays_until_its_reader_has_fetched_another_one_which_gets_its_pins() {
    let (store, fixture) = (store(), Fixture::new());
    let of = |secret: &str, reader: &str| fixture.access().with_secret(secret).with_reader(reader);
    let old = of("shop/old", "shop/app");
    let new = of("shop/new", "shop/app");
    let (pinned, head) = pinned_and_rewritten(&store, &fixture, &old).await;

    // The URL is invalid, then nothing was fetched yet, then another reader fetches the new mirror.
    let invalid = BTreeMap::from([("shop/app".to_owned(), None)]);
    assert_eq!(store.git.retain(invalid).await.unwrap(), 0);
    assert_eq!(store.git.retain(readers(&[&new])).await.unwrap(), 0);
    let colleague = of("shop/new", "shop/colleague");
    let head_id = head.to_string();
    store
        .git
        .ensure_commit(&colleague, None, &head_id, LONG)
        .await
        .unwrap();
    assert_eq!(store.git.retain(readers(&[&new, &colleague])).await.unwrap(), 0);
    assert!(can_export(&store, &old, pinned).await);

    store.git.ensure_commit(&new, None, &head_id, LONG).await.unwrap();
    assert_eq!(store.git.retain(readers(&[&new, &colleague])).await.unwrap(), 1);
    assert!(!mirror_path(&store, &old).exists());
    assert!(can_export(&store, &new, pinned).await);
    let pins = store.git.list_pins(&new).await.unwrap();
    assert_eq!(pins, BTreeMap::from([(pinned.to_string(), pinned.to_string())]));
}

/// A mirror without a Secret is shared by all namespaces, and another repository has other commits.
#[tokio::test]
async fn pins_do_not_go_to_a_mirror_for_everybody_nor_to_another_repository() {
    let (store, fixture, elsewhere) = (store(), Fixture::new(), Fixture::new());
    let old = fixture.access().with_secret("shop/git").with_reader("shop/app");
    for (now, repository) in [
        (fixture.access(), &fixture),
        (elsewhere.access().with_secret("shop/git"), &elsewhere),
    ] {
        let (pinned, head) = pinned_and_rewritten(&store, &fixture, &old).await;
        repository.point("refs/heads/now", {
            let other = repository.simple(&[], "now");
            assert_ne!(other, head);
            other
        });
        let now = now.with_reader("shop/app");
        let tip = repository
            .repo
            .refname_to_id("refs/heads/now")
            .unwrap()
            .to_string();
        store.git.ensure_commit(&now, None, &tip, LONG).await.unwrap();
        assert_eq!(store.git.retain(readers(&[&now])).await.unwrap(), 1);
        assert!(!can_export(&store, &now, pinned).await);
        assert_eq!(store.git.list_pins(&now).await.unwrap(), BTreeMap::new());
        store.git.retain(BTreeMap::new()).await.unwrap();
    }
}

/// Another Source with the name of a deleted one has to prove its access, although a third one keeps the mirror in use.
#[tokio::test]
async fn a_reader_that_is_gone_leaves_no_access_to_its_name() {
    let (store, fixture) = (store(), Fixture::new());
    let of = |secret: &str, reader: &str| fixture.access().with_secret(secret).with_reader(reader);
    let (stays, gone) = (of("shop/git", "shop/stays"), of("shop/git", "shop/gone"));
    let (pinned, head) = pinned_and_rewritten(&store, &fixture, &stays).await;
    let id = head.to_string();
    store.git.ensure_commit(&gone, None, &id, LONG).await.unwrap();
    assert!(can_export(&store, &gone, head).await);
    assert_eq!(store.git.retain(readers(&[&stays])).await.unwrap(), 0);
    assert!(!can_export(&store, &gone, head).await);
    assert!(can_export(&store, &stays, head).await);

    // A reader that has moved to another Secret takes the pins with it; the mirror stays for the others.
    let moved = of("shop/other", "shop/gone");
    for access in [&gone, &moved] {
        store.git.ensure_commit(access, None, &id, LONG).await.unwrap();
    }
    assert_eq!(store.git.retain(readers(&[&stays, &moved])).await.unwrap(), 0);
    assert!(can_export(&store, &moved, pinned).await);
    assert!(!can_export(&store, &gone, head).await);
    assert!(can_export(&store, &stays, pinned).await);
}

/// A damaged mirror does not damage the one that takes its pins, and does not stay forever.
#[tokio::test]
async fn a_damaged_mirror_is_deleted_without_its_pins() {
    let (store, fixture) = (store(), Fixture::new());
    let of = |secret: &str| fixture.access().with_secret(secret).with_reader("shop/app");
    let (old, new) = (of("shop/old"), of("shop/new"));
    let (_, head) = pinned_and_rewritten(&store, &fixture, &old).await;
    for pack in packs(&mirror_path(&store, &old)) {
        replace(&pack, b"PACK");
    }
    let id = head.to_string();
    store.git.ensure_commit(&new, None, &id, LONG).await.unwrap();
    assert_eq!(store.git.retain(readers(&[&new])).await.unwrap(), 1);
    assert!(!mirror_path(&store, &old).exists());
    assert!(can_export(&store, &new, head).await);
    assert!(!mirror_path(&store, &new).with_extension("damaged").exists());
}

#[tokio::test]
async fn a_repository_with_too_many_refs_is_refused() {
    let store = store_with(GitLimits {
        max_refs: 3,
        ..GitLimits::default()
    });
    let fixture = Fixture::new();
    let commit = fixture.simple(&[], "1");
    for n in 0..4 {
        fixture.point(&format!("refs/heads/b{n}"), commit);
    }
    let error = store.git.list_refs(&fixture.access(), LONG).await.unwrap_err();
    assert!(
        matches!(
            error,
            GitError::Refused {
                reason: Refusal::Refs { limit: 3 },
                ..
            }
        ),
        "{error:?}"
    );
}

/// A server may send what git would not have stored. The object is refused; the mirror and its pins stay.
#[tokio::test]
async fn tenant_objects_of_another_kind_than_referred_to_are_refused_and_the_mirror_stays() {
    let (store, fixture) = (store(), Fixture::new());
    let access = fixture.access();
    let first = fixture.simple(&[], "one");
    fixture.point("refs/heads/main", first);
    ensure(&store, &fixture, None, first).await.unwrap();
    store.git.pin(&access, "first", &first.to_string()).await.unwrap();

    let blob = fixture.write(&file("text")).1;
    let inner = fixture.write(&tree(vec![("a", file("alpha"))])).1;
    let as_directory = fixture.commit_raw_tree(&[first], &[("40000", "sub", blob)]);
    let as_file = fixture.commit_raw_tree(&[first], &[("100644", "file", inner)]);
    let without_tree = fixture.commit_tree(&[first], blob);
    let with_parent = fixture.commit_tree(&[blob], inner);
    // git's own server does not send these, so they are put where a pack of another server would put them.
    let mirror = git2::Repository::open_bare(mirror_path(&store, &access)).unwrap();
    let (from, to) = (fixture.repo.odb().unwrap(), mirror.odb().unwrap());
    from.foreach(|id| {
        let object = from.read(*id).unwrap();
        to.write(object.kind(), object.data()).unwrap();
        true
    })
    .unwrap();

    let read = async |commit: git2::Oid| -> Result<(), GitError> {
        let (git, id) = (&store.git, commit.to_string());
        git.ensure_commit(&access, None, &id, LONG).await?;
        git.ancestry(&access, &first.to_string(), &id).await?;
        let out = store.folder.path().join(&id);
        git.export(&access, &id, &out, None).await.map(|_| ())
    };
    for commit in [as_directory, as_file, without_tree, with_parent] {
        let error = read(commit).await.unwrap_err();
        let reason = match &error {
            GitError::Refused { reason, .. } => reason,
            other => panic!("{commit}: {other:?}"),
        };
        assert!(
            matches!(reason, Refusal::OtherKind { .. }),
            "{commit}: {reason:?}"
        );
        let pins = store.git.list_pins(&access).await.unwrap();
        assert_eq!(pins["first"], first.to_string(), "{commit}");
        read(first).await.unwrap();
        std::fs::remove_dir_all(store.folder.path().join(first.to_string())).unwrap();
    }
    // A branch that points there does not either, nor the ref that an earlier version has stored for it.
    mirror
        .reference("refs/starling/remote/earlier", without_tree, true, "")
        .unwrap();
    fixture.point("refs/heads/main", without_tree);
    for branch in [None, Some("refs/heads/main")] {
        let refused = ensure(&store, &fixture, branch, without_tree).await;
        assert!(matches!(refused, Err(GitError::Refused { .. })), "{refused:?}");
    }
    let next = fixture.simple(&[first], "next");
    fixture.point("refs/heads/main", next);
    ensure(&store, &fixture, Some("refs/heads/main"), next)
        .await
        .unwrap();
    let pins = store.git.list_pins(&access).await.unwrap();
    assert_eq!(pins["first"], first.to_string());
    let mut noted = mirror.references_glob("refs/starling/remote/*").unwrap();
    assert!(noted.all(|noted| noted.unwrap().target() != Some(without_tree)));
}
