//! Recently deleted objects: the response to a write before a deletion must not bring the object back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use starling_core::ids::Uid;
use tokio::time::Instant;

use super::versions::{VersionOrigin, is_newer, version};
use crate::controller::object_key::ObjectKey;

/// Time for which a deletion is kept. The response to a write arrives within the timeout of a request to the management
/// cluster, which is a tenth of this time. The time is bounded because a watch that is never interrupted lists only
/// once, so that all deleted objects would be kept forever.
pub(super) const DELETION_KEPT: Duration = Duration::from_mins(5);

/// The recent deletions.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    by_key: HashMap<ObjectKey, Deletion>,
    /// Keys in the order of time. An object that was deleted twice has two elements.
    by_time: VecDeque<(Instant, ObjectKey)>,
}

/// A deletion of an object.
#[derive(Debug)]
struct Deletion {
    /// UID of the deleted object.
    uid: Option<Uid>,
    /// Version at the deletion; `None` if a list lacked the object, or if a list came after the deletion: a server that
    /// was restored from a backup restarts its versions, and its list shows that.
    version: Option<String>,
    at: Instant,
}

impl Deletion {
    /// Returns whether a state is one of the object that was deleted.
    fn is_of(&self, metadata: &ObjectMeta) -> bool {
        self.uid.is_some() && self.uid.as_deref() == metadata.uid.as_deref()
    }

    /// Returns whether a state is from before the deletion.
    fn covers(&self, metadata: &ObjectMeta, origin: VersionOrigin) -> bool {
        // A UID never comes back, but the watch overrules this: it delivers the state of the server.
        let is_ghost = origin == VersionOrigin::Response && self.is_of(metadata);
        let mut known = self.version.iter();
        is_ghost || known.any(|known| !is_newer(version(metadata), known, origin))
    }
}

impl Deletions {
    /// Records the deletion of an object; see [`Deletion::version`] for `version`.
    pub(super) fn note(&mut self, key: &ObjectKey, metadata: &ObjectMeta, version: Option<&str>) {
        let now = Instant::now();
        let is_over = |at: Instant| now.duration_since(at) >= DELETION_KEPT;
        while let Some((_, old)) = self.by_time.pop_front_if(|(at, _)| is_over(*at)) {
            if self.by_key.get(&old).is_some_and(|deletion| is_over(deletion.at)) {
                self.by_key.remove(&old);
            }
        }
        self.by_time.push_back((now, key.clone()));
        let deletion = Deletion {
            uid: metadata.uid.as_deref().map(Uid::from),
            version: version.map(str::to_owned),
            at: now,
        };
        self.by_key.insert(key.clone(), deletion);
    }

    /// Returns whether a state of an object is from before its deletion.
    pub(super) fn cover(&self, key: &ObjectKey, metadata: &ObjectMeta, origin: VersionOrigin) -> bool {
        let deletion = self.by_key.get(key);
        deletion.is_some_and(|deletion| deletion.covers(metadata, origin))
    }

    /// Removes the deletion of an object that exists: a management cluster that was set back has it again.
    pub(super) fn forget_existing(&mut self, key: &ObjectKey, metadata: &ObjectMeta) {
        if self
            .by_key
            .get(key)
            .is_some_and(|deletion| deletion.is_of(metadata))
        {
            self.by_key.remove(key);
        }
    }

    /// Clears the versions of all deletions after a complete list.
    pub(super) fn forget_versions(&mut self) {
        for deletion in self.by_key.values_mut() {
            deletion.version = None;
        }
    }

    /// Returns the number of recorded deletions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len().max(self.by_time.len())
    }
}
