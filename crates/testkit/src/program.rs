//! The program `starling`, for suites outside its package.
//!
//! Cargo gives the path of the program only to the suites of the program's own package, and links them again after each
//! edit of the program. The suites that only run the program are a separate package (ADR 34), and get the path here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// Builds the program once per test process, and returns its path.
///
/// The program is built with the profile and in the target directory of the calling suite. If it is up to date, cargo
/// needs about a second.
///
/// # Panics
/// If the program cannot be built.
#[expect(clippy::panic, reason = "no test of a suite can continue without the program")]
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| match build() {
        Ok(program) => program,
        Err(error) => panic!("the program under test: {error:#}"),
    })
}

fn build() -> Result<String> {
    let executable = std::env::current_exe()?;
    let directories =
        BuildDirectories::of(&executable).context("this test is not in a target directory of cargo")?;
    // Test processes that start at the same time build sequentially.
    let lock = File::create(directories.profile_directory.join(".starling-program.lock"))?;
    lock.lock()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "build",
            "--locked",
            "--quiet",
            "--package",
            "starling",
            "--bin",
            "starling",
        ])
        .args(["--profile", directories.profile])
        .arg("--target-dir")
        .arg(directories.target_directory)
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"))
        .output()
        .context("cargo cannot be started")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo build: {}\n{stderr}",
        output.status
    );
    let program = directories.program();
    ensure!(program.is_file(), "cargo built no {}", program.display());
    let program = program.into_os_string().into_string();
    program.map_err(|path| anyhow::anyhow!("{} is not UTF-8", path.display()))
}

/// The directories that cargo builds into.
#[derive(Debug, PartialEq, Eq)]
struct BuildDirectories<'a> {
    target_directory: &'a Path,
    profile_directory: &'a Path,
    profile: &'a str,
}

impl<'a> BuildDirectories<'a> {
    /// Derives the directories from the path of a test, `<target>/<profile>/deps/<test>`.
    fn of(test: &'a Path) -> Option<Self> {
        let deps = test.parent().filter(|directory| directory.ends_with("deps"))?;
        let profile_directory = deps.parent()?;
        let profile = match profile_directory.file_name()?.to_str()? {
            "debug" => "dev",
            other => other,
        };
        Some(Self {
            target_directory: profile_directory.parent()?,
            profile_directory,
            profile,
        })
    }

    fn program(&self) -> PathBuf {
        self.profile_directory
            .join("starling")
            .with_extension(std::env::consts::EXE_EXTENSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_in_the_target_directory_of_the_test() {
        for (directory, profile) in [("debug", "dev"), ("release", "release"), ("mutants", "mutants")] {
            let test = PathBuf::from(format!("/a/target/{directory}/deps/e2e-0123456789abcdef"));
            let directories = BuildDirectories::of(&test).unwrap();
            assert_eq!(
                (directories.target_directory, directories.profile),
                (Path::new("/a/target"), profile)
            );
            let program = PathBuf::from(format!("/a/target/{directory}/starling"));
            assert_eq!(directories.program(), program);
        }
        assert_eq!(BuildDirectories::of(Path::new("/usr/bin/e2e")), None);
    }
}
