//! Command-line options of the benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// Parameters of the measurement.
pub(crate) struct Options {
    pub(crate) members: usize,
    /// Numbers of objects of the application, each measured with all cases.
    pub(crate) objects: Vec<usize>,
    pub(crate) rounds: usize,
    /// `--concurrency` of the program.
    pub(crate) concurrency: String,
    /// Path for a copy of the log of the program.
    pub(crate) log: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments; cargo adds `--bench`.
    pub(crate) fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            members: 20,
            objects: vec![20, 200],
            rounds: 3,
            concurrency: "20".into(),
            log: None,
        };
        while let Some(argument) = arguments.next() {
            if argument == "--bench" {
                continue;
            }
            let value = arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--members" => options.members = value.parse()?,
                "--objects" => {
                    options.objects = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
                }
                "--rounds" => options.rounds = value.parse()?,
                "--concurrency" => options.concurrency = value,
                "--log" => options.log = Some(value.into()),
                _ => bail!("unknown option {argument}"),
            }
        }
        ensure!(
            options.members > 0 && options.rounds > 0,
            "there is nothing to measure"
        );
        ensure!(
            !options.objects.contains(&0),
            "an application without objects is not applied"
        );
        Ok(options)
    }
}
