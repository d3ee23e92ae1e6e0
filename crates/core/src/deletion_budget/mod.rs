//! Deletion budgets: whether deletions are within the limits of a Sync, of its group and of the installation, counted
//! over a sliding window of time (ADR 42).
//!
//! Every path by which objects are deleted asks here before the first delete is sent, and stores the counts first.
//! Deletions that a person approved are neither limited nor counted.

mod counts;
mod left;
mod limits;

use std::time::Duration;

use jiff::Timestamp;
use starling_api::{DeletionCount, Deletions};

pub use self::left::{Left, count_left, leaving, left};
pub use self::limits::{BudgetError, BudgetLimits, BudgetScope, Limit};

use self::counts::{added, clusters_of, current, frees_at, most_objects, objects, start, time};
use crate::clock_jumps::ClockJumps;
use crate::deletion_grant::Granted;

/// The names of clusters that are recorded: as many as fit into some 50 kB. Of more, a cluster may count again, which
/// holds rather than frees.
const NAMES: usize = 1000;

static NO_JUMPS: ClockJumps = ClockJumps::none();

/// The time, and the jumps of the clock. If it is set forward, the deletions of the last hour were not longer ago.
#[derive(Clone, Copy, Debug)]
pub struct BudgetClock<'a> {
    /// The time.
    pub now: Timestamp,
    /// The jumps that the process has seen.
    pub jumps: &'a ClockJumps,
}

impl From<Timestamp> for BudgetClock<'static> {
    /// Returns a clock without jumps.
    fn from(now: Timestamp) -> Self {
        Self {
            now,
            jumps: &NO_JUMPS,
        }
    }
}

/// Deletions on one cluster that are about to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionRequest<'a> {
    /// The number of objects to delete.
    pub objects: usize,
    /// The name of the cluster. One whose name was counted does not count again.
    pub cluster: &'a str,
    /// Whether the Syncs on the cluster have lost nothing within the window so far, as far as their own counts know.
    /// Counts only where no names are recorded.
    pub is_new_cluster: bool,
    /// The number of objects in the scope now.
    pub of_objects: usize,
    /// The number of objects in the scope afterwards, with those that the same attempt creates; `None`: it is not
    /// known, and `objects` is the net loss.
    pub remaining: Option<usize>,
    /// The number of clusters in the scope now.
    pub of_clusters: usize,
}

/// The decision about deletions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// The deletions are within the limits. To be stored before they are sent.
    Granted(Vec<DeletionCount>),
    /// The deletions exceed a limit.
    Held(Excess),
}

/// Deletions that exceed a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The budget and what counts against it, for people.
    pub budget: String,
    /// When the budget allows the deletions; `None`: never, so that they need an approval.
    pub until: Option<Timestamp>,
}

