//! Deletion budgets: whether deletions are within the limits of a Sync, of its group and of the installation, counted
//! over a sliding window of time (ADR 42).
//!
//! Every path by which objects are deleted asks here before the first delete is sent, and stores the counts first.
//! Deletions that a person approved are neither limited nor counted.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{DeletionBudget, DeletionCount, Deletions, IntOrPercent};

use crate::clock_jumps::ClockJumps;
use crate::deletion_grant::Granted;

/// A group without a limit of its own may always lose this many objects: a small application is quickly recreated, and
/// people delete one every day.
const LEAST_OBJECTS: usize = 100;
/// The default share of the objects of a group.
const DEFAULT_OBJECTS: IntOrPercent = IntOrPercent::Percent(50);
/// A window has this many counts in status. More would make it more precise, and status larger.
const COUNTS: u32 = 12;
/// The names of clusters that are recorded: as many as fit into some 50 kB. Of more, a cluster may count again, which
/// holds rather than frees.
const NAMES: usize = 1000;

/// The bytes of the names of clusters that are leaving: some 8,000 names of usual length, in an object of at most
/// 1.5 MB.
const LEAVING: usize = 200_000;

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

/// A limit of a number of objects or clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    None,
    /// This number or share.
    At(IntOrPercent),
    /// This share, but at least this number.
    AtLeast(IntOrPercent, usize),
}

impl Limit {
    fn of(self, total: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::At(limit) => Some(limit.of_rounded_down(total)),
            Self::AtLeast(limit, least) => Some(limit.of_rounded_down(total).max(least)),
        }
    }
}

/// The owner of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetScope {
    /// One Sync.
    Sync,
    /// All Syncs of a group.
    SyncGroup,
    /// All Syncs of the installation.
    Installation,
}

impl fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "the Sync",
            Self::SyncGroup => "the SyncGroup",
            Self::Installation => "the installation (--deletion-budget)",
        })
    }
}

/// The limits of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// The owner of the budget.
    pub scope: BudgetScope,
    /// The limit of objects.
    pub objects: Limit,
    /// The limit of clusters.
    pub clusters: Limit,
    /// The length of the window.
    pub window: Duration,
}

impl BudgetLimits {
    /// Returns the limits of a Sync. The default has none: a Sync that is deleted loses all of its objects, and a prune
    /// of more than half of them requires an approval anyway ([`crate::apply::budget`]).
    #[must_use]
    pub fn of_sync(budget: Option<DeletionBudget>) -> Self {
        Self::of(BudgetScope::Sync, budget, Limit::None)
    }

    /// Returns the limits of a group.
    #[must_use]
    pub fn of_group(budget: Option<DeletionBudget>) -> Self {
        let default = Limit::AtLeast(DEFAULT_OBJECTS, LEAST_OBJECTS);
        Self::of(BudgetScope::SyncGroup, budget, default)
    }

    fn of(scope: BudgetScope, budget: Option<DeletionBudget>, default: Limit) -> Self {
        let budget = budget.unwrap_or_default();
        Self {
            scope,
            objects: budget.objects.map_or(default, Limit::At),
            clusters: budget.clusters.map_or(Limit::None, Limit::At),
            window: if budget.window.is_zero() {
                // Of an object that is older than the rule: nothing would ever add up.
                DeletionBudget::default().window.as_std()
            } else {
                budget.window.as_std()
            },
        }
    }
}

/// A text that is not a budget of an installation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write numbers such as objects=500,clusters=20,window=1h")]
pub struct BudgetError {
    problem: String,
}

/// The limits of an installation, as `objects=500,clusters=20,window=1h`. Each is optional; one of objects and clusters
/// is required.
impl FromStr for BudgetLimits {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |problem: String| BudgetError { problem };
        let mut limits = Self::of(BudgetScope::Installation, None, Limit::None);
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| bad(format!("{part:?} has no value")))?;
            if seen.contains(&key) {
                return Err(bad(format!("{key} is given twice")));
            }
            seen.push(key);
            let number = || {
                let number = value
                    .parse()
                    .map_err(|_| bad(format!("{key}={value} is no number")))?;
                Ok(Limit::At(IntOrPercent::Int(number)))
            };
            match key {
                "objects" => limits.objects = number()?,
                "clusters" => limits.clusters = number()?,
                "window" => {
                    let window: starling_api::Duration = value
                        .parse()
                        .map_err(|_| bad(format!("window={value} is no duration")))?;
                    if window.is_zero() {
                        return Err(bad("the window has no length".into()));
                    }
                    limits.window = window.as_std();
                }
                _ => return Err(bad(format!("{key:?} is unknown"))),
            }
        }
        if (limits.objects, limits.clusters) == (Limit::None, Limit::None) {
            return Err(bad("no limit of objects or clusters is given".into()));
        }
        Ok(limits)
    }
}

