//! From a tree to a rendered set; the one module that starts processes.
//!
//! [`Renderer::build`] turns a folder of a repository into objects, once per commit, path and target namespace:
//! *prepare* (check every kustomization that is reached, generate one for a plain folder, wrap it for a
//! target namespace) → *run* kustomize inside limits → *read* its output. [`finish`] then makes the bytes for
//! the clusters with equal values; it is pure and cheap, the build is neither.
//!
//! Nothing here decides what a render is good for. An empty one is returned as it is; that it must not prune
//! is for others to say.

mod check;
mod complaint;
mod error;
mod finish;
mod manifest;
mod plain;
mod process;
mod remote;
mod secret;
mod substitute;
mod tool;
mod tree;
mod workspace;
mod yaml;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;

pub use error::{Refusal, RenderError};
pub use finish::finish;
pub use tool::BuildTool;
pub use yaml::YamlError;

use process::Finished;
use workspace::{Prepared, Workspace};

/// How a build that met the memory limit ends. The last one is Go's collector, which does not check every
/// allocation of its own (seen with Go 1.26); a fault in kustomize's code would be reported as a panic.
const MEMORY_COMPLAINTS: [&str; 3] = [
    "out of memory",
    "cannot allocate memory",
    "SIGSEGV: segmentation violation\nPC=",
];

/// What one build may use.
#[derive(Clone, Debug)]
pub struct RenderLimits {
    /// Wall-clock time of the build program. Waiting for a turn does not count.
    pub time: Duration,
    /// Bytes of output, and of all files of a plain folder together.
    pub output_bytes: usize,
    /// Bytes of memory that the build program may write to.
    pub memory_bytes: u64,
    /// Objects in one render.
    pub objects: usize,
    /// Builds at the same time; at least one.
    pub builds: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            output_bytes: 64 << 20,
            memory_bytes: 1 << 30,
            objects: 20_000,
            builds: 2,
        }
    }
}

/// The objects of one folder of one revision, before a cluster's values are put in.
///
/// Has no `Debug`: Secrets may be among them.
pub struct Manifests {
    /// In the order of the build; each has `apiVersion`, `kind` and `metadata.name`.
    pub objects: Vec<Value>,
    /// The files were read directly because no kustomize is at hand.
    pub plain: bool,
}

/// Builds folders into manifests. Cheap to clone; clones share the limit on concurrent builds.
#[derive(Clone, Debug)]
pub struct Renderer {
    tool: BuildTool,
    limits: RenderLimits,
    turns: Arc<Semaphore>,
}

impl Renderer {
    /// Makes a renderer around a build program.
    #[must_use]
    pub fn new(tool: BuildTool, limits: RenderLimits) -> Self {
        let turns = Arc::new(Semaphore::new(limits.builds.clamp(1, Semaphore::MAX_PERMITS)));
        Self { tool, limits, turns }
    }

    /// The build program, for a condition that says which one is used.
    #[must_use]
    pub fn tool(&self) -> &BuildTool {
        &self.tool
    }

    /// Builds the folder `path` of a tree.
    ///
    /// `tree` is a private copy of the repository: the caller owns it, runs one build at a time in it and throws
    /// it away. `path` is relative; empty or `.` is the root. With a `target_namespace` the folder is built
    /// through a kustomization that sets it, so that kustomize decides which kinds have a namespace; the
    /// user's own file is never edited.
    ///
    /// Dropping the future kills the build program and everything it started.
    ///
    /// # Errors
    /// See [`RenderError`]. Output of a program that failed or was stopped is never used.
    pub async fn build(
        &self,
        tree: &Path,
        path: &str,
        target_namespace: &str,
    ) -> Result<Manifests, RenderError> {
        let _turn = self.turns.acquire().await.map_err(|_| RenderError::Abandoned)?;
        let prepared = {
            let (tree, path) = (tree.to_owned(), path.to_owned());
            let (namespace, limits) = (target_namespace.to_owned(), self.limits.clone());
            let with_tool = self.tool != BuildTool::None;
            blocking(move || workspace::prepare(&tree, &path, &namespace, &limits, with_tool)).await?
        };
        match prepared {
            Prepared::Direct(objects) => unique(Manifests {
                objects,
                plain: self.tool == BuildTool::None,
            }),
            Prepared::Build(workspace) => self.run(workspace).await,
        }
    }

    async fn run(&self, workspace: Workspace) -> Result<Manifests, RenderError> {
        let Some((program, arguments)) = self.tool.command() else {
            return Err(RenderError::NoKustomize {
                what: "this folder".to_owned(),
            });
        };
        let arguments: Vec<&str> = arguments.iter().copied().chain([workspace.target()]).collect();
        let finished = process::run(program, &arguments, workspace.home(), &self.limits).await?;
        let output = self.judge(finished, &workspace)?;
        let limit = self.limits.objects;
        blocking(move || {
            // Kept until here, so that its removal does not block the reactor.
            drop(workspace);
            const ORIGIN: &str = "the output of kustomize";
            let documents = yaml::read(&output, limit).map_err(|source| RenderError::Yaml {
                origin: ORIGIN.to_owned(),
                source,
            })?;
            unique(Manifests {
                objects: manifest::objects(documents, ORIGIN, limit)?,
                plain: false,
            })
        })
        .await
    }

    /// The output of a build that succeeded.
    fn judge(&self, finished: Finished, workspace: &Workspace) -> Result<Vec<u8>, RenderError> {
        let Finished {
            status,
            stdout,
            stderr,
        } = finished;
        if status.success() {
            return Ok(stdout);
        }
        if MEMORY_COMPLAINTS.iter().any(|words| stderr.contains(words)) {
            return Err(RenderError::OutOfMemory {
                limit: self.limits.memory_bytes,
            });
        }
        Err(RenderError::Failed {
            status: status.to_string(),
            stderr: workspace.shown(&stderr),
        })
    }
}

fn unique(manifests: Manifests) -> Result<Manifests, RenderError> {
    let keys: Vec<_> = manifests
        .objects
        .iter()
        .filter_map(|object| manifest::identity(object).ok())
        .collect();
    manifest::unique(keys.iter().map(|identity| &identity.key))?;
    Ok(manifests)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RenderError> + Send + 'static,
) -> Result<T, RenderError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| RenderError::Abandoned)?
}
