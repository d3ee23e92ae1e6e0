//! Finds the programs of a control plane, or builds them.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The script that builds the programs, below the root of a checkout.
const BUILD_SCRIPT: &str = "tests/controlplane/build.sh";

/// The output directory of the script, below cargo's target directory.
const BUILD_FOLDER: &str = "controlplane/bin";

/// Why the programs were not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssetsError {
    /// A directory lacks programs that every control plane needs.
    #[error(
        "no {} in {}: run {BUILD_SCRIPT} in a checkout, or set KUBEBUILDER_ASSETS to a directory that has them",
        missing.join(", no "),
        searched.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
    )]
    Missing {
        /// Names of the programs.
        missing: Vec<&'static str>,
        /// The searched directories.
        searched: Vec<PathBuf>,
    },
    /// There is no checkout with the script that builds the programs.
    #[error(
        "no checkout with {BUILD_SCRIPT} at or above the current directory: set KUBEBUILDER_ASSETS to a directory with etcd, kube-apiserver and kubectl"
    )]
    NoBuildScript,
    /// The script could not be run.
    #[error("cannot run {script}")]
    Run {
        /// The script.
        script: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The script failed.
    #[error("{script} failed ({status}); its last lines:\n{tail}")]
    Build {
        /// The script.
        script: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its output.
        tail: String,
    },
}

/// The paths of the programs of a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    folder: PathBuf,
    kubectl: PathBuf,
    kustomize: Option<PathBuf>,
    controller_manager: Option<PathBuf>,
}

/// The inputs of the search, so that its rules can be tested without changing the environment.
struct SearchContext {
    kubebuilder_assets: Option<PathBuf>,
    cargo_target_dir: Option<PathBuf>,
    workspace: Option<PathBuf>,
    executable: Option<PathBuf>,
    path: Vec<PathBuf>,
}

impl Assets {
    /// Finds the programs.
    ///
    /// If `KUBEBUILDER_ASSETS` is set, only that directory is used. Otherwise the output directory of
    /// `tests/controlplane/build.sh` is searched in cargo's target directory: that of `CARGO_TARGET_DIR`, that of the
    /// checkout, and that of the running program.
    ///
    /// # Errors
    /// [`AssetsError::Missing`] names the missing programs and the remedy.
    pub fn find() -> Result<Self, AssetsError> {
        SearchContext::of_this_process().find()
    }

    /// Finds the programs, or builds them in the checkout.
    ///
    /// `progress` receives each line that the build prints. A build takes about five minutes and blocks the calling
    /// thread.
    ///
    /// # Errors
    /// As for [`Self::find`]; [`AssetsError::NoBuildScript`] if there is no checkout to build from,
    /// [`AssetsError::Build`] if the build fails.
    pub fn find_or_build(mut progress: impl FnMut(&str)) -> Result<Self, AssetsError> {
        let context = SearchContext::of_this_process();
        match context.find() {
            Err(AssetsError::Missing { .. }) if context.kubebuilder_assets.is_none() => {
                let root = context.workspace.as_deref().ok_or(AssetsError::NoBuildScript)?;
                build(&root.join(BUILD_SCRIPT), &mut progress)?;
                context.find()
            }
            found => found,
        }
    }

    /// Returns the chosen directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns etcd.
    pub fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// Returns kube-apiserver.
    pub fn kube_apiserver(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    /// Returns kubectl, from the directory or else from `PATH`.
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// Returns kustomize, from the directory or else from `PATH`, if there is one.
    pub fn kustomize(&self) -> Option<&Path> {
        self.kustomize.as_deref()
    }

    /// Returns kube-controller-manager, if the directory has it.
    pub fn kube_controller_manager(&self) -> Option<&Path> {
        self.controller_manager.as_deref()
    }
}

impl SearchContext {
    fn of_this_process() -> Self {
        let folder = |name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            kubebuilder_assets: folder("KUBEBUILDER_ASSETS"),
            cargo_target_dir: folder("CARGO_TARGET_DIR"),
            workspace: workspace_root(),
            executable: env::current_exe().ok(),
            path: env::var_os("PATH").iter().flat_map(env::split_paths).collect(),
        }
    }

    fn find(&self) -> Result<Assets, AssetsError> {
        let candidates = self.candidates();
        let complete = candidates.iter().find_map(|folder| self.programs_in(folder).ok());
        complete.ok_or_else(|| AssetsError::Missing {
            // The error is that of the directory with the fewest missing programs.
            missing: candidates
                .iter()
                .filter_map(|folder| self.programs_in(folder).err())
                .min_by_key(Vec::len)
                .unwrap_or_else(|| vec!["etcd", "kube-apiserver", "kubectl"]),
            searched: candidates,
        })
    }

    fn candidates(&self) -> Vec<PathBuf> {
        if let Some(folder) = &self.kubebuilder_assets {
            return vec![folder.clone()];
        }
        let of_executable = self
            .executable
            .iter()
            .flat_map(|file| file.ancestors().skip(1))
            .map(|ancestor| ancestor.join(BUILD_FOLDER))
            .find(|folder| folder.is_dir());
        let mut folders: Vec<PathBuf> = [
            self.cargo_target_dir
                .as_ref()
                .map(|target| target.join(BUILD_FOLDER)),
            self.workspace
                .as_ref()
                .map(|root| root.join("target").join(BUILD_FOLDER)),
            of_executable,
        ]
        .into_iter()
        .flatten()
        .collect();
        folders.dedup();
        folders
    }

