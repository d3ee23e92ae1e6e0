//! Git over http and https: credentials, redirects, deadlines, limits, certificates.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use starling_git::{
    Ancestry, Credential, GitError, GitLimits, GitStore, PackLimits, Refusal, RepoAccess, RepoUrl,
};
use starling_net::rules::{AddressLists, Purpose};

use super::fixture::{Entry, Fixture, file, tree};
use super::server::{self, Corruption, GitServer};
use super::{LONG, store, store_with};

fn access(url: &str, credential: Credential) -> RepoAccess {
    RepoAccess::new(RepoUrl::parse(url, true).unwrap(), credential)
}

fn basic(username: &str, password: &str) -> Credential {
    Credential::Basic {
        username: username.into(),
        password: password.into(),
    }
}

/// A repository with one commit on `main`.
fn fixture() -> (Fixture, git2::Oid) {
    let fixture = Fixture::new();
    let commit = fixture.simple(&[], "one");
    fixture.point("refs/heads/main", commit);
    (fixture, commit)
}

#[tokio::test]
async fn a_poll_is_one_request_and_a_fetch_happens_only_after_a_change() {
    let (fixture, first) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let (store, access) = (store(), access(&server.url(), Credential::None));
    let list = "GET /repo.git/info/refs?service=git-upload-pack".to_owned();
    let fetch = "POST /repo.git/git-upload-pack".to_owned();
    let main = Some("refs/heads/main");

    assert_eq!(
        store.git.list_refs(&access, LONG).await.unwrap()["refs/heads/main"],
        first.to_string()
    );
    assert_eq!(server.take_requests(), std::slice::from_ref(&list));
    store
        .git
        .ensure_commit(&access, main, &first.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(server.take_requests(), [list.clone(), fetch.clone()]);
    store
        .git
        .ensure_commit(&access, main, &first.to_string(), LONG)
        .await
        .unwrap();
    store
        .git
        .ensure_commit(&access, None, &first.to_string(), LONG)
        .await
        .unwrap();
    assert!(
        server.take_requests().is_empty(),
        "the mirror contains the commit"
    );

    let second = fixture.simple(&[first], "two");
    fixture.point("refs/heads/main", second);
    assert_eq!(
        store.git.list_refs(&access, LONG).await.unwrap()["refs/heads/main"],
        second.to_string()
    );
    store
        .git
        .ensure_commit(&access, main, &second.to_string(), LONG)
        .await
        .unwrap();
    let requests = server.take_requests();
    assert_eq!(requests[..2], [list.clone(), list]);
    assert!(
        requests[2..].iter().all(|request| *request == fetch) && requests.len() >= 3,
        "{requests:?}"
    );
    assert_eq!(
        store
            .git
            .ancestry(&access, &first.to_string(), &second.to_string())
            .await
            .unwrap(),
        Ancestry::Descendant
    );
    assert!(
        server
            .hosts()
            .iter()
            .all(|host| *host == server.address.to_string()),
        "{:?}",
        server.hosts()
    );
}

/// A host that issues tokens for an hour must not cause a clone each hour, nor the loss of pinned commits.
#[tokio::test]
async fn a_renewed_token_keeps_the_mirror_and_its_pins() {
    let (fixture, first) = fixture();
    let server = GitServer::with_token(fixture.folder.path().into(), "one").await;
    let store = store();
    let with = |token: &str| access(&server.url(), Credential::Bearer(token.into())).with_secret("shop/git");
    let (main, id) = (Some("refs/heads/main"), first.to_string());
    let git = &store.git;
    git.ensure_commit(&with("one"), main, &id, LONG).await.unwrap();
    git.pin(&with("one"), &id, &id).await.unwrap();
    let second = fixture.simple(&[], "rewritten");
    fixture.point("refs/heads/main", second);
    let second = second.to_string();
    git.ensure_commit(&with("one"), main, &second, LONG)
        .await
        .unwrap();

    server.set_token("two");
    let refused = git.list_refs(&with("one"), LONG).await.unwrap_err();
    assert!(matches!(refused, GitError::Auth { .. }), "{refused:?}");
    assert_eq!(git.retain(one_reader(&with("one"))).await.unwrap(), 0);
    server.take_requests();
    for renewed in ["two", "wrong"] {
        for commit in [&id, &second] {
            git.ensure_commit(&with(renewed), main, commit, LONG)
                .await
                .unwrap();
            let out = store.folder.path().join(format!("{renewed}-{commit}"));
            git.export(&with(renewed), commit, &out, None).await.unwrap();
        }
    }
    assert_eq!(
        server.take_requests(),
        Vec::<String>::new(),
        "it was fetched before"
    );
    assert_eq!(git.list_pins(&with("two")).await.unwrap().len(), 1);
}

fn one_reader(access: &RepoAccess) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(access.reader().to_owned(), Some(access.mirror_key()))])
}

