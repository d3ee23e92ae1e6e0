//! `cargo bench --bench scale`: the cost of a fleet of 100, 1,000 and 5,000 clusters.
//!
//! Three processes: the embedded API server with the management cluster and all members, the optimised `starling
//! controller`, and this one, which takes the part of an operator. `docs/benchmarks.md` explains the steps. The
//! benchmark asserts that a restart writes nothing to any member; it asserts nothing about time.
//!
//! Options, after `--`: `--members N,N`, `--concurrency N`, `--rest SECONDS`, `--logs FOLDER`,
//! `--program FILE`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what a benchmark is for"
)]

mod content;
mod hub;
mod options;
mod program;
mod serving;
mod steps;
mod table;
#[path = "../fanout/usage.rs"]
mod usage;

use anyhow::Result;

use crate::options::Options;
use crate::steps::Fleet;

fn main() -> Result<()> {
    if serving::is_called() {
        return serving::main();
    }
    let options = Options::from_arguments(std::env::args().skip(1))?;
    tokio::runtime::Runtime::new()?.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    println!("20 objects a cluster, --concurrency {}", options.concurrency);
    println!("{}", table::HEAD);
    let (mut taken, mut clusters) = (Vec::new(), Vec::new());
    for members in &options.members {
        let mut fleet = Fleet::start(*members).await?;
        let result = fleet.run(options).await;
        if let Some(logs) = &options.logs {
            std::fs::create_dir_all(logs)?;
            std::fs::copy(fleet.log(), logs.join(format!("starling-{members}.log")))?;
        }
        taken.extend(result?);
        clusters.push(fleet.empty_cluster());
    }
    println!("\n{}", table::ratios(&taken));
    println!();
    for line in clusters {
        println!("{line}");
    }
    Ok(())
}
