//! What an attempt or a check comes to.

use jiff::Timestamp;
use starling_api::{Changes, DeletionHold, InventorySummary, ObjectProblem};

use crate::controller::caches::availability::Pause;

/// What an attempt or a check came to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The member holds the target.
    Applied(Applied),
    /// A check found nothing changed.
    Unchanged,
    /// It did not get there; the member answered.
    Failed(Failure),
    /// The member asked for a pause: no failure of the revision either.
    Busy(Pause),
    /// The member could not be worked on: no failure of the revision.
    Lost {
        /// What happened.
        message: String,
    },
}

/// What an attempt did that applied the target.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) changes: Changes,
    pub(super) inventory: InventorySummary,
    /// Rendered without kustomize.
    pub(super) plain: bool,
}

/// Why the member does not hold the target.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    /// Failures in a row at this target, this one included.
    pub(super) attempts: u32,
    pub(super) retry_at: Timestamp,
    /// Deletions that wait for an approval, if that is why.
    pub(super) deletion_hold: Option<DeletionHold>,
}

/// What an attempt failed for.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    /// The reason of Ready.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Objects in trouble, if it is about objects.
    pub(super) problems: Vec<ObjectProblem>,
}

impl Cause {
    /// A cause that is about the Sync as a whole.
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            problems: Vec::new(),
        }
    }
}
