//! Selected files of a tree, by the IDs of their objects.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use git2::Oid;
use sha2::{Digest as _, Sha256};

use super::kind::{Kind, kind_of};

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    path: PathBuf,
    mode: i32,
    /// Zero for a directory: what is in it does not count, unless it is in the list too.
    id: Oid,
}

impl TreeFile {
    pub(super) fn new(path: PathBuf, mode: i32, id: Oid) -> Self {
        let (mode, id) = match kind_of(mode) {
            Kind::Directory => (0o040_000, Oid::ZERO_SHA1),
            // Early versions of git stored the bits of the group too.
            Kind::File if mode & 0o111 == 0 => (0o100_644, id),
            Kind::File => (0o100_755, id),
            Kind::Link | Kind::Submodule | Kind::Unknown => (mode, id),
        };
        Self { path, mode, id }
    }

    /// Returns the path, relative to the root of the tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mode as in `git ls-tree`: `0o100644`, `0o100755`, `0o120000` or `0o040000`.
    pub(super) fn mode(&self) -> i32 {
        self.mode
    }

    pub(super) fn id(&self) -> Oid {
        self.id
    }
}

/// Files and links of a tree, and the directories that they need. Ordered by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFiles {
    files: Vec<TreeFile>,
    digest: String,
}

impl TreeFiles {
    pub(super) fn new(mut files: Vec<TreeFile>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup();
        let digest = digest(&files);
        Self { files, digest }
    }

    /// Returns the entries, ordered by path.
    #[must_use]
    pub fn files(&self) -> &[TreeFile] {
        &self.files
    }

    /// Returns the SHA-256 of paths, modes and object IDs, in hexadecimal: equal lists of one repository have the same
    /// content.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Every field has a length that is known or stands before it, so no two lists have the same bytes.
fn digest(files: &[TreeFile]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"starling tree files 1\0");
    for file in files {
        let path = file.path.as_os_str().as_bytes();
        hash.update((path.len() as u64).to_be_bytes());
        hash.update(path);
        hash.update(file.mode.to_be_bytes());
        hash.update(file.id.as_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, mode: i32, id: &str) -> TreeFile {
        let id = Oid::from_str(&id.repeat(40)).unwrap();
        TreeFile::new(PathBuf::from(path), mode, id)
    }

    #[test]
    fn the_digest_is_of_paths_modes_and_content_in_any_order() {
        let digest = |files: &[TreeFile]| TreeFiles::new(files.to_vec()).digest().to_owned();
        let (a, b) = (file("a", 0o100_644, "1"), file("b", 0o100_644, "2"));
        let both = digest(&[a.clone(), b.clone()]);
        assert_eq!(both, digest(&[b.clone(), a.clone(), a.clone()]));
        for other in [
            vec![a.clone()],
            vec![a.clone(), file("b", 0o100_755, "2")],
            vec![a.clone(), file("b", 0o120_000, "2")],
            vec![a.clone(), file("b", 0o100_644, "1")],
            vec![a, file("c", 0o100_644, "2")],
            vec![file("ab", 0o100_644, "1"), b.clone()],
        ] {
            assert_ne!(both, digest(&other), "{other:?}");
        }
        // Early versions of git stored this mode; and what is in a directory counts only where it is listed.
        let old = vec![file("a", 0o100_664, "1"), b];
        assert_eq!(both, digest(&old));
        let directories = ["3", "4"].map(|id| digest(&[file("d", 0o040_000, id)]));
        assert_eq!(directories[0], directories[1]);
    }
}
