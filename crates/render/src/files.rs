//! The files that a build may read: of a directory on disk, or of a revision in an object database.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// What is at a path. Links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, and its target as stored.
    Link(PathBuf),
    /// Anything else, such as a pipe, which would block a reader.
    Other,
}

/// Files by their paths, relative to the root of a repository. The root has the empty path.
///
/// Callers resolve links and `..` themselves: no method gets a path that leads through a link.
pub trait Files {
    /// Returns what is at a path; `None` if nothing is there.
    ///
    /// # Errors
    /// If this cannot be found out.
    fn kind(&self, path: &Path) -> io::Result<Option<FileKind>>;

    /// Returns the names in a directory, in any order.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Returns the content of a regular file; `None` if it has more than `limit` bytes.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read(&self, path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>>;
}

/// The files below a directory on disk.
pub(super) struct Folder {
    /// Absolute, symbolic links resolved.
    root: PathBuf,
}

impl Folder {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs::canonicalize(root).map(|root| Self { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }
}

impl Files for Folder {
    fn kind(&self, path: &Path) -> io::Result<Option<FileKind>> {
        let path = self.root.join(path);
        let kind = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            meta => meta?.file_type(),
        };
        Ok(Some(if kind.is_symlink() {
            FileKind::Link(fs::read_link(path)?)
        } else if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Directory
        } else {
            FileKind::Other
        }))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(self.root.join(directory))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn read(&self, path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let mut content = Vec::new();
        let cap = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        let file = fs::File::open(self.root.join(path))?;
        file.take(cap).read_to_end(&mut content)?;
        Ok((content.len() <= limit).then_some(content))
    }
}