/// The mirror of a Secret is filled by one reader. Another one, for which the credential is wrong by now, reads
/// nothing.
#[tokio::test]
async fn a_reader_without_access_is_not_served_what_another_has_fetched() {
    let (fixture, commit) = fixture();
    let server = GitServer::with_token(fixture.folder.path().into(), "right").await;
    let store = store();
    let with = |token: &str, reader: &str| {
        access(&server.url(), Credential::Bearer(token.into()))
            .with_secret("shop/git")
            .with_reader(reader)
    };
    let (id, git) = (commit.to_string(), &store.git);
    let owner = with("right", "shop/owner");
    git.ensure_commit(&owner, None, &id, LONG).await.unwrap();

    let spy = with("guessed", "shop/spy");
    assert_eq!(spy.mirror_key(), owner.mirror_key());
    let refused = |result: Result<(), GitError>| matches!(result, Err(GitError::Auth { .. }));
    let missing = |result: Result<(), GitError>| matches!(result, Err(GitError::NotFound { .. }));
    assert!(refused(git.ensure_commit(&spy, None, &id, LONG).await));
    assert!(refused(
        git.ensure_commit(&spy, Some("refs/heads/main"), &id, LONG).await
    ));
    let out = store.folder.path().join("out");
    assert!(missing(git.export(&spy, &id, &out, None).await.map(|_| ())));
    assert!(missing(git.pin(&spy, "a", &id).await));
    assert_eq!(git.ancestry(&spy, &id, &id).await.unwrap(), Ancestry::Missing);

    // The server is down: nobody can tell whether it would send the commit.
    drop(server);
    let unknown = git.ensure_commit(&spy, None, &id, LONG).await.unwrap_err();
    assert!(matches!(unknown, GitError::Unreachable { .. }), "{unknown:?}");
    git.ensure_commit(&owner, None, &id, LONG).await.unwrap();

    let server = GitServer::with_token(fixture.folder.path().into(), "right").await;
    let again = access(&server.url(), Credential::Bearer("right".into())).with_secret("shop/git");
    git.ensure_commit(&again.clone().with_reader("shop/owner"), None, &id, LONG)
        .await
        .unwrap();
    server.take_requests();
    let colleague = again.with_reader("shop/colleague");
    for _ in 0..2 {
        git.ensure_commit(&colleague, None, &id, LONG).await.unwrap();
    }
    assert_eq!(server.take_requests().len(), 1, "one list of refs, and no pack");
    git.export(&colleague, &id, &out, None).await.unwrap();
}

#[tokio::test]
async fn concurrent_calls_for_the_same_commit_cause_one_fetch() {
    let (fixture, commit) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let (store, access, id) = (
        store(),
        access(&server.url(), Credential::None),
        commit.to_string(),
    );
    let callers = (0..10).map(|_| {
        store
            .git
            .ensure_commit(&access, Some("refs/heads/main"), &id, LONG)
    });
    futures::future::try_join_all(callers).await.unwrap();
    assert_eq!(server.take_requests().len(), 2);
}

