//! Files that this version cannot use, and directories in use.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use starling_apiserver::persist::PersistError;
use starling_apiserver::server::{Options, Server, ServerError};

use crate::world::{Running, file};

async fn refusal(directory: &Path) -> PersistError {
    match Server::open(Options::default(), directory).await {
        Err(ServerError::File(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Returns a directory with a cluster.
async fn used() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    running.server.create_cluster("a").unwrap();
    running.end().await;
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_locked_by_one_process() {
    let directory = used().await;
    let running = Running::begin(directory.path()).await;
    let error = refusal(directory.path()).await;
    assert!(matches!(error, PersistError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("in use by another process"));
    running.end().await;
    Running::begin(directory.path()).await.end().await;
}

/// The file holds the key of the authority and the key of tokens.
#[tokio::test(flavor = "multi_thread")]
async fn other_users_have_no_access() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let _running = Running::begin(&path).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_damaged_file_is_rejected_and_unchanged() {
    type Harm = fn(&mut Vec<u8>);
    let corruptions: [(&str, Harm); 3] = [
        ("another format", |bytes| {
            *bytes = b"a diary, and no database at all".repeat(100);
        }),
        ("half of it", |bytes| bytes.truncate(bytes.len() / 2)),
        ("pages of noise", |bytes| bytes[4096..].fill(0xee)),
    ];
    for (name, corrupt) in corruptions {
        let directory = used().await;
        let path = directory.path().join("apiserver.db");
        let mut bytes = std::fs::read(&path).unwrap();
        corrupt(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let error = refusal(directory.path()).await;
        assert!(
            matches!(error, PersistError::Unusable { .. } | PersistError::Read { .. }),
            "{name}: {error:?}"
        );
        assert!(error.to_string().contains("apiserver.db"), "{name}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_rows_and_versions_are_rejected() {
    for (change, expected) in [
        ("PRAGMA user_version = 9", "a newer version"),
        ("PRAGMA application_id = 1", "another program"),
        (
            "UPDATE objects SET body = X'78' WHERE key = 'default'",
            "not what was written",
        ),
        (
            "UPDATE objects SET key = 'moved' WHERE key = 'default'",
            "not what was written",
        ),
        ("UPDATE clusters SET revision = 1", "not what was written"),
        (
            "DELETE FROM meta WHERE key = 'key'",
            "\"key\" in the table meta is missing",
        ),
        ("UPDATE meta SET value = X'00' WHERE key = 'secret'", "32 bytes"),
        (
            "UPDATE meta SET value = X'78' WHERE key = 'seed'",
            "invalid seed \"x\"",
        ),
        (
            "UPDATE meta SET value = X'78' WHERE key = 'address'",
            "invalid address \"x\"",
        ),
    ] {
        let directory = used().await;
        let mut other = file(directory.path()).await;
        sqlx::raw_sql(change).execute(&mut other).await.unwrap();
        drop(other);
        let error = refusal(directory.path()).await.to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}
