//! The directory of exported trees and of builds. They contain Secrets in plain text.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use starling_core::digest::hash64;
use tempfile::TempDir;

/// Returns an empty private directory in `temporary`, which is deleted with the value. Its name is that of the data
/// directory, which this process has locked, so that what a killed process has left is found and deleted: nothing else
/// would ever do so. It is not in the data directory, since trees must not take the disk of the ledger.
///
/// # Errors
/// If the directory cannot be emptied or created.
pub(super) fn prepare(temporary: &Path, data_directory: &Path) -> io::Result<TempDir> {
    let owner = data_directory.canonicalize()?;
    let name = format!("starling-builds-{:016x}", hash64(&[&owner.to_string_lossy()]));
    let temporary = std::path::absolute(temporary)?;
    let path = temporary.join(&name);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) => tracing::debug!(directory = %path.display(), "trees of an earlier process deleted"),
        Err(_) => {}
    }
    tempfile::Builder::new()
        .prefix(&name)
        .rand_bytes(0)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&temporary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against trees with Secrets that stay after each kill.
    #[test]
    fn tenant_trees_of_a_killed_process_are_deleted_at_the_next_start() {
        let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = prepare(temporary.path(), temporary.path()).unwrap();
        std::fs::write(other.path().join("tree"), "of another process").unwrap();
        for _ in 0..2 {
            let directory = prepare(temporary.path(), data.path()).unwrap();
            let entries = std::fs::read_dir(directory.path()).unwrap().count();
            assert_eq!(entries, 0, "swept");
            let mode = std::fs::metadata(directory.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            // A process that is killed: its directories are not deleted.
            let tree = tempfile::Builder::new()
                .tempdir_in(directory.keep())
                .unwrap()
                .keep();
            std::fs::write(tree.join("secret.yaml"), "data: {a: b}").unwrap();
        }
        assert!(other.path().join("tree").exists());
    }

    #[test]
    fn a_process_that_stops_leaves_no_directory() {
        let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = prepare(temporary.path(), data.path()).unwrap();
        std::fs::create_dir(directory.path().join("tree")).unwrap();
        drop(directory);
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}
