//! Objects that were deleted a short time ago: an answer to a write of before the deletion must not bring one back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::versions::{VersionOrigin, is_newer, version};
use crate::controller::object_key::ObjectKey;

/// How long a deletion is remembered. An answer to a write comes within the limit of a request to the management
/// cluster, which is a tenth of this; without an end every object that ever was would be remembered, since a watch that
/// is never cut lists only once.
pub(super) const DELETION_KEPT: Duration = Duration::from_mins(5);

/// The deletions that are remembered.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    by_key: HashMap<ObjectKey, Deletion>,
    /// In the order of time. An object that is deleted twice is in it twice.
    by_time: VecDeque<(Instant, ObjectKey)>,
}

/// An object that was deleted.
#[derive(Debug)]
struct Deletion {
    /// Which of the objects of this name.
    uid: Option<String>,
    /// In which version. `None`: the object was missing in a list, or deleted before one. A server that was restored
    /// from a backup counts its versions anew, and its list says so.
    version: Option<String>,
    at: Instant,
}

impl Deletion {
    /// Whether a state is one of before the deletion.
    fn covers(&self, metadata: &ObjectMeta, origin: VersionOrigin) -> bool {
        // No object comes back under its UID; but the watch knows better what there is.
        let is_ghost = origin == VersionOrigin::Response && self.uid.is_some() && self.uid == metadata.uid;
        let mut known = self.version.iter();
        is_ghost || known.any(|known| !is_newer(version(metadata), known, origin))
    }
}

impl Deletions {
    /// Remembers that an object was deleted. `version`: see [`Deletion::version`].
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
            uid: metadata.uid.clone(),
            version: version.map(str::to_owned),
            at: now,
        };
        self.by_key.insert(key.clone(), deletion);
    }

    /// Whether a state of an object is one of before its deletion.
    pub(super) fn cover(&self, key: &ObjectKey, metadata: &ObjectMeta, origin: VersionOrigin) -> bool {
        let deletion = self.by_key.get(key);
        deletion.is_some_and(|deletion| deletion.covers(metadata, origin))
    }

    /// Forgets in which versions objects were deleted: a complete list has come.
    pub(super) fn forget_versions(&mut self) {
        for deletion in self.by_key.values_mut() {
            deletion.version = None;
        }
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len().max(self.by_time.len())
    }
}