#[tokio::test]
async fn the_right_password_is_required() {
    let (fixture, commit) = fixture();
    let server = GitServer::with_password(fixture.folder.path().into(), "bob", "hunter2").await;
    let store = store();
    let valid = access(&server.url(), basic("bob", "hunter2"));
    assert_eq!(store.git.list_refs(&valid, LONG).await.unwrap().len(), 1);
    assert_eq!(
        server.take_requests().len(),
        1,
        "the credential goes with the first request"
    );
    store
        .git
        .ensure_commit(&valid, None, &commit.to_string(), LONG)
        .await
        .unwrap();

    for invalid in [
        Credential::None,
        basic("bob", "hunter3"),
        Credential::Bearer("hunter2".into()),
    ] {
        let invalid = access(&server.url(), invalid).with_reader("shop/other");
        let error = store.git.list_refs(&invalid, LONG).await.unwrap_err();
        assert!(matches!(error, GitError::Auth { .. }), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("hunter"), "{error:?}");
        // Commits that another reader has fetched cannot be read either.
        let error = store
            .git
            .ensure_commit(&invalid, None, &commit.to_string(), LONG)
            .await
            .unwrap_err();
        assert!(matches!(error, GitError::Auth { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_bearer_token_is_accepted() {
    let (fixture, commit) = fixture();
    let server = GitServer::with_token(fixture.folder.path().into(), "t0ken").await;
    let valid = access(&server.url(), Credential::Bearer("t0ken".into()));
    store()
        .git
        .ensure_commit(&valid, None, &commit.to_string(), LONG)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_credential_that_is_not_valid_in_a_header_is_refused_before_any_request() {
    let (address, seen) = server::constant(StatusCode::OK, None).await;
    for credential in [basic("bob", "pw\n"), Credential::Bearer("a b".into())] {
        let error = store()
            .git
            .list_refs(&access(&format!("http://{address}/a"), credential), LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::CredentialText,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn responses_of_servers_are_distinguished() {
    let kind = async |status: StatusCode| {
        let (address, _) = server::constant(status, None).await;
        match store()
            .git
            .list_refs(&access(&format!("http://{address}/a"), Credential::None), LONG)
            .await
        {
            Err(GitError::NotFound { .. }) => "not found",
            Err(GitError::Auth { .. }) => "auth",
            Err(GitError::Unreachable { .. }) => "unreachable",
            Err(GitError::Other { .. }) => "other",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(StatusCode::NOT_FOUND).await, "not found");
    assert_eq!(kind(StatusCode::FORBIDDEN).await, "auth");
    assert_eq!(kind(StatusCode::SERVICE_UNAVAILABLE).await, "unreachable");
    assert_eq!(kind(StatusCode::TOO_MANY_REQUESTS).await, "unreachable");
    assert_eq!(kind(StatusCode::OK).await, "other");
}

#[tokio::test]
async fn a_missing_server_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for url in [
        format!("http://{address}/a"),
        format!("https://{address}/a"),
        "https://name.invalid/a".into(),
    ] {
        let error = store()
            .git
            .list_refs(&access(&url, Credential::None), LONG)
            .await
            .unwrap_err();
        assert!(matches!(error, GitError::Unreachable { .. }), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn a_redirect_to_another_server_is_refused_without_sending_the_credential() {
    let (sink, seen) = server::constant(StatusCode::OK, None).await;
    for status in [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ] {
        for to in [
            format!("http://{sink}/a/info/refs"),
            format!("http://localhost:{}/a/info/refs", sink.port()),
        ] {
            let (address, _) = server::constant(status, Some(to)).await;
            let access = access(&format!("http://{address}/a"), basic("bob", "hunter2"));
            let error = store().git.list_refs(&access, LONG).await.unwrap_err();
            assert!(
                matches!(
                    error,
                    GitError::Refused {
                        reason: Refusal::Redirect,
                        ..
                    }
                ),
                "{error:?}"
            );
        }
    }
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn redirects_on_the_same_server_are_followed_up_to_a_limit() {
    let (fixture, commit) = fixture();
    let server = GitServer::with_password(fixture.folder.path().into(), "bob", "hunter2").await;
    let moved = access(&format!("http://{}/old", server.address), basic("bob", "hunter2"));
    store()
        .git
        .ensure_commit(&moved, None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let paths = ["GET /old", "GET /repo.git", "POST /repo.git"];
    let requests = server.take_requests();
    assert!(
        requests.len() == 3
            && requests
                .iter()
                .zip(paths)
                .all(|(request, path)| request.starts_with(path))
    );

    for location in ["/a/info/refs?service=git-upload-pack", "/a/info/refs", "/login"] {
        let (address, seen) = server::constant(StatusCode::FOUND, Some(location.into())).await;
        let redirect_loop = access(&format!("http://{address}/a"), Credential::None);
        let error = store().git.list_refs(&redirect_loop, LONG).await.unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::Redirect,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(seen.lock().unwrap().len() <= 4);
    }
}

#[tokio::test]
async fn only_missing_objects_are_transferred_even_after_a_force_push() {
    let fixture = Fixture::new();
    let root = |text| {
        tree(vec![
            ("big", Entry::File(noise(1 << 20))),
            ("config.yaml", file(text)),
        ])
    };
    let base = fixture.commit(&[], root("base"));
    let old = fixture.commit(&[base], root("old"));
    fixture.point("refs/heads/main", old);
    let server = GitServer::open(fixture.folder.path().into()).await;
    let (first, access, main) = (
        store(),
        access(&server.url(), Credential::None),
        Some("refs/heads/main"),
    );
    first
        .git
        .ensure_commit(&access, main, &old.to_string(), LONG)
        .await
        .unwrap();
    // The server no longer has the old tip, so that only an ancestor of it is common.
    let rewritten = fixture.commit(&[base], root("rewritten"));
    fixture.point("refs/heads/main", rewritten);
    std::fs::remove_file(
        fixture
            .path()
            .join("objects")
            .join(&old.to_string()[..2])
            .join(&old.to_string()[2..]),
    )
    .unwrap();

    let limits = GitLimits {
        max_transfer_bytes: 10_000,
        ..GitLimits::default()
    };
    let frugal = GitStore::new(first.folder.path().join("mirrors"), limits.clone());
    frugal
        .ensure_commit(&access, main, &rewritten.to_string(), LONG)
        .await
        .unwrap();
    let out = tempfile::tempdir().unwrap();
    let stats = frugal
        .export(&access, &rewritten.to_string(), out.path(), None)
        .await
        .unwrap();
    assert_eq!(stats.files, 2);
    let fresh = store_with(limits)
        .git
        .ensure_commit(&access, main, &rewritten.to_string(), LONG)
        .await;
    assert!(
        fresh.is_err(),
        "the whole is larger than the limit, or this test shows nothing"
    );
}

#[tokio::test]
async fn a_bad_pack_is_refused_and_harms_no_mirror() {
    let (fixture, first) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let (store, access) = (store(), access(&server.url(), Credential::None));
    store
        .git
        .ensure_commit(&access, None, &first.to_string(), LONG)
        .await
        .unwrap();
    store.git.pin(&access, "keep", &first.to_string()).await.unwrap();
    let second = fixture.simple(&[first], "two");
    fixture.point("refs/heads/main", second);
    let bad: [Corruption; 4] = [
        |mut answer| {
            let pack = answer.windows(4).position(|w| w == b"PACK").unwrap();
            answer.truncate(pack + 20);
            answer
        },
        |mut answer| {
            let pack = answer.windows(4).position(|w| w == b"PACK").unwrap();
            answer[pack + 12..pack + 20].fill(0xff);
            answer
        },
        |mut answer| {
            answer.truncate(answer.len() - 4);
            answer
        },
        |answer| {
            let pack = answer.windows(4).position(|w| w == b"PACK").unwrap();
            [&answer[..pack - 5], b"0000"].concat()
        },
    ];
    for corruption in bad {
        server.corruption(Some(corruption));
        let error = store
            .git
            .ensure_commit(&access, None, &second.to_string(), LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(error, GitError::Other { .. } | GitError::Unreachable { .. }),
            "{error:?}"
        );
    }
    let mirror = store.folder.path().join("mirrors").join(access.mirror_key());
    let left: Vec<_> = std::fs::read_dir(mirror.join("objects/pack")).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    server.corruption(None);
    store
        .git
        .ensure_commit(&access, None, &second.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(
        store.git.list_pins(&access).await.unwrap().len(),
        1,
        "the mirror was not replaced"
    );
}

#[tokio::test]
async fn a_server_that_never_responds_uses_no_thread_after_the_deadline() {
    let address = server::silent().await;
    // One thread for all calls: the second call could not start if the first still used it.
    let store = store_with(GitLimits {
        network_jobs: 1,
        ..GitLimits::default()
    });
    for url in [
        format!("http://{address}/a"),
        format!("https://{address}/a"),
        format!("http://{address}/b"),
    ] {
        let started = Instant::now();
        let error = store
            .git
            .list_refs(&access(&url, Credential::None), Duration::from_millis(300))
            .await
            .unwrap_err();
        assert!(matches!(error, GitError::Timeout { .. }), "{error:?}");
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{url} took {:?}",
            started.elapsed()
        );
    }
    let (fixture, _) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    store
        .git
        .list_refs(&access(&server.url(), Credential::None), LONG)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_dropped_call_releases_its_thread() {
    let address = server::silent().await;
    let store = store_with(GitLimits {
        network_jobs: 1,
        ..GitLimits::default()
    });
    let silent = access(&format!("http://{address}/a"), Credential::None);
    let given_up = tokio::time::timeout(Duration::from_millis(200), store.git.list_refs(&silent, LONG)).await;
    assert!(given_up.is_err());
    let (fixture, _) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    store
        .git
        .list_refs(&access(&server.url(), Credential::None), LONG)
        .await
        .unwrap();
}

/// Guards against a namespace whose servers drip: each call holds its permit until its timeout, and others would wait.
#[tokio::test]
async fn tenant_servers_that_never_respond_leave_permits_to_other_namespaces() {
    let address = server::silent().await;
    let store = Arc::new(store_with(GitLimits {
        network_jobs: 4,
        ..GitLimits::default()
    }));
    let mut blocked = Vec::new();
    for number in 0..12 {
        let url = format!("http://{address}/{number}");
        let silent = access(&url, Credential::None).with_reader(format!("team-a/source-{number}"));
        let store = Arc::clone(&store);
        blocked.push(tokio::spawn(
            async move { store.git.list_refs(&silent, LONG).await },
        ));
    }
    // All of them have begun, or wait.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let (fixture, _) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let neighbour = access(&server.url(), Credential::None).with_reader("team-b/source");
    let began = Instant::now();
    store.git.list_refs(&neighbour, LONG).await.unwrap();
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert!(blocked.iter().all(|call| !call.is_finished()));
    for call in blocked {
        call.abort();
    }
}

#[tokio::test]
async fn slow_servers_do_not_delay_exports() {
    let address = server::silent().await;
    let store = Arc::new(store_with(GitLimits {
        network_jobs: 1,
        ..GitLimits::default()
    }));
    let (fixture, commit) = fixture();
    store
        .git
        .ensure_commit(&fixture.access(), None, &commit.to_string(), LONG)
        .await
        .unwrap();
    let silent = access(&format!("http://{address}/a"), Credential::None);
    let blocked = {
        let (store, silent) = (Arc::clone(&store), silent.clone());
        tokio::spawn(async move { store.git.list_refs(&silent, LONG).await })
    };
    let out = tempfile::tempdir().unwrap();
    store
        .git
        .export(&fixture.access(), &commit.to_string(), out.path(), None)
        .await
        .unwrap();
    assert!(!blocked.is_finished());
    blocked.abort();
}

/// Bytes that do not compress.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..count).map(|_| next()).collect()
}

#[tokio::test]
async fn a_fetch_that_is_too_large_is_refused_and_leaves_no_pack() {
    let fixture = Fixture::new();
    let commit = fixture.commit(
        &[],
        tree(vec![("big", Entry::File(noise(2 << 20))), ("small", file("x"))]),
    );
    fixture.point("refs/heads/main", commit);
    let server = GitServer::open(fixture.folder.path().into()).await;
    let limits = GitLimits {
        max_transfer_bytes: 256 << 10,
        max_listing_bytes: 64 << 10,
        ..GitLimits::default()
    };
    for access in [access(&server.url(), Credential::None), fixture.access()] {
        let store = store_with(limits.clone());
        let error = store
            .git
            .ensure_commit(&access, None, &commit.to_string(), LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::TransferBytes { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        let packs = store
            .folder
            .path()
            .join("mirrors")
            .join(access.mirror_key())
            .join("objects/pack");
        assert_eq!(
            std::fs::read_dir(packs).map_or(0, Iterator::count),
            0,
            "the disk space is released"
        );
    }
}

#[tokio::test]
async fn a_list_of_refs_that_is_too_long_is_refused() {
    let (fixture, commit) = fixture();
    for n in 0..50 {
        fixture.point(&format!("refs/heads/branch-{n}"), commit);
    }
    let server = GitServer::open(fixture.folder.path().into()).await;
    let store = store_with(GitLimits {
        max_listing_bytes: 2000,
        ..GitLimits::default()
    });
    let error = store
        .git
        .list_refs(&access(&server.url(), Credential::None), LONG)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            GitError::Refused {
                reason: Refusal::TransferBytes { limit: 2000 },
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn local_addresses_are_dialled_only_if_insecure_sources_are_allowed() {
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "169.254.169.254",
    ] {
        let url = RepoUrl::parse(&format!("https://{host}:1/a"), false).unwrap();
        let error = store()
            .git
            .list_refs(&RepoAccess::new(url, Credential::None), LONG)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                GitError::Refused {
                    reason: Refusal::Address { .. },
                    ..
                }
            ),
            "{host}: {error:?}"
        );
    }
}

/// `--allow-insecure-sources` is for servers without TLS in private networks, and a metadata server is none.
#[tokio::test]
async fn tenant_metadata_servers_are_refused_if_insecure_sources_are_allowed() {
    for host in ["169.254.169.254", "[fd00:ec2::23]", "[64:ff9b::169.254.169.254]"] {
        let url = RepoUrl::parse(&format!("http://{host}:1/a"), true).unwrap();
        let access = RepoAccess::new(url, Credential::None);
        let error = store().git.list_refs(&access, LONG).await.unwrap_err();
        let is_refused = matches!(
            error,
            GitError::Refused {
                reason: Refusal::Address { .. },
                ..
            }
        );
        assert!(is_refused, "{host}: {error:?}");
    }
}

#[tokio::test]
async fn tenant_addresses_that_the_operator_denies_are_not_connected_to() {
    let lists = AddressLists {
        allowed: vec!["git=10.0.0.0/8".parse().unwrap()],
        denied: Vec::new(),
    };
    let limits = GitLimits {
        addresses: lists.rules(Purpose::Git),
        ..GitLimits::default()
    };
    let home = tempfile::tempdir().unwrap();
    let git = GitStore::new(home.path().to_owned(), limits);
    let url = RepoUrl::parse("http://127.0.0.1:1/a", true).unwrap();
    let error = git
        .list_refs(&RepoAccess::new(url, Credential::None), LONG)
        .await
        .unwrap_err();
    let is_denied = matches!(
        error,
        GitError::Refused {
            reason: Refusal::DeniedAddress { .. },
            ..
        }
    );
    assert!(is_denied, "{error:?}");
}

/// Starts a TLS proxy with a certificate of its own authority for `names`.
async fn tls_front(to: SocketAddr, names: &[&str]) -> (SocketAddr, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let address = server::tls(to, vec![certificate.der().clone()], key.into()).await;
    (address, authority.pem())
}

#[tokio::test]
async fn a_certificate_is_trusted_only_with_the_bundle_of_its_authority() {
    let (fixture, commit) = fixture();
    let server = GitServer::with_password(fixture.folder.path().into(), "bob", "hunter2").await;
    let (address, authority) = tls_front(server.address, &["localhost"]).await;
    let (_, other_authority) = tls_front(server.address, &["localhost"]).await;
    let url = format!("https://localhost:{}/repo.git", address.port());
    let plain = access(&url, basic("bob", "hunter2"));
    let store = store();

    let trusted = plain.clone().with_ca_pem(authority.clone().into_bytes());
    assert_eq!(
        store.git.list_refs(&trusted, LONG).await.unwrap()["refs/heads/main"],
        commit.to_string()
    );
    store
        .git
        .ensure_commit(&trusted, None, &commit.to_string(), LONG)
        .await
        .unwrap();
    server.take_requests();

    let other_name = access(
        &format!("https://127.0.0.1:{}/repo.git", address.port()),
        basic("bob", "hunter2"),
    );
    let untrusted = [
        plain.clone(),
        plain.clone().with_ca_pem(other_authority.into_bytes()),
        other_name.with_ca_pem(authority.into_bytes()),
    ];
    for access in untrusted {
        let error = store.git.list_refs(&access, LONG).await.unwrap_err();
        assert!(matches!(error, GitError::Untrusted { .. }), "{error:?}");
    }
    assert!(
        server.take_requests().is_empty(),
        "no request, and so no credential, went to a server without trust"
    );

    let error = store
        .git
        .list_refs(&plain.with_ca_pem(b"nonsense".to_vec()), LONG)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            GitError::Refused {
                reason: Refusal::CaBundle,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_if_it_is_in_the_bundle_and_names_the_host() {
    let (fixture, _) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    for (name, expected) in [("localhost", true), ("git.example.org", false)] {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let pem = certificate.pem();
        let address = server::tls(server.address, vec![certificate.der().clone()], key.into()).await;
        let url = format!("https://localhost:{}/repo.git", address.port());
        let access = access(&url, Credential::None).with_ca_pem(pem.into_bytes());
        let outcome = store().git.list_refs(&access, LONG).await;
        assert_eq!(outcome.is_ok(), expected, "{name}: {outcome:?}");
    }
}

/// The limits of a small repository.
fn small() -> GitLimits {
    GitLimits {
        pack: PackLimits {
            max_commit_bytes: 1 << 20,
            max_directory_bytes: 1 << 20,
            max_object_bytes: 4 << 20,
            ..PackLimits::default()
        },
        ..GitLimits::default()
    }
}

/// Fetches a commit over HTTP; returns the error, and the names of the packs of the mirrors.
async fn fetch_refused(fixture: &Fixture, refname: &str, commit: git2::Oid) -> (GitError, Vec<String>) {
    let server = GitServer::open(fixture.folder.path().into()).await;
    let store = store_with(small());
    let error = store
        .git
        .ensure_commit(
            &access(&server.url(), Credential::None),
            Some(refname),
            &commit.to_string(),
            LONG,
        )
        .await
        .unwrap_err();
    let mut packs = Vec::new();
    let mut folders = vec![store.folder.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "pack") {
                packs.push(path.display().to_string());
            }
        }
    }
    (error, packs)
}

/// libgit2 holds each of them in memory, also at every later start, when the pack is in the mirror.
#[tokio::test]
async fn tenant_objects_that_inflate_to_more_than_their_limit_are_not_stored() {
    let large = vec![b'x'; 2 << 20];
    let (fixture, parent) = fixture();
    let root = fixture.repo.find_commit(parent).unwrap().tree_id();
    let message = String::from_utf8(large.clone()).unwrap();
    let commit = fixture.commit_with(&[parent], root, &message);
    fixture.point("refs/heads/large-message", commit);
    let tag = fixture.annotate_with("large-tag", parent, &message);
    let names = (0..20_000)
        .map(|number| (format!("{number:060}").into_bytes(), file("x")))
        .collect();
    let directory = fixture.commit(&[parent], Entry::Tree(names));
    fixture.point("refs/heads/large-directory", directory);
    let blob = fixture.commit(
        &[parent],
        Entry::Tree(vec![(b"a".to_vec(), Entry::File(vec![b'x'; 5 << 20]))]),
    );
    fixture.point("refs/heads/large-file", blob);
    for (refname, id, what) in [
        ("refs/heads/large-message", commit, "commit"),
        ("refs/tags/large-tag", tag, "tag"),
        ("refs/heads/large-directory", directory, "directory"),
        ("refs/heads/large-file", blob, "file"),
    ] {
        let (error, packs) = fetch_refused(&fixture, refname, id).await;
        let GitError::Refused {
            reason: Refusal::ObjectBytes { what: seen, .. },
            ..
        } = error
        else {
            panic!("{refname}: {error:?}");
        };
        assert_eq!((seen, packs), (what, Vec::<String>::new()));
    }
}

/// A server whose branch is rewritten again and again costs a mirror of bounded size, and its own Source.
#[tokio::test]
async fn tenant_a_mirror_stays_within_its_size() {
    let (fixture, first) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let store = store_with(GitLimits {
        max_mirror_bytes: 1 << 20,
        ..GitLimits::default()
    });
    let (access, git) = (access(&server.url(), Credential::None), &store.git);
    let main = Some("refs/heads/main");
    let mut state = 1_u64;
    let mut noise = || {
        let bytes = (0..700_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56).to_le_bytes()[0]
        });
        tree(vec![("noise", Entry::File(bytes.collect()))])
    };
    let size = || {
        let mut bytes = 0;
        let mut folders = vec![store.folder.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.path().is_dir() {
                    folders.push(entry.path());
                }
                bytes += entry.metadata().unwrap().len();
            }
        }
        bytes
    };
    git.ensure_commit(&access, main, &first.to_string(), LONG)
        .await
        .unwrap();
    git.pin(&access, "first", &first.to_string()).await.unwrap();
    for _ in 0..6 {
        let rewritten = fixture.commit(&[], noise());
        fixture.point("refs/heads/main", rewritten);
        git.ensure_commit(&access, main, &rewritten.to_string(), LONG)
            .await
            .unwrap();
        assert!(size() < 3 << 20, "{} bytes", size());
    }
    git.ensure_commit(&access, None, &first.to_string(), LONG)
        .await
        .unwrap();

    // What is in use is not removed: it is the server that is refused.
    for number in 0..3 {
        let kept = fixture.commit(&[], noise());
        fixture.point("refs/heads/main", kept);
        let (name, id) = (format!("kept-{number}"), kept.to_string());
        match git.ensure_commit(&access, main, &id, LONG).await {
            Ok(()) => git.pin(&access, &name, &id).await.unwrap(),
            Err(GitError::Refused {
                reason: Refusal::MirrorBytes { limit, .. },
                ..
            }) => {
                assert_eq!((limit, number), (1 << 20, 2));
                assert_eq!(git.list_pins(&access).await.unwrap().len(), 3);
                return;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("the mirror has no limit: {} bytes", size());
}

/// Each fetch adds a pack, and each look-up searches all of them.
#[tokio::test]
async fn packs_are_joined_after_fetches() {
    let (fixture, mut last) = fixture();
    let server = GitServer::open(fixture.folder.path().into()).await;
    let store = store_with(GitLimits {
        max_packs: 4,
        ..GitLimits::default()
    });
    let access = access(&server.url(), Credential::None);
    for number in 0..12 {
        last = fixture.simple(&[last], &number.to_string());
        fixture.point("refs/heads/main", last);
        let id = last.to_string();
        store
            .git
            .ensure_commit(&access, Some("refs/heads/main"), &id, LONG)
            .await
            .unwrap();
    }
    // Waits for the last joining, which holds the lock of the server.
    store.git.compact(&access, LONG).await.unwrap();
    let folder = store
        .folder
        .path()
        .join("mirrors")
        .join(access.mirror_key())
        .join("objects/pack");
    let packs = std::fs::read_dir(folder).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|end| end == "pack")
    });
    assert!(packs.count() <= 4);
    let out = store.folder.path().join("out");
    store
        .git
        .export(&access, &last.to_string(), &out, None)
        .await
        .unwrap();
}
