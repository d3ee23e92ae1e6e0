//! The writer: many calls in one transaction, failing operations, and a disk that refuses writes for a while.

use std::path::Path;
use std::process::Command;

use futures::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use starling_ledger::{AdmissionOutcome, LedgerError, WriterStats};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::build::*;

#[tokio::test]
async fn a_hundred_calls_share_few_transactions() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let attempts: Vec<_> = (0..100).map(|n| mk_attempt(&format!("sync-{n}"), 1)).collect();
    let mut ids: Vec<_> = join_all(attempts.iter().map(|attempt| ledger.begin_attempt(attempt)))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 100, "each caller got its own answer");
    let WriterStats {
        transactions,
        operations,
    } = ledger.stats();
    assert_eq!(operations, 100);
    assert!(
        transactions <= 10,
        "{transactions} transactions for 100 operations"
    );
}

#[tokio::test]
async fn a_bad_operation_fails_alone() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    let admissions: Vec<_> = (0..60).map(|n| mk_admission(1, &format!("c{n}"), "t")).collect();
    ledger.record_admissions(&admissions).await.unwrap();
    let before = ledger.stats();

    // Every third fails without a reason, which the schema refuses.
    let results = join_all(admissions.iter().enumerate().map(|(n, admission)| {
        let outcome = if n % 3 == 0 {
            AdmissionOutcome::Failed
        } else {
            AdmissionOutcome::Applied
        };
        ledger.settle_admission(&admission.key, outcome, "", at(2))
    }))
    .await;

    let after = ledger.stats();
    assert_eq!(after.operations - before.operations, 40);
    assert!(
        after.transactions - before.transactions <= 10,
        "good and bad ones were in one transaction"
    );
    for (n, result) in results.iter().enumerate() {
        match result {
            Ok(first) => assert!(n % 3 != 0 && *first, "{n}"),
            Err(LedgerError::Write { operation, .. }) => {
                assert_eq!(n % 3, 0);
                assert_eq!(operation, &format!("settle the admission of app on c{n}"));
            }
            Err(other) => panic!("{n}: {other:?}"),
        }
    }
    let open = ledger.open_admissions(&group("group-1")).await.unwrap();
    let still_open: Vec<_> = admissions.iter().step_by(3).cloned().collect();
    assert_eq!(
        open, still_open,
        "the failed ones left no trace, the others all did"
    );
}

#[tokio::test]
async fn a_dropped_call_is_still_written() {
    let folder = TempDir::new().unwrap();
    let (ledger, _) = open(folder.path()).await;
    {
        let mut write = std::pin::pin!(ledger.set_meta("left", "behind"));
        assert!(
            futures::poll!(write.as_mut()).is_pending(),
            "sent, not yet written"
        );
    }
    // Later operations are written later.
    ledger.set_meta("next", "one").await.unwrap();
    assert_eq!(ledger.meta("left").await.unwrap().as_deref(), Some("behind"));
}

/// Set for the child: the folder to write to.
const FOLDER: &str = "STARLING_TEST_LEDGER_STORAGE";

/// A limit on file sizes applies to the whole process, so the test runs in its own process.
#[test]
fn a_disk_that_refuses_writes_causes_errors_only() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(refuse_for_a_while(Path::new(&folder)));
    }
    let folder = TempDir::new().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "storage::a_disk_that_refuses_writes_causes_errors_only",
            "--nocapture",
        ])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        stdout.contains("refused after "),
        "the child did not run the scenario: {stdout}"
    );
}

async fn refuse_for_a_while(folder: &Path) {
    // Without a handler the signal would end the process.
    let _handled = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).unwrap();
    let (ledger, _) = open(folder).await;
    exercise(&ledger, "before").await.unwrap();

    let unlimited = getrlimit(Resource::Fsize);
    let log = std::fs::metadata(folder.join("ledger.db-wal")).unwrap().len();
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: Some(log + 100_000),
            maximum: unlimited.maximum,
        },
    )
    .unwrap();
    let mut written = Vec::new();
    let error = loop {
        let key = format!("key-{}", written.len());
        match ledger.set_meta(&key, &"x".repeat(2000)).await {
            Ok(()) => written.push(key),
            Err(error) => break error,
        }
        assert!(written.len() < 1000, "the limit has no effect");
    };
    assert!(matches!(error, LedgerError::Commit { .. }), "{error:?}");
    assert!(!error.is_corrupt(), "{error:?}");
    assert!(!written.is_empty());
    println!("refused after {} rows: {error:?}", written.len());

    // Writes remain refused, and reads continue.
    let again = join_all(written.iter().map(|key| ledger.set_meta(key, "overwritten"))).await;
    for result in again {
        assert!(matches!(result, Err(LedgerError::Commit { .. })), "{result:?}");
    }
    assert_eq!(ledger.meta(&written[0]).await.unwrap(), Some("x".repeat(2000)));

    setrlimit(Resource::Fsize, unlimited).unwrap();
    ledger.set_meta("after", "all").await.unwrap();
    exercise(&ledger, "after").await.unwrap();
    ledger.close().await;

    let (ledger, opened) = open(folder).await;
    assert_eq!(opened, starling_ledger::Opened::Existing);
    for key in &written {
        assert_eq!(ledger.meta(key).await.unwrap(), Some("x".repeat(2000)), "{key}");
    }
    assert_eq!(ledger.meta("after").await.unwrap().as_deref(), Some("all"));
}
