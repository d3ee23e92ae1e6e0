//! The memory of a controller process, which is lost when it dies.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling::controller::caches::pending_deselections::PendingDeselections;
use starling_core::journal::Recorder;
use starling_core::rollout::AdmissionRef;

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
    /// Whether another pass has to follow immediately.
    pub(crate) again: bool,
    /// When the next pass is due without an event.
    pub(crate) recheck_at: Option<Timestamp>,
    /// Why the last pass had no plan.
    pub(crate) blocked: Option<&'static str>,
}

/// Unconfirmed writes.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    pub(crate) status: bool,
    /// Syncs, by their clusters.
    pub(crate) syncs: BTreeSet<String>,
}
