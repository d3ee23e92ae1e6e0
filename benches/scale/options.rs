//! What the bench is told on its command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// What is measured.
pub(crate) struct Options {
    /// Sizes of fleet, each with all steps.
    pub(crate) members: Vec<usize>,
    /// The program: the optimised build that `cargo bench` makes first, or another one to compare it with.
    pub(crate) program: PathBuf,
    /// `--concurrency` of the program.
    pub(crate) concurrency: String,
    /// Seconds of the step in which nothing happens.
    pub(crate) rest: u64,
    /// Where to keep the programs' logs.
    pub(crate) logs: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments; cargo adds `--bench`.
    pub(crate) fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            members: vec![100, 1000, 5000],
            program: env!("CARGO_BIN_EXE_starling").into(),
            concurrency: "20".into(),
            rest: 60,
            logs: None,
        };
        while let Some(argument) = arguments.next() {
            if argument == "--bench" {
                continue;
            }
            let value = arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--members" => {
                    options.members = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
                }
                "--program" => options.program = value.into(),
                "--concurrency" => options.concurrency = value,
                "--rest" => options.rest = value.parse()?,
                "--logs" => options.logs = Some(value.into()),
                _ => bail!("unknown option {argument}"),
            }
        }
        ensure!(
            !options.members.is_empty() && !options.members.contains(&0),
            "there is nothing to measure"
        );
        Ok(options)
    }
}
