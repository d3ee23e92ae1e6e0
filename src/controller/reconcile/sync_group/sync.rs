//! The Sync of an entry on a cluster: its name, its template, and the whole object that is admitted.

use kube::{Resource, ResourceExt};
use starling_api::{
    ADMITTED_AT, CLUSTER_LABEL, Cluster, GROUP_LABEL, GroupRef, LocalRef, RELEASE, REQUESTED_AT, RETRIED_FOR,
    ROLLOUT, SyncEntry, SyncResource, SyncSpec, SyncTemplate,
};
use starling_core::expand::{self, ClusterFacts, ParameterError};
use starling_core::ids::{ClusterName, EntryName, ReleaseDigest};
use starling_core::rollout::{Admission, AdmissionRef, Rolling};
use starling_core::target;

use super::observe::Group;

/// Returns the name of the Sync of an entry on a cluster: its current name, or the name that it will get.
pub(super) fn name_of(group: &Group, cluster: &str, entry: &str) -> String {
    match group.syncs.get(cluster, entry) {
        Some(known) => known.name_any(),
        None => expand::sync_name(&group.key.name, entry, cluster, |name| {
            group.foreign_names.contains(name, cluster, entry) || is_ambiguous(group, name, entry)
        }),
    }
}

/// Whether another entry of a group gives the same plain name on a selected cluster, as `app` on `eu-1` and `app-eu` on
/// `1` do.
fn is_ambiguous(group: &Group, name: &str, entry: &str) -> bool {
    let mut others = group.object.spec.syncs.iter().filter(|other| other.name != entry);
    others.any(|other| {
        let mut parts = [&group.key.name, &other.name].into_iter();
        let cluster = parts.try_fold(name, |rest, part| {
            rest.strip_prefix(part.as_str())?.strip_prefix('-')
        });
        cluster.is_some_and(|cluster| group.clusters.get(cluster).is_some())
    })
}

/// Returns the admission that a Sync carries; `None`: the Sync names no rollout.
pub(super) fn admission_of(sync: &SyncResource) -> Option<AdmissionRef> {
    let group_ref = sync.spec.group_ref.as_ref();
    Some(AdmissionRef {
        cluster: sync.spec.cluster_ref.name.clone().into(),
        entry: group_ref.map(|of| (&of.entry).into()).unwrap_or_default(),
        rollout: sync.annotations().get(ROLLOUT)?.parse().ok()?,
        target: target::of_spec(&sync.spec).unwrap_or_default(),
    })
}

/// Returns the template of an entry for one cluster, with resolved parameters and with the names of Syncs as
/// dependencies.
///
/// # Errors
/// [`ParameterError`] if this cluster lacks a parameter.
pub(super) fn template_for(
    group: &Group,
    entry: &SyncEntry,
    name: &str,
    cluster: &Cluster,
) -> Result<SyncTemplate, ParameterError> {
    let mut template = expand::resolve(&entry.template, &ClusterFacts::of(cluster))?;
    for dependency in &mut template.depends_on {
        dependency.name = name_of(group, name, &dependency.name);
    }
    Ok(template)
}

/// The reason why the Sync of an admission cannot be built. The planner excludes all of them.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdmissible {
    /// The pass has no plan.
    #[error("the pass has no plan")]
    NoPlan,
    /// The rollout is of other releases.
    #[error("release {0} is neither the current nor the last known good one")]
    OtherRelease(ReleaseDigest),
    /// The release has no such entry.
    #[error("release {release} has no entry {entry:?}")]
    NoEntry {
        /// Digest of the release.
        release: ReleaseDigest,
        /// Name of the entry.
        entry: EntryName,
    },
    /// The group does not select the cluster.
    #[error("cluster {0} is not selected")]
    NotSelected(ClusterName),
    /// The cluster lacks a parameter.
    #[error("a parameter cannot be resolved")]
    Parameter(#[from] ParameterError),
}

/// Returns the Syncs for the admissions of a rollout, and those admissions for which none can be built.
pub(super) fn mk_syncs<'a>(
    group: &Group,
    rolling: Option<&Rolling>,
    admissions: &'a [Admission],
) -> (Vec<SyncResource>, Vec<(&'a Admission, NotAdmissible)>) {
    let (mut syncs, mut not_built) = (Vec::with_capacity(admissions.len()), Vec::new());
    for admission in admissions {
        let built = rolling.ok_or(NotAdmissible::NoPlan);
        match built.and_then(|rolling| mk_sync(group, rolling, admission)) {
            Ok(sync) => syncs.push(sync),
            Err(error) => not_built.push((admission, error)),
        }
    }
    (syncs, not_built)
}

/// Returns the whole Sync for an admission.
fn mk_sync(group: &Group, rolling: &Rolling, admission: &Admission) -> Result<SyncResource, NotAdmissible> {
    let snapshots = [Some(&rolling.snapshot), rolling.known_good.as_ref()];
    let snapshot = snapshots
        .into_iter()
        .flatten()
        .find(|snapshot| snapshot.digest == admission.release)
        .ok_or_else(|| NotAdmissible::OtherRelease(admission.release.clone()))?;
    let no_entry = || NotAdmissible::NoEntry {
        release: admission.release.clone(),
        entry: admission.entry.clone(),
    };
    let entry = snapshot.entry(&admission.entry).ok_or_else(no_entry)?;
    let cluster = group.clusters.get(&admission.cluster);
    let cluster = cluster.ok_or_else(|| NotAdmissible::NotSelected(admission.cluster.clone()))?;
    let template = template_for(group, entry, &admission.cluster, cluster)?;
    let mut sync = SyncResource::new(
        &name_of(group, &admission.cluster, &admission.entry),
        SyncSpec {
            group_ref: Some(GroupRef {
                name: group.key.name.clone(),
                entry: admission.entry.to_string(),
            }),
            cluster_ref: LocalRef::new(&admission.cluster),
            revision: admission.revision.clone(),
            // Users set it on the Sync, and the budget of the group applies too.
            deletion_budget: None,
            template,
        },
    );
    sync.metadata.namespace = Some(group.key.namespace.clone());
    sync.metadata.owner_references = group.object.controller_owner_ref(&()).map(|owner| vec![owner]);
    let labels = [
        (GROUP_LABEL, group.key.name.as_str()),
        (CLUSTER_LABEL, admission.cluster.as_str()),
    ];
    sync.metadata.labels = Some(
        labels
            .into_iter()
            // A label has at most 63 characters. Syncs with longer names are found by spec.
            .filter(|(_, value)| value.len() <= 63)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    );
    let mut annotations = std::collections::BTreeMap::from([
        (ROLLOUT.to_owned(), admission.rollout.to_string()),
        (RELEASE.to_owned(), admission.release.to_string()),
        (ADMITTED_AT.to_owned(), admission.at.to_string()),
    ]);
    if let Some(requested_at) = admission.retried_for {
        // The first annotation requests a reconcile. Anybody may write it, so that it is not a record of the retry.
        annotations.extend([REQUESTED_AT, RETRIED_FOR].map(|key| (key.to_owned(), requested_at.to_string())));
    }
    sync.metadata.annotations = Some(annotations);
    Ok(sync)
}
