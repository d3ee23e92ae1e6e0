//! Rendered sets: built once per content, shared by all clusters that get the same bytes.

use std::sync::Arc;
use std::time::Duration;

use starling_core::digest;
use starling_core::object::RenderedObject;
use starling_render::Manifests;

use super::single_flight::{Bounds, SingleFlight};
use crate::controller::manifests::{ManifestBuilder, RenderFailure, RenderJob, Rendered};

/// How long a build's parsed documents are kept after their last use: while a rollout goes through clusters with
/// different values, not longer, since parsed documents are many times the size of their text.
const BUILD_IDLE: Duration = Duration::from_secs(30);
/// How long finished sets are kept after their last use.
const SET_IDLE: Duration = Duration::from_secs(300);
/// Bytes of finished sets that are kept.
const SET_BYTES: u64 = 64 * 1024 * 1024;
/// Builds that are kept at most.
const BUILDS: u64 = 32;

/// Builds and keeps rendered sets. Equal jobs that are asked for at the same time are done once.
pub struct RenderCache {
    builder: Arc<dyn ManifestBuilder>,
    builds: SingleFlight<Arc<Manifests>, RenderFailure>,
    sets: SingleFlight<Arc<Rendered>, RenderFailure>,
}

impl RenderCache {
    /// Keeps what `builder` makes.
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
            builds: SingleFlight::new(few, |_| 1),
            sets: SingleFlight::new(small, |rendered| bytes(rendered)),
        }
    }

    /// What the folder of a job is built to, before a cluster's values are put in.
    ///
    /// # Errors
    /// [`RenderFailure`].
    pub async fn manifests(&self, job: RenderJob<'_>) -> Result<Arc<Manifests>, RenderFailure> {
        let build = self.builder.build(job);
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
                .get_or_make(&build_key, self.builder.build(job))
                .await?;
            self.builder.finish(manifests, job).await.map(Arc::new)
        });
        made.await
    }
}

fn build_key(job: &RenderJob<'_>) -> String {
    digest::of(&(
        "build",
        job.artifact.origin.fingerprint(),
        job.ignore,
        job.artifact.digest(),
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
