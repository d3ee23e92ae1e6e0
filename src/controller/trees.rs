//! Manifests from trees of repositories: what [`Renders`](super::renders::Renders) keeps is made here.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::ports::Workshop;
use super::renders::{RenderFailure, RenderJob, Rendered};
use crate::git::GitStore;
use crate::render::{Manifests, Renderer, finish};

/// Exports a tree into a private folder and renders it there.
pub(crate) struct Trees {
    git: GitStore,
    renderer: Renderer,
}

impl Trees {
    /// Renders trees of `git` with `renderer`.
    pub(crate) fn new(git: GitStore, renderer: Renderer) -> Self {
        Self { git, renderer }
    }

    async fn render(&self, job: RenderJob<'_>) -> Result<Arc<Manifests>, RenderFailure> {
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
        let identities = job.keys.map(|keys| &keys.identities);
        let built = self
            .renderer
            .build(&tree, job.path, job.target_namespace, identities)
            .await;
        built
            .map(Arc::new)
            .map_err(|error| RenderFailure::Render(Arc::new(error)))
    }
}

impl Workshop for Trees {
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
        // Serialising thousands of objects is work; it must not hold up the reactor.
        let finished = tokio::task::spawn_blocking(move || {
            finish(&manifests, &values, &owner).map(|set| Rendered {
                set: left_to_others.leave_out(set),
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
