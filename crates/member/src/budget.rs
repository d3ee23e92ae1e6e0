//! Deletion budgets; consulted before the first delete of an attempt is sent.

use std::fmt::Debug;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::deletion_budget::Excess;
use starling_core::object::ObjectId;

/// Deletions that may not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They exceed a budget.
    Held(Excess),
    /// They cannot be counted, for this reason.
    NotCounted(String),
    /// The group deletes nothing now, for this reason.
    Stopped(String),
}

/// The deletion budgets that apply to a Sync.
pub trait Budgets: Debug + Send + Sync {
    /// Reports whether the deletion of so many objects is the rest of one that was allowed before.
    fn is_granted(&self, doomed: usize) -> bool;

    /// Counts the deletion of these objects, which exist and are not being deleted yet, and after which `remaining`
    /// objects of the Sync are there. A list whose digest is approved is allowed and not counted, and its approval is
    /// used up. Returns after this is durable.
    fn count<'a>(
        &'a self,
        doomed: &'a [ObjectId],
        remaining: usize,
        approved: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// No budgets: the deletions were counted before, or need not be.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBudgets;

impl Budgets for NoBudgets {
    fn is_granted(&self, _: usize) -> bool {
        false
    }

    fn count<'a>(
        &'a self,
        _: &'a [ObjectId],
        _: usize,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async { Ok(()) }.boxed()
    }
}
