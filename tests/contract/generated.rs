//! `crds/` is what `starling crds` writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use starling_testkit::program;

use crate::server::crds;

fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, std::fs::read(entry.path())?);
    }
    Ok(files)
}

#[test]
fn the_checked_in_definitions_are_the_generated_ones() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let done = Command::new(program())
        .args(["crds", "--dir"])
        .arg(folder.path())
        .status()?;
    ensure!(done.success(), "starling crds: {done}");
    let (generated, kept) = (files(folder.path())?, files(&crds())?);
    assert_eq!(generated.len(), 7);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&generated), names(&kept), "files of crds/");
    for (name, bytes) in &generated {
        assert!(
            kept.get(name) == Some(bytes),
            "crds/{name} differs from the types; regenerate it with: cargo run -- crds --dir crds"
        );
    }
    Ok(())
}
