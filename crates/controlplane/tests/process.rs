//! Children exit with their owner in any case.

#![allow(
    clippy::unwrap_used,
    reason = "functions shared by the tests of a file are tests too"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use starling_controlplane::{Launch, Process, ProcessError};

const SOON: Duration = Duration::from_secs(10);

/// Set in the process that acts as the parent; the file that receives the process number of the child.
const ACT_AS_PARENT: &str = "STARLING_TEST_PLAY_PARENT";

fn sleeper(dir: &Path) -> Process {
    Process::start(&Launch::new("sleeper", "sleep", dir.join("sleeper.log")).arg("600")).unwrap()
}

fn exists(pid: i32) -> bool {
    // A zombie has a folder too; its state identifies it.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, fields)| !fields.starts_with('Z'))
    })
}

fn await_true(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn drop_kills_and_reaps() {
    let dir = tempfile::tempdir().unwrap();
    let process = sleeper(dir.path());
    let pid = process.pid();
    assert!(exists(pid));
    drop(process);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn child_dies_with_a_killed_parent() {
    if let Some(file) = std::env::var_os(ACT_AS_PARENT) {
        // Started from a thread that ends, as threads of a runtime do: the child has to survive the end of the thread.
        let dir = Path::new(&file).parent().unwrap().to_owned();
        let process = std::thread::spawn(move || sleeper(&dir)).join().unwrap();
        std::fs::write(&file, format!("{}\n", process.pid())).unwrap();
        loop {
            std::thread::park();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_dies_with_a_killed_parent"])
        .env(ACT_AS_PARENT, &file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    await_true("the child's number", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    // The name changes from setpriv to sleep when the signal is set up.
    await_true("the child's program", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    await_true("the end of the child", || !exists(pid));
}

#[tokio::test]
async fn stop_terminates_first_and_then_kills() {
    let dir = tempfile::tempdir().unwrap();
    let terminable = sleeper(dir.path());
    assert!(!terminable.stop(SOON).await.unwrap().success());
    assert!(matches!(terminable.pause(), Err(ProcessError::Ended { .. })));
    assert!(matches!(terminable.usage(), Err(ProcessError::Ended { .. })));
    // Stopping twice is no error.
    terminable.stop(SOON).await.unwrap();

    let unresponsive = Launch::new("deaf", "bash", dir.path().join("deaf.log"))
        .args(["-c", "trap '' TERM; echo deaf; while true; do sleep 1; done"]);
    let unresponsive = Process::start(&unresponsive).unwrap();
    await_true("the trap", || unresponsive.log_tail(1).unwrap() == "deaf");
    let error = unresponsive.wait(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, ProcessError::StillRunning { .. }), "{error}");
    unresponsive.stop(Duration::from_millis(200)).await.unwrap();
    assert!(!exists(unresponsive.pid()));
}

#[test]
fn usage_grows_with_work() {
    let dir = tempfile::tempdir().unwrap();
    let busy =
        Launch::new("busy", "bash", dir.path().join("busy.log")).args(["-c", "while true; do :; done"]);
    let busy = Process::start(&busy).unwrap();
    await_true("processor time", || {
        busy.usage().unwrap().cpu >= Duration::from_millis(100)
    });
    assert!(busy.usage().unwrap().rss_bytes > 100_000);
    busy.pause().unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", busy.pid())).unwrap();
    assert!(state().contains(") T "), "every thread has stopped: {}", state());
    busy.resume().unwrap();
    await_true("the resumption", || state().contains(") R "));
}

#[test]
fn missing_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let launch = Launch::new(
        "ghost",
        dir.path().join("no-such-program"),
        dir.path().join("log"),
    );
    let error = Process::start(&launch).unwrap_err();
    assert!(matches!(error, ProcessError::Spawn { .. }));
    assert!(error.to_string().contains("no-such-program"), "{error}");
}
