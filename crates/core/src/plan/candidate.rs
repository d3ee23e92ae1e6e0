//! A cluster that may start.

use crate::ids::EntryName;
use jiff::Timestamp;

use super::entry::{missing, missing_of_known_good};
use super::state::ClusterState;
use super::types::{AdmittedRelease, Decision};
use crate::window::Opening;

/// A cluster that may start, and the release it would start with.
pub(super) struct Candidate {
    pub(super) to: AdmittedRelease,
    /// Whether its admission has begun before.
    pub(super) begun: bool,
    /// Time at which the jitter of the cluster is over; `None`: its stage has not opened.
    pub(super) eligible_at: Option<Timestamp>,
    /// The state of the windows of the cluster.
    pub(super) opening: Opening,
    /// Whether its stage is open.
    pub(super) is_open: bool,
}

impl Candidate {
    /// The decision to start it: to admit what is missing there, or, if nothing is, to remove what is left over.
    pub(super) fn start(&self, state: &ClusterState<'_>) -> Decision {
        let entries: Vec<EntryName> = match self.to {
            AdmittedRelease::Release => missing(state.cluster).cloned().collect(),
            AdmittedRelease::LastKnownGood => {
                let missing = missing_of_known_good(state.cluster).unwrap_or_default();
                missing.into_iter().cloned().collect()
            }
        };
        if entries.is_empty() {
            let removable = state.removable.iter();
            return Decision::Remove {
                entries: removable.map(|entry| (*entry).to_owned()).collect(),
            };
        }
        Decision::Start { entries, to: self.to }
    }
}
