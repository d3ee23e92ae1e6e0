//! `starling crds`: prints the CustomResourceDefinitions, generated from the types.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kube::ResourceExt;

/// Options of `crds`.
#[derive(Debug, Args)]
pub(super) struct CrdsArguments {
    /// Write one file per kind to this directory. Default: print to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
pub(super) fn run(arguments: &CrdsArguments) -> anyhow::Result<()> {
    for definition in starling_api::definitions() {
        let yaml = serde_saphyr::to_string(&definition)?;
        match &arguments.dir {
            None => print!("---\n{yaml}"),
            Some(dir) => {
                std::fs::create_dir_all(dir)
                    .with_context(|| format!("create directory {}", dir.display()))?;
                let path = dir.join(format!("{}.yaml", definition.name_any()));
                std::fs::write(&path, yaml).with_context(|| format!("write {}", path.display()))?;
            }
        }
    }
    Ok(())
}
