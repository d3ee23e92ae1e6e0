//! Deletion budgets; consulted before the first delete of an attempt is sent.

use std::fmt::Debug;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::deletion_budget::Excess;
use starling_core::deletion_grant::Granted;
use starling_core::object::ObjectId;
use tokio::time::Instant;

/// Deletions that may not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionRefusal {
    /// The deletions exceed a budget.
    Held(Excess),
    /// The deletions cannot be counted, for this reason.
    NotCounted(String),
    /// The group deletes nothing now, for this reason.
    Stopped(String),
}

/// Deletions that are about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct BudgetRequest<'a> {
    /// All objects of the list, with those that are gone or being deleted already: an approval is of all of them.
    pub list: &'a [ObjectId],
    /// The objects that exist and are not being deleted yet.
    pub begin: &'a [ObjectId],
    /// The number of objects of the Sync afterwards, with those that the same attempt creates.
    pub remaining: usize,
    /// The digest of the list if a person approved it.
    pub approved: Option<&'a str>,
}

/// The deletion budgets that apply to a Sync.
pub trait Budgets: Debug + Send + Sync {
    /// Returns the deletions that were allowed before.
    fn granted(&self) -> Granted;

    /// Counts deletions, without those that were allowed before. A list whose digest is approved is allowed and not
    /// counted, and its approval is used up. Returns after this is durable.
    fn count<'a>(&'a self, request: BudgetRequest<'a>) -> BoxFuture<'a, Result<(), DeletionRefusal>>;

    /// Reports whether objects may be given up now. They stay, so nothing is counted.
    fn may_give_up(&self) -> BoxFuture<'_, Result<(), DeletionRefusal>>;
}

/// Counts deletions within the deadline of an attempt: the request may wait for others.
pub(super) async fn count(
    budgets: &dyn Budgets,
    request: BudgetRequest<'_>,
    deadline: Instant,
) -> Result<(), DeletionRefusal> {
    let counted = tokio::time::timeout_at(deadline, budgets.count(request)).await;
    counted.unwrap_or_else(|_| Err(DeletionRefusal::NotCounted("timed out".to_owned())))
}

/// Asks whether objects may be given up within the deadline of an attempt.
pub(super) async fn may_give_up(budgets: &dyn Budgets, deadline: Instant) -> Result<(), DeletionRefusal> {
    let asked = tokio::time::timeout_at(deadline, budgets.may_give_up()).await;
    asked.unwrap_or_else(|_| Err(DeletionRefusal::NotCounted("timed out".to_owned())))
}

/// No budgets: the deletions were counted before, or need not be.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBudgets;

impl Budgets for NoBudgets {
    fn granted(&self) -> Granted {
        Granted::default()
    }

    fn count<'a>(&'a self, _: BudgetRequest<'a>) -> BoxFuture<'a, Result<(), DeletionRefusal>> {
        async { Ok(()) }.boxed()
    }

    fn may_give_up(&self) -> BoxFuture<'_, Result<(), DeletionRefusal>> {
        async { Ok(()) }.boxed()
    }
}
