//! Finds the program that decrypts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::RenderError;
use super::super::tool::{find_in, usable};

/// The `sops` that decrypts objects, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sops(Option<PathBuf>);

impl Sops {
    /// Finds the program: the explicit one, else `sops` on `PATH`, else none.
    ///
    /// # Errors
    /// [`RenderError::ToolMissing`] if an explicit program is not an executable file.
    pub fn discover(explicit: Option<PathBuf>) -> Result<Self, RenderError> {
        Self::discover_in(explicit, std::env::var_os("PATH").as_deref())
    }

    /// Like [`Sops::discover`], with the value of `PATH` as a parameter.
    ///
    /// # Errors
    /// As [`Sops::discover`].
    pub fn discover_in(explicit: Option<PathBuf>, search: Option<&OsStr>) -> Result<Self, RenderError> {
        match explicit {
            Some(path) => usable(path).map(|path| Self(Some(path))),
            None => Ok(Self(find_in(search, "sops"))),
        }
    }

    pub(super) fn program(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}
