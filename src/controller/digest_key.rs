//! The key of the digests of objects with secret values: a file beside the ledger.
//!
//! A copy of the ledger alone (a backup, a report of an error) has nothing to try values with. Without the file, a new
//! key is made, all such objects count as changed, and are applied once.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use starling_core::digest_key::{DigestKey, KEY_BYTES};

/// The name of the file in the data directory.
const FILE: &str = "digest.key";

/// Reads the key, or creates it. One that is not whole, because the disk was full, is replaced.
///
/// # Errors
/// If the file cannot be read or written.
pub(super) fn load(data_directory: &Path) -> io::Result<DigestKey> {
    let path = data_directory.join(FILE);
    match std::fs::read(&path) {
        Ok(bytes) => {
            if let Ok(bytes) = <[u8; KEY_BYTES]>::try_from(bytes) {
                return Ok(DigestKey::new(bytes));
            }
            tracing::warn!(file = %path.display(), "the key of digests is damaged and is made anew");
            std::fs::remove_file(&path)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut bytes = [0; KEY_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    Ok(DigestKey::new(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        load(folder.path()).unwrap();
        let first = std::fs::read(&path).unwrap();
        assert_eq!(first.len(), KEY_BYTES);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        load(folder.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        std::fs::write(&path, "short").unwrap();
        load(folder.path()).unwrap();
        let replaced = std::fs::read(&path).unwrap();
        assert_eq!(replaced.len(), KEY_BYTES);
        assert_ne!(replaced, first);
    }
}
