//! Rendered sets: built once per content, shared by all clusters that get the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use starling_core::digest;
use starling_core::ignore::IgnoreRules;
use starling_core::object::{RenderedObject, RenderedSet};

use super::decryption::Keys;
use super::ports::Workshop;
use super::shelf::{Bounds, Shelf};
use crate::git::{GitError, RepoAccess};
use crate::render::{Manifests, RenderError};

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
    /// What opens encrypted manifests; `None`: there must not be any.
    pub keys: Option<&'a Keys>,
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
    workshop: Arc<dyn Workshop>,
    builds: Shelf<Arc<Manifests>, RenderFailure>,
    sets: Shelf<Arc<Rendered>, RenderFailure>,
}

impl Renders {
    /// Keeps what `workshop` makes.
    #[must_use]
    pub fn new(workshop: Arc<dyn Workshop>) -> Self {
        let (few, small) = (
            Bounds {
                idle: BUILD_IDLE,
                weight: BUILDS,
            },
            Bounds {
                idle: SET_IDLE,
                weight: SET_BYTES,
            },
        );
        Self {
            workshop,
            builds: Shelf::new(few, |_| 1),
            sets: Shelf::new(small, |rendered| bytes(rendered)),
        }
    }

    /// What the folder of a job is built to, before a cluster's values are put in.
    ///
    /// # Errors
    /// [`RenderFailure`].
    pub async fn manifests(&self, job: RenderJob<'_>) -> Result<Arc<Manifests>, RenderFailure> {
        let build = self.workshop.build(job);
        self.builds.get_or_make(&build_key(&job), build).await
    }

    /// The rendered set of a job. Failures are not kept: the next who asks tries again.
    ///
    /// # Errors
    /// [`RenderFailure`].
    pub async fn get(&self, job: RenderJob<'_>) -> Result<Arc<Rendered>, RenderFailure> {
        let build_key = build_key(&job);
        let set_key = digest::of(&(
            "set",
            &build_key,
            job.values,
            job.owner,
            job.left_to_others.digest(),
        ));
        let made = self.sets.get_or_make(&set_key, async {
            let manifests = self
                .builds
                .get_or_make(&build_key, self.workshop.build(job))
                .await?;
            self.workshop.finish(manifests, job).await.map(Arc::new)
        });
        made.await
    }
}

fn build_key(job: &RenderJob<'_>) -> String {
    digest::of(&(
        "build",
        job.access.fingerprint(),
        job.ignore,
        job.commit,
        job.path,
        job.target_namespace,
        // Plaintext is for those who have the keys to it.
        job.keys.map(|keys| keys.made_from.as_str()),
    ))
}

/// Bytes of a set, and of what is kept about its objects.
fn bytes(rendered: &Rendered) -> u64 {
    let each = rendered.set.objects.iter();
    let all: usize = each.map(|object| object.body.len() + whole(object) + 256).sum();
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Bytes of the second body that an object with ignored fields has.
fn whole(object: &RenderedObject) -> usize {
    let ignored = object.directives.ignored.as_ref();
    ignored.map_or(0, |ignored| ignored.whole.len())
}
