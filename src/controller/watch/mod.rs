//! Watches: one for each kind. A watch updates the cache of its kind and reports the changes.
//!
//! As in client-go's reflector: list, then watch from the version of the list. Every step has a deadline, so that a
//! request without a response, and a connection without an end, freeze no cache (ADR 40). A watch that ended continues
//! from its last version only if the management cluster has reached this version. If it has not, it was set back to a
//! backup: it would accept the watch, and send nothing until its counter has passed the version.

mod error;
mod retries;

use std::cmp::Ordering;
use std::sync::Arc;

use futures::TryStreamExt as _;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{DeserializeGuard, ObjectList};
use starling_core::resource_version;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::error::{WatchError, WatchInterruption, within};
use self::retries::Retries;
use super::cache::{Cache, Change, Event, SecondaryIndex};
use super::hub::{Hub, Kind};
use super::readiness::WatchState;
use super::suspicions::KindSuspicions;
use crate::controller::waits;

/// Number of objects in one page of a list, as in client-go.
const PAGE: u32 = 500;

/// A report of a watch.
#[derive(Debug)]
pub(super) enum WatchReport<K> {
    /// An object changed.
    Changed(Change<K>),
    /// The management cluster was set back: values that were computed for a version or a generation may be of objects
    /// that no longer exist. Comes before the changes.
    SetBack,
}

/// Watches all objects of one kind until `stop`, in one namespace or in all.
///
/// The list is a consistent read: a controller that was killed right after an admission must not start from a list
/// without it.
pub(super) async fn follow<K, B>(
    hub: Hub,
    namespace: Option<String>,
    cache: Arc<Cache<K, B>>,
    (state, suspicions): (WatchState, KindSuspicions),
    report: impl Fn(WatchReport<K>),
    stop: CancellationToken,
) where
    K: Kind + Send + Sync + 'static,
    B: SecondaryIndex<K>,
{
    let objects: Api<DeserializeGuard<K>> = match &namespace {
        Some(namespace) => Api::namespaced(hub.client(), namespace),
        None => Api::all(hub.client()),
    };
    let mut watcher = Watcher {
        kind: K::kind(&()).into_owned(),
        objects,
        cache,
        state,
        suspicions,
        report,
        list_timeouts: 0,
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = watcher.run() => {}
    }
}

/// The watch of one kind.
struct Watcher<K, B, R> {
    kind: String,
    objects: Api<DeserializeGuard<K>>,
    cache: Arc<Cache<K, B>>,
    state: WatchState,
    suspicions: KindSuspicions,
    report: R,
    /// Consecutive lists that got no response in time.
    list_timeouts: u32,
}

