//! Files that are damaged, foreign, newer, missing or in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use starling_ledger::{Ledger, LedgerError, Opened};
use tempfile::TempDir;

use crate::build::*;

fn database(folder: &Path) -> PathBuf {
    folder.join("ledger.db")
}

/// Creates a valid, closed ledger with rows on many pages.
async fn valid_ledger() -> TempDir {
    let folder = TempDir::new().unwrap();
    let (ledger, opened) = open(folder.path()).await;
    assert_eq!(opened, Opened::Fresh);
    exercise(&ledger, "before").await.unwrap();
    let objects = (0..300)
        .map(|n| (mk_object(&format!("web-{n}")), mk_record(&n.to_string())))
        .collect();
    ledger
        .save_records(
            &cluster("cluster-1"),
            &owner("big"),
            &objects,
            &Default::default(),
        )
        .await
        .unwrap();
    ledger.close().await;
    folder
}

/// Opens a connection to the file of a closed ledger.
async fn sqlite(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap()
}

/// Asserts that the file is moved aside, and replaced by a working, empty ledger. Returns the new path of the file.
async fn expect_moved_aside(folder: &Path, case: &str) -> PathBuf {
    let (ledger, opened) = open(folder).await;
    let Opened::MovedAside(aside) = opened else {
        panic!("{case}: {opened:?}")
    };
    assert!(
        aside
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("ledger.db.corrupt-")
    );
    assert_eq!(
        ledger.meta("replica").await.unwrap(),
        None,
        "the new ledger is empty"
    );
    exercise(&ledger, "after").await.unwrap();
    ledger.close().await;
    let (ledger, opened) = open(folder).await;
    assert_eq!(opened, Opened::Existing, "moved aside once, not at every start");
    ledger.close().await;
    aside
}

/// A random sequence that is the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(below).unwrap()).unwrap()
    }
}

#[tokio::test]
async fn opening_again_keeps_everything_and_migrates_nothing() {
    let folder = valid_ledger().await;
    for n in 0..3 {
        let (ledger, opened) = open(folder.path()).await;
        assert_eq!(opened, Opened::Existing);
        assert_eq!(
            ledger
                .load_records(&cluster("cluster-1"), &owner("big"))
                .await
                .unwrap()
                .objects
                .len(),
            300
        );
        exercise(&ledger, &format!("again-{n}")).await.unwrap();
        ledger.close().await;
    }
}

#[tokio::test]
async fn an_empty_file_gives_a_fresh_ledger() {
    // SQLite treats a file of one byte as empty.
    for bytes in ["", "x"] {
        let folder = TempDir::new().unwrap();
        fs::write(database(folder.path()), bytes).unwrap();
        let (ledger, opened) = open(folder.path()).await;
        assert_eq!(opened, Opened::Fresh);
        exercise(&ledger, "after").await.unwrap();
    }
}

#[tokio::test]
async fn a_deleted_file_gives_a_fresh_ledger() {
    let folder = valid_ledger().await;
    fs::remove_file(database(folder.path())).unwrap();
    let (ledger, opened) = open(folder.path()).await;
    assert_eq!(opened, Opened::Fresh);
    exercise(&ledger, "after").await.unwrap();
}

#[tokio::test]
async fn a_text_file_is_moved_aside_unchanged() {
    let folder = TempDir::new().unwrap();
    let text = "the ledger was here\n".repeat(500);
    fs::write(database(folder.path()), &text).unwrap();
    let aside = expect_moved_aside(folder.path(), "it").await;
    assert_eq!(fs::read_to_string(aside).unwrap(), text);
}

#[tokio::test]
async fn a_truncated_file_is_moved_aside() {
    for keep in [2, 99, 100, 4096, 5000, 20_480] {
        let folder = valid_ledger().await;
        fs::File::options()
            .write(true)
            .open(database(folder.path()))
            .unwrap()
            .set_len(keep)
            .unwrap();
        expect_moved_aside(folder.path(), &format!("{keep} bytes kept")).await;
    }
}

