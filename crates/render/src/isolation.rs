//! Starts builds without a network, where the system allows it.
//!
//! Remote entries are refused before a build. This is the second protection: whatever makes kustomize open a
//! connection, there is no interface to open it on. A process without privileges gets an empty network by `unshare` and
//! a user namespace, which many container runtimes forbid.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tool::find_in;

/// The arguments of `unshare`: the build keeps its user, and has no interface but a loopback that is down.
const ARGUMENTS: [&str; 4] = ["--user", "--map-current-user", "--net", "--"];
/// The beginning of the errors of `unshare` itself, which are none of the build.
pub(super) const ERROR: &str = "unshare: ";

/// Whether and how builds are kept from the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Builds run in the network of this process.
    #[default]
    None,
    /// `unshare` starts builds in an empty network.
    Unshare(PathBuf),
}

impl Isolation {
    /// Tries whether this process may start others without a network.
    #[must_use]
    pub fn discover() -> Self {
        find_in(std::env::var_os("PATH").as_deref(), "unshare")
            .filter(|program| works(program))
            .map_or(Self::None, Self::Unshare)
    }

    /// Returns the program to start and its arguments, for a program and its arguments.
    pub(super) fn wrap<'a>(&'a self, program: &'a Path, arguments: Vec<&'a str>) -> (&'a Path, Vec<&'a str>) {
        match (self, program.to_str()) {
            (Self::Unshare(unshare), Some(text)) => {
                let all = ARGUMENTS.into_iter().chain([text]).chain(arguments);
                (unshare, all.collect())
            }
            _ => (program, arguments),
        }
    }
}

fn works(unshare: &Path) -> bool {
    let status = Command::new(unshare)
        .args(ARGUMENTS)
        .arg(unshare)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
