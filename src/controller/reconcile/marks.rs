//! Annotations by which operator actions and approvals keep their meaning after a restore (ADR 44).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::UNVERIFIED_BY;
use starling_core::clock_jumps::is_far_ahead;

use crate::controller::cache::Cache;
use crate::controller::caches::Times;
use crate::controller::hub::{Hub, Kind};
use crate::controller::object_key::ObjectKey;
use crate::controller::policies::AdmissionPolicies;
use crate::controller::waits;

/// The parts that the marks of one Sync or SyncGroup need.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a> {
    pub(super) hub: &'a Hub,
    /// When marks that failed are written again.
    pub(super) retries: &'a Times,
    /// The Sync or SyncGroup.
    pub(super) of: &'a ObjectKey,
    pub(super) now: Timestamp,
}

impl Marks<'_> {
    /// Annotates an object, and stores the response in the cache: the next pass may begin before the watch delivers it.
    /// A failure stops nothing. With a ClusterRole of an earlier version every write is refused, so the others of this
    /// Sync or group wait too. Returns whether nothing is left to write.
    pub(super) async fn write<K: Kind>(
        self,
        cache: &Cache<K>,
        object: &K,
        marks: Option<BTreeMap<String, String>>,
    ) -> bool {
        let Some(marks) = marks.filter(|_| object.meta().deletion_timestamp.is_none()) else {
            return true;
        };
        // A clock that was set back since would delay the marks until it reaches the old time again.
        let waits = |at| self.now < at && !is_far_ahead(at, self.now);
        if self.retries.get(self.of).is_some_and(waits) {
            return false;
        }
        match self.hub.annotate(object, &marks).await {
            Ok(written) => {
                cache.observe_write(written);
                true
            }
            Err(error) => {
                self.retries
                    .set(self.of, waits::from(self.now, waits::MARK_RETRY));
                let (of, kind, name) = (self.of, K::kind(&()), object.name_any());
                tracing::warn!(%of, %kind, %name, error = %crate::chain(&error), "operator action or approval not marked");
                false
            }
        }
    }
}

/// Adds the mark of an object whose `by` no admission policy has verified. The mark stays when the policies are back.
pub(super) fn with_verdict<K: ResourceExt>(
    policies: &AdmissionPolicies,
    marks: Option<BTreeMap<String, String>>,
    object: &K,
) -> Option<BTreeMap<String, String>> {
    let mark = policies
        .is_unverified(object)
        .then(|| (UNVERIFIED_BY.to_owned(), "true".to_owned()));
    match (marks, mark) {
        (marks, None) => marks,
        (marks, Some(mark)) => Some(marks.into_iter().flatten().chain([mark]).collect()),
    }
}

/// Returns an object with the mark that it will get.
pub(super) fn judged<K: ResourceExt + Clone>(policies: &AdmissionPolicies, object: Arc<K>) -> Arc<K> {
    if !policies.is_unverified(&*object) {
        return object;
    }
    let mut marked = (*object).clone();
    let annotations = marked.annotations_mut();
    annotations.insert(UNVERIFIED_BY.to_owned(), "true".to_owned());
    Arc::new(marked)
}
