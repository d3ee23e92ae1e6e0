//! How long clusters took from admission to healthy, for estimates.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::ids::ClusterName;
use crate::plan::{Applied, ClusterView, Progress};

/// Recorded durations of clusters from admission to healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The last duration of each cluster.
    of: BTreeMap<ClusterName, Duration>,
}

impl Durations {
    /// Records the clusters that are healthy for the first time since their admission.
    pub fn learn(&mut self, clusters: &BTreeMap<ClusterName, ClusterView>) {
        for (name, view) in clusters {
            let took = view
                .entries
                .values()
                .filter_map(|entry| entry.observed.as_ref())
                .filter_map(|sync| took(sync.admitted_at, &sync.progress));
            if let Some(took) = took.max() {
                self.of.insert(name.clone(), took);
            }
        }
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Reports whether there are no durations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns the duration of a cluster, or the median of all durations.
    pub(crate) fn expected(&self, cluster: &str) -> Option<Duration> {
        if let Some(known) = self.of.get(cluster) {
            return Some(*known);
        }
        let mut all: Vec<Duration> = self.of.values().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }
}

/// Returns the duration from admission to healthy of a cluster that is healthy for the first time: after a failure in
/// between, `healthySince` is the time of the recovery.
#[must_use]
pub fn took(admitted_at: Option<Timestamp>, progress: &Progress) -> Option<Duration> {
    let Progress::Applied(Applied {
        since: Some(since),
        longest: Duration::ZERO,
        ..
    }) = progress
    else {
        return None;
    };
    since.duration_since(admitted_at?).try_into().ok()
}
