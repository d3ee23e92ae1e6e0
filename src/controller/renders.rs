//! Rendered sets: built once per content, shared by all clusters that get the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use starling_core::digest;
use starling_core::ignore::IgnoreRules;
use starling_core::object::{RenderedObject, RenderedSet};

use crate::git::{GitError, GitStore, RepoAccess};
use crate::render::{Manifests, RenderError, Renderer, finish};

/// How long a build's parsed documents are kept after their last use: while a rollout goes through clusters with
/// different values, not longer, since parsed documents are many times the size of their text.
const BUILD_IDLE: Duration = Duration::from_secs(30);
/// How long finished sets are kept after their last use.
const SET_IDLE: Duration = Duration::from_secs(300);
/// Bytes of finished sets that are kept.
const SET_BYTES: u64 = 64 * 1024 * 1024;
/// Builds that are kept at most.
const BUILDS: u64 = 32;

/// Why there is no rendered set.
#[derive(Debug, thiserror::Error)]
pub enum RenderFailure {
    /// The commit is not to be had.
    #[error("the revision cannot be read")]
    Tree(#[source] Arc<GitError>),
    /// The folder for the build's private copy failed.
    #[error("no private copy of the tree can be made")]
    Copy(#[source] Arc<std::io::Error>),
    /// It does not render.
    #[error("the revision does not render")]
    Render(#[source] Arc<RenderError>),
}

impl Clone for RenderFailure {
    fn clone(&self) -> Self {
        match self {
            Self::Tree(error) => Self::Tree(error.clone()),
            Self::Copy(error) => Self::Copy(error.clone()),
            Self::Render(error) => Self::Render(error.clone()),
        }
    }
}

/// What is rendered.
#[derive(Clone, Copy, Debug)]
pub struct RenderJob<'a> {
    /// The repository.
    pub access: &'a RepoAccess,
    /// The Source's own ignore lines.
    pub ignore: &'a str,
    /// The commit.
    pub commit: &'a str,
    /// The name it was found under, to fetch it by.
    pub refname: Option<&'a str>,
    /// Limit of a fetch, if one is needed.
    pub timeout: Duration,
    /// The folder.
    pub path: &'a str,
    /// The namespace for namespaced objects; empty for none.
    pub target_namespace: &'a str,
    /// Values for `${NAME}`.
    pub values: &'a BTreeMap<String, String>,
    /// The owner label's value.
    pub owner: &'a str,
    /// Fields that are left out of what is applied.
    pub left_to_others: &'a IgnoreRules,
}

/// A rendered set, and whether kustomize had a hand in it.
#[derive(Debug)]
pub struct Rendered {
    /// The objects.
    pub set: RenderedSet,
    /// A plain folder was read directly, because no kustomize is at hand.
    pub plain: bool,
}

/// Builds and keeps rendered sets. Equal jobs that are asked for at the same time are done once.
pub struct Renders {
    git: GitStore,
    renderer: Renderer,
    builds: Cache<String, Arc<Manifests>>,
    sets: Cache<String, Arc<Rendered>>,
}

impl Renders {
    /// Renders trees of `git` with `renderer`.
    #[must_use]
    pub fn new(git: GitStore, renderer: Renderer) -> Self {
        let weigh = |_: &String, rendered: &Arc<Rendered>| {
            let bytes: usize = rendered
                .set
                .objects
                .iter()
                .map(|object| object.body.len() + whole(object) + 256)
                .sum();
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self {
            git,
            renderer,
            builds: Cache::builder()
                .max_capacity(BUILDS)
                .time_to_idle(BUILD_IDLE)
                .build(),
            sets: Cache::builder()
                .max_capacity(SET_BYTES)
                .weigher(weigh)
                .time_to_idle(SET_IDLE)
                .build(),
        }
    }

    /// The rendered set of a job. Failures are not kept: the next who asks tries again.
    ///
    /// # Errors
    /// [`RenderFailure`].
    pub async fn get(&self, job: RenderJob<'_>) -> Result<Arc<Rendered>, RenderFailure> {
        let build_key = digest::of(&(
            "build",
            job.access.fingerprint(),
            job.ignore,
            job.commit,
            job.path,
            job.target_namespace,
        ));
        let set_key = digest::of(&(
            "set",
            &build_key,
            job.values,
            job.owner,
            job.left_to_others.digest(),
        ));
        let made = self.sets.try_get_with(set_key, async {
            let manifests = self
                .builds
                // On the heap: it is the largest future of the process.
                .try_get_with(build_key, Box::pin(self.build(job)))
                .await
                .map_err(|error: Arc<RenderFailure>| (*error).clone())?;
            let (values, owner) = (job.values.clone(), job.owner.to_owned());
            let left_to_others = job.left_to_others.clone();
            // Serialising thousands of objects is work; it must not hold up the reactor.
            let finished = tokio::task::spawn_blocking(move || {
                finish(&manifests, &values, &owner).map(|set| Rendered {
                    set: left_to_others.leave_out(set),
                    plain: manifests.plain,
                })
            });
            match finished.await {
                Ok(result) => result
                    .map(Arc::new)
                    .map_err(|e| RenderFailure::Render(Arc::new(e))),
                Err(gone) => Err(RenderFailure::Copy(Arc::new(std::io::Error::other(gone)))),
            }
        });
        made.await.map_err(|error: Arc<RenderFailure>| (*error).clone())
    }

    async fn build(&self, job: RenderJob<'_>) -> Result<Arc<Manifests>, RenderFailure> {
        let tree_failed = |error| RenderFailure::Tree(Arc::new(error));
        self.git
            .ensure_commit(job.access, job.refname, job.commit, job.timeout)
            .await
            .map_err(tree_failed)?;
        let copy = tempfile::Builder::new()
            .prefix("starling-tree-")
            .tempdir()
            .map_err(|error| RenderFailure::Copy(Arc::new(error)))?;
        let tree = copy.path().join("tree");
        let ignore = (!job.ignore.is_empty()).then_some(job.ignore);
        self.git
            .export(job.access, job.commit, &tree, ignore)
            .await
            .map_err(tree_failed)?;
        let built = self.renderer.build(&tree, job.path, job.target_namespace).await;
        built
            .map(Arc::new)
            .map_err(|error| RenderFailure::Render(Arc::new(error)))
    }
}

/// Bytes of the second body that an object with ignored fields has.
fn whole(object: &RenderedObject) -> usize {
    let ignored = object.directives.ignored.as_ref();
    ignored.map_or(0, |ignored| ignored.whole.len())
}
