//! Losses of clusters that leave a group, judged together before the first of them is counted (ADR 42).
//!
//! Each cluster alone may be within the budget, and all of them are not. A cluster whose Syncs are deleted already
//! cannot be saved by its labels, so the budget is asked before.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::{DeletionCount, SyncStatus};

use crate::deletion_budget::{BudgetClock, BudgetLimits, BudgetVerdict, DeletionRequest, Excess, decide};
use crate::deletion_grant::objects_after;

/// The objects of a group before a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectTotals {
    /// The number of objects in the inventories.
    pub objects: usize,
    /// The number of objects without those whose deletion is in progress: [`crate::deletion_grant::objects_after`].
    pub remaining: usize,
    /// The number of clusters.
    pub clusters: usize,
}

impl ObjectTotals {
    /// Returns the totals of the Syncs of a group: the name of the cluster and the status of each of them.
    pub fn of<'a>(syncs: impl IntoIterator<Item = (&'a str, Option<&'a SyncStatus>)>) -> Self {
        let (mut totals, mut clusters) = (Self::default(), BTreeSet::new());
        for (cluster, status) in syncs {
            clusters.insert(cluster);
            let listed = status.map_or(0, |status| status.inventory.objects as usize);
            let deletions = status.and_then(|status| status.deletions.as_ref());
            totals.objects += listed;
            totals.remaining += objects_after(listed, deletions);
        }
        totals.clusters = clusters.len();
        totals
    }
}

/// The budget of a group after the losses that were judged so far.
#[derive(Clone, Debug)]
pub struct DeletionForecast<'a> {
    limits: BudgetLimits,
    counts: Vec<DeletionCount>,
    of: ObjectTotals,
    /// Whether a loss was added to the stored counts.
    has_added: bool,
    clock: BudgetClock<'a>,
}

impl<'a> DeletionForecast<'a> {
    /// Creates the forecast of a pass from the stored counts.
    #[must_use]
    pub fn new(
        limits: BudgetLimits,
        counted: &[DeletionCount],
        of: ObjectTotals,
        clock: BudgetClock<'a>,
    ) -> Self {
        Self {
            limits,
            counts: counted.to_vec(),
            of,
            has_added: false,
            clock,
        }
    }

    /// Judges the loss of a cluster after those before it. Returns when the budget allows it; `None`: now, or not
    /// without an approval. What the budget does not allow now does not count for those that follow.
    pub fn lose(&mut self, cluster: &str, objects: usize, is_new_cluster: bool) -> Option<Timestamp> {
        let until = self.judge(cluster, objects, 0, is_new_cluster)?.until;
        until.map(|until| {
            if self.has_added {
                self.rounded(until)
            } else {
                until
            }
        })
    }

    /// Judges deletions on a cluster after those before them, with the objects that the same attempt creates. Returns
    /// why the budget does not allow them; `None`: it does.
    pub fn judge(
        &mut self,
        cluster: &str,
        objects: usize,
        created: usize,
        is_new_cluster: bool,
    ) -> Option<Excess> {
        let remaining = (self.of.remaining + created).saturating_sub(objects);
        let request = DeletionRequest {
            objects,
            cluster,
            is_new_cluster,
            of_objects: self.of.objects,
            remaining: Some(remaining),
            of_clusters: self.of.clusters,
        };
        match decide(&self.limits, &self.counts, request, self.clock) {
            BudgetVerdict::Granted(counts) => {
                self.counts = counts;
                self.of.remaining = remaining;
                self.has_added = true;
                None
            }
            BudgetVerdict::Held(excess) => Some(excess),
        }
    }

    /// Rounds a time up to a twelfth of the window. What was not counted yet would count from now, and each pass would
    /// have another time to report.
    fn rounded(&self, until: Timestamp) -> Timestamp {
        let width = i64::try_from(self.limits.window.as_millis() / 12).unwrap_or(i64::MAX);
        let millis = until.as_millisecond();
        let over = millis.rem_euclid(width.max(1));
        let up = if over == 0 { 0 } else { width - over };
        Timestamp::from_millisecond(millis.saturating_add(up)).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use starling_api::DeletionBudget;

    use super::*;

    fn forecast(objects: &str, clusters: Option<&str>) -> DeletionForecast<'static> {
        let limits = BudgetLimits::of_group(Some(DeletionBudget {
            objects: Some(objects.parse().unwrap()),
            clusters: clusters.map(|clusters| clusters.parse().unwrap()),
            ..DeletionBudget::default()
        }));
        let of = ObjectTotals {
            objects: 320,
            remaining: 320,
            clusters: 8,
        };
        DeletionForecast::new(limits, &[], of, Timestamp::UNIX_EPOCH.into())
    }

    /// Guards against clusters that leave in one pass, each of which is compared with the stored counts only.
    #[test]
    fn clusters_that_exceed_the_budget_together_leave_one_after_another() {
        let mut forecast = forecast("100", None);
        assert_eq!(forecast.lose("a", 40, true), None);
        assert_eq!(forecast.lose("b", 40, true), None);
        let until = forecast.lose("c", 40, true).expect("the third one waits");
        assert!(until > Timestamp::UNIX_EPOCH);
        assert_eq!(forecast.lose("d", 20, true), None, "a smaller one fits");
        assert_eq!(
            forecast.lose("e", 101, true),
            None,
            "what exceeds the budget alone waits for a person at its Sync"
        );
    }

    /// Passes that follow each other must not report other times.
    #[test]
    fn the_time_is_stable_while_nothing_is_counted() {
        let until = |second: i64| {
            let mut forecast = forecast("50", None);
            forecast.clock.now = Timestamp::from_second(second).unwrap();
            forecast.lose("a", 40, true);
            forecast.lose("b", 40, true).unwrap()
        };
        assert_eq!(until(10), until(250));
        assert!(until(310) > until(250));
        assert!(until(250) >= Timestamp::from_second(250 + 3600).unwrap());
    }

    #[test]
    fn clusters_count_too() {
        let mut forecast = forecast("100%", Some("2"));
        assert_eq!(forecast.lose("a", 1, true), None);
        assert_eq!(forecast.lose("a", 1, true), None, "the same cluster");
        assert_eq!(forecast.lose("b", 1, true), None);
        assert!(forecast.lose("c", 1, true).is_some());
    }
}
