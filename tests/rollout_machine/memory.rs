//! The memory of a controller process, which is lost when it dies.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use starling::controller::caches::pending_deselections::PendingDeselections;
use starling_core::ids::{ClusterName, SyncName};
use starling_core::journal::Recorder;
use starling_core::plan::{GateResult, PruneRequest};
use starling_core::rollout::AdmissionRef;

use crate::world::{ENTRY, GateKey, sync_name};

/// The state of the controller besides its caches.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The newest journal entry; `None`: it has to be read from the ledger.
    pub(crate) recorder: Option<Recorder>,
    /// The release digest of a rollout, with its number.
    pub(crate) digested: Option<(i64, String)>,
    /// When the status was written last.
    pub(crate) reported_at: Option<Timestamp>,
    /// Clusters that are about to leave.
    pub(crate) deselections: PendingDeselections,
    pub(crate) unconfirmed: Unconfirmed,
    /// The last pass was interrupted.
    pub(crate) interrupted: bool,
    /// Admissions that the process has settled since they were made.
    pub(crate) settled: BTreeSet<AdmissionRef>,
    /// The tasks of open gates.
    pub(crate) gates: GateTasks,
    /// The prunes that Syncs request.
    pub(crate) prunes: BTreeMap<SyncName, PruneRequest>,
    /// Whether another pass has to follow immediately.
    pub(crate) again: bool,
    /// When the next pass is due without an event.
    pub(crate) recheck_at: Option<Timestamp>,
    /// Why the last pass had no plan.
    pub(crate) blocked: Option<&'static str>,
}

impl Memory {
    /// Requests a prune of a cluster, or ends the one that is in progress there.
    pub(crate) fn prune_or_end(&mut self, cluster: ClusterName) {
        let sync = SyncName::from(sync_name(ENTRY, &cluster));
        match self.prunes.remove(&sync) {
            Some(request) if request.allowed_at.is_some() => {}
            _ => {
                let request = PruneRequest {
                    cluster,
                    allowed_at: None,
                    begun: false,
                };
                self.prunes.insert(sync, request);
            }
        }
    }

    /// Ends the prunes that are in progress.
    pub(crate) fn end_prunes(&mut self) {
        self.prunes.retain(|_, request| request.allowed_at.is_none());
    }
}

/// Unconfirmed writes.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    pub(crate) status: bool,
    /// Syncs, by their clusters.
    pub(crate) syncs: BTreeSet<ClusterName>,
}

/// The time that another system takes to decide a gate.
const EVALUATION: SignedDuration = SignedDuration::from_secs(7);

/// The tasks that evaluate open gates. Their results are lost with the process, until status has them.
#[derive(Debug, Default)]
pub(crate) struct GateTasks {
    /// When each task began.
    begun: BTreeMap<GateKey, Timestamp>,
}

impl GateTasks {
    /// Begins the tasks of open gates, and ends all others.
    pub(crate) fn evaluate(&mut self, open: Vec<GateKey>, now: Timestamp) {
        let begun = std::mem::take(&mut self.begun);
        let begin = |gate: GateKey| {
            let at = begun.get(&gate).copied().unwrap_or(now);
            (gate, at)
        };
        self.begun = open.into_iter().map(begin).collect();
    }

    /// Returns the gates of a rollout that the other system has decided.
    pub(crate) fn decided(&self, rollout: i64, now: Timestamp) -> impl Iterator<Item = &GateKey> {
        let of = self.begun.iter().filter(move |(gate, _)| gate.rollout == rollout);
        of.filter(move |(_, begun)| **begun + EVALUATION <= now)
            .map(|(gate, _)| gate)
    }

    /// Returns when the next gate is decided.
    pub(crate) fn next_time(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.begun.values().map(|begun| *begun + EVALUATION);
        ends.filter(|end| *end > now).min()
    }

    /// Every third gate of a rollout fails.
    pub(crate) fn result(gate: &GateKey) -> GateResult {
        if gate.rollout % 3 == 2 && gate.index == 0 {
            GateResult::Failed {
                message: "refused".into(),
            }
        } else {
            GateResult::Passed
        }
    }
}