#[tokio::test]
async fn a_log_without_its_database_is_moved_aside() {
    let folder = valid_ledger().await;
    fs::remove_file(database(folder.path())).unwrap();
    fs::write(folder.path().join("ledger.db-wal"), b"left behind").unwrap();
    let aside = expect_moved_aside(folder.path(), "it").await;
    let log = aside.with_file_name(format!("{}-wal", aside.file_name().unwrap().to_str().unwrap()));
    assert_eq!(fs::read(log).unwrap(), b"left behind");
}

#[tokio::test]
async fn the_database_of_another_program_is_moved_aside() {
    let folder = TempDir::new().unwrap();
    let mut other = sqlite(&database(folder.path())).await;
    sqlx::raw_sql("CREATE TABLE rollouts (id INTEGER)")
        .execute(&mut other)
        .await
        .unwrap();
    other.close().await.unwrap();
    expect_moved_aside(folder.path(), "it").await;
}

#[tokio::test]
async fn a_ledger_of_a_newer_version_is_moved_aside() {
    let folder = valid_ledger().await;
    let mut newer = sqlite(&database(folder.path())).await;
    sqlx::raw_sql(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', TRUE, x'00', 0)",
    )
    .execute(&mut newer)
    .await
    .unwrap();
    newer.close().await.unwrap();
    expect_moved_aside(folder.path(), "it").await;
}

#[tokio::test]
async fn a_ledger_without_one_of_its_indexes_is_moved_aside() {
    let folder = valid_ledger().await;
    let mut edited = sqlite(&database(folder.path())).await;
    sqlx::raw_sql("DROP INDEX admissions_open")
        .execute(&mut edited)
        .await
        .unwrap();
    edited.close().await.unwrap();
    expect_moved_aside(folder.path(), "it").await;
}

/// Opens a ledger whose file was tampered with. It must open; then every call must work, or say that the file is
/// corrupt, and after that the next start must move it aside. Returns whether the damage was noticed.
async fn survives(folder: &Path, case: &str) -> bool {
    let (ledger, opened) = Ledger::open(folder)
        .await
        .unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let result = exercise(&ledger, "after").await;
    ledger.close().await;
    match (opened, result) {
        (Opened::MovedAside(_), Ok(())) => true,
        (Opened::Existing, Ok(())) => false,
        // A flipped byte within a text: the row says so when it is read.
        (
            Opened::Existing,
            Err(LedgerError::Read {
                source: sqlx::Error::ColumnDecode { .. },
                ..
            }),
        ) => true,
        (Opened::Existing, Err(error)) if error.is_corrupt() => {
            expect_moved_aside(folder, case).await;
            true
        }
        other => panic!("{case}: {other:?}"),
    }
}

#[tokio::test]
async fn any_flipped_byte_of_the_header_is_detected_or_harmless() {
    let folder = valid_ledger().await;
    let bytes = fs::read(database(folder.path())).unwrap();
    let mut detected = 0;
    for position in 0..100 {
        let folder = TempDir::new().unwrap();
        let mut bytes = bytes.clone();
        bytes[position] ^= 0xff;
        fs::write(database(folder.path()), &bytes).unwrap();
        if survives(folder.path(), &format!("header byte {position}")).await {
            detected += 1;
        }
    }
    assert!(
        detected >= 30,
        "the magic, the page size and the format bytes alone are more: {detected}"
    );
}

#[tokio::test]
async fn flipped_bytes_in_the_pages_are_detected_or_harmless() {
    let folder = valid_ledger().await;
    let bytes = fs::read(database(folder.path())).unwrap();
    let mut random = Random(7);
    let mut detected = 0;
    for case in 0..100 {
        let folder = TempDir::new().unwrap();
        let mut bytes = bytes.clone();
        let flips = 1 + random.next(64);
        for _ in 0..flips {
            let position = random.next(bytes.len());
            bytes[position] ^= u8::try_from(1 + random.next(255)).unwrap();
        }
        fs::write(database(folder.path()), &bytes).unwrap();
        if survives(folder.path(), &format!("case {case}, {flips} flips")).await {
            detected += 1;
        }
    }
    assert!(
        detected >= 20,
        "some of many flips hit the structure of a page: {detected}"
    );
}

