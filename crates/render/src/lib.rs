//! Renders a tree to a rendered set; the only package of Starling that starts processes.
//!
//! [`Renderer::build`] turns a directory of a repository into objects, once per commit, path and target namespace:
//! *prepare* (check every included kustomization, generate one for a plain directory, wrap it for a target namespace) →
//! *run* kustomize inside limits → *read* its output → *decrypt* objects in memory. [`finish`] then creates the bytes
//! for the clusters with equal values; it is pure and cheap, the build is neither.
//!
//! [`reached`] finds the files that such a build reads, without a build and without a file on disk.
//!
//! This package does not decide how a render is used. An empty render is returned; core decides that it must not prune.

mod check;
mod decrypt;
mod error;
mod files;
mod finish;
#[cfg(test)]
mod fuzz;
mod isolation;
mod manifest;
pub mod memory;
mod plain;
mod process;
mod reach;
mod redact;
mod remote;
mod secret;
mod substitute;
mod tool;
mod tree;
mod turns;
mod workspace;
mod yaml;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use starling_core::secret_values::SecretValues;

pub use decrypt::{Identities, IdentityError, Sops};
pub use error::{DecryptProblem, Refusal, RenderError};
pub use files::{FileKind, Files};
pub use finish::{finish, finish_within};
pub use isolation::Isolation;
pub use reach::reached;
pub use tool::BuildTool;
pub use yaml::YamlError;

use process::{Call, Finished};
use turns::{Turn, Turns};
use workspace::{Prepared, Workspace};

/// The error of a build with a comma in a kind, name or namespace: kustomize keeps previous ones in comma-separated
/// lists. The usual cause is a manifest that was encrypted as a whole, because ciphertext contains commas.
const COMMA_ERROR: &str = "number of previous names";
const COMMA_ADVICE: &str = "; an object's kind or name has a comma in it, as encrypted ones have: leave apiVersion, kind \
                            and metadata in plain text, with encrypted_regex: ^(data|stringData)$";
/// The errors of a build that reached the memory limit. The last one is from the garbage collector of Go, which does
/// not check all of its allocations (observed with Go 1.26); an error in the code of kustomize would be a panic.
const MEMORY_ERRORS: [&str; 3] = [
    "out of memory",
    "cannot allocate memory",
    "SIGSEGV: segmentation violation\nPC=",
];

/// The limits of one build.
#[derive(Clone, Debug)]
pub struct RenderLimits {
    /// Wall-clock time of the build program, without the wait for its start.
    pub time: Duration,
    /// Bytes of output, and of all files of a plain directory together.
    pub output_bytes: usize,
    /// Bytes of memory that the build program may write to.
    pub memory_bytes: u64,
    /// Objects in one render.
    pub objects: usize,
    /// Concurrent builds; at least one.
    pub builds: usize,
    /// Time after which a build gives its turn up while another tenant waits for one. It begins anew, and may take
    /// twice as long then.
    pub turn: Duration,
    /// The directory in which each build gets a private one, which is deleted after it.
    pub directory: PathBuf,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            output_bytes: 64 << 20,
            memory_bytes: 1 << 30,
            objects: 20_000,
            builds: 2,
            turn: TURN,
            directory: std::env::temp_dir(),
        }
    }
}

/// Few builds take longer, and a build in its third turn may take most of [`RenderLimits::time`].
const TURN: Duration = Duration::from_secs(10);

/// Memory that a build needs at least: kustomize itself, and a directory of some MiB.
const BUILD_BYTES: u64 = 512 << 20;

impl RenderLimits {
    /// Returns the limits within the memory of the process: builds have half of it together, and the other half is the
    /// controller's. They are fewer before one of them has little.
    #[must_use]
    pub fn within(self, process_bytes: Option<u64>) -> Self {
        let Some(share) = process_bytes.map(|bytes| bytes / 2) else {
            return self;
        };
        let builds = usize::try_from(share / BUILD_BYTES).unwrap_or(usize::MAX);
        let builds = builds.clamp(1, self.builds.max(1));
        let each = share / u64::try_from(builds).unwrap_or(u64::MAX);
        Self {
            memory_bytes: self.memory_bytes.min(each),
            builds,
            ..self
        }
    }
}

