//! The deletion budgets of one Sync.

mod still_here;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_api::{DeletionGrant, SyncGroup};
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_budget::{BudgetClock, BudgetLimits, Earlier};
use starling_core::deletion_grant::Granted;
use starling_member::{BudgetRequest, Budgets, DeletionRefusal};

use super::super::group_state::{aborted_by, actions_now, closed_window, is_admission_over, stopped_by};
use super::dependencies;
use super::observe::SyncSnapshot;
use crate::controller::caches::prune_requests::{self, PruneAnswer};
use crate::controller::context::SyncContext;
use crate::controller::deletion_budgets::{Approved, BudgetContext, SyncDeletions};
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;

/// The budgets that apply to the deletions of a Sync.
pub(super) struct BudgetsOf<'a> {
    pub(super) context: SyncContext<'a>,
    pub(super) observed: &'a SyncSnapshot,
    /// The target that replaces the deleted objects, or [`ENDING`](starling_core::deletion_approval::ENDING).
    pub(super) target: &'a str,
    /// The turn of the prunes of an attempt, or of the end of the Sync.
    pub(super) turn: &'a DeletionTurn<'a>,
}

impl fmt::Debug for BudgetsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BudgetsOf({})", self.observed.key)
    }
}

/// The error of a read without which nothing is deleted.
fn unread(error: &HubError) -> DeletionRefusal {
    DeletionRefusal::NotCounted(crate::chain(error))
}

impl BudgetsOf<'_> {
    /// Reads the group from the management cluster: a person may have stopped it, and a watch may deliver nothing. What
    /// is no part of what the group admitted has to wait for the group.
    async fn may_delete(&self) -> Result<(), DeletionRefusal> {
        let turn = self.turn;
        if self.target == ENDING {
            // The end itself has read the state of the group just now.
            return match turn.group.as_ref().filter(|_| turn.is_later) {
                Some(key) => turn.take(key),
                None => Ok(()),
            };
        }
        still_here::prunes(self.context, self.observed).await?;
        let Some(key) = &turn.group else {
            return Ok(());
        };
        let hub = self.context.hub;
        let Some(group) = hub.find::<SyncGroup>(key).await.map_err(|error| unread(&error))? else {
            let why = format!("SyncGroup {} does not exist", key.name);
            return Err(DeletionRefusal::Stopped(why));
        };
        let actions = actions_now(hub, &group).await.map_err(|error| unread(&error))?;
        if let Some(why) = stopped_by(&group, &actions) {
            return Err(DeletionRefusal::Stopped(why));
        }
        if let Some(why) = turn.is_later.then(|| aborted_by(&group, &actions)).flatten() {
            return Err(DeletionRefusal::Stopped(why));
        }
        still_here::is_not_undeleted(self.observed.group.as_deref(), &group)?;
        let (now, jumps) = (self.context.clock.now(), self.context.clock.jumps());
        let sync = &self.observed.object;
        if !turn.is_later && !is_admission_over(&group, sync, &actions, (now, &jumps)) {
            return Ok(());
        }
        match closed_window(&group, self.observed.cluster.as_deref(), now) {
            Some(stop) => Err(DeletionRefusal::Stopped(stop.why)),
            None => turn.take(key),
        }
    }
}

/// The turn of an attempt to delete after what the group admitted: the end of a grace or of a hold comes on all
/// clusters at once, so the group decides when each of them deletes.
pub(super) struct DeletionTurn<'a> {
    context: SyncContext<'a>,
    observed: &'a SyncSnapshot,
    group: Option<ObjectKey>,
    /// Whether the deletions come after what the group admitted: an earlier attempt ended with the target, or applied
    /// it; or the removal of the Sync gave its slot back.
    is_later: bool,
    /// Whether the request outlives the attempt: the group has to decide, or more passes follow.
    lasts: AtomicBool,
}

impl<'a> DeletionTurn<'a> {
    /// Begins the turn of an attempt. It ends when it is dropped, whatever becomes of the attempt.
    pub(super) fn begin(context: SyncContext<'a>, observed: &'a SyncSnapshot, is_later: bool) -> Self {
        Self {
            context,
            observed,
            group: observed.group_key(),
            is_later,
            lasts: AtomicBool::new(false),
        }
    }