    /// Returns the programs of a directory, or the names of the missing ones.
    fn programs_in(&self, folder: &Path) -> Result<Assets, Vec<&'static str>> {
        let in_folder = |name: &str| Some(folder.join(name)).filter(|file| file.is_file());
        let anywhere = |name: &str| {
            let on_path = || {
                self.path
                    .iter()
                    .map(|dir| dir.join(name))
                    .find(|file| file.is_file())
            };
            in_folder(name).or_else(on_path)
        };
        let mut missing: Vec<&'static str> = ["etcd", "kube-apiserver"]
            .into_iter()
            .filter(|name| in_folder(name).is_none())
            .collect();
        let Some(kubectl) = anywhere("kubectl") else {
            missing.push("kubectl");
            return Err(missing);
        };
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(Assets {
            folder: folder.to_owned(),
            kubectl,
            kustomize: anywhere("kustomize"),
            controller_manager: in_folder("kube-controller-manager"),
        })
    }
}

/// Finds the checkout: at or above the current directory, or the directory in which this crate was compiled, if it
/// still exists.
fn workspace_root() -> Option<PathBuf> {
    let has_script = |folder: &&Path| folder.join(BUILD_SCRIPT).is_file();
    let current = env::current_dir().ok();
    let above = current
        .as_deref()
        .and_then(|folder| folder.ancestors().find(has_script));
    let compiled = || Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(has_script);
    above.or_else(compiled).map(Path::to_owned)
}

/// Runs the script, and forwards its output line by line.
fn build(script: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), AssetsError> {
    let failed = |source| AssetsError::Run {
        script: script.to_owned(),
        source,
    };
    // One pipe for both streams keeps their order and is always read.
    let (reader, writer) = io::pipe().map_err(failed)?;
    let mut command = Command::new("bash");
    command
        .arg(script)
        .stdin(Stdio::null())
        .stderr(writer.try_clone().map_err(failed)?)
        .stdout(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The command owns the write end; the reader reaches the end only after it is dropped.
    drop(command);
    let mut last = std::collections::VecDeque::new();
    for line in BufReader::new(reader).lines() {
        let line = line.map_err(failed)?;
        progress(&line);
        if last.len() == 20 {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let tail = last.make_contiguous().join("\n");
    Err(AssetsError::Build {
        script: script.to_owned(),
        status,
        tail,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder_with(programs: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for program in programs {
            fs::write(folder.path().join(program), "").unwrap();
        }
        folder
    }

    fn bare() -> SearchContext {
        SearchContext {
            kubebuilder_assets: None,
            cargo_target_dir: None,
            workspace: None,
            executable: None,
            path: Vec::new(),
        }
    }

    #[test]
    fn kubebuilder_assets_decides_alone_and_path_fills_in_clients() {
        let envtest = folder_with(&["etcd", "kube-apiserver"]);
        let clients = folder_with(&["kubectl", "kustomize", "kube-controller-manager"]);
        let found = SearchContext {
            kubebuilder_assets: Some(envtest.path().to_owned()),
            path: vec![clients.path().to_owned()],
            ..bare()
        }
        .find()
        .unwrap();
        assert_eq!(found.etcd(), envtest.path().join("etcd"));
        assert_eq!(found.kubectl(), clients.path().join("kubectl"));
        assert_eq!(
            found.kustomize(),
            Some(clients.path().join("kustomize").as_path())
        );
        // A server from another directory might have another version.
        assert_eq!(found.kube_controller_manager(), None);
    }

    #[test]
    fn target_folders_are_searched_in_order() {
        let target = tempfile::tempdir().unwrap();
        let bin = target.path().join(BUILD_FOLDER);
        fs::create_dir_all(&bin).unwrap();
        for program in ["etcd", "kube-apiserver", "kubectl"] {
            fs::write(bin.join(program), "").unwrap();
        }
        let empty = tempfile::tempdir().unwrap();
        let through_executable = SearchContext {
            cargo_target_dir: Some(empty.path().to_owned()),
            executable: Some(target.path().join("debug/deps/some_test")),
            ..bare()
        };
        assert_eq!(through_executable.find().unwrap().folder(), bin);
    }

    #[test]
    fn the_error_names_missing_programs_and_the_remedy() {
        let partial = folder_with(&["etcd"]);
        let error = SearchContext {
            kubebuilder_assets: Some(partial.path().to_owned()),
            ..bare()
        }
        .find()
        .unwrap_err()
        .to_string();
        assert!(error.contains("no kube-apiserver, no kubectl"), "{error}");
        assert!(error.contains("tests/controlplane/build.sh"), "{error}");
        assert!(error.contains(&*partial.path().to_string_lossy()), "{error}");
    }

    #[test]
    fn the_build_forwards_lines_and_reports_failure() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("build.sh");
        fs::write(&script, "echo one; echo two >&2; exit 3").unwrap();
        let mut lines = Vec::new();
        let error = build(&script, &mut |line| lines.push(line.to_owned())).unwrap_err();
        assert_eq!(lines, ["one", "two"]);
        assert!(
            matches!(&error, AssetsError::Build { tail, .. } if tail == "one\ntwo"),
            "{error}"
        );
    }
}
