//! Outcomes of attempts and checks.

use jiff::Timestamp;
use starling_api::{Changes, DeletionHold, InventorySummary, ObjectProblem, PendingDeletions};

use crate::controller::caches::availability::Pause;
use crate::controller::manifests::BuildNotes;

/// The result of an attempt or a drift check.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// Time at which the attempt began whose records the ledger has; `None` if it ended before that.
    pub(super) attempted_at: Option<Timestamp>,
    /// The objects whose deletion is pending after the attempt; `None`: not known.
    pub(super) pending: Option<Option<PendingDeletions>>,
    /// Whether deletions wait for the group.
    pub(super) is_stopped: bool,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            attempted_at: None,
            pending: None,
            is_stopped: false,
        }
    }
}

/// The outcome of an attempt or a drift check.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The target is applied.
    Applied(Applied),
    /// A drift check found no changes.
    Unchanged,
    /// The attempt failed, and the member responded.
    Failed(Failure),
    /// The member requested a pause. The revision has not failed.
    Busy(Pause),
    /// The member is not available. The revision has not failed.
    Lost {
        /// The error.
        message: String,
    },
    /// The management cluster did not allow the writes: a restore was detected, or it gave no number. Nothing that the
    /// revision could fail with.
    NotAllowed(Cause),
}

/// The results of an attempt that applied the target.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) changes: Changes,
    pub(super) inventory: InventorySummary,
    /// What people should know of the build.
    pub(super) notes: BuildNotes,
}

/// The failure of an attempt.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    /// Number of consecutive failures at this target, including this one.
    pub(super) attempts: u32,
    pub(super) retry_at: Timestamp,
    /// The held deletions, if they are the reason.
    pub(super) deletion_hold: Option<DeletionHold>,
}

/// The cause of a failure.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    /// The reason of Ready.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Problems of objects, if the cause concerns objects.
    pub(super) problems: Vec<ObjectProblem>,
}

impl Cause {
    /// Creates a cause that concerns the Sync as a whole.
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            problems: Vec::new(),
        }
    }
}
