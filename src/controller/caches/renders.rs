//! The render cache: a set is built once per content, and all clusters with the same bytes share it.

use std::sync::Arc;
use std::time::Duration;

use starling_core::digest;
use starling_core::object::RenderedObject;

use super::single_flight::{Bounds, SingleFlight};
use crate::controller::manifests::{Built, ManifestBuilder, RenderFailure, RenderJob, Rendered};

/// Time for which the parsed documents of a build are kept after their last use. They are needed while a rollout
/// reaches clusters with different values, and are many times the size of their text.
const BUILD_IDLE: Duration = Duration::from_secs(30);
/// Time for which rendered sets are kept after their last use.
const SET_IDLE: Duration = Duration::from_secs(300);
/// Maximum size of all rendered sets, in bytes.
const SET_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of builds.
const BUILDS: u64 = 32;

/// The cache of rendered sets. Equal jobs at the same time share one build.
pub struct RenderCache {
    builder: Arc<dyn ManifestBuilder>,
    builds: SingleFlight<Arc<Built>, RenderFailure>,
    sets: SingleFlight<Arc<Rendered>, RenderFailure>,
}

impl RenderCache {
    /// Creates a cache of the results of `builder`.
    #[must_use]
    pub fn new(builder: Arc<dyn ManifestBuilder>) -> Self {
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
            builder,
            // An empty build is cheap, and is not believed for longer than one attempt.
            builds: SingleFlight::new(few, |build| u64::from(!build.manifests.objects.is_empty())),
            sets: SingleFlight::new(small, |rendered| bytes(rendered)),
        }
    }

    /// Returns the build of a job's directory, before the values of a cluster are substituted.
    ///
    /// # Errors
    /// [`RenderFailure`].
    pub async fn built(&self, job: RenderJob<'_>) -> Result<Arc<Built>, RenderFailure> {
        let build = self.builder.build(job);
        self.builds.get_or_make(&build_key(&job), build).await
    }

    /// Returns the rendered set of a job. A failure is not kept: the next call tries again.
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
            let built = self
                .builds
                .get_or_make(&build_key, self.builder.build(job))
                .await?;
            self.builder.finish(built, job).await.map(Arc::new)
        });
        made.await
    }
}

fn build_key(job: &RenderJob<'_>) -> String {
    digest::of(&(
        "build",
        job.artifact.origin.store_key(),
        // A build is not for another Source, which the server may refuse.
        job.artifact.origin.reader(),
        job.ignore,
        job.artifact.digest(),
        job.path,
        job.target_namespace,
        // Decrypted content is only for jobs with the same keys.
        job.keys.map(|keys| keys.made_from.as_str()),
    ))
}

/// Returns the bytes of a set, with an estimate for the data about each object.
fn bytes(rendered: &Rendered) -> u64 {
    let each = rendered.set.objects.iter();
    let all: usize = each.map(|object| object.body.len() + whole(object) + 256).sum();
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Returns the bytes of the second body of an object with ignored fields.
fn whole(object: &RenderedObject) -> usize {
    let ignored = object.directives.ignored.as_ref();
    ignored.map_or(0, |ignored| ignored.whole.len())
}
