//! The number of requests to a cluster, by verb.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// The Kubernetes verbs; the last counter is for all other requests.
const VERBS: [&str; 9] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "other",
];

/// The counters of a cluster, small since a server may have thousands of clusters.
#[derive(Debug, Default)]
pub(crate) struct Requests([AtomicU32; VERBS.len()]);

impl Requests {
    /// Counts a request; `verb` is empty for a request for no resource.
    pub(crate) fn count(&self, verb: &str) {
        let place = VERBS.iter().position(|known| *known == verb);
        self.0[place.unwrap_or(VERBS.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters that are not zero.
    pub(crate) fn by_verb(&self) -> BTreeMap<&'static str, u32> {
        VERBS
            .into_iter()
            .zip(&self.0)
            .map(|(verb, count)| (verb, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb() {
        let requests = Requests::default();
        for verb in ["get", "patch", "get", "", "proxy"] {
            requests.count(verb);
        }
        assert_eq!(
            requests.by_verb(),
            [("get", 2), ("patch", 1), ("other", 2)].into()
        );
    }
}