/// The next start must not use a file that was found damaged, even if its own check finds no damage.
#[tokio::test]
async fn damage_found_in_use_is_remembered() {
    let folder = valid_ledger().await;
    let bytes = fs::read(database(folder.path())).unwrap();
    let (ledger, opened) = open(folder.path()).await;
    assert_eq!(opened, Opened::Existing);
    let mut garbage = bytes.clone();
    garbage[4096..].fill(0xee);
    fs::write(database(folder.path()), &garbage).unwrap();
    let error = ledger
        .load_records(&cluster("cluster-1"), &owner("big"))
        .await
        .unwrap_err();
    assert!(error.is_corrupt(), "{error:?}");
    ledger.close().await;

    fs::write(database(folder.path()), &bytes).unwrap();
    expect_moved_aside(folder.path(), "marked").await;
}

#[tokio::test]
async fn only_the_newest_damaged_files_are_kept() {
    let folder = TempDir::new().unwrap();
    let mut moved = Vec::new();
    for n in 0..5 {
        fs::write(database(folder.path()), format!("damage {n}")).unwrap();
        fs::write(folder.path().join("ledger.db-journal"), "old journal").unwrap();
        let (ledger, opened) = open(folder.path()).await;
        let Opened::MovedAside(aside) = opened else {
            panic!("{opened:?}")
        };
        moved.push(aside);
        ledger.close().await;
    }
    let found: Vec<_> = moved.iter().map(|path| path.exists()).collect();
    assert_eq!(found, [false, false, true, true, true]);
    assert_eq!(fs::read_to_string(&moved[4]).unwrap(), "damage 4");
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert!(
        files <= 2 + 2 * 3,
        "the companions of deleted files are deleted too: {files}"
    );
}

/// The children of a process that was killed have its lock between fork and exec. Guards against a restart that is
/// refused for it.
#[tokio::test]
async fn a_lock_that_is_about_to_end_is_waited_for() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    ledger.close().await;
    let copy = fs::File::open(folder.path().join("lock")).unwrap();
    copy.lock().unwrap();
    let release = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        copy.unlock().unwrap();
    };
    let (opened, ()) = tokio::join!(Ledger::open(folder.path()), release);
    assert_eq!(opened.unwrap().1, Opened::Existing);
}

#[tokio::test]
async fn a_folder_in_use_is_refused_until_it_is_unlocked() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let refused = Ledger::open(folder.path()).await;
    let Err(error @ LedgerError::InUse { .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.to_string().contains(folder.path().to_str().unwrap()),
        "{error}"
    );
    exercise(&ledger, "undisturbed").await.unwrap();
    ledger.close().await;

    // The closed handle still exists, but the folder is unlocked.
    let (next, opened) = open(folder.path()).await;
    assert_eq!(opened, Opened::Existing);
    assert!(matches!(
        ledger.set_meta("a", "b").await,
        Err(LedgerError::Closed)
    ));
    assert!(matches!(ledger.load_queue().await, Err(LedgerError::Closed)));
    ledger.close().await;
    exercise(&next, "next").await.unwrap();
}

#[tokio::test]
async fn the_files_are_readable_by_their_owner_only() {
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("a/b");
    let (ledger, _) = open(&folder).await;
    exercise(&ledger, "x").await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm", "lock"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_close_leaves_one_file_with_everything_queued() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let keys: Vec<_> = (0..50).map(|n| format!("key-{n}")).collect();
    let writes = futures::future::join_all(keys.iter().map(|key| ledger.set_meta(key, "value")));
    let (written, ()) = tokio::join!(writes, ledger.close());
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert!(!folder.path().join("ledger.db-wal").exists());

    let (ledger, _) = open(folder.path()).await;
    for key in &keys {
        assert_eq!(ledger.meta(key).await.unwrap().as_deref(), Some("value"));
    }
}
