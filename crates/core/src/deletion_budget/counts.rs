//! The counts of deletions that status has: what of them is within the window, and when it no longer is.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::DeletionCount;

use super::{BudgetClock, DeletionRequest};

/// A window has this many counts in status. More would make it more precise, and status larger.
const COUNTS: u32 = 12;

pub(super) fn objects(count: &DeletionCount) -> usize {
    count.objects as usize
}

pub(super) fn clusters_of(count: &DeletionCount) -> usize {
    count.clusters as usize
}

/// Returns the most objects that the scope had within the window, as far as its counts know.
pub(super) fn most_objects(counted: &[DeletionCount]) -> usize {
    let all = counted.iter().map(|count| count.of_objects as usize);
    all.max().unwrap_or_default()
}

/// Returns a number at the start of the window; `None`: nothing was counted.
pub(super) fn start(counted: &[DeletionCount], number: fn(&DeletionCount) -> u32) -> Option<usize> {
    counted
        .iter()
        .map(number)
        .find(|number| *number > 0)
        .map(|number| number as usize)
}

/// Returns the counts within the window. A time that lies ahead, because a clock was wrong, is taken for now: the
/// deletions count, and not for longer than a window. So is one that cannot be read.
pub(super) fn current(
    window: Duration,
    counted: &[DeletionCount],
    clock: BudgetClock<'_>,
) -> Vec<DeletionCount> {
    let now = clock.now;
    let counts = counted.iter().map(|count| {
        let is_past = time(count).is_some_and(|time| time <= now);
        DeletionCount {
            time: if is_past {
                count.time.clone()
            } else {
                now.to_string()
            },
            ..count.clone()
        }
    });
    counts
        .filter(|count| ends_at(window, count, clock).is_none_or(|end| end > now))
        .collect()
}

pub(super) fn time(count: &DeletionCount) -> Option<Timestamp> {
    count.time.parse().ok()
}

/// Returns the time from which a count no longer counts: the last of its deletions was one width after the first.
pub(super) fn ends_at(window: Duration, count: &DeletionCount, clock: BudgetClock<'_>) -> Option<Timestamp> {
    clock.jumps.due(time(count)?, window + window / COUNTS)
}

/// Returns when so many deletions have left the window that the limit is kept.
pub(super) fn frees_at(
    window: Duration,
    counted: &[DeletionCount],
    number: fn(&DeletionCount) -> usize,
    total: usize,
    limit: usize,
    clock: BudgetClock<'_>,
) -> Option<Timestamp> {
    let mut total = total;
    for count in counted {
        total = total.saturating_sub(number(count));
        if total <= limit {
            return ends_at(window, count, clock);
        }
    }
    None
}

/// Adds a request to the counts: to the last one, if its time is close enough.
pub(super) fn added(
    window: Duration,
    mut counts: Vec<DeletionCount>,
    request: DeletionRequest<'_>,
    clusters: usize,
    clock: BudgetClock<'_>,
) -> Vec<DeletionCount> {
    let now = clock.now;
    let narrow = |number| u32::try_from(number).unwrap_or(u32::MAX);
    let width = SignedDuration::try_from(window / COUNTS).unwrap_or(SignedDuration::MAX);
    let is_close = |count: &DeletionCount| time(count).is_some_and(|time| now.duration_since(time) < width);
    if !counts.last().is_some_and(is_close) {
        counts.push(DeletionCount {
            time: now.to_string(),
            of_objects: narrow(request.of_objects),
            of_clusters: narrow(request.of_clusters),
            ..DeletionCount::default()
        });
    }
    if let Some(last) = counts.last_mut() {
        last.objects = last.objects.saturating_add(narrow(request.objects));
        last.clusters = last.clusters.saturating_add(narrow(clusters));
        // A cluster that left was counted before its objects were, and the scope may have grown since.
        last.of_objects = last.of_objects.max(narrow(request.of_objects));
    }
    counts
}
