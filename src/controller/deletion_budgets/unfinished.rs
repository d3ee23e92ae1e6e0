//! Requests that failed after some of their budgets were written.
//!
//! The grant of a Sync is written last, and is the record that its deletions were counted. A Sync whose status cannot
//! be written would otherwise use up the budgets of its group and of the installation with its retries. After a restart
//! they count once more: deletions that were not sent, never the reverse.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_core::clock_jumps::is_far_ahead;
use starling_core::deletion_budget::{BudgetLimits, BudgetScope};
use starling_core::deletion_grant::Granted;
use starling_core::digest;
use starling_core::object::ObjectId;

use super::SyncDeletions;
use crate::controller::object_key::ObjectKey;

/// The objects that a request counts, as a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List(String);

impl List {
    pub(super) fn of(sync: &SyncResource, deletions: SyncDeletions<'_>, granted: &Granted) -> Self {
        let begin = deletions.begin.iter().filter(|key| !granted.has(key));
        let begin: BTreeSet<&ObjectId> = begin.collect();
        Self(digest::of(&(sync.uid(), deletions.target, begin)))
    }
}

/// The unfinished requests, at most one for each Sync.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<HashMap<ObjectKey, Request>>);

#[derive(Debug)]
struct Request {
    list: List,
    /// The number of objects of the Sync after the deletions.
    remaining: usize,
    /// The scopes that counted it.
    scopes: BTreeMap<BudgetScope, Window>,
}

/// When a scope counted a request, and until when it does.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Timestamp,
    until: Timestamp,
}

impl Window {
    /// Reports whether the request counts. A clock that was wrong when it was counted proves nothing.
    fn is_open(self, now: Timestamp) -> bool {
        self.until > now && !is_far_ahead(self.since, now)
    }
}

impl Unfinished {
    /// Returns the scopes that have counted a list and still do.
    pub(super) fn counted(&self, sync: &ObjectKey, list: &List, now: Timestamp) -> BTreeSet<BudgetScope> {
        let requests = self.lock();
        let Some(request) = requests.get(sync).filter(|request| request.list == *list) else {
            return BTreeSet::new();
        };
        let counting = request.scopes.iter().filter(|(_, window)| window.is_open(now));
        counting.map(|(scope, _)| *scope).collect()
    }

    /// Returns the number of objects that a Sync will have after a list that a scope has counted: a retry deletes it
    /// without another decision.
    pub(super) fn remaining(&self, sync: &ObjectKey, scope: BudgetScope, now: Timestamp) -> Option<usize> {
        let requests = self.lock();
        let request = requests.get(sync)?;
        let counts = request
            .scopes
            .get(&scope)
            .is_some_and(|window| window.is_open(now));
        counts.then_some(request.remaining)
    }

    /// Records that a scope has counted a list, after which the Sync has so many objects.
    pub(super) fn note(
        &self,
        sync: &ObjectKey,
        (list, remaining): (&List, usize),
        limits: &BudgetLimits,
        now: Timestamp,
    ) {
        let mut requests = self.lock();
        // Syncs that do not exist any more.
        requests.retain(|_, request| request.scopes.values().any(|window| window.is_open(now)));
        let request = requests.entry(sync.clone()).or_insert_with(|| Request {
            list: list.clone(),
            remaining,
            scopes: BTreeMap::new(),
        });
        if request.list != *list {
            request.list = list.clone();
            request.scopes.clear();
        }
        request.remaining = remaining;
        let until = now.checked_add(limits.window).unwrap_or(Timestamp::MAX);
        request.scopes.insert(limits.scope, Window { since: now, until });
    }

    /// Forgets a request that is complete.
    pub(super) fn end(&self, sync: &ObjectKey) {
        self.lock().remove(sync);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a retry that is not counted for a day: the clock was wrong when its list was counted.
    #[test]
    fn a_list_does_not_count_from_the_future_on() {
        let t = |second| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let window = |since: i64| Window {
            since: t(since),
            until: t(since + 3600),
        };
        assert!(window(0).is_open(t(10)) && window(300).is_open(t(0)));
        assert!(!window(0).is_open(t(3600)) && !window(86_400).is_open(t(0)));
    }
}
