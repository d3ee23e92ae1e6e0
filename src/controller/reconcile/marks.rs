//! Annotations by which operator actions and approvals keep their meaning after a restore (ADR 44).

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::controller::cache::{Cache, ObjectKey};
use crate::controller::caches::Times;
use crate::controller::hub::{Hub, Kind};
use crate::controller::waits;

/// What the marks of one Sync or SyncGroup need.
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
    /// Sync or group wait too.
    pub(super) async fn write<K: Kind>(
        self,
        cache: &Cache<K>,
        object: &K,
        marks: Option<BTreeMap<String, String>>,
    ) {
        let Some(marks) = marks.filter(|_| object.meta().deletion_timestamp.is_none()) else {
            return;
        };
        if self.retries.get(self.of).is_some_and(|at| self.now < at) {
            return;
        }
        match self.hub.annotate(object, &marks).await {
            Ok(written) => {
                cache.observe_write(written);
            }
            Err(error) => {
                self.retries
                    .set(self.of, waits::from(self.now, waits::MARK_RETRY));
                let (of, kind, name) = (self.of, K::kind(&()), object.name_any());
                tracing::warn!(%of, %kind, %name, error = %crate::chain(&error), "not marked");
            }
        }
    }
}
