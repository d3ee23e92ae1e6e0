//! Durability: a process is killed while it writes, and every acknowledged row must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use jiff::Timestamp;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use starling_ledger::{AttemptOutcome, Due, Ledger, Opened};
use tempfile::TempDir;

use crate::build::*;

/// Set for the child: the folder to write to.
const FOLDER: &str = "STARLING_TEST_LEDGER_KILL";
/// Set for the child: its number, which is part of its rows.
const ROUND: &str = "STARLING_TEST_LEDGER_ROUND";
const ROUNDS: usize = 20;
const TASKS: usize = 8;

/// The test is both processes: it starts itself again with `FOLDER` set.
#[test]
fn acknowledged_rows_survive_sigkill() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_until_killed(Path::new(&folder), &std::env::var(ROUND).unwrap());
    }
    let folder = TempDir::new().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 0..ROUNDS {
        // Some are killed after their first rows, some after checkpoints of the log.
        let rows_before_kill = usize::try_from(RandomState::new().hash_one(round) % 600).unwrap();
        let written = run_and_kill(folder.path(), round, rows_before_kill);
        println!("round {round}: {} rows acknowledged", written.len());
        runtime().block_on(check(folder.path(), &written));
        acknowledged.extend(written);
    }
    // No later kill removes earlier rows.
    runtime().block_on(check(folder.path(), &acknowledged));
    assert!(acknowledged.len() >= ROUNDS, "the children wrote nothing");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// The child: several tasks write rows of all kinds and print each one when it is acknowledged.
fn write_until_killed(folder: &Path, round: &str) -> ! {
    runtime().block_on(async {
        let ledger = std::sync::Arc::new(Ledger::open(folder).await.unwrap().0);
        let tasks = (0..TASKS).map(|task| {
            let (ledger, round) = (ledger.clone(), round.to_owned());
            tokio::spawn(async move {
                for n in 0_u64.. {
                    let row = format!("{round}.{task}.{n}");
                    write(&ledger, &row, n).await;
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "written {row}").unwrap();
                    out.flush().unwrap();
                }
            })
        });
        futures::future::join_all(tasks).await;
    });
    unreachable!("the tasks never end")
}

async fn write(ledger: &Ledger, row: &str, n: u64) {
    match n % 6 {
        5 => ledger.append_journal(&mk_entry(row, 1)).await.unwrap(),
        0 => ledger.set_meta(row, "written").await.unwrap(),
        1 => ledger
            .record_admissions(&[mk_admission(1, row, "t")])
            .await
            .unwrap(),
        2 => {
            let id = ledger.begin_attempt(&mk_attempt(row, 1)).await.unwrap();
            assert!(
                ledger
                    .finish_attempt(id, &mk_end(AttemptOutcome::Succeeded))
                    .await
                    .unwrap()
            );
        }
        3 => {
            let objects = (0..50)
                .map(|n| (mk_object(&n.to_string()), mk_record(row)))
                .collect();
            ledger
                .save_records(&cluster("cluster"), &owner(row), &objects, &BTreeSet::new())
                .await
                .unwrap();
        }
        _ => ledger
            .save_due(&[Due {
                key: mk_queue_key(row),
                at: Timestamp::UNIX_EPOCH,
            }])
            .await
            .unwrap(),
    }
}

/// Starts a child, kills it once it has acknowledged enough, and returns what it acknowledged.
fn run_and_kill(folder: &Path, round: usize, rows_before_kill: usize) -> BTreeSet<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "kill::acknowledged_rows_survive_sigkill",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let written = collect(&mut child, rows_before_kill);
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "round {round}: {status}"
    );
    written
}

/// Reads until the pipe is empty and closed, including output from before the kill.
fn collect(child: &mut Child, rows_before_kill: usize) -> BTreeSet<String> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut written = BTreeSet::new();
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        // A line that the kill truncated has no line break.
        if let Some(row) = line
            .strip_suffix('\n')
            .and_then(|line| line.strip_prefix("written "))
        {
            written.insert(row.to_owned());
        }
        if written.len() > rows_before_kill {
            child.kill().unwrap();
        }
        line.clear();
    }
    assert!(written.len() > rows_before_kill, "the child ended by itself");
    written
}

/// The next process opens a valid ledger with every acknowledged row.
async fn check(folder: &Path, acknowledged: &BTreeSet<String>) {
    let (ledger, opened) = open(folder).await;
    assert_eq!(opened, Opened::Existing);
    let admitted: BTreeSet<_> = ledger
        .open_admissions(&group("group-1"))
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.key.cluster)
        .collect();
    let queued: BTreeSet<_> = ledger
        .load_queue()
        .await
        .unwrap()
        .into_iter()
        .map(|due| due.key.name)
        .collect();
    for row in acknowledged {
        let n: u64 = row.rsplit('.').next().unwrap().parse().unwrap();
        let found = match n % 6 {
            5 => ledger.journal_tail(&group(row)).await.unwrap().len() == 1,
            0 => ledger.meta(row).await.unwrap().is_some(),
            1 => admitted.contains(row.as_str()),
            2 => ledger
                .attempts(row)
                .await
                .unwrap()
                .first()
                .is_some_and(|a| a.end.is_some()),
            3 => complete(
                &ledger
                    .load_records(&cluster("cluster"), &owner(row))
                    .await
                    .unwrap()
                    .objects,
            ),
            _ => queued.contains(row),
        };
        assert!(found, "{row} was acknowledged and is lost");
    }
    // An attempt that was not acknowledged may be open, and is listed.
    let interrupted = ledger.interrupted_attempts().await.unwrap().len();
    assert!(interrupted <= TASKS, "{interrupted}");
    assert_eq!(
        ledger.close_interrupted(at(0)).await.unwrap(),
        u64::try_from(interrupted).unwrap()
    );
    ledger.close().await;

    let mut connection = SqliteConnectOptions::new()
        .filename(folder.join("ledger.db"))
        .connect()
        .await
        .unwrap();
    let verdict: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(verdict, "ok");
}

fn complete<K, V>(objects: &BTreeMap<K, V>) -> bool {
    objects.len() == 50
}
