//! The slots of deletions that no plan has one for: prunes that come after the attempt that the group admitted, and
//! Syncs of a group that a person deletes.
//!
//! A prune is in progress as long as its attempt, so its slot is in memory: after a crash neither is left. The end of a
//! Sync takes several passes, so its slot is the grant in status.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt as _;
use starling_api::{SyncGroup, SyncResource};
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_budget::BudgetClock;
use starling_core::plan::{ReadStrategy, Strategy};

use super::BudgetContext;
use crate::controller::caches::ObjectCaches;
use crate::controller::object_key::ObjectKey;

/// The clusters on which Syncs of a group prune, with the number of these Syncs.
type Pruning = BTreeMap<String, usize>;

/// The slots of prunes.
#[derive(Clone, Debug, Default)]
pub struct PruneSlots(Arc<Mutex<HashMap<ObjectKey, Pruning>>>);

/// A slot, until it is dropped.
#[derive(Debug)]
pub struct PruneSlot {
    of: PruneSlots,
    group: ObjectKey,
    cluster: String,
}

impl PruneSlots {
    /// Takes a slot for a cluster, or shares the one that it has. `free` of them are not in use by the rollout. `None`:
    /// all are in use.
    #[must_use]
    pub fn take(&self, group: &ObjectKey, cluster: &str, free: usize) -> Option<PruneSlot> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pruning = all.entry(group.clone()).or_default();
        let others = pruning.keys().filter(|name| *name != cluster).count();
        let is_free = others < free;
        if is_free {
            *pruning.entry(cluster.to_owned()).or_default() += 1;
        }
        if pruning.is_empty() {
            all.remove(group);
        }
        is_free.then(|| PruneSlot {
            of: self.clone(),
            group: group.clone(),
            cluster: cluster.to_owned(),
        })
    }
}

impl Drop for PruneSlot {
    fn drop(&mut self) {
        let mut all = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pruning) = all.get_mut(&self.group) else {
            return;
        };
        if let Some(count) = pruning.get_mut(&self.cluster) {
            *count = count.saturating_sub(1);
        }
        pruning.retain(|_, count| *count > 0);
        if pruning.is_empty() {
            all.remove(&self.group);
        }
    }
}

/// Returns the slots that the rollout of a group leaves. A cluster that is in flight itself has its slot already.
#[must_use]
pub fn free_slots(objects: &ObjectCaches, group: &SyncGroup, is_in_flight: bool) -> usize {
    let Some(strategy) = strategy(group) else {
        return usize::MAX;
    };
    let status = group.status.as_ref();
    let in_flight = status.map_or(0, |status| status.clusters.progressing as usize);
    let others = in_flight.saturating_sub(usize::from(is_in_flight));
    slots(objects, group, &strategy).saturating_sub(others)
}

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
pub fn why(group: &SyncGroup) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_of_a_cluster_and_ends_with_its_last_prune() {
        let slots = PruneSlots::default();
        let group = ObjectKey::new("fleet", "web");
        assert!(slots.take(&group, "a", 0).is_none());
        let first = slots.take(&group, "a", 1).unwrap();
        let second = slots.take(&group, "a", 1).unwrap();
        assert!(slots.take(&group, "b", 1).is_none());
        assert!(
            slots.take(&ObjectKey::new("fleet", "db"), "b", 1).is_some(),
            "another group"
        );
        drop(first);
        assert!(slots.take(&group, "b", 1).is_none());
        drop(second);
        assert!(slots.take(&group, "b", 1).is_some());
        assert!(slots.0.lock().unwrap().is_empty());
    }
}
