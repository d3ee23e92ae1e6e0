//! Starling under simulated time and network: the real controller and embedded API servers, everything else in memory.
//! The same seed gives the same history, byte for byte.
//!
//! A history draws from these faults, at random times:
//! - API servers that refuse, delay, lose or cut requests and watches, restart, or compact their history;
//! - partitions, and messages that are held back;
//! - a controller that crashes, and starts with its disk, without it, or with an older snapshot of it;
//! - a git server that is away; a clock that jumps;
//! - a watch of one kind that freezes; labels that flap;
//! - members, and a management cluster, that are set back to a backup;
//! - Clusters that lose their label, are deleted, join late, move between stages, and move between groups;
//! - an entry that leaves and returns, and groups that are suspended, with policies that delete;
//! - operator actions, and a release that no member accepts.
//!
//! [`scenes`] has single faults at fixed times.
//!
//! `STARLING_SEED=N` runs one seed and prints its log; `STARLING_SEEDS=N` sets the number of seeds, and
//! `STARLING_SEEDS=M..N` the range.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]
#![expect(clippy::print_stderr, reason = "a long run prints its progress")]

mod content;
mod evaluation;
mod extras;
mod fakes;
mod judge;
mod ledger_model;
mod net;
mod operator;
mod reads;
mod scenes;
mod script;
mod staged;
mod trace;
mod user;
mod wanted;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use script::Script;

/// Default number of seeds: a few minutes on two cores. One seed takes from four to twenty seconds of a core in an
/// unoptimised build.
const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 300 };

/// Number of seeds between two progress messages.
const PROGRESS_EACH: u64 = 500;

/// Time limit of one seed. It is for seeds that never end: no machine is that slow.
const TIMEOUT: Duration = Duration::from_mins(10);

fn log() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}

/// Returns the report of a failed run, with the command that runs it again.
fn failed(seed: u64, what: &str, trace: Option<&str>) -> String {
    let kept = trace.map_or(String::new(), |trace| match trace::keep(seed, trace) {
        Ok(path) => format!("\nits history is in {}", path.display()),
        Err(error) => format!("\nits history could not be written: {error}"),
    });
    format!(
        "seed {seed}: {what}{kept}\nagain: STARLING_SEED={seed} RUST_LOG=starling=info cargo test --test simulation every_seed -- --nocapture"
    )
}

/// Runs these seeds, and returns the failures by seed.
fn check_all(seeds: Range<u64>) -> BTreeMap<u64, String> {
    let Range { start, end } = seeds;
    let next = AtomicU64::new(start);
    let failures: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let began = Instant::now();
    let under_way: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    let (working, ended) = mpsc::channel();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            if seed > start && seed.is_multiple_of(PROGRESS_EACH) {
                eprintln!("at seed {seed} after {:?}", began.elapsed());
            }
            under_way.lock().unwrap().insert(seed, Instant::now());
            if let Err(what) = check(seed) {
                eprintln!("seed {seed} failed");
                failures.lock().unwrap().insert(seed, what);
            }
            under_way.lock().unwrap().remove(&seed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let working = working.clone();
            scope.spawn(|| {
                let _until_over = working;
                work();
            });
        }
        drop(working);
        exit_if_a_seed_does_not_end(&under_way, &ended);
    });
    eprintln!("{} seeds in {:?}", end.saturating_sub(start), began.elapsed());
    failures.into_inner().unwrap()
}

/// Ends the process with the first seed that takes longer than [`TIMEOUT`]; returns when no thread runs seeds any more.
///
/// Simulated time stands still while a task works. A controller that reconciles the same object forever, because it
/// takes a future time for a past one, never lets time pass, and nothing in the simulation can detect that.
fn exit_if_a_seed_does_not_end(under_way: &Mutex<BTreeMap<u64, Instant>>, ended: &mpsc::Receiver<()>) {
    while ended.recv_timeout(TIMEOUT / 10) == Err(RecvTimeoutError::Timeout) {
        let under_way = under_way.lock().unwrap();
        let mut late = under_way.iter().filter(|(_, began)| began.elapsed() > TIMEOUT);
        if let Some((seed, _)) = late.next() {
            eprintln!("{}", failed(*seed, "it does not end", None));
            std::process::exit(1);
        }
    }
}

/// Runs a seed.
///
/// # Errors
/// A description of the failure.
fn check(seed: u64) -> Result<world::Run, String> {
    check_script(seed, &Script::of(seed))
}

/// Runs a script.
///
/// # Errors
/// A description of the failure.
fn check_script(seed: u64, script: &Script) -> Result<world::Run, String> {
    let ran = std::panic::catch_unwind(|| world::run(seed, script));
    let run = match ran {
        Ok(Ok(run)) => run,
        Ok(Err(error)) => return Err(failed(seed, &format!("{error:#}"), None)),
        Err(_) => return Err(failed(seed, "it panicked", None)),
    };
    let problems = match problems(&run, script) {
        Ok(problems) => problems,
        Err(error) => return Err(failed(seed, &format!("{error:#}"), None)),
    };
    if problems.is_empty() {
        return Ok(run);
    }
    let events: Vec<String> = script
        .events
        .iter()
        .map(|(at, event)| format!("{at:?} {event:?}"))
        .collect();
    let what = format!(
        "{}\nscript:\n{}\n{:?}\n{:?}",
        problems.join("\n"),
        events.join("\n"),
        script.staged,
        script.extras
    );
    Err(failed(seed, &what, Some(&trace::of(&run.world))))
}

