//! The deletion budgets of Syncs, groups and the installation: counts deletions before they are sent (ADR 42).
//!
//! The counts are in the status of each Sync and SyncGroup, and those of the installation in a ConfigMap. They are
//! written one request after another, so that no two requests take the same part of a budget. Requests of different
//! groups wait for each other only if the installation has a budget.

mod clusters;
mod scopes;
mod unfinished;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use jiff::Timestamp;
use starling_api::{DeletionCount, DeletionGrant, Deletions, SyncGroup, SyncResource, UsedApproval};
use starling_core::deletion_budget::{BudgetClock, BudgetLimits, BudgetScope, DeletionRequest, Excess};
use starling_core::deletion_grant::{Granted, NewGrant};
use starling_core::object::{GroupKind, ObjectId};
use starling_member::DeletionRefusal;
use tokio::sync::Mutex;

use self::scopes::{
    Counted, NewDeletions, count, counts, group_of, installation_cluster, of_group, of_installation, of_sync,
    recorded, to_store, used,
};
use self::unfinished::Unfinished;
use super::caches::ObjectCaches;
use super::event_handlers::{ChangedBy, EventHandlers};
use super::hub::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// The settings of deletions.
#[derive(Clone, Debug, Default)]
pub struct DeletionSettings {
    /// The budget of the installation; `None` for no limit.
    pub budget: Option<BudgetLimits>,
    /// The kinds whose deletion requires an approval, besides those that always do.
    pub confirm: BTreeSet<GroupKind>,
}

/// The deletion budgets.
#[derive(Debug, Default)]
pub struct DeletionBudgets {
    settings: DeletionSettings,
    turns: Turns,
    /// Held while the counts of the installation are read and written, after the turn of a group.
    installation: Mutex<()>,
    unfinished: Unfinished,
}

/// The locks of groups, and of Syncs without a group.
#[derive(Debug, Default)]
struct Turns(StdMutex<HashMap<ObjectKey, Arc<Mutex<()>>>>);

impl Turns {
    fn of(&self, owner: &ObjectKey) -> Arc<Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(owner) {
            return turn.clone();
        }
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(owner.clone()).or_default().clone()
    }
}

/// Returns the owner of the turn of a Sync: its group, whose counts its requests change too.
fn turn_of(sync: &SyncResource) -> ObjectKey {
    let own = ObjectKey::of(sync);
    match &sync.spec.group_ref {
        Some(group) => ObjectKey::new(&own.namespace, &group.name),
        None => own,
    }
}

/// The parts of a loop that the budgets need.
#[derive(Clone, Copy)]
pub struct BudgetContext<'a> {
    /// The client of the management cluster.
    pub hub: &'a Hub,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// The event handlers.
    pub handlers: EventHandlers<'a>,
    /// The clock, which knows its jumps.
    pub clock: &'a starling_net::clock::Clock,
    /// The time of the request.
    pub now: Timestamp,
}

/// Deletions of one Sync on its cluster.
#[derive(Clone, Copy, Debug)]
pub struct SyncDeletions<'a> {
    /// The key of the Sync.
    pub sync: &'a ObjectKey,
    /// [`DeletionGrant::target`].
    pub target: &'a str,
    /// All objects of the list, with those that are gone or being deleted already.
    pub list: &'a [ObjectId],
    /// The objects that exist and are not being deleted yet.
    pub begin: &'a [ObjectId],
    /// The number of objects of the Sync afterwards, with those that the same attempt creates.
    pub remaining: usize,
    /// The approval of the list if a person approved it: its deletions are allowed, and not counted.
    pub approved: Option<Approved<'a>>,
}

/// The approval of a list.
#[derive(Clone, Copy, Debug)]
pub struct Approved<'a> {
    /// The digest of the list.
    pub digest: &'a str,
    /// The record of used approvals with those of the list.
    pub used: &'a [UsedApproval],
}

impl DeletionBudgets {
    /// Returns the kinds whose deletion requires an approval, besides those that always do.
    #[must_use]
    pub fn confirmed_kinds(&self) -> &BTreeSet<GroupKind> {
        &self.settings.confirm
    }