/// The objects of one directory of one revision, before substitution of the values of a cluster.
///
/// Has no `Debug`: the objects may include Secrets.
pub struct Manifests {
    /// In the order of the build; each has `apiVersion`, `kind` and `metadata.name`.
    pub objects: Vec<Value>,
    /// Whether the files were read directly because no kustomize was found.
    pub plain: bool,
    /// The values that were encrypted.
    pub opened: SecretValues,
}

/// Builds directories into manifests. Cheap to clone; clones share the limit on concurrent builds.
#[derive(Clone, Debug)]
pub struct Renderer {
    tool: BuildTool,
    sops: Sops,
    limits: RenderLimits,
    isolation: Isolation,
    turns: Arc<Turns>,
    tenant: Arc<str>,
}

/// The right to build, until it is dropped.
#[derive(Debug)]
pub struct BuildTurn {
    turn: Turn,
    /// Time for which it is not given up.
    length: Duration,
}

impl BuildTurn {
    /// Waits until the turn is over. A turn that is as long as the `limit` of a build is not.
    async fn is_over(&self, limit: Duration) {
        if self.length >= limit {
            return std::future::pending().await;
        }
        self.turn.is_over(self.length).await;
    }
}

impl Renderer {
    /// Creates a renderer with a build program.
    #[must_use]
    pub fn new(tool: BuildTool, limits: RenderLimits) -> Self {
        let turns = Turns::new(limits.builds);
        Self {
            tool,
            sops: Sops::default(),
            limits,
            isolation: Isolation::None,
            turns,
            tenant: Arc::default(),
        }
    }

    /// Decrypts objects with this program.
    #[must_use]
    pub fn with_sops(mut self, sops: Sops) -> Self {
        self.sops = sops;
        self
    }

    /// Keeps builds from the network.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Builds for a tenant: while several tenants build, each of them leaves turns to the others.
    #[must_use]
    pub fn with_tenant(mut self, tenant: &str) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Returns the limits of a build.
    #[must_use]
    pub fn limits(&self) -> &RenderLimits {
        &self.limits
    }

    /// Returns the build program, for the condition that names it.
    #[must_use]
    pub fn tool(&self) -> &BuildTool {
        &self.tool
    }

    /// Waits for a turn of the tenant. What a build needs on disk is best made within its turn: many builds may wait.
    ///
    /// # Errors
    /// [`RenderError::Abandoned`].
    pub async fn turn(&self) -> Result<BuildTurn, RenderError> {
        self.turn_of(self.limits.turn).await
    }

    /// Waits for the turn after one that was over ([`RenderError::TurnOver`]).
    ///
    /// # Errors
    /// [`RenderError::Abandoned`].
    pub async fn turn_after(&self, turn: BuildTurn) -> Result<BuildTurn, RenderError> {
        let length = turn.length.saturating_mul(2);
        drop(turn);
        self.turn_of(length).await
    }

    async fn turn_of(&self, length: Duration) -> Result<BuildTurn, RenderError> {
        let turn = self.turns.take(&self.tenant).await;
        let turn = turn.ok_or(RenderError::Abandoned)?;
        Ok(BuildTurn { turn, length })
    }

    /// Builds the directory `path` of a tree in a turn of its own, which it does not give up.
    ///
    /// # Errors
    /// As [`Self::build_in`].
    pub async fn build(
        &self,
        tree: &Path,
        path: &str,
        target_namespace: &str,
        identities: Option<&Identities>,
    ) -> Result<Manifests, RenderError> {
        let turn = self.turn_of(Duration::MAX).await?;
        self.build_in(&turn, tree, path, target_namespace, identities)
            .await
    }

