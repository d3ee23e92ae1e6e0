//! Command-line options of the benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// Parameters of the measurement.
pub(crate) struct Options {
    /// Sizes of the fleets.
    pub(crate) members: Vec<usize>,
    /// Path of the program. Defaults to the optimised build that `cargo bench` makes first.
    pub(crate) program: PathBuf,
    /// `--concurrency` of the program.
    pub(crate) concurrency: String,
    /// Duration of the step at rest, in seconds.
    pub(crate) rest: u64,
    /// Directory for the logs of the controller.
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
