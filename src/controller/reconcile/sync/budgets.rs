//! The deletion budgets of one Sync.

use std::fmt;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_api::{DeletionGrant, SyncGroup, UsedApproval};
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_budget::{Earlier, Limits};
use starling_core::object::ObjectId;
use starling_member::{Budgets, Refusal};

use super::super::group_state::prune_stop;
use super::dependencies;
use super::observe::Observed;
use crate::controller::context::SyncContext;
use crate::controller::deletion_budgets::{BudgetContext, SyncDeletions, is_granted};
use crate::controller::hub::HubError;

/// The budgets that apply to the deletions of a Sync.
pub(super) struct BudgetsOf<'a> {
    pub(super) context: SyncContext<'a>,
    pub(super) observed: &'a Observed,
    /// The target that replaces the deleted objects, or [`ENDING`](starling_core::deletion_approval::ENDING).
    pub(super) target: &'a str,
    /// Whether the deletions come after the attempt that the group admitted.
    pub(super) is_later: bool,
}

impl fmt::Debug for BudgetsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BudgetsOf({})", self.observed.key)
    }
}

impl BudgetsOf<'_> {
    fn deletions<'a>(
        &'a self,
        objects: usize,
        remaining: usize,
        approved: Option<&'a [UsedApproval]>,
    ) -> SyncDeletions<'a> {
        SyncDeletions {
            sync: &self.observed.key,
            target: self.target,
            objects,
            remaining,
            approved,
        }
    }
}

impl BudgetsOf<'_> {
    /// Reads the group from the management cluster: a person may have suspended it, and a watch may deliver nothing.
    async fn may_delete_later(&self) -> Result<(), Refusal> {
        let Some(key) = self.observed.group_key() else {
            return Ok(());
        };
        let group = match self.context.hub.find::<SyncGroup>(&key).await {
            Ok(Some(group)) => group,
            Ok(None) => return Err(Refusal::Stopped(format!("SyncGroup {} does not exist", key.name))),
            Err(error) => return Err(Refusal::NotCounted(crate::chain(&error))),
        };
        let (objects, cluster) = (self.context.objects, self.observed.cluster.as_deref());
        match prune_stop(objects, &group, cluster, self.context.clock.now()) {
            Some(stop) => Err(Refusal::Stopped(stop.why)),
            None => Ok(()),
        }
    }
}

impl Budgets for BudgetsOf<'_> {
    fn is_granted(&self, doomed: usize) -> bool {
        is_granted(&self.observed.object, self.deletions(doomed, 0, None))
    }

    fn count<'a>(
        &'a self,
        doomed: &'a [ObjectId],
        remaining: usize,
        approved: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async move {
            if self.is_later {
                self.may_delete_later().await?;
            }
            // The Syncs of a group are ended in an order of their own.
            if self.target != ENDING
                && let Some(why) =
                    dependencies::dependents_left(self.context, &self.observed.key, &self.observed.object)
            {
                return Err(Refusal::Stopped(why));
            }
            let now = self.context.clock.now();
            let approvals = &self.observed.approvals;
            let used = approved.map(|digest| approvals.used_after(digest, now));
            let deletions = self.deletions(doomed.len(), remaining, used.as_deref());
            self.context.budgets.count(context(self.context), deletions).await
        }
        .boxed()
    }
}

/// Returns what the budgets need.
pub(super) fn context(context: SyncContext<'_>) -> BudgetContext<'_> {
    BudgetContext {
        hub: context.hub,
        objects: context.objects,
        handlers: context.handlers,
        now: context.clock.now(),
    }
}

/// Returns what a Sync deleted within its window, before it prunes for a target.
pub(super) fn earlier(context: SyncContext<'_>, observed: &Observed, target: &str) -> Earlier {
    let window: Duration = Limits::of_sync(observed.object.spec.deletion_budget).window;
    Earlier::of(
        observed.status.deletions.as_ref(),
        window,
        target,
        context.clock.now(),
    )
}

/// Ends the grant of the last deletions if they are complete or superseded.
///
/// # Errors
/// [`HubError`] if this cannot be stored.
pub(super) async fn end_grant(
    context: SyncContext<'_>,
    observed: &Observed,
    ends: impl FnOnce(&DeletionGrant) -> bool,
) -> Result<(), HubError> {
    let to = self::context(context);
    context.budgets.end_grant(to, &observed.key, ends).await
}