    /// Builds the directory `path` of a tree.
    ///
    /// `tree` is a private copy of what the build reads ([`reached`]), or of more: the caller owns it, runs one build
    /// at a time in it and deletes it. `path` is relative; empty or `.` is the root. With a `target_namespace`, the
    /// directory is built through a kustomization that sets it, so that kustomize decides which kinds are namespaced;
    /// the user's own file is never edited. Encrypted objects are decrypted with `identities`; without identities, they
    /// are an error, because ciphertext must not be applied.
    ///
    /// Dropping the future kills the running program and its children.
    ///
    /// # Errors
    /// See [`RenderError`]. Output of a program that failed or was stopped is never used. [`RenderError::TurnOver`] if
    /// another tenant gets the turn: the build begins anew in the next one ([`Self::turn_after`]).
    pub async fn build_in(
        &self,
        turn: &BuildTurn,
        tree: &Path,
        path: &str,
        target_namespace: &str,
        identities: Option<&Identities>,
    ) -> Result<Manifests, RenderError> {
        let prepared = {
            let (tree, path) = (tree.to_owned(), path.to_owned());
            let (namespace, limits) = (target_namespace.to_owned(), self.limits.clone());
            let with_tool = self.tool != BuildTool::None;
            blocking(move || workspace::prepare(&tree, &path, &namespace, &limits, with_tool)).await?
        };
        let (objects, plain) = match prepared {
            Prepared::Direct(objects) => (objects, self.tool == BuildTool::None),
            Prepared::Build(workspace) => (self.run(turn, workspace).await?, false),
        };
        let (objects, opened) = decrypt::open(objects, &self.sops, identities, &self.limits).await?;
        unique(Manifests {
            objects,
            plain,
            opened,
        })
    }

    async fn run(&self, turn: &BuildTurn, workspace: Workspace) -> Result<Vec<Value>, RenderError> {
        let Some((program, arguments)) = self.tool.command() else {
            return Err(RenderError::NoKustomize {
                what: "this directory".to_owned(),
            });
        };
        let arguments: Vec<&str> = arguments.iter().copied().chain([workspace.target()]).collect();
        let (program, arguments) = self.isolation.wrap(program, arguments);
        let call = Call {
            name: "kustomize",
            program,
            arguments: &arguments,
            home: workspace.home(),
            environment: &[],
            input: Stdio::null(),
        };
        let finished = tokio::select! {
            biased;
            finished = process::run(call, &self.limits) => finished?,
            // The program and its children are killed with the future.
            () = turn.is_over(self.limits.time) => return Err(RenderError::TurnOver),
        };
        let output = self.output_of(finished, &workspace)?;
        let limit = self.limits.objects;
        blocking(move || {
            // Kept until here, so that its removal does not block the reactor.
            drop(workspace);
            const ORIGIN: &str = "the output of kustomize";
            let documents = yaml::read(&output, limit).map_err(|source| RenderError::Yaml {
                origin: ORIGIN.to_owned(),
                source,
            })?;
            manifest::objects(documents, ORIGIN, limit)
        })
        .await
    }

    /// Returns the output of a successful build.
    fn output_of(&self, finished: Finished, workspace: &Workspace) -> Result<Vec<u8>, RenderError> {
        let Finished {
            status,
            stdout,
            stderr,
        } = finished;
        if status.success() {
            return Ok(stdout);
        }
        // Not of the commit: the next build may get its namespaces.
        if self.isolation != Isolation::None && stderr.starts_with(isolation::ERROR) {
            return Err(RenderError::Process {
                program: "unshare",
                source: std::io::Error::other(stderr),
            });
        }
        if MEMORY_ERRORS.iter().any(|text| stderr.contains(text)) {
            return Err(RenderError::OutOfMemory {
                limit: self.limits.memory_bytes,
            });
        }
        let mut shown = workspace.shown(&stderr);
        if stderr.contains(COMMA_ERROR) {
            shown.push_str(COMMA_ADVICE);
        }
        Err(RenderError::Failed {
            status: status.to_string(),
            stderr: shown,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against two builds of 1 GiB each in a container of 1 GiB.
    #[test]
    fn tenant_builds_together_have_half_of_the_memory_of_the_process() {
        const MIB: u64 = 1 << 20;
        for (process, builds, each) in [
            (None, 2, 1024),
            (Some(256), 1, 128),
            (Some(1024), 1, 512),
            (Some(2048), 2, 512),
            (Some(3072), 2, 768),
            (Some(1 << 20), 2, 1024),
        ] {
            let limits = RenderLimits::default().within(process.map(|process| process * MIB));
            assert_eq!(
                (limits.builds, limits.memory_bytes),
                (builds, each * MIB),
                "{process:?}"
            );
            let together = limits.memory_bytes * u64::try_from(limits.builds).unwrap();
            assert!(process.is_none_or(|process| together <= process * MIB / 2));
        }
    }
}