/// Deletions on one cluster that are about to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionRequest<'a> {
    /// The number of objects to delete.
    pub objects: usize,
    /// The name of the cluster. One whose name was counted does not count again.
    pub cluster: &'a str,
    /// Whether the Syncs on the cluster have lost nothing within the window so far.
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
    let names = || counted.iter().flat_map(|count| &count.cluster_names);
    let is_new = is_again || request.is_new_cluster;
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
            let is_named = limits.clusters != Limit::None && clusters > 0 && !request.cluster.is_empty();
            let is_named = is_named && names().count() < NAMES;
            let name = is_named.then(|| request.cluster.to_owned());
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
fn with_left(
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

fn objects(count: &DeletionCount) -> usize {
    count.objects as usize
}

fn clusters_of(count: &DeletionCount) -> usize {
    count.clusters as usize
}

/// Returns the most objects that the scope had within the window, as far as its counts know.
fn most_objects(counted: &[DeletionCount]) -> usize {
    let all = counted.iter().map(|count| count.of_objects as usize);
    all.max().unwrap_or_default()
}

/// Returns a number at the start of the window; `None`: nothing was counted.
fn start(counted: &[DeletionCount], number: fn(&DeletionCount) -> u32) -> Option<usize> {
    counted
        .iter()
        .map(number)
        .find(|number| *number > 0)
        .map(|number| number as usize)
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

/// Returns the counts within the window. A time that lies ahead, because a clock was wrong, is taken for now: the
/// deletions count, and not for longer than a window. So is one that cannot be read.
fn current(window: Duration, counted: &[DeletionCount], clock: BudgetClock<'_>) -> Vec<DeletionCount> {
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

fn time(count: &DeletionCount) -> Option<Timestamp> {
    count.time.parse().ok()
}

/// Returns the time from which a count no longer counts: the last of its deletions was one width after the first.
fn ends_at(window: Duration, count: &DeletionCount, clock: BudgetClock<'_>) -> Option<Timestamp> {
    clock.jumps.due(time(count)?, window + window / COUNTS)
}

/// Returns when so many deletions have left the window that the limit is kept.
fn frees_at(
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
fn added(
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

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn limits(objects: Option<&str>, clusters: Option<&str>) -> BudgetLimits {
        let parse = |text: &str| text.parse().unwrap();
        BudgetLimits::of_group(Some(DeletionBudget {
            objects: objects.map(parse),
            clusters: clusters.map(parse),
            ..DeletionBudget::default()
        }))
    }

    fn request(objects: usize, of_objects: usize) -> DeletionRequest<'static> {
        DeletionRequest {
            cluster: "",
            objects,
            is_new_cluster: true,
            of_objects,
            remaining: Some(0),
            of_clusters: 8,
        }
    }

    fn granted(verdict: BudgetVerdict) -> Vec<DeletionCount> {
        match verdict {
            BudgetVerdict::Granted(counts) => counts,
            BudgetVerdict::Held(excess) => panic!("held: {excess:?}"),
        }
    }

    fn held(verdict: BudgetVerdict) -> Excess {
        match verdict {
            BudgetVerdict::Granted(counts) => panic!("granted: {counts:?}"),
            BudgetVerdict::Held(excess) => excess,
        }
    }

    /// What people do every day goes through, and what empties a fleet does not.
    #[test]
    fn the_default_of_a_group_is_half_of_its_objects_and_at_least_a_hundred() {
        let limits = BudgetLimits::of_group(None);
        for (of, wanted, allowed) in [
            (3, 3, true),
            (100, 100, true),
            (150, 101, false),
            (200, 100, true),
            (1600, 800, true),
            (1600, 801, false),
            (15_000, 500, true),
        ] {
            let verdict = decide(&limits, &[], request(wanted, of), t(0));
            assert_eq!(
                matches!(verdict, BudgetVerdict::Granted(_)),
                allowed,
                "{wanted} of {of}"
            );
        }
        assert_eq!(
            decide(&BudgetLimits::of_sync(None), &[], request(9999, 9999), t(0)),
            BudgetVerdict::Granted(vec![DeletionCount {
                time: t(0).to_string(),
                objects: 9999,
                clusters: 1,
                cluster_names: Vec::new(),
                left: 0,
                of_objects: 9999,
                of_clusters: 8
            }])
        );
    }

    #[test]
    fn deletions_add_up_within_the_window_and_are_freed_after_it() {
        let limits = limits(Some("10"), None);
        let mut counts = granted(decide(&limits, &[], request(4, 100), t(0)));
        counts = granted(decide(&limits, &counts, request(4, 96), t(1800)));
        let excess = held(decide(&limits, &counts, request(3, 92), t(1900)));
        assert_eq!(
            excess.budget,
            "the SyncGroup allows 10 objects within 1h: 8 were deleted, 3 more would be"
        );
        // The first count is as wide as five minutes.
        assert_eq!(excess.until, Some(t(HOUR + 300)));
        let later = granted(decide(&limits, &counts, request(3, 92), t(HOUR + 300)));
        assert_eq!(later.len(), 2, "{later:?}");
        assert!(matches!(
            decide(&limits, &counts, request(3, 92), t(HOUR + 299)),
            BudgetVerdict::Held(_)
        ));
        granted(decide(&limits, &counts, request(2, 92), t(1900)));
    }

    /// Of an installation, only the net loss of each request is known.
    #[test]
    fn net_losses_add_up() {
        let limits: BudgetLimits = "objects=500".parse().unwrap();
        let net = DeletionRequest {
            remaining: None,
            ..request(30, 30)
        };
        let mut counts = Vec::new();
        for second in 0..16 {
            counts = granted(decide(&limits, &counts, net, t(second)));
        }
        let excess = held(decide(&limits, &counts, net, t(16)));
        assert!(
            excess.budget.contains("480 were deleted, 30 more"),
            "{}",
            excess.budget
        );
    }

    #[test]
    fn what_exceeds_the_budget_alone_waits_for_a_person() {
        let limits = limits(Some("10"), None);
        assert_eq!(held(decide(&limits, &[], request(11, 100), t(0))).until, None);
        let none = self::limits(None, Some("0%"));
        assert_eq!(held(decide(&none, &[], request(1, 100), t(0))).until, None);
    }

    /// A window without length would add nothing up.
    #[test]
    fn a_window_without_length_is_an_hour() {
        let limits = BudgetLimits::of_group(Some(DeletionBudget {
            objects: Some("10".parse().unwrap()),
            clusters: None,
            window: starling_api::Duration::from_secs(0),
        }));
        let counts = granted(decide(&limits, &[], request(8, 100), t(0)));
        held(decide(&limits, &counts, request(8, 92), t(60)));
    }

    /// The loss was compared with what the scope had at the first count: after it had grown, each deletion on its own
    /// was within the budget, and all of it could go within the window.
    #[test]
    fn a_scope_that_grows_within_the_window_loses_no_more_than_its_budget() {
        let limits = limits(Some("100"), None);
        let removing = |objects: usize, of: usize| DeletionRequest {
            remaining: Some(of - objects),
            ..request(objects, of)
        };
        for grown_at in [10, 600] {
            let counts = granted(decide(&limits, &[], removing(1, 10), t(0)));
            let counts = granted(decide(&limits, &counts, removing(90, 1000), t(grown_at)));
            held(decide(&limits, &counts, removing(90, 910), t(grown_at + 600)));
            granted(decide(&limits, &counts, removing(9, 910), t(grown_at + 600)));
        }
    }

    #[test]
    fn a_share_is_that_of_the_most_objects_within_the_window() {
        let limits = limits(Some("50%"), None);
        let counts = granted(decide(&limits, &[], request(100, 200), t(0)));
        // Half of the remaining hundred.
        assert!(matches!(
            decide(&limits, &counts, request(50, 100), t(10)),
            BudgetVerdict::Held(_)
        ));
    }

    /// Guards against a hold of what people do every day: names with a hash, which each release replaces.
    #[test]
    fn objects_that_are_replaced_are_no_loss() {
        let limits = limits(Some("50%"), None);
        let mut counts = Vec::new();
        for round in 0..50 {
            // An attempt that was interrupted has the new objects in its inventory already.
            let replacing = DeletionRequest {
                remaining: Some(200),
                ..request(20, if round % 2 == 0 { 200 } else { 220 })
            };
            counts = granted(decide(&limits, &counts, replacing, t(round * 60)));
        }
        let removing = |objects: usize| DeletionRequest {
            remaining: Some(200 - objects),
            ..request(objects, 200)
        };
        granted(decide(&limits, &counts, removing(90), t(3000)));
        held(decide(&limits, &counts, removing(120), t(3000)));
    }

    #[test]
    fn a_cluster_counts_once_and_an_empty_request_is_never_held() {
        let limits = limits(Some("100%"), Some("1"));
        let counts = granted(decide(&limits, &[], request(1, 100), t(0)));
        let again = DeletionRequest {
            is_new_cluster: false,
            ..request(1, 100)
        };
        let counts = granted(decide(&limits, &counts, again, t(10)));
        assert_eq!((counts.len(), counts[0].objects, counts[0].clusters), (1, 2, 1));
        let excess = held(decide(&limits, &counts, request(1, 100), t(20)));
        assert!(
            excess.budget.contains("1 clusters within 1h"),
            "{}",
            excess.budget
        );
        granted(decide(&limits, &counts, request(0, 100), t(20)));
    }

    /// A Sync that is gone has taken along what it deleted, and the cluster has others.
    #[test]
    fn a_cluster_counts_once_although_its_first_sync_is_gone() {
        let limits = limits(Some("100%"), Some("1"));
        let on = |cluster: &'static str| DeletionRequest {
            cluster,
            ..request(1, 100)
        };
        let counts = granted(decide(&limits, &[], on("eu-1"), t(0)));
        let counts = granted(decide(&limits, &counts, on("eu-1"), t(10)));
        assert_eq!(
            (counts[0].clusters, &*counts[0].cluster_names),
            (1, &["eu-1".to_owned()][..])
        );
        held(decide(&limits, &counts, on("eu-2"), t(20)));
        // Without a limit, no names are needed.
        let counts = granted(decide(&BudgetLimits::of_group(None), &[], on("eu-1"), t(0)));
        assert_eq!(counts[0].cluster_names, [""; 0]);
        let many = BudgetLimits::of_group(Some(DeletionBudget {
            clusters: Some("100%".parse().unwrap()),
            ..DeletionBudget::default()
        }));
        let mut counts = Vec::new();
        for number in 0..NAMES + 5 {
            let name = format!("c{number}");
            let request = DeletionRequest {
                cluster: &name,
                of_clusters: 5000,
                ..request(0, 100_000)
            };
            let request = DeletionRequest {
                objects: 1,
                remaining: Some(100_000),
                ..request
            };
            counts = granted(decide(&many, &counts, request, t(i64::try_from(number).unwrap())));
        }
        let names: usize = counts.iter().map(|count| count.cluster_names.len()).sum();
        assert_eq!(names, NAMES);
    }

    /// Guards against a cluster that counted at the time of its first deletion only: when that one left the window, the
    /// later ones counted nowhere, and four clusters lost objects within seconds where three may.
    #[test]
    fn a_cluster_that_deletes_again_counts_from_then_on() {
        let limits = limits(Some("100%"), Some("2"));
        let on = |cluster: &'static str| DeletionRequest {
            cluster,
            ..request(1, 100)
        };
        let counts = granted(decide(&limits, &[], on("eu-1"), t(0)));
        let counts = granted(decide(&limits, &counts, on("eu-1"), t(HOUR - 10)));
        let counts = granted(decide(&limits, &counts, on("eu-2"), t(HOUR - 5)));
        // The first deletion has left the window.
        held(decide(&limits, &counts, on("eu-3"), t(HOUR + HOUR / 4)));
        granted(decide(&limits, &counts, on("eu-1"), t(HOUR + HOUR / 4)));
    }

    /// A clock that is set forward by a window must not refill the budget.
    #[test]
    fn a_jump_of_the_clock_frees_nothing() {
        let limits = limits(Some("10"), None);
        let counts = granted(decide(&limits, &[], request(10, 100), t(0)));
        let mut jumps = ClockJumps::default();
        assert!(jumps.observe(t(60), t(60 + 2 * HOUR), Duration::ZERO));
        let after = BudgetClock {
            now: t(61 + 2 * HOUR),
            jumps: &jumps,
        };
        let excess = held(decide(&limits, &counts, request(1, 90), after));
        assert_eq!(excess.until, Some(t(3 * HOUR + 300)));
        assert_eq!(repaired(limits.window, &counts, after), None);
        let over = BudgetClock {
            now: t(3 * HOUR + 300),
            ..after
        };
        granted(decide(&limits, &counts, request(1, 90), over));
    }

    /// However many deletions there are, status has about as many counts as a window has parts, and none is lost.
    #[test]
    fn the_counts_are_few_and_none_is_freed_early() {
        let limits = limits(Some("100%"), None);
        let mut counts = Vec::new();
        for second in (0..HOUR).step_by(7) {
            let verdict = decide(
                &limits,
                &counts,
                DeletionRequest {
                    of_objects: 100_000,
                    objects: 1,
                    ..DeletionRequest::default()
                },
                t(second),
            );
            counts = granted(verdict);
        }
        assert!(counts.len() <= 13, "{}", counts.len());
        let total: u32 = counts.iter().map(|count| count.objects).sum();
        assert_eq!(i64::from(total), (HOUR + 6) / 7);
    }

    /// A clock that was set far ahead for a moment must neither free nor hold for a year.
    #[test]
    fn a_count_of_the_future_counts_from_now() {
        let limits = limits(Some("10"), None);
        let counts = granted(decide(&limits, &[], request(10, 100), t(365 * 24 * HOUR)));
        assert_eq!(repaired(limits.window, &counts, t(365 * 24 * HOUR)), None);
        let counts = repaired(limits.window, &counts, t(0)).unwrap();
        let excess = held(decide(&limits, &counts, request(1, 100), t(10)));
        assert_eq!(excess.until, Some(t(HOUR + 300)));
        let unreadable = [DeletionCount {
            time: "yesterday".into(),
            ..counts[0].clone()
        }];
        held(decide(&limits, &unreadable, request(1, 100), t(0)));
    }

    #[test]
    fn clusters_that_left_are_counted_on_their_own() {
        let window = Duration::from_secs(3600);
        let counts = with_left(window, &[], 8, t(0).into());
        let counts = with_left(window, &counts, 7, t(900).into());
        let both = Left {
            clusters: 2,
            until: Some(t(HOUR + 300)),
        };
        assert_eq!(left(window, &counts, t(1000)), both);
        assert_eq!(left(window, &counts, t(HOUR + 400)).clusters, 1);
        assert_eq!(left(window, &counts, t(3 * HOUR)), Left::default());
        let counts = granted(decide(
            &BudgetLimits::of_group(None),
            &counts,
            request(5, 40),
            t(900),
        ));
        assert_eq!(
            (
                counts.len(),
                counts[1].left,
                counts[1].objects,
                counts[1].of_objects
            ),
            (2, 1, 5, 40)
        );
    }

    #[test]
    fn the_flag_of_the_controller_is_checked() {
        let limits: BudgetLimits = "objects=500,clusters=20,window=30m".parse().unwrap();
        assert_eq!(
            (limits.scope, limits.objects, limits.clusters, limits.window),
            (
                BudgetScope::Installation,
                Limit::At(IntOrPercent::Int(500)),
                Limit::At(IntOrPercent::Int(20)),
                Duration::from_secs(1800)
            )
        );
        for (text, problem) in [
            ("", "has no value"),
            ("objects", "has no value"),
            ("objects=50%", "is no number"),
            ("objects=1,objects=2", "given twice"),
            ("window=1h", "no limit"),
            ("objects=1,window=0s", "no length"),
            ("objects=1,window=soon", "no duration"),
            ("object=1", "unknown"),
        ] {
            let error = text.parse::<BudgetLimits>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    /// Status must not grow without bounds, and a name that is dropped counts again: it frees nothing.
    #[test]
    fn the_names_of_clusters_that_leave_are_limited() {
        let name = |n: usize| format!("{n:05}-{}", "x".repeat(200));
        let names = leaving((0..5000).map(name));
        let bytes: usize = names.iter().map(String::len).sum();
        assert!((190_000..=200_000).contains(&bytes), "{bytes}");
        assert!(names.is_sorted() && names[0] == name(0));
        let mut deletions = Deletions {
            leaving: names.clone(),
            ..Deletions::default()
        };
        let now: Timestamp = "2026-07-01T08:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        count_left(&mut deletions, &name(9999), hour, 5000, now.into());
        assert!(deletions.leaving == names, "another name fits");
        assert_eq!(left(hour, &deletions.counts, now).clusters, 1);
        let few = ["b", "a"].map(str::to_owned);
        assert_eq!(leaving(few), ["a", "b"]);
    }
}
