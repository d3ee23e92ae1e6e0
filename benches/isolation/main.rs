//! `cargo bench --bench isolation`: the cost of a black-holed cluster for the healthy ones.
//!
//! Five members behind proxies. In every other round, the fifth member accepts connections but does not respond from
//! the push of the commits on. The benchmark measures the time until each of the other four members has applied each
//! commit. The two kinds of round alternate, so that load on the machine affects both. The benchmark asserts nothing
//! about time.
//!
//! Options, after `--`: `--rounds N`, `--groups N`, `--objects N`, `--concurrency N`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what a benchmark is for"
)]

mod fleet;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::fleet::Bench;

/// The optimised program: `cargo bench` builds it first.
const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");

/// Parameters of the measurement.
pub(crate) struct Options {
    /// Number of rounds of each kind.
    pub(crate) rounds: usize,
    /// Number of groups over all clusters, each with a repository of its own; equals the number of Syncs per cluster.
    pub(crate) groups: usize,
    /// Number of objects of each group.
    pub(crate) objects: usize,
    /// `--concurrency` of the program.
    pub(crate) concurrency: String,
}

impl Options {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            rounds: 10,
            groups: 4,
            objects: 10,
            concurrency: "20".into(),
        };
        while let Some(argument) = arguments.next() {
            if argument == "--bench" {
                continue;
            }
            let value = arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--rounds" => options.rounds = value.parse()?,
                "--groups" => options.groups = value.parse()?,
                "--objects" => options.objects = value.parse()?,
                "--concurrency" => options.concurrency = value,
                _ => bail!("unknown option {argument}"),
            }
        }
        ensure!(
            options.rounds > 0 && options.groups > 0 && options.objects > 0,
            "there is nothing to measure"
        );
        Ok(options)
    }
}

fn main() -> Result<()> {
    let options = Options::from_arguments(std::env::args().skip(1))?;
    tokio::runtime::Runtime::new()?.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    let mut bench = Bench::start(options).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    // The first round warms up the connections, the caches and the servers.
    bench.round(false).await?;
    for round in 1..=options.rounds {
        without.extend(bench.round(false).await?);
        with.extend(bench.round(true).await?);
        eprintln!("round {round} of {}", options.rounds);
    }
    println!(
        "4 healthy clusters, {} Sync(s) each of {} object(s), --concurrency {}, {} rounds of each kind, {} samples of each",
        options.groups,
        options.objects,
        options.concurrency,
        options.rounds,
        without.len()
    );
    println!("| fifth cluster | p50 s | p95 s | max s |\n|---|--:|--:|--:|");
    for (name, times) in [("healthy", &mut without), ("black-holed", &mut with)] {
        times.sort();
        let [p50, p95, max] = [50, 95, 100].map(|percent| percentile(times, percent).as_secs_f64());
        println!("| {name} | {p50:.3} | {p95:.3} | {max:.3} |");
    }
    let ratio = |percent| {
        percentile(&with, percent).as_secs_f64() / percentile(&without, percent).as_secs_f64().max(1e-9)
    };
    println!("ratio of p50 {:.2}, of p95 {:.2}", ratio(50), ratio(95));
    Ok(())
}

/// Returns the smallest of the sorted times that this percentage of the times does not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}