    /// Creates the budgets.
    #[must_use]
    pub fn new(settings: DeletionSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Counts deletions of a Sync against all budgets. Returns once the counts are stored; nothing is counted if one of
    /// the budgets does not allow the deletions.
    ///
    /// # Errors
    /// [`DeletionRefusal`]: nothing may be deleted.
    pub async fn count(
        &self,
        context: BudgetContext<'_>,
        deletions: SyncDeletions<'_>,
    ) -> Result<(), DeletionRefusal> {
        let gone = || DeletionRefusal::NotCounted("the Sync is gone".into());
        let sync = context.objects.syncs.get(deletions.sync).ok_or_else(gone)?;
        let turn = self.turns.of(&turn_of(&sync));
        let _turn = turn.lock().await;
        let sync = context.objects.syncs.get(deletions.sync).ok_or_else(gone)?;
        let known = recorded(&sync);
        let granted = Granted::of(known, deletions.target);
        let jumps = context.clock.jumps();
        let clock = BudgetClock {
            now: context.now,
            jumps: &jumps,
        };
        let group = group_of(context.objects, &sync);
        if deletions.approved.is_some() {
            if deletions.begin.iter().all(|key| granted.is_approved(key)) {
                return Ok(());
            }
            return grant(context, &sync, deletions, &granted, counts(known).to_vec()).await;
        }
        let new = NewDeletions {
            objects: deletions.begin.iter().filter(|key| !granted.has(key)).count(),
            remaining: deletions.remaining,
        };
        if new.objects == 0 {
            return Ok(());
        }
        let list = unfinished::List::of(&sync, deletions, &granted);
        let before = self.unfinished.counted(deletions.sync, &list, clock.now);
        let of_sync = of_sync(&sync, new, clock);
        let of_group = group.as_ref().map(|group| {
            if before.contains(&BudgetScope::SyncGroup) {
                return Counted::Before;
            }
            of_group(context.objects, group, (&sync, new), &self.unfinished, clock)
        });
        let _installation = match &self.settings.budget {
            Some(_) => Some(self.installation.lock().await),
            None => None,
        };
        let of_installation = match &self.settings.budget {
            None => None,
            Some(_) if before.contains(&BudgetScope::Installation) => Some(Counted::Before),
            Some(limits) => {
                let counted = context
                    .hub
                    .deletion_counts()
                    .await
                    .map_err(|error| not_counted(&error))?;
                let cluster = installation_cluster(&sync);
                let request = of_installation(context.objects, limits, &sync, new, clock);
                let request = DeletionRequest {
                    cluster: &cluster,
                    ..request
                };
                Some(count(limits, &counted, request, clock))
            }
        };
        let is_held = |counted: &Counted| matches!(counted, Counted::Held(..));
        let held = is_held(&of_sync)
            || of_group.as_ref().is_some_and(is_held)
            || of_installation.as_ref().is_some_and(is_held);
        let mut worst: Option<Excess> = None;
        if let Some(counts) = of_installation.and_then(|counted| to_store(counted, held, &mut worst)) {
            context
                .hub
                .write_deletion_counts(&counts)
                .await
                .map_err(|error| not_counted(&error))?;
            if let (false, Some(limits)) = (held, &self.settings.budget) {
                self.unfinished
                    .note(deletions.sync, (&list, new.remaining), limits, clock.now);
            }
        }
        if let (Some(group), Some(counted)) = (&group, of_group)
            && let Some(counts) = to_store(counted, held, &mut worst)
        {
            let stored = Deletions {
                counts,
                ..deletions_of(group)
            };
            let written = context.hub.write_deletions(&**group, &stored).await;
            observe_group(
                context.objects,
                context.handlers,
                written.map_err(|error| not_counted(&error))?,
            );
            if !held {
                let limits = BudgetLimits::of_group(group.spec.deletion_budget);
                self.unfinished
                    .note(deletions.sync, (&list, new.remaining), &limits, clock.now);
            }
        }
        if let Some(counts) = to_store(of_sync, held, &mut worst) {
            if held {
                let stored = Deletions {
                    counts,
                    used: used(&sync),
                    ..Deletions::default()
                };
                write_sync(context, &sync, &stored).await?;
            } else {
                grant(context, &sync, deletions, &granted, counts).await?;
                self.unfinished.end(deletions.sync);
            }
        }
        worst.map_or(Ok(()), |excess| Err(DeletionRefusal::Held(excess)))
    }

    /// Ends the grant of a Sync whose deletions are complete, or were for a target that it no longer has: a list that
    /// comes later is asked for again.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn end_grant(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        ends: impl FnOnce(&DeletionGrant) -> bool,
    ) -> Result<(), HubError> {
        // Most attempts delete nothing, and do not wait for those that count.
        let sync = context.objects.syncs.get(key);
        let status = sync.as_ref().and_then(|sync| sync.status.as_ref());
        let deletions = status.and_then(|status| status.deletions.as_ref());
        if deletions.is_none_or(|deletions| deletions.grant.is_none()) {
            return Ok(());
        }
        self.change_sync(context, key, |deletions| {
            deletions.grant = deletions.grant.take().filter(|grant| !ends(grant));
        })
        .await
    }

