//! The configuration of a mirror, which is the only one that libgit2 reads for it.
//!
//! Neither the system's nor a user's git configuration may redirect a URL, set a proxy or disable a check. (libgit2
//! still reads `safe.directory` from them, which can only refuse.)

use std::fs;
use std::io;
use std::path::Path;

use git2::Config;

/// The file in the directory of a mirror.
const FILE: &str = "starling/config";

/// Packs and refs are on disk before they count: a pin that is lost with the power takes a release along. The memory
/// for joining packs is bounded: libgit2 compares the objects of a window, whatever their size, and takes
/// `deltaCacheSize` for the size above which it does not compare an object.
const TEXT: &str = "[core]
\tfsyncObjectFiles = true
[pack]
\twindowMemory = 33554432
\tdeltaCacheSize = 8388608
";

/// Opens the configuration. Mirrors of earlier versions have none.
pub(super) fn open(mirror: &Path) -> Result<Config, git2::Error> {
    let file = mirror.join(FILE);
    if !file.exists() {
        write(&file).map_err(|error| {
            git2::Error::new(
                git2::ErrorCode::GenericError,
                git2::ErrorClass::Os,
                error.to_string(),
            )
        })?;
    }
    Config::open(&file)
}

/// Writes the file at once: two calls may do so.
fn write(file: &Path) -> io::Result<()> {
    let Some(directory) = file.parent() else {
        return Ok(());
    };
    fs::create_dir_all(directory)?;
    let new = tempfile::NamedTempFile::new_in(directory)?;
    fs::write(new.path(), TEXT)?;
    new.persist(file).map(|_| ()).map_err(|error| error.error)
}
