//! The directory of exported trees and of builds. They contain Secrets in plain text.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use starling_core::digest::hash64;

/// Returns an empty private directory in `temporary`. Its name is that of the data directory, which this process has
/// locked, so that what a killed process has left is found and deleted: nothing else would ever do so. It is not in the
/// data directory, since trees must not take the disk of the ledger.
///
/// # Errors
/// If the directory cannot be emptied or created.
pub(super) fn prepare(temporary: &Path, data_directory: &Path) -> io::Result<PathBuf> {
    let owner = data_directory.canonicalize()?;
    let name = hash64(&[&owner.to_string_lossy()]);
    let path = std::path::absolute(temporary)?.join(format!("starling-builds-{name:016x}"));
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) => tracing::debug!(directory = %path.display(), "trees of an earlier process deleted"),
        Err(_) => {}
    }
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Guards against trees with Secrets that stay after each kill.
    #[test]
    fn tenant_trees_of_a_killed_process_are_deleted_at_the_next_start() {
        let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = prepare(temporary.path(), temporary.path()).unwrap();
        std::fs::write(other.join("tree"), "of another process").unwrap();
        for _ in 0..2 {
            let directory = prepare(temporary.path(), data.path()).unwrap();
            let entries = std::fs::read_dir(&directory).unwrap().count();
            assert_eq!(entries, 0, "swept");
            let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            // A tree of a process that is killed: its directory is not deleted.
            let tree = tempfile::Builder::new().tempdir_in(&directory).unwrap().keep();
            std::fs::write(tree.join("secret.yaml"), "data: {a: b}").unwrap();
        }
        assert!(other.join("tree").exists());
    }
}