/// Returns all problems of a run.
fn problems(run: &world::Run, script: &Script) -> anyhow::Result<Vec<String>> {
    let mut all = run.problems.clone();
    all.extend(evaluation::repetitions(run)?);
    all.extend(evaluation::lost_in_moves(run, script)?);
    let violations = evaluation::violations(run, script)?;
    all.extend(violations.iter().map(ToString::to_string));
    all.extend(evaluation::journal_errors(run, script));
    Ok(all)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Parses the seeds to run: `N` for the first N, `M..N` for a range.
///
/// # Errors
/// A description of the allowed values.
fn seeds(value: Option<&str>) -> Result<Range<u64>, String> {
    let Some(value) = value else {
        return Ok(0..SEEDS);
    };
    let (from, to) = value.split_once("..").unwrap_or(("0", value));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) => Ok(from..to),
        _ => Err(format!(
            "STARLING_SEEDS={value}: write how many, such as 1000, or which, such as 1000..2000"
        )),
    }
}

#[test]
fn seeds_are_a_count_or_a_range() {
    assert_eq!(seeds(None), Ok(0..SEEDS));
    assert_eq!(seeds(Some("40")), Ok(0..40));
    assert_eq!(seeds(Some("40..60")), Ok(40..60));
    assert!(seeds(Some("all")).is_err());
}

#[test]
fn three_revisions_roll_out_without_faults() -> anyhow::Result<()> {
    log();
    let script = Script::without_faults(1);
    let run = world::run(1, &script)?;
    assert_eq!(
        problems(&run, &script)?,
        Vec::<String>::new(),
        "{:?}",
        run.world.log
    );
    Ok(())
}

#[test]
fn three_revisions_roll_out_through_stages_without_faults() -> anyhow::Result<()> {
    log();
    for seed in number("STARLING_SEED").map_or(vec![1, 2, 3, 4], |seed| vec![seed]) {
        let script = Script::without_faults_with_stages(seed);
        let run = world::run(seed, &script)?;
        assert_eq!(
            problems(&run, &script)?,
            Vec::<String>::new(),
            "seed {seed}: {script:?} {:?}",
            run.world.log
        );
    }
    Ok(())
}

/// In each of these seeds a host stops during its work: many connections end at once, and their order must not depend
/// on other work of the process.
#[test]
fn the_same_seed_gives_the_same_history() -> anyhow::Result<()> {
    for seed in number("STARLING_SEED").map_or(vec![1, 2, 35, 52], |seed| vec![seed]) {
        let script = Script::of(seed);
        let (first, again) = (world::run(seed, &script)?, world::run(seed, &script)?);
        let (one, other) = (trace::of(&first.world), trace::of(&again.world));
        if one != other {
            let at = one
                .lines()
                .zip(other.lines())
                .position(|(one, other)| one != other);
            let at = at.unwrap_or(one.lines().count().min(other.lines().count()));
            anyhow::bail!(
                "seed {seed}: the histories differ from line {} on\n{}\n{}",
                at + 1,
                one.lines().nth(at).unwrap_or("(none)"),
                other.lines().nth(at).unwrap_or("(none)")
            );
        }
        assert!(one.lines().count() > 300, "the history is too short");
    }
    Ok(())
}

/// A cluster requests a pause, and the controller's clock jumps past its end before the pause is over: the controller
/// reconciled the Sync of that cluster forever, without a pause.
#[test]
fn a_rate_limit_pause_ends_after_a_clock_jump() {
    let checked = check_script(3292, &Script::without_removals(3292));
    assert_eq!(checked.err(), None);
}

#[test]
fn every_seed_converges() {
    if let Some(seed) = number("STARLING_SEED") {
        log();
        let run = check(seed).unwrap_or_else(|what| panic!("{what}"));
        let path = trace::keep(seed, &trace::of(&run.world)).unwrap();
        eprintln!(
            "{:?} simulated; its history is in {}",
            run.elapsed,
            path.display()
        );
        return;
    }
    let value = std::env::var("STARLING_SEEDS").ok();
    let Range { start, end } = seeds(value.as_deref()).unwrap_or_else(|what| panic!("{what}"));
    let failures = check_all(start..end);
    let count = end.saturating_sub(start);
    let seeds: Vec<_> = failures.keys().collect();
    for what in failures.values().take(5) {
        eprintln!("{what}\n");
    }
    assert!(
        failures.is_empty(),
        "{} of {count} seeds failed: {seeds:?}",
        failures.len()
    );
}
