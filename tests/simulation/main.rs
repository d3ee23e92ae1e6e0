//! Starling under simulated time and network: the real controller, embedded API servers, everything else in memory. The same
//! seed gives the same history, to the byte.
//!
//! `STARLING_SEED=N` runs one seed and shows its log; `STARLING_SEEDS=N` sets how many are run, and `STARLING_SEEDS=M..N` which.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]
#![expect(clippy::print_stderr, reason = "a long run says how far it is")]

mod chronicle;
mod content;
mod judge;
mod ledger_model;
mod net;
mod person;
mod script;
mod staged;
mod trace;
mod twins;
mod user;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use script::Script;

/// Seeds that are run where nobody says how many: a few minutes on two cores. One takes from four to twenty seconds of a core where
/// nothing is optimised.
const SEEDS: u64 = if cfg!(debug_assertions) { 16 } else { 300 };

/// How often a long run says how far it is.
const TOLD_EACH: u64 = 500;

/// How long one seed may take. It is for those that never end: no machine is that slow.
const PATIENCE: Duration = Duration::from_mins(10);

fn log() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}

/// What is known of a run that failed, with the one command that runs it again.
fn failed(seed: u64, what: &str, trace: Option<&str>) -> String {
    let kept = trace.map_or(String::new(), |trace| match trace::keep(seed, trace) {
        Ok(path) => format!("\nits history is in {}", path.display()),
        Err(error) => format!("\nits history could not be written: {error}"),
    });
    format!(
        "seed {seed}: {what}{kept}\nagain: STARLING_SEED={seed} RUST_LOG=starling=info cargo test --test simulation every_seed -- --nocapture"
    )
}

/// Runs these seeds, and returns what went wrong with which.
fn check_all(seeds: Range<u64>) -> BTreeMap<u64, String> {
    let Range { start, end } = seeds;
    let next = AtomicU64::new(start);
    let failures: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let began = Instant::now();
    let under_way: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    let (working, ended) = mpsc::channel();
    let hands = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            if seed > start && seed.is_multiple_of(TOLD_EACH) {
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
        for _ in 0..hands {
            let working = working.clone();
            scope.spawn(|| {
                let _until_over = working;
                work();
            });
        }
        drop(working);
        end_with_what_does_not_end(&under_way, &ended);
    });
    eprintln!("{} seeds in {:?}", end.saturating_sub(start), began.elapsed());
    failures.into_inner().unwrap()
}

/// Ends the process with the first seed that takes longer than [`PATIENCE`]; returns when nobody is left who could run one.
///
/// Simulated time stands still while somebody works. A controller that looks at the same thing over and over, because it takes what
/// lies ahead for past, never lets it pass, and nothing in the simulation can tell.
fn end_with_what_does_not_end(under_way: &Mutex<BTreeMap<u64, Instant>>, ended: &mpsc::Receiver<()>) {
    while ended.recv_timeout(PATIENCE / 10) == Err(RecvTimeoutError::Timeout) {
        let under_way = under_way.lock().unwrap();
        let mut late = under_way.iter().filter(|(_, began)| began.elapsed() > PATIENCE);
        if let Some((seed, _)) = late.next() {
            eprintln!("{}", failed(*seed, "it does not end", None));
            std::process::exit(1);
        }
    }
}

/// Runs a seed.
///
/// # Errors
/// What went wrong, for people.
fn check(seed: u64) -> Result<world::Run, String> {
    let script = Script::of(seed);
    let ran = std::panic::catch_unwind(|| world::run(seed, &script));
    let run = match ran {
        Ok(Ok(run)) => run,
        Ok(Err(error)) => return Err(failed(seed, &format!("{error:#}"), None)),
        Err(_) => return Err(failed(seed, "it panicked", None)),
    };
    let complaints = match complaints(&run, &script) {
        Ok(complaints) => complaints,
        Err(error) => return Err(failed(seed, &format!("{error:#}"), None)),
    };
    if complaints.is_empty() {
        return Ok(run);
    }
    let events: Vec<String> = script
        .events
        .iter()
        .map(|(at, event)| format!("{at:?} {event:?}"))
        .collect();
    let what = format!(
        "{}\nscript:\n{}\n{:?}",
        complaints.join("\n"),
        events.join("\n"),
        script.staged
    );
    Err(failed(seed, &what, Some(&trace::of(&run.world))))
}

/// All that is wrong with a run.
fn complaints(run: &world::Run, script: &Script) -> anyhow::Result<Vec<String>> {
    let mut all = run.complaints.clone();
    all.extend(chronicle::repetitions(run)?);
    let violations = chronicle::verdict(run, script)?;
    all.extend(violations.iter().map(ToString::to_string));
    all.extend(chronicle::flaws(run));
    Ok(all)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Which seeds are run: `N` for the first ones, `M..N` for a part of many.
///
/// # Errors
/// What would be right, for people.
fn seeds(asked: Option<&str>) -> Result<Range<u64>, String> {
    let Some(asked) = asked else {
        return Ok(0..SEEDS);
    };
    let (from, to) = asked.split_once("..").unwrap_or(("0", asked));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) => Ok(from..to),
        _ => Err(format!(
            "STARLING_SEEDS={asked}: write how many, such as 1000, or which, such as 1000..2000"
        )),
    }
}

#[test]
fn seeds_are_counted_or_named() {
    assert_eq!(seeds(None), Ok(0..SEEDS));
    assert_eq!(seeds(Some("40")), Ok(0..40));
    assert_eq!(seeds(Some("40..60")), Ok(40..60));
    assert!(seeds(Some("all")).is_err());
}

#[test]
fn without_trouble_three_revisions_roll_through_the_fleet() -> anyhow::Result<()> {
    log();
    let script = Script::calm(1);
    let run = world::run(1, &script)?;
    assert_eq!(
        complaints(&run, &script)?,
        Vec::<String>::new(),
        "{:?}",
        run.world.log
    );
    Ok(())
}

#[test]
fn without_trouble_three_revisions_roll_through_stages() -> anyhow::Result<()> {
    log();
    for seed in number("STARLING_SEED").map_or(vec![1, 2, 3, 4], |seed| vec![seed]) {
        let script = Script::calm_with_stages(seed);
        let run = world::run(seed, &script)?;
        assert_eq!(
            complaints(&run, &script)?,
            Vec::<String>::new(),
            "seed {seed}: {script:?} {:?}",
            run.world.log
        );
    }
    Ok(())
}

/// In each of these a host goes down in the middle of what it does: many connections end at once, and which of them first must
/// not depend on what else the process has done.
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
        assert!(one.lines().count() > 300, "hardly anything was written");
    }
    Ok(())
}

/// A cluster asks for a pause, and the controller's clock is past its end before it has passed: it looked at that cluster's Sync without
/// a pause of its own, for ever.
#[test]
fn a_pause_of_a_cluster_passes_whatever_the_clock_shows() {
    assert_eq!(check_all(3292..3293), BTreeMap::new());
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
    let asked = std::env::var("STARLING_SEEDS").ok();
    let Range { start, end } = seeds(asked.as_deref()).unwrap_or_else(|what| panic!("{what}"));
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
