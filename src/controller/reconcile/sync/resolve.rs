//! Resolves the parameters in the spec of a Sync.

use std::borrow::Cow;

use starling_api::{Cluster, SyncSpec};
use starling_core::expand::{self, ClusterFacts, ParameterError};

/// Resolves the `$(cluster.*)` parameters of a Sync without a group; a group resolves those of its Syncs when it admits
/// them.
///
/// # Errors
/// [`ParameterError`] for the first field that cannot be resolved.
pub(super) fn resolve<'a>(
    spec: &'a SyncSpec,
    cluster: Option<&Cluster>,
) -> Result<Cow<'a, SyncSpec>, ParameterError> {
    let (Some(cluster), None) = (cluster, &spec.group_ref) else {
        return Ok(Cow::Borrowed(spec));
    };
    let template = expand::resolve(&spec.template, &ClusterFacts::of(cluster))?;
    Ok(Cow::Owned(SyncSpec {
        template,
        ..spec.clone()
    }))
}
