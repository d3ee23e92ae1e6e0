//! The port that builds manifests: what is asked of it, and what it answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use starling_core::ignore::IgnoreRules;
use starling_core::object::RenderedSet;
use starling_render::{Manifests, RenderError};

use super::artifacts::{Artifact, ArtifactError};
use super::decryption::Keys;

/// Builds the manifests of an artifact, and what a cluster gets of them.
pub trait ManifestBuilder: Send + Sync {
    /// The objects of a folder of an artifact, before values are put in.
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Manifests>, RenderFailure>>;

    /// What a cluster with the values and owner of `job` gets of these manifests.
    fn finish<'a>(
        &'a self,
        manifests: Arc<Manifests>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>>;
}

/// Why there is no rendered set.
#[derive(Debug, thiserror::Error)]
pub enum RenderFailure {
    /// The artifact cannot be fetched.
    #[error("cannot read the revision")]
    Tree(#[source] Arc<ArtifactError>),
    /// The folder for the build's private copy failed.
    #[error("cannot copy the tree")]
    Copy(#[source] Arc<std::io::Error>),
    /// It does not render.
    #[error("build failed")]
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
    /// What is built.
    pub artifact: &'a Artifact,
    /// The Source's own ignore lines.
    pub ignore: &'a str,
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
