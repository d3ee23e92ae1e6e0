//! Clusters that leave the selection of their group. They have counts of their own: how many leave, and not what they
//! lose.

use std::time::Duration;

use jiff::Timestamp;
use starling_api::{DeletionCount, Deletions};

use super::counts::{added, current, ends_at};
use super::{BudgetClock, DeletionRequest};

/// The bytes of the names of clusters that are leaving: some 8,000 names of usual length, in an object of at most
/// 1.5 MB.
const LEAVING: usize = 200_000;

/// Counts a cluster that leaves the selection of its group, unless its leave was counted or approved before: what
/// follows the count may fail, and is then repeated.
pub fn count_left(
    deletions: &mut Deletions,
    cluster: &str,
    window: Duration,
    of_clusters: usize,
    clock: BudgetClock<'_>,
) {
    if deletions.leaving.iter().any(|name| name == cluster) {
        return;
    }
    deletions.counts = with_left(window, &deletions.counts, of_clusters, clock);
    let names = std::mem::take(&mut deletions.leaving);
    deletions.leaving = leaving(names.into_iter().chain([cluster.to_owned()]));
}

/// Returns the names of clusters that are leaving, as status records them: those that fit. One that does not fit counts
/// again if its leave is repeated, and needs another approval if it was approved.
pub fn leaving(names: impl IntoIterator<Item: Into<String>>) -> Vec<String> {
    let mut left = LEAVING;
    let fits = |name: &String| {
        left = left.saturating_sub(name.len() + 3);
        left > 0
    };
    let mut names: Vec<String> = names.into_iter().map(Into::into).take_while(fits).collect();
    names.sort();
    names
}

/// Returns the counts with one more cluster that left the selection of its group.
#[must_use]
pub(super) fn with_left(
    window: Duration,
    counted: &[DeletionCount],
    of_clusters: usize,
    clock: BudgetClock<'_>,
) -> Vec<DeletionCount> {
    let request = DeletionRequest {
        of_clusters,
        ..DeletionRequest::default()
    };
    let mut counts = added(window, current(window, counted, clock), request, 0, clock);
    if let Some(last) = counts.last_mut() {
        last.left = last.left.saturating_add(1);
    }
    counts
}

/// The clusters that left the selection of a group within the window, and whose objects were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Their number.
    pub clusters: usize,
    /// When the first of them no longer count; `None`: there are none.
    pub until: Option<Timestamp>,
}

/// Returns the clusters that left the selection of a group within the window.
#[must_use]
pub fn left<'c>(window: Duration, counted: &[DeletionCount], clock: impl Into<BudgetClock<'c>>) -> Left {
    let clock = clock.into();
    let counted = current(window, counted, clock);
    Left {
        clusters: counted.iter().map(|count| count.left as usize).sum(),
        until: counted
            .iter()
            .find(|count| count.left > 0)
            .and_then(|count| ends_at(window, count, clock)),
    }
}
