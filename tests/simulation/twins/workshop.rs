//! Manifests without kustomize, threads or files: a folder of the twin's repository is its objects.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling::controller::ports::{Git as _, Workshop};
use starling::controller::renders::{RenderFailure, RenderJob, Rendered};
use starling::render::{Manifests, finish};

use super::git::Mirrors;

/// Takes objects as they are in the repository. What is done to them for each cluster is the real thing.
#[derive(Debug)]
pub(crate) struct Bench(pub(crate) Mirrors);

impl Workshop for Bench {
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Manifests>, RenderFailure>> {
        let failed = |error| RenderFailure::Tree(Arc::new(error));
        async move {
            self.0
                .ensure_commit(job.access, job.refname, job.commit, job.timeout)
                .await
                .map_err(failed)?;
            let objects = self.0.folder(job.access, job.commit, job.path).map_err(failed)?;
            Ok(Arc::new(Manifests {
                objects,
                plain: false,
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
                set: job.left_to_others.leave_out(set),
                plain: manifests.plain,
            })
        }
        .boxed()
    }
}
