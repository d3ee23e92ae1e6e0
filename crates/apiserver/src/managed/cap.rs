//! The limit on the number of updaters.

use std::collections::HashMap;
use std::sync::Arc;

use super::entries::{ManagedFields, Manager, Operation};

/// The maximum number of updaters of an object; Kubernetes' `DefaultMaxUpdateManagers`.
const MAX_UPDATERS: usize = 10;

/// The manager that owns the fields of the oldest updaters.
const OLDEST: &str = "ancient-changes";

/// Merges the oldest updaters of each version until their number is within the limit.
pub(super) fn cap_updaters(managed: &mut ManagedFields) {
    let mut updaters: Vec<_> = managed
        .entries()
        .iter()
        .filter(|entry| entry.manager.operation == Operation::Update)
        .map(|entry| entry.manager.clone())
        .collect();
    let mut count = updaters.len();
    if count <= MAX_UPDATERS {
        return;
    }
    updaters.sort_by_cached_key(|updater| {
        let seconds = managed.entry(updater).and_then(|entry| entry.time);
        (
            seconds.map_or(0, jiff::Timestamp::as_second),
            updater.identifier(),
        )
    });
    // The first updater of a version keeps its entry until a second one is merged into it.
    let mut first_of: HashMap<Arc<str>, Manager> = HashMap::new();
    for updater in updaters {
        if count <= MAX_UPDATERS {
            return;
        }
        let version = Arc::clone(&updater.api_version);
        let Some(first) = first_of.get(&version) else {
            first_of.insert(version, updater);
            continue;
        };
        let bucket = Manager::new(OLDEST, Operation::Update, &version, &Arc::from(""));
        let Some(mut oldest) = managed.take(&bucket).or_else(|| managed.take(first)) else {
            continue;
        };
        let Some(entry) = managed.take(&updater) else {
            managed.put(oldest);
            continue;
        };
        oldest.manager = bucket;
        oldest.fields.extend(entry.fields);
        // The time of the merged entry is that of its most recent updater.
        oldest.time = entry.time;
        managed.put(oldest);
        count -= 1;
    }
}
