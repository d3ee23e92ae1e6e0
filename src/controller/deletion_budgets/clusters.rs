//! Clusters that leave the selection of their group.

use std::collections::BTreeSet;

use starling_api::{Deletions, SyncGroup, UsedApproval};
use starling_core::deletion_budget::{BudgetClock, BudgetLimits, count_left, leaving, repaired};
use starling_core::ids::ClusterName;

use super::{BudgetContext, DeletionBudgets};
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;

impl DeletionBudgets {
    /// Counts clusters that leave the selection of a group and lose their objects, with one write. Those whose leave is
    /// approved do not count; instead the approved clusters and the record of used approvals are stored.
    ///
    /// # Errors
    /// [`HubError`]: the clusters may not lose their objects.
    pub async fn count_left(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        clusters: &BTreeSet<ClusterName>,
        approved: Option<(BTreeSet<ClusterName>, Vec<UsedApproval>)>,
    ) -> Result<(), HubError> {
        let window = |group: &SyncGroup| BudgetLimits::of_group(group.spec.deletion_budget).window;
        let (jumps, syncs) = (context.clock.jumps(), context.objects.syncs.of_group(key));
        let clock = BudgetClock {
            now: context.now,
            jumps: &jumps,
        };
        self.change(context, key, |group, deletions| match approved {
            _ if clusters
                .iter()
                .all(|cluster| deletions.leaving.iter().any(|left| left == cluster)) => {}
            Some((names, used)) => {
                deletions.leaving = leaving(names);
                deletions.used = used;
            }
            None => {
                let of = syncs.clusters().count();
                for cluster in clusters {
                    count_left(deletions, cluster, window(group), of, clock);
                }
            }
        })
        .await
    }

    /// Stores the counts of a group without times that lie ahead: the clock was wrong when they were written. They
    /// would otherwise count from each pass on, and never leave the window.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn repair(&self, context: BudgetContext<'_>, group: &SyncGroup) -> Result<(), HubError> {
        let (now, jumps) = (context.now, context.clock.jumps());
        let repaired = |group: &SyncGroup, deletions: &Deletions| {
            let window = BudgetLimits::of_group(group.spec.deletion_budget).window;
            repaired(window, &deletions.counts, BudgetClock { now, jumps: &jumps })
        };
        let deletions = group.status.as_ref().and_then(|status| status.deletions.as_ref());
        if deletions.is_none_or(|deletions| repaired(group, deletions).is_none()) {
            return Ok(());
        }
        self.change(context, &ObjectKey::of(group), |group, deletions| {
            if let Some(counts) = repaired(group, deletions) {
                deletions.counts = counts;
            }
        })
        .await
    }

    /// Forgets the counted and approved clusters that have left or are selected again: to leave again, they count
    /// again, and need another approval. `used` replaces the record of used approvals.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn forget_left(
        &self,
        context: BudgetContext<'_>,
        key: &ObjectKey,
        lost: &BTreeSet<ClusterName>,
        used: Option<Vec<UsedApproval>>,
    ) -> Result<(), HubError> {
        let keep = |_: &SyncGroup, deletions: &mut Deletions| {
            deletions.leaving.retain(|name| lost.contains(name.as_str()));
            deletions.used = used.unwrap_or_else(|| std::mem::take(&mut deletions.used));
        };
        self.change(context, key, keep).await
    }
}
