//! Renders the trees of artifacts. [`RenderCache`](super::caches::renders::RenderCache) keeps the results.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_render::{Renderer, finish};

use super::artifacts::{ArtifactStores, Artifacts as _};
use super::manifests::{BuildNotes, Built, ManifestBuilder, RenderFailure, RenderJob, Rendered};

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

    async fn render(&self, job: RenderJob<'_>) -> Result<Arc<Built>, RenderFailure> {
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
        let submodules = self
            .artifacts
            .export(job.artifact, &tree, ignore)
            .await
            .map_err(tree_failed)?;
        let identities = job.keys.map(|keys| &keys.identities);
        let built = self
            .renderer
            .build(&tree, job.path, job.target_namespace, identities)
            .await;
        built
            .map(|manifests| {
                Arc::new(Built {
                    manifests,
                    submodules,
                })
            })
            .map_err(|error| RenderFailure::Render(Arc::new(error)))
    }
}

impl ManifestBuilder for TreeRenderer {
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Built>, RenderFailure>> {
        self.render(job).boxed()
    }

    fn finish<'a>(
        &'a self,
        built: Arc<Built>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>> {
        let (values, owner) = (job.values.clone(), job.owner.to_owned());
        let left_to_others = job.left_to_others.clone();
        // Serialization of thousands of objects takes time and must not block the runtime.
        let finished = tokio::task::spawn_blocking(move || {
            finish(&built.manifests, &values, &owner).map(|set| Rendered {
                set: left_to_others.apply_to(set),
                notes: BuildNotes {
                    plain: built.manifests.plain,
                    submodules: built.submodules.clone(),
                },
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