impl<K, B, R> Watcher<K, B, R>
where
    K: Kind + Send + Sync + 'static,
    B: SecondaryIndex<K>,
    R: Fn(WatchReport<K>),
{
    /// Watches forever. No error ends the watch; the backoff prevents requests in a loop while the management cluster
    /// is not available.
    async fn run(&mut self) {
        let mut retries = Retries::of(&self.kind);
        let mut position = None;
        loop {
            position = match self.advance(position.take()).await {
                Ok(version) => version,
                Err(WatchInterruption { error, resume_at }) => {
                    self.state.interrupted();
                    tracing::warn!(kind = %self.kind, error = %crate::chain(&error), "watch interrupted");
                    tokio::time::sleep(retries.next_wait()).await;
                    resume_at
                }
            }
        }
    }

    /// Continues from a version, or lists all objects first, and watches until the watch ends. Returns the version to
    /// continue from; `None`: a list is needed.
    async fn advance(&mut self, position: Option<String>) -> Result<Option<String>, WatchInterruption> {
        let version = match position {
            Some(version) if self.has_reached(&version).await? => version,
            Some(_) | None => self.list().await?,
        };
        self.watch(version).await
    }

    /// Returns whether the management cluster has reached a version.
    async fn has_reached(&self, version: &str) -> Result<bool, WatchError> {
        let one = ListParams::default().limit(1);
        let list = within("list", waits::HUB_TIMEOUT, self.objects.list_metadata(&one)).await?;
        let current = list_version(&list).ok_or(WatchError::NoVersion)?;
        let has = resource_version::compare(&current, version) != Some(Ordering::Less);
        if !has {
            tracing::warn!(kind = %self.kind, version, current, "management cluster was set back; listing again");
            let _ = self.suspicions.raise();
        }
        Ok(has)
    }

    /// Replaces the content of the cache with a complete list, and returns the version of the list.
    async fn list(&mut self) -> Result<String, WatchError> {
        let mut suspicions = self.suspicions.count();
        self.cache.begin_list();
        let mut page = ListParams::default().limit(PAGE);
        // The version of the first page: the watch repeats what changed between the pages, if a server shows that.
        let mut version = None;
        loop {
            let list = self.page(&page).await?;
            version = version.or_else(|| list_version(&list));
            let rest = list.metadata.continue_.filter(|rest| !rest.is_empty());
            list.items
                .into_iter()
                .for_each(|object| self.cache.receive(object));
            match rest {
                Some(rest) => page = page.continue_token(&rest),
                None => break,
            }
        }
        let version = version.ok_or(WatchError::NoVersion)?;
        // The first list enqueues no keys: a start enqueues all objects, spread over time. The cache counts as complete
        // before its changes are reported, so `report` does not handle the start.
        let is_news = self.cache.is_synced();
        let replaced = self.cache.complete_list(&version);
        self.state.listed();
        if replaced.was_set_back {
            tracing::warn!(kind = %self.kind, version, "the complete list is older than known objects and replaces them");
            // The list that raises a suspicion answers it.
            suspicions = self.suspicions.raise().unwrap_or(suspicions);
            (self.report)(WatchReport::SetBack);
        }
        if is_news {
            replaced
                .changes
                .into_iter()
                .for_each(|change| (self.report)(WatchReport::Changed(change)));
        }
        self.suspicions.listed(suspicions);
        Ok(version)
    }

    /// Reads one page of a list. After a timeout the next list gets twice the time, so that a slow server is not
    /// requested to begin anew forever.
    async fn page(&mut self, page: &ListParams) -> Result<ObjectList<DeserializeGuard<K>>, WatchError> {
        let factor = 2u32.saturating_pow(self.list_timeouts.min(16));
        let deadline = waits::HUB_TIMEOUT
            .saturating_mul(factor)
            .min(waits::LIST_LONGEST_TIMEOUT);
        let listed = within("list", deadline, self.objects.list(page)).await;
        self.list_timeouts = match &listed {
            Err(WatchError::Timeout { .. }) => self.list_timeouts.saturating_add(1),
            Ok(_) | Err(_) => 0,
        };
        listed
    }

    /// Passes the events after a version to the cache, until the server ends the watch. Returns the version of the last
    /// event; `None`: a list is needed, because the management cluster may have been set back.
    async fn watch(&mut self, version: String) -> Result<Option<String>, WatchInterruption> {
        let lasts = waits::around(waits::WATCH_TIMEOUT, &self.kind);
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        let began = Instant::now();
        let params = WatchParams::default().timeout(seconds);
        let events = within("watch", waits::HUB_TIMEOUT, self.objects.watch(&params, &version)).await?;
        tokio::pin!(events);
        self.state.opened();
        let mut position = version;
        loop {
            let next = tokio::select! {
                biased;
                () = self.suspicions.list_needed() => return Ok(None),
                next = timeout(lasts + waits::WATCH_MARGIN, events.try_next()) => next,
            };
            let event = match next {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) if began.elapsed() < waits::WATCH_SHORTEST => {
                    return Err(WatchError::EndedAtOnce.resuming_at(position));
                }
                Ok(Ok(None)) => {
                    self.state.ended();
                    return Ok(Some(position));
                }
                Ok(Err(source)) => return Err(WatchError::request("watch", source).resuming_at(position)),
                Err(_) => return Err(WatchError::Silent(lasts + waits::WATCH_MARGIN).resuming_at(position)),
            };
            position = self.observe(event)?;
            self.state.confirmed();
        }
    }

    /// Passes an event to the cache and returns its version.
    fn observe(&self, event: WatchEvent<DeserializeGuard<K>>) -> Result<String, WatchError> {
        let (event, version) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = version_of(&object);
                (Event::Apply(object), version)
            }
            WatchEvent::Deleted(object) => {
                let version = version_of(&object);
                (Event::Delete(object), version)
            }
            WatchEvent::Bookmark(bookmark) => return Ok(bookmark.metadata.resource_version),
            // After any error a list shows the current state; after 410, which is the usual one, nothing else does.
            WatchEvent::Error(status) => return Err(WatchError::Refused(status)),
        };
        let version = version.ok_or(WatchError::NoVersion)?;
        if let Some(change) = self.cache.observe_event(event) {
            (self.report)(WatchReport::Changed(change));
        }
        Ok(version)
    }
}

fn version_of<K: Kind>(object: &DeserializeGuard<K>) -> Option<String> {
    let metadata = match &object.0 {
        Ok(object) => object.meta(),
        Err(invalid) => &invalid.metadata,
    };
    metadata
        .resource_version
        .clone()
        .filter(|version| !version.is_empty())
}

fn list_version<K: Clone>(list: &ObjectList<K>) -> Option<String> {
    list.metadata
        .resource_version
        .clone()
        .filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests;