/// Decides whether deletions are within the limits of a scope, after those that were counted before.
///
/// Objects that were replaced are no loss: each release of an application whose ConfigMaps have a hash in their names
/// deletes some of them and creates as many.
#[must_use]
pub fn decide<'c>(
    limits: &BudgetLimits,
    counted: &[DeletionCount],
    request: DeletionRequest<'_>,
    clock: impl Into<BudgetClock<'c>>,
) -> BudgetVerdict {
    let clock = clock.into();
    let mut counted = current(limits.window, counted, clock);
    // What went within the window is not there any more, and the scope may have grown since the first count.
    let of_objects = most_objects(&counted).max(request.of_objects);
    let of_clusters = start(&counted, |count| count.of_clusters).unwrap_or(request.of_clusters);
    // A cluster that was counted counts from now on: its earlier deletion leaves the window before this one does.
    let is_again = request.objects > 0 && take_cluster(&mut counted, request.cluster);
    let names = counted
        .iter()
        .map(|count| count.cluster_names.len())
        .sum::<usize>();
    let has_names = limits.clusters != Limit::None && !request.cluster.is_empty() && names < NAMES;
    // Without a name in the counts, none of its deletions counts any more, whatever the counts of its Syncs say: theirs
    // begin later, and leave the window later.
    let is_new = is_again || has_names || request.is_new_cluster;
    let clusters = usize::from(is_new && request.objects > 0);
    let kinds = [
        (
            "objects",
            limits.objects.of(of_objects),
            request.objects,
            objects as fn(&DeletionCount) -> usize,
        ),
        ("clusters", limits.clusters.of(of_clusters), clusters, clusters_of),
    ];
    let mut excess: Option<Excess> = None;
    for (what, limit, wanted, number) in kinds {
        let Some(limit) = limit.filter(|_| wanted > 0) else {
            continue;
        };
        let before: usize = counted.iter().map(number).sum();
        let lost = match request.remaining {
            Some(remaining) if what == "objects" => of_objects.saturating_sub(remaining),
            _ => usize::MAX,
        };
        if lost.min(before + wanted) <= limit {
            continue;
        }
        let until = frees_at(limits.window, &counted, number, before + wanted, limit, clock);
        let found = Excess {
            budget: format!(
                "{} allows {limit} {what} within {}: {before} were deleted, {wanted} more would be",
                limits.scope,
                starling_api::Duration::from(limits.window)
            ),
            until,
        };
        excess = Some(match excess {
            Some(known) if is_later(known.until, found.until) => known,
            _ => found,
        });
    }
    match excess {
        Some(excess) => BudgetVerdict::Held(excess),
        None => {
            let name = (has_names && clusters > 0).then(|| request.cluster.to_owned());
            let mut counts = added(limits.window, counted, request, clusters, clock);
            if let Some(last) = counts.last_mut() {
                last.cluster_names.extend(name);
            }
            BudgetVerdict::Granted(counts)
        }
    }
}

/// Removes a cluster from the counts. Returns whether it was counted under its name.
fn take_cluster(counted: &mut [DeletionCount], cluster: &str) -> bool {
    let is_named = |count: &&mut DeletionCount| count.cluster_names.iter().any(|name| name == cluster);
    let Some(count) = counted.iter_mut().find(is_named) else {
        return false;
    };
    count.cluster_names.retain(|name| name != cluster);
    count.clusters = count.clusters.saturating_sub(1);
    true
}

/// Returns the counts without times that lie ahead or cannot be read; `None` if there are none. To be stored: the
/// counts would otherwise start anew whenever they are read.
#[must_use]
pub fn repaired<'c>(
    window: Duration,
    counted: &[DeletionCount],
    clock: impl Into<BudgetClock<'c>>,
) -> Option<Vec<DeletionCount>> {
    let clock = clock.into();
    let is_wrong = |count: &DeletionCount| time(count).is_none_or(|time| time > clock.now);
    counted
        .iter()
        .any(is_wrong)
        .then(|| current(window, counted, clock))
}

/// The deletions of a Sync within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier<'a> {
    /// The number of objects that were deleted.
    pub deleted: usize,
    /// The number of objects before the first of them; 0 if none was deleted.
    pub of: usize,
    /// The deletions at this target that were allowed: what remains of them is not decided again. `None`: none.
    pub granted: Option<&'a Granted>,
}

impl<'a> Earlier<'a> {
    /// Returns the deletions of a Sync within its window, before it prunes for the target of `granted`.
    #[must_use]
    pub fn of(
        deletions: Option<&Deletions>,
        window: Duration,
        granted: &'a Granted,
        clock: BudgetClock<'_>,
    ) -> Self {
        let Some(deletions) = deletions else {
            return Self::default();
        };
        let counted = current(window, &deletions.counts, clock);
        Self {
            deleted: counted.iter().map(objects).sum(),
            of: start(&counted, |count| count.of_objects).unwrap_or_default(),
            granted: Some(granted),
        }
    }
}

/// Reports whether a Sync has deleted objects within a window.
#[must_use]
pub fn has_deleted(deletions: Option<&Deletions>, window: Duration, clock: BudgetClock<'_>) -> bool {
    deletions.is_some_and(|deletions| {
        let counted = current(window, &deletions.counts, clock);
        counted.iter().any(|count| count.objects > 0)
    })
}

/// Reports whether the first time is later. `None` is never.
#[must_use]
pub fn is_later(first: Option<Timestamp>, second: Option<Timestamp>) -> bool {
    match (first, second) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(first), Some(second)) => first > second,
    }
}

#[cfg(test)]
mod tests;
