//! A manifest builder without kustomize, threads or files: the rendered objects are those of a folder in the fake
//! repository.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling::controller::artifacts::{Artifacts, Origin};
use starling::controller::manifests::ManifestBuilder;
use starling::controller::manifests::{RenderFailure, RenderJob, Rendered};
use starling_render::{Manifests, finish};

use super::git::Mirrors;

/// Returns the objects as they are in the repository. The per-cluster processing is that of the program.
#[derive(Debug)]
pub(crate) struct MemoryBuilder(pub(crate) Mirrors);

impl ManifestBuilder for MemoryBuilder {
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Manifests>, RenderFailure>> {
        let failed = |error| RenderFailure::Tree(Arc::new(error));
        async move {
            let (Origin::Git(access), commit) = (&job.artifact.origin, job.artifact.digest());
            Artifacts::fetch(&self.0, job.artifact, job.timeout)
                .await
                .map_err(failed)?;
            let folder = self.0.folder(access, commit, job.path);
            let objects = folder.map_err(|error| failed(error.into()))?;
            Ok(Arc::new(Manifests {
                objects,
                plain: false,
                opened: Default::default(),
                submodules: 0,
            }))
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        manifests: Arc<Manifests>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>> {
        async move {
            let set = finish(&manifests, job.values, job.owner)
                .map_err(|error| RenderFailure::Render(Arc::new(error)))?;
            Ok(Rendered {
                set: job.left_to_others.apply_to(set),
                plain: manifests.plain,
                submodules: manifests.submodules,
            })
        }
        .boxed()
    }
}
