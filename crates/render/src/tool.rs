//! Finds the program that builds kustomizations.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::RenderError;

/// The program that builds kustomizations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildTool {
    /// `kustomize build`.
    Kustomize(PathBuf),
    /// `kubectl kustomize`: the same library, five times the start-up time.
    KubectlKustomize(PathBuf),
    /// Neither was found: only plain directories can be read.
    None,
}

impl BuildTool {
    /// Finds the program: the explicit one, else `kustomize` on `PATH`, else `kubectl` on `PATH`, else none.
    ///
    /// An explicit program whose file name starts with `kubectl` is called as `kubectl kustomize`.
    ///
    /// # Errors
    /// [`RenderError::ToolMissing`] if an explicit program is not an executable file. There is no fallback, because the
    /// operator chose a version.
    pub fn discover(explicit: Option<PathBuf>) -> Result<Self, RenderError> {
        Self::discover_in(explicit, std::env::var_os("PATH").as_deref())
    }

    /// Like [`BuildTool::discover`], with the value of `PATH` as a parameter.
    ///
    /// # Errors
    /// As [`BuildTool::discover`].
    pub fn discover_in(explicit: Option<PathBuf>, search: Option<&OsStr>) -> Result<Self, RenderError> {
        if let Some(path) = explicit {
            return usable(path).map(Self::named);
        }
        Ok(find_in(search, "kustomize")
            .or_else(|| find_in(search, "kubectl"))
            .map_or(Self::None, Self::named))
    }

    fn named(path: PathBuf) -> Self {
        let kubectl = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"kubectl"));
        if kubectl {
            Self::KubectlKustomize(path)
        } else {
            Self::Kustomize(path)
        }
    }

    /// The program and its arguments up to the directory; none if there is no program.
    pub(super) fn command(&self) -> Option<(&Path, &'static [&'static str])> {
        match self {
            Self::Kustomize(path) => Some((path, &["build", "--"])),
            Self::KubectlKustomize(path) => Some((path, &["kustomize", "--"])),
            Self::None => None,
        }
    }
}

/// Returns an explicit program, if it is executable.
pub(super) fn usable(path: PathBuf) -> Result<PathBuf, RenderError> {
    // Programs run in their own directory, so a relative path must be made absolute now.
    match std::path::absolute(&path) {
        Ok(absolute) if is_executable(&absolute) => Ok(absolute),
        _ => Err(RenderError::ToolMissing { path }),
    }
}

/// Finds a program on a search path.
pub(super) fn find_in(search: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    std::env::split_paths(search?)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
