//! The readers of a mirror, and its origin: files beside those of git.
//!
//! Readers with a Secret of the same name share a mirror. A reader is recorded after the server has sent it something,
//! so that a reader whose credential was never accepted is not served what another reader has fetched. It stays
//! recorded while its credential is wrong or expired: what it has fetched once stays available.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::access::RepoAccess;

/// The directory in a mirror with the files of this module.
const DIRECTORY: &str = "starling";

/// Records the origin of a new mirror, which has no readers.
pub(super) fn create(mirror: &Path, access: &RepoAccess) -> io::Result<()> {
    fs::create_dir_all(directory(mirror))?;
    fs::write(
        mirror.join(DIRECTORY).join("origin"),
        MirrorOrigin::of(access).text(),
    )
}

/// Records a reader.
pub(super) fn add(mirror: &Path, reader: &str) -> io::Result<()> {
    let file = directory(mirror).join(file_name(reader));
    if file.exists() {
        return Ok(());
    }
    fs::write(file, "")
}

/// Whether a reader is recorded.
pub(super) fn contains(mirror: &Path, reader: &str) -> bool {
    contains_file(mirror, &file_name(reader))
}

/// Whether the reader with this file is recorded.
pub(super) fn contains_file(mirror: &Path, name: &str) -> bool {
    directory(mirror).join(name).exists()
}

/// Removes the reader with this file.
pub(super) fn remove_file(mirror: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(directory(mirror).join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the files of all readers. A mirror without the directory has none.
pub(super) fn files(mirror: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory(mirror)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Returns the name of the file of a reader: a hash, because the name of a reader may be longer than that of a file.
pub(super) fn file_name(reader: &str) -> String {
    hex::encode(&Sha256::digest(reader.as_bytes())[..16])
}

fn directory(mirror: &Path) -> PathBuf {
    mirror.join(DIRECTORY).join("readers")
}

/// The repository and the Secret that a mirror belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirrorOrigin {
    pub(super) url: String,
    pub(super) secret: Option<String>,
}

impl MirrorOrigin {
    fn of(access: &RepoAccess) -> Self {
        Self {
            url: access.url().as_str().to_owned(),
            secret: access.secret().map(str::to_owned),
        }
    }

    /// A URL and the name of a Secret contain no line breaks.
    fn text(&self) -> String {
        format!("{}\n{}\n", self.url, self.secret.as_deref().unwrap_or_default())
    }

    /// Reads the origin of a mirror; `None` if it is not recorded.
    pub(super) fn read(mirror: &Path) -> Option<Self> {
        let text = fs::read_to_string(mirror.join(DIRECTORY).join("origin")).ok()?;
        let mut lines = text.lines();
        Some(Self {
            url: lines.next()?.to_owned(),
            secret: lines.next().filter(|name| !name.is_empty()).map(str::to_owned),
        })
    }
}