    /// Keeps the turn for the passes that follow: objects were deleted, and others wait for them.
    pub(super) fn goes_on(&self) {
        let Some(group) = self.group.as_ref().filter(|_| self.is_later) else {
            return;
        };
        self.context.prune_requests.begun(group, &self.observed.key.name);
        self.lasts.store(true, Ordering::Relaxed);
    }

    fn take(&self, group: &ObjectKey) -> Result<(), DeletionRefusal> {
        let answer = self.context.prune_requests.request(group, &self.observed.object);
        let hold = match answer {
            PruneAnswer::Allowed => return Ok(()),
            PruneAnswer::New => {
                self.context.handlers.enqueue_group_soon(group.clone());
                None
            }
            PruneAnswer::Waits(hold) => hold,
        };
        self.lasts.store(true, Ordering::Relaxed);
        Err(DeletionRefusal::Stopped(prune_requests::why(&group.name, hold)))
    }
}

impl Drop for DeletionTurn<'_> {
    fn drop(&mut self) {
        let Some(group) = self
            .group
            .as_ref()
            .filter(|_| !self.lasts.load(Ordering::Relaxed))
        else {
            return;
        };
        if self.context.prune_requests.end(group, &self.observed.key.name) {
            self.context.handlers.enqueue_group_soon(group.clone());
        }
    }
}

impl Budgets for BudgetsOf<'_> {
    fn granted(&self) -> Granted {
        granted(self.observed, self.target)
    }

    fn count<'a>(&'a self, request: BudgetRequest<'a>) -> BoxFuture<'a, Result<(), DeletionRefusal>> {
        async move {
            let BudgetRequest {
                list,
                begin,
                remaining,
                approved,
            } = request;
            self.may_delete().await?;
            // The Syncs of a group are ended in an order of their own.
            if self.target != ENDING
                && let Some(why) =
                    dependencies::dependents_left(self.context, &self.observed.key, &self.observed.object)
            {
                return Err(DeletionRefusal::Stopped(why));
            }
            let now = self.context.clock.now();
            let approvals = &self.observed.approvals;
            let used = approved.map(|digest| (digest, approvals.used_after(digest, now)));
            if let Some((_, used)) = &used {
                still_here::approves(self.context, self.observed, used).await?;
            }
            let deletions = SyncDeletions {
                sync: &self.observed.key,
                target: self.target,
                list,
                begin,
                remaining,
                approved: used.as_ref().map(|(digest, used)| Approved { digest, used }),
            };
            self.context.budgets.count(context(self.context), deletions).await
        }
        .boxed()
    }

    fn may_give_up(&self) -> BoxFuture<'_, Result<(), DeletionRefusal>> {
        self.may_delete().boxed()
    }
}

/// Returns what the budgets need.
pub(super) fn context(context: SyncContext<'_>) -> BudgetContext<'_> {
    BudgetContext {
        hub: context.hub,
        objects: context.objects,
        handlers: context.handlers,
        clock: context.clock,
        now: context.clock.now(),
    }
}

/// Returns the deletions of a Sync that were allowed for a target, and may not be complete.
pub(super) fn granted(observed: &SyncSnapshot, target: &str) -> Granted {
    Granted::of(observed.status.deletions.as_ref(), target)
}

/// Returns what a Sync deleted within its window, before it prunes for a target.
pub(super) fn earlier<'a>(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    granted: &'a Granted,
) -> Earlier<'a> {
    let window: Duration = BudgetLimits::of_sync(observed.object.spec.deletion_budget).window;
    Earlier::of(
        observed.status.deletions.as_ref(),
        window,
        granted,
        BudgetClock {
            now: context.clock.now(),
            jumps: &context.clock.jumps(),
        },
    )
}

/// Ends the grant of deletions that are complete, after status has the inventory without their objects: between the
/// two writes, the deletions would be no loss of the group. If it fails, the grant covers objects that are gone, and
/// ends with the next drift check.
pub(super) async fn complete(context: SyncContext<'_>, observed: &SyncSnapshot) {
    if let Err(error) = end_grant(context, observed, |_| true).await {
        tracing::warn!(sync = %observed.key, error = %crate::chain(&error), "grant of deletions not ended");
    }
}

/// Ends the grant of the last deletions if they are superseded.
///
/// # Errors
/// [`HubError`] if this cannot be stored.
pub(super) async fn end_grant(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    ends: impl FnOnce(&DeletionGrant) -> bool,
) -> Result<(), HubError> {
    let to = self::context(context);
    context.budgets.end_grant(to, &observed.key, ends).await
}
