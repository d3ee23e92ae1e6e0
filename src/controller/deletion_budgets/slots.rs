//! The slots of deletions that no plan has one for: Syncs of a group that a person deletes.
//!
//! The end of a Sync takes several passes, so its slot is the grant in status.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use starling_api::{SyncGroup, SyncResource};
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_budget::BudgetClock;
use starling_core::plan::{ReadStrategy, Strategy};

use super::BudgetContext;
use crate::controller::caches::ObjectCaches;
use crate::controller::object_key::ObjectKey;

/// Reports whether all slots of a group are in use by clusters that lose Syncs, other than that of this one. A plan
/// begins no more removals than there are slots; a person may delete any number of Syncs.
#[must_use]
pub(super) fn are_used_by_ends(
    context: BudgetContext<'_>,
    group: &SyncGroup,
    sync: &SyncResource,
    clock: BudgetClock<'_>,
) -> bool {
    let Some(strategy) = strategy(group) else {
        return false;
    };
    let (key, deadline) = (ObjectKey::of(group), strategy.limits.progress_deadline);
    let is_ending = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        let grant = status.and_then(|status| status.deletions.as_ref()?.grant.as_ref());
        let since = context.removal_times.since(&key, sync, clock.now);
        let until = since.and_then(|since| clock.jumps.due(since, deadline));
        grant.is_some_and(|grant| grant.target == ENDING) && until.is_some_and(|until| until > clock.now)
    };
    let syncs = context.objects.syncs.of_group(&key);
    let ending: BTreeSet<&str> = syncs
        .iter()
        .filter(|(cluster, _, other)| *cluster != sync.spec.cluster_ref.name && is_ending(other))
        .map(|(cluster, ..)| cluster)
        .collect();
    ending.len() >= slots(context.objects, group, &strategy)
}

/// Returns why a deletion waits for a slot.
#[must_use]
pub(super) fn why(group: &SyncGroup) -> String {
    let name = group.name_any();
    format!("all slots (maxConcurrency) of SyncGroup {name} are in use")
}

fn slots(objects: &ObjectCaches, group: &SyncGroup, strategy: &Strategy) -> usize {
    let clusters = objects.syncs.of_group(&ObjectKey::of(group)).clusters().count();
    strategy.limits.max_concurrency.of_rounded_up(clusters).max(1)
}

/// Returns the strategy of a group; `None`: it is invalid, and so the group starts nothing.
fn strategy(group: &SyncGroup) -> Option<Strategy> {
    let read = ReadStrategy::new(&group.spec.rollout_strategy).ok()?;
    Some(read.strategy)
}
