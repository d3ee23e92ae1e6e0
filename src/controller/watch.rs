//! One watch per kind: it feeds the cache, and what changed wakes who depends on it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, watcher};
use starling_core::backoff;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Change};
use super::hub::{Hub, Kind};

/// Wait after the first failure of a watch; doubles.
const FIRST_WAIT: Duration = Duration::from_millis(800);
/// The longest wait. client-go's is three times as long; but whoever is told late that the management cluster is back,
/// or has forgotten history, works on what is no longer so.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How long a watch must go without a failure for its waits to begin anew: one that lists and then fails, again and
/// again, would list in a loop.
const STEADY: Duration = Duration::from_secs(60);

/// How long to wait after each failure in a row.
struct Away {
    kind: String,
    failures: u32,
}

impl Away {
    fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            failures: 0,
        }
    }
}

impl Iterator for Away {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(backoff::delay(FIRST_WAIT, self.failures, &self.kind).min(LONGEST_WAIT))
    }
}

impl Backoff for Away {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Follows all objects of one kind until `stop`, in one namespace or in all.
///
/// The list is a consistent read (kube's default): a controller that was killed right after an admission must
/// not start from a list that lacks it.
pub(super) async fn follow<K>(
    hub: Hub,
    namespace: Option<String>,
    cache: Arc<Cache<K>>,
    on_change: impl Fn(Change<K>),
    stop: CancellationToken,
) where
    K: Kind + Send + Sync + 'static,
{
    let api: Api<DeserializeGuard<K>> = match &namespace {
        Some(namespace) => Api::namespaced(hub.client(), namespace),
        None => Api::all(hub.client()),
    };
    let kind = K::kind(&());
    // A watch error is not worth ending anything for; the backoff keeps an API server that is away from being
    // asked in a loop.
    let events = watcher(api, watcher::Config::default())
        .backoff(ResetTimerBackoff::new(Away::of(&kind), STEADY))
        .take_until(stop.cancelled_owned());
    tokio::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.observe_event(event).into_iter().for_each(&on_change),
            Err(error) => {
                tracing::warn!(kind = %kind, error = %crate::chain(&error), "watch interrupted");
                // The backoff delays the next try; this only keeps the loop from spinning should it not.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
