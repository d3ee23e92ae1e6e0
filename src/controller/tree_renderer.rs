//! Renders the trees of artifacts. [`RenderCache`](super::caches::renders::RenderCache) keeps the results.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_render::{Manifests, Renderer, finish};

use super::artifacts::{ArtifactStores, Artifacts as _};
use super::manifests::ManifestBuilder;
use super::manifests::{RenderFailure, RenderJob, Rendered};

/// A builder that exports a tree into a private directory and renders it there.
pub(crate) struct TreeRenderer {
    artifacts: ArtifactStores,
    renderer: Renderer,
}

impl TreeRenderer {
    /// Creates a builder that renders trees of `artifacts` with `renderer`.
    pub(crate) fn new(artifacts: ArtifactStores, renderer: Renderer) -> Self {
        Self { artifacts, renderer }
    }

    async fn render(&self, job: RenderJob<'_>) -> Result<Arc<Manifests>, RenderFailure> {
        let tree_failed = |error| RenderFailure::Tree(Arc::new(error));
        self.artifacts
            .fetch(job.artifact, job.timeout)
            .await
            .map_err(tree_failed)?;
        let copy = tempfile::Builder::new()
            .prefix("starling-tree-")
            .tempdir()
            .map_err(|error| RenderFailure::Copy(Arc::new(error)))?;
        let tree = copy.path().join("tree");
        let ignore = (!job.ignore.is_empty()).then_some(job.ignore);
        self.artifacts
            .export(job.artifact, &tree, ignore)
            .await
            .map_err(tree_failed)?;
        let identities = job.keys.map(|keys| &keys.identities);
        // The reader is the Source, as NAMESPACE/NAME.
        let reader = job.artifact.origin.reader();
        let tenant = reader.split_once('/').map_or(reader, |(namespace, _)| namespace);
        let built = self
            .renderer
            .clone()
            .with_tenant(tenant)
            .build(&tree, job.path, job.target_namespace, identities)
            .await;
        built
            .map(Arc::new)
            .map_err(|error| RenderFailure::Render(Arc::new(error)))
    }
}

impl ManifestBuilder for TreeRenderer {
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Manifests>, RenderFailure>> {
        self.render(job).boxed()
    }

    fn finish<'a>(
        &'a self,
        manifests: Arc<Manifests>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>> {
        let (values, owner) = (job.values.clone(), job.owner.to_owned());
        let left_to_others = job.left_to_others.clone();
        // Serialization of thousands of objects takes time and must not block the runtime.
        let finished = tokio::task::spawn_blocking(move || {
            finish(&manifests, &values, &owner).map(|set| Rendered {
                set: left_to_others.apply_to(set),
                plain: manifests.plain,
            })
        });
        async move {
            match finished.await {
                Ok(result) => result.map_err(|error| RenderFailure::Render(Arc::new(error))),
                Err(gone) => Err(RenderFailure::Copy(Arc::new(std::io::Error::other(gone)))),
            }
        }
        .boxed()
    }
}