    /// Stores the record of used approvals of a Sync.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn set_used(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        used: Vec<UsedApproval>,
    ) -> Result<(), HubError> {
        self.change_sync(context, key, |deletions| deletions.used = used)
            .await
    }

    /// Changes what status has about the deletions of a Sync, and stores it if it differs.
    async fn change_sync(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        change: impl FnOnce(&mut Deletions),
    ) -> Result<(), HubError> {
        let Some(sync) = context.objects.syncs.get(key) else {
            return Ok(());
        };
        let turn = self.turns.of(&turn_of(&sync));
        let _turn = turn.lock().await;
        let Some(sync) = context.objects.syncs.get(key) else {
            return Ok(());
        };
        let before = sync.status.as_ref().and_then(|status| status.deletions.clone());
        let before = before.unwrap_or_default();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        store(context, &sync, &after).await
    }

    /// Changes the counts of a group, and stores them if they differ.
    async fn change(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        change: impl FnOnce(&SyncGroup, &mut Deletions),
    ) -> Result<(), HubError> {
        let turn = self.turns.of(key);
        let _turn = turn.lock().await;
        let Some(group) = context.objects.groups.get(key) else {
            return Ok(());
        };
        let before = deletions_of(&group);
        let mut after = before.clone();
        change(&group, &mut after);
        if after == before {
            return Ok(());
        }
        let written = context.hub.write_deletions(&*group, &after).await?;
        observe_group(context.objects, context.handlers, written);
        Ok(())
    }
}

fn deletions_of(group: &SyncGroup) -> Deletions {
    let status = group.status.as_ref();
    status
        .and_then(|status| status.deletions.clone())
        .unwrap_or_default()
}

fn observe_group(objects: &ObjectCaches, handlers: EventHandlers<'_>, written: SyncGroup) {
    if let Some(change) = objects.groups.observe_write(written) {
        handlers.on_group(&change, ChangedBy::Reconciler);
    }
}

/// Stores the counts of a Sync with the grant of its deletions.
async fn grant(
    context: BudgetContext<'_>,
    sync: &SyncResource,
    deletions: SyncDeletions<'_>,
    granted: &Granted,
    counts: Vec<DeletionCount>,
) -> Result<(), DeletionRefusal> {
    let new = NewGrant {
        target: deletions.target,
        list: deletions.list,
        remaining: deletions.remaining,
        approved: deletions.approved.map(|approved| approved.digest),
    };
    let deletions = Deletions {
        counts,
        grant: Some(granted.continued(new)),
        used: deletions
            .approved
            .map_or_else(|| used(sync), |approved| approved.used.to_vec()),
        ..Deletions::default()
    };
    write_sync(context, sync, &deletions).await
}

async fn write_sync(
    context: BudgetContext<'_>,
    sync: &SyncResource,
    deletions: &Deletions,
) -> Result<(), DeletionRefusal> {
    let written = store(context, sync, deletions).await;
    written.map_err(|error| not_counted(&error))
}

async fn store(
    context: BudgetContext<'_>,
    sync: &SyncResource,
    deletions: &Deletions,
) -> Result<(), HubError> {
    let written = context.hub.write_deletions(sync, deletions).await?;
    if let Some(change) = context.objects.syncs.observe_write(written) {
        context.handlers.on_sync(&change, ChangedBy::Reconciler);
    }
    Ok(())
}

fn not_counted(error: &HubError) -> DeletionRefusal {
    DeletionRefusal::NotCounted(crate::chain(error))
}

#[cfg(test)]
mod tests;
