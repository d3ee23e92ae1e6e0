//! Deletions that the budget of the group would hold, judged by the functions that the controller uses.
//!
//! The clusters are judged in the order of their names, and as if they deleted now. The budget of the installation is a
//! flag of the controller, and counts Syncs that the caller may not read: it is not judged, and the output says so.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_core::apply::{Confirmation, HeldDeletions, PruneBlocker};
use starling_core::deletion_budget::{BudgetClock, BudgetLimits, has_deleted};
use starling_core::deletion_forecast::{DeletionForecast, ObjectTotals};
use starling_core::inventory::InventoryEntry;
use starling_core::object::ObjectId;
use starling_core::preview::{ClusterPreview, PreviewChange};

use super::dry_run::report_blocker;
use super::group::GroupScope;

/// The note on clusters with deletions.
const NOT_JUDGED: &str = "deletions are not compared with the budget of the installation (flag --deletion-budget of the controller), which \
     may hold them";

/// Replaces deletions that the budget of the group does not allow by what they wait for.
pub(super) fn hold(
    scope: &GroupScope,
    release: &str,
    now: Timestamp,
    previews: &mut BTreeMap<String, ClusterPreview>,
) {
    let clock = BudgetClock::from(now);
    let limits = BudgetLimits::of_group(scope.group.spec.deletion_budget);
    let mut forecast = DeletionForecast::new(limits, counts(scope), totals(scope), clock);
    for (cluster, preview) in previews {
        let syncs = || scope.syncs.iter().filter(|((on, _), _)| on == cluster);
        let deletions =
            |sync: &SyncResource| sync.status.as_ref().and_then(|status| status.deletions.clone());
        let is_new = !syncs().any(|(_, sync)| has_deleted(deletions(sync).as_ref(), limits.window, clock));
        let entries: BTreeSet<String> = preview
            .changes
            .iter()
            .map(|change| change.entry.clone())
            .collect();
        for entry in entries {
            let of_entry = || preview.changes.iter().filter(|change| change.entry == entry);
            let keys = |is: fn(&PreviewChange) -> bool| -> Vec<ObjectId> {
                of_entry()
                    .filter(|one| is(&one.change))
                    .map(|one| one.key.clone())
                    .collect()
            };
            let (doomed, created) = (
                keys(|one| *one == PreviewChange::Delete),
                keys(|one| *one == PreviewChange::Create),
            );
            let doomed: Vec<InventoryEntry> = doomed
                .into_iter()
                .map(|key| InventoryEntry::new(key, ""))
                .collect();
            let subject = scope.subject(&entry, release);
            let sync = scope.syncs.get(&(cluster.clone(), entry.clone()));
            let is_approved = scope.approvals(sync).approve(&subject.digest(&doomed));
            if doomed.is_empty() || is_approved {
                continue;
            }
            let Some(excess) = forecast.judge(cluster, doomed.len(), created.len(), is_new) else {
                continue;
            };
            let status = sync.and_then(|sync| sync.status.as_ref());
            let of = status.map_or(doomed.len(), |status| status.inventory.objects as usize);
            let held = HeldDeletions::new(subject, &doomed, of, Confirmation::default(), Some(excess));
            preview
                .changes
                .retain(|change| change.entry != entry || change.change != PreviewChange::Delete);
            report_blocker(preview, &entry, &scope.arguments(), &PruneBlocker::Budget(held));
        }
    }
}

/// Says on each cluster with deletions that one budget was not asked.
pub(super) fn note_installation(previews: &mut BTreeMap<String, ClusterPreview>) {
    let deletes = |preview: &&mut ClusterPreview| {
        preview
            .changes
            .iter()
            .any(|one| one.change == PreviewChange::Delete)
    };
    for preview in previews.values_mut().filter(deletes) {
        preview.notes.push(NOT_JUDGED.to_owned());
    }
}

fn counts(scope: &GroupScope) -> &[starling_api::DeletionCount] {
    let status = scope.group.status.as_ref();
    let deletions = status.and_then(|status| status.deletions.as_ref());
    deletions.map_or(&[], |deletions| &deletions.counts)
}

fn totals(scope: &GroupScope) -> ObjectTotals {
    let syncs = scope.syncs.iter();
    ObjectTotals::of(syncs.map(|((cluster, _), sync)| (cluster.as_str(), sync.status.as_ref())))
}

impl GroupScope {
    /// The arguments of `starling approve-deletions` that name the group.
    pub(super) fn arguments(&self) -> String {
        let namespace = self.group.namespace().unwrap_or_default();
        format!("group {} -n {namespace}", self.group.name_any())
    }
}

#[cfg(test)]
mod tests {
    use starling_core::preview::ObjectChange;

    use super::*;

    /// A plan without a word about the budget of the installation announced deletions that the controller then held.
    #[test]
    fn clusters_with_deletions_say_that_the_budget_of_the_installation_is_not_judged() {
        let with = |change| ClusterPreview {
            changes: vec![ObjectChange {
                entry: "app".to_owned(),
                key: ObjectId {
                    group: String::new(),
                    kind: "ConfigMap".to_owned(),
                    namespace: "shop".to_owned(),
                    name: "old".to_owned(),
                },
                change,
            }],
            ..ClusterPreview::default()
        };
        let mut previews = BTreeMap::from([
            ("a".to_owned(), with(PreviewChange::Delete)),
            ("b".to_owned(), with(PreviewChange::Create)),
        ]);
        note_installation(&mut previews);
        assert_eq!(previews["a"].notes, [NOT_JUDGED]);
        assert!(previews["b"].notes.is_empty());
    }
}
