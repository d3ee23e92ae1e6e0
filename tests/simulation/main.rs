//! Starling under simulated time and network: the real controller, embedded API servers, everything else in memory. The same
//! seed gives the same history, to the byte.
//!
//! `STARLING_SEED=N` runs one seed and shows its log; `STARLING_SEEDS=N` sets how many are run.

#![expect(
    clippy::print_stderr,
    reason = "a test tells on the terminal what it found"
)]

mod content;
mod net;
mod script;
mod trace;
mod twins;
mod user;
mod world;

use std::time::Instant;

use script::Script;

fn log() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}

#[test]
fn without_trouble_three_revisions_roll_through_the_fleet() -> anyhow::Result<()> {
    log();
    let began = Instant::now();
    let run = world::run(1, &Script::calm(1))?;
    let trace = trace::of(&run.world);
    let path = trace::keep(1, &trace)?;
    eprintln!("{:?} simulated in {:?}; {} writes in {}", run.elapsed, began.elapsed(), trace.lines().count(), path.display());
    assert_eq!(run.complaints, Vec::<String>::new(), "{:?}", run.world.log);
    Ok(())
}
